"""What an answer rests on: the primitive questions that were asked on the way to it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

Question = tuple[str, ...]
"""A primitive and its arguments: `("module", path)`, `("files_calling", "step")`."""


class Asked:
    """A set of primitive questions: some of its own, and those of other answers, which are shared, not copied."""

    __slots__ = ("own", "parts")

    def __init__(self, own: tuple[Question, ...] = (), parts: tuple[Asked, ...] = ()) -> None:
        self.own = own
        self.parts = parts

    def questions(self) -> list[Question]:
        """All of them, each once."""
        found: dict[Question, None] = {}
        seen = {self}
        stack = [self]
        while stack:
            asked = stack.pop()
            found.update(dict.fromkeys(asked.own))
            new = [part for part in asked.parts if part not in seen]
            seen.update(new)
            stack += new
        return list(found)


NOTHING = Asked()


@dataclass(slots=True)
class Recording:
    """A question being answered: what it rests on so far, and the outer questions that it could not await."""

    own: dict[Question, None] = field(default_factory=dict)
    parts: dict[Asked, None] = field(default_factory=dict)
    unanswered: set[Hashable] = field(default_factory=set)
    asked: Asked = NOTHING
    """What it rests on, once it is closed."""

    def close(self) -> Asked:
        """What it rests on in all."""
        if self.own or len(self.parts) > 1:
            self.asked = Asked(tuple(self.own), tuple(self.parts))
        elif self.parts:
            (self.asked,) = self.parts
        return self.asked
