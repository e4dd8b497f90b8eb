"""Memory for answers about a project that also remembers which primitive questions each answer rests on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

Question = tuple[str, ...]
"""A primitive and its arguments: `("module", path)`, `("files_calling", "step")`."""

T = TypeVar("T")

_MAX_DEPTH = 80
_MAX_WORK = 4_000


Asked = int
"""A set of primitive questions: the bit of each one's number is set. Many answers rest on the same few sets."""


@dataclass(slots=True)
class Recording:
    """A question being answered: the primitives it rests on so far, and the outer questions it could not await."""

    asked: Asked = 0
    unanswered: set[Hashable] = field(default_factory=set)


class Questions:
    """Answers by key. A question that comes up again while it is being answered gets the default.

    An answer that rests on such a default of an outer question is not kept: it would depend on which question
    happened to be asked first.
    """

    def __init__(self) -> None:
        self._answers: dict[Hashable, tuple[Any, Asked]] = {}
        self._numbers: dict[Question, int] = {}
        self._kept: dict[Asked, Asked] = {}
        self._open: set[Hashable] = set()
        self._frames: list[Recording] = []
        self._work = 0
        self.answered = 0
        """How many questions were worked out so far."""

    def __len__(self) -> int:
        return len(self._answers)

    def clear(self) -> None:
        self._answers.clear()

    @contextmanager
    def recording(self) -> Iterator[Recording]:
        """Records the primitive questions that answers within the block rest on."""
        frame = Recording()
        self._frames.append(frame)
        try:
            yield frame
        finally:
            self._frames.pop()
            if self._frames:
                self._frames[-1].asked |= frame.asked
                self._frames[-1].unanswered |= frame.unanswered

    def note(self, *question: str) -> None:
        """A primitive question was asked."""
        if self._frames:
            self._frames[-1].asked |= 1 << self._numbers.setdefault(question, len(self._numbers))

    def rest_on(self, asked: Asked) -> None:
        """All of these primitive questions were asked."""
        if self._frames:
            self._frames[-1].asked |= asked

    def kept(self, asked: Asked) -> Asked:
        """The same set, as the one object that stands for all equal ones."""
        return self._kept.setdefault(asked, asked)

    def listed(self, asked: Asked) -> list[Question]:
        """The primitive questions of a set."""
        return [question for question, number in self._numbers.items() if asked >> number & 1]

    def remember(self, key: Hashable, answer: Callable[[], T], default: T) -> T:
        """The answer to `key`, worked out once. `default` if that needs itself, or is too deep or too much work."""
        if key in self._answers:
            known, rests_on = self._answers[key]
            if self._frames:
                self._frames[-1].asked |= rests_on
            return known  # type: ignore[no-any-return]
        outer = self._frames[-1] if self._frames else Recording()
        if not self._open:
            self._work = 0
        self._work += 1
        if key in self._open:
            outer.unanswered.add(key)
            return default
        if len(self._open) > _MAX_DEPTH or self._work > _MAX_WORK:
            outer.unanswered |= self._open
            return default
        frame = Recording()
        self.answered += 1
        self._open.add(key)
        self._frames.append(frame)
        try:
            result = answer()
        finally:
            self._open.discard(key)
            self._frames.pop()
            outer.asked |= frame.asked
        frame.unanswered.discard(key)
        outer.unanswered |= frame.unanswered
        if not frame.unanswered:
            self._answers[key] = result, self.kept(frame.asked)
        return result
