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


@dataclass
class _Frame:
    """A question being answered: the primitives it rests on so far, and the outer questions it could not await."""

    asked: set[Question] = field(default_factory=set)
    unanswered: set[Hashable] = field(default_factory=set)


class Questions:
    """Answers by key. A question that comes up again while it is being answered gets the default.

    An answer that rests on such a default of an outer question is not kept: it would depend on which question
    happened to be asked first.
    """

    def __init__(self) -> None:
        self._answers: dict[Hashable, tuple[Any, frozenset[Question]]] = {}
        self._open: set[Hashable] = set()
        self._frames: list[_Frame] = []
        self._work = 0

    def clear(self) -> None:
        self._answers.clear()

    @contextmanager
    def recording(self) -> Iterator[set[Question]]:
        """The primitive questions that answers within the block rest on."""
        frame = _Frame()
        self._frames.append(frame)
        try:
            yield frame.asked
        finally:
            self._frames.pop()
            if self._frames:
                self._frames[-1].asked |= frame.asked

    def note(self, *question: str) -> None:
        """A primitive question was asked."""
        if self._frames:
            self._frames[-1].asked.add(question)

    def rest_on(self, questions: frozenset[Question]) -> None:
        """All of these primitive questions were asked."""
        if self._frames:
            self._frames[-1].asked |= questions

    def remember(self, key: Hashable, answer: Callable[[], T], default: T) -> T:
        """The answer to `key`, worked out once. `default` if that needs itself, or is too deep or too much work."""
        if key in self._answers:
            known, rests_on = self._answers[key]
            if self._frames:
                self._frames[-1].asked |= rests_on
            return known  # type: ignore[no-any-return]
        outer = self._frames[-1] if self._frames else _Frame()
        if not self._open:
            self._work = 0
        self._work += 1
        if key in self._open:
            outer.unanswered.add(key)
            return default
        if len(self._open) > _MAX_DEPTH or self._work > _MAX_WORK:
            outer.unanswered |= self._open
            return default
        frame = _Frame()
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
            self._answers[key] = result, frozenset(frame.asked)
        return result
