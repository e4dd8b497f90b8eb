"""Memory for answers about a project that also remembers which primitive questions each answer rests on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from amplint.project.asked import NOTHING, Asked, Question, Recording

T = TypeVar("T")

_MAX_DEPTH = 80
_MAX_WORK = 4_000


class Questions:
    """Answers by key. A question that comes up again while it is being answered gets the default.

    An answer that rests on such a default of an outer question is not kept: it would depend on which question
    happened to be asked first.
    """

    def __init__(self) -> None:
        self._answers: dict[Hashable, tuple[Any, Asked]] = {}
        self._questions: dict[Question, Question] = {}
        self._open: set[Hashable] = set()
        self._frames: list[Recording] = []
        self._work = 0
        self.answered = 0
        """How many questions were worked out so far."""

    def __len__(self) -> int:
        return len(self._answers)

    def clear(self) -> None:
        self._answers.clear()
        self._questions.clear()

    @contextmanager
    def recording(self) -> Iterator[Recording]:
        """Records the primitive questions that answers within the block rest on."""
        frame = Recording()
        try:
            with self.apart(frame):
                yield frame
        finally:
            self.rest_on(frame.close())
            if self._frames:
                self._frames[-1].unanswered |= frame.unanswered

    @contextmanager
    def apart(self, frame: Recording) -> Iterator[None]:
        """Records the questions asked within the block, on which nothing around it comes to rest."""
        self._frames.append(frame)
        try:
            yield
        finally:
            self._frames.pop()

    def note(self, *question: str) -> None:
        """A primitive question was asked."""
        if self._frames:
            self._frames[-1].own[self._questions.setdefault(question, question)] = None

    def rest_on(self, asked: Asked) -> None:
        """All of these primitive questions were asked."""
        if self._frames and asked is not NOTHING:
            self._frames[-1].parts[asked] = None

    def remember(self, key: Hashable, answer: Callable[[], T], default: T) -> T:
        """The answer to `key`, worked out once. `default` if that needs itself, or is too deep or too much work."""
        if key in self._answers:
            known, rests_on = self._answers[key]
            self.rest_on(rests_on)
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
            self.rest_on(frame.close())
        frame.unanswered.discard(key)
        outer.unanswered |= frame.unanswered
        if not frame.unanswered:
            self._answers[key] = result, frame.asked
        return result
