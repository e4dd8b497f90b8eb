"""Memory for answers about a project that also remembers which primitive questions each answer rests on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Question = tuple[str, ...]
"""A primitive and its arguments: `("module", path)`, `("files_calling", "step")`."""

T = TypeVar("T")

_MAX_DEPTH = 60
_MAX_WORK = 20_000


class Questions:
    """Answers by key. A question that comes up again while it is being answered gets the default.

    An answer that rests on such a default of an outer question is not kept: it would depend on which question
    happened to be asked first.
    """

    def __init__(self) -> None:
        self._answers: dict[Hashable, tuple[Any, frozenset[Question]]] = {}
        self._open: dict[Hashable, None] = {}
        self._circular: set[Hashable] = set()
        self._recorders: list[set[Question]] = []
        self._work = 0

    def clear(self) -> None:
        self._answers.clear()

    @contextmanager
    def recording(self) -> Iterator[set[Question]]:
        """The primitive questions that answers within the block rest on."""
        asked: set[Question] = set()
        self._recorders.append(asked)
        try:
            yield asked
        finally:
            self._recorders.pop()
            if self._recorders:
                self._recorders[-1] |= asked

    def note(self, *question: str) -> None:
        """A primitive question was asked."""
        if self._recorders:
            self._recorders[-1].add(question)

    def remember(self, key: Hashable, answer: Callable[[], T], default: T) -> T:
        """The answer to `key`, worked out once. `default` if that needs itself, or is too deep or too much work."""
        if key in self._answers:
            known, rests_on = self._answers[key]
            if self._recorders:
                self._recorders[-1] |= rests_on
            return known  # type: ignore[no-any-return]
        if not self._open:
            self._work = 0
        self._work += 1
        if key in self._open or len(self._open) > _MAX_DEPTH or self._work > _MAX_WORK:
            self._circular |= self._open.keys() if key not in self._open else {key}
            return default
        self._open[key] = None
        try:
            with self.recording() as asked:
                result = answer()
        finally:
            del self._open[key]
            self._circular.discard(key)
        if not self._circular:
            self._answers[key] = result, frozenset(asked)
        return result
