"""Memory for the value analysis: each question is answered once, and what the answer rests on is kept with it."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from amplint.project import Asked, Project, Recording

T = TypeVar("T")

_MAX_DEPTH = 240
"""How many questions may wait for each other. Each takes some eight Python calls."""

_MAX_WORK = 1_500
"""How many questions one outermost question may open."""

_MAX_RENEWED = 90_000
"""How many questions, those to the project with them, one that is many in one may open in all: half a minute."""

_MAX_PART = 2_000
"""How many questions each part of such a one may open."""

_NOTHING = sys.maxsize


class Memo:
    """Answers by key. A question that needs itself, or is too deep or too much work, gets its bottom.

    An answer that rests on the bottom of a question still open is provisional: it is forgotten when that question
    closes, as it depends on which of the two was asked first. Until then it spares working it out again, so that
    the cost of a circle stays linear. What a bound cut short is kept: it is incomplete, but never wrong.
    """

    def __init__(self, project: Project, lasting: Collection[str]) -> None:
        """`lasting` are the keys of what is worked out once, and holds no tree."""
        self._project = project
        self._lasting = lasting
        self._answers: dict[Hashable, tuple[Any, Asked]] = {}
        self._open: dict[Hashable, int] = {}
        self._provisional: dict[Hashable, int] = {}
        self._resting_on: defaultdict[int, list[Hashable]] = defaultdict(list)
        self._rests_on = _NOTHING
        self._work = self._spent = 0
        self._measure = _MAX_WORK
        self._answered = 0
        sys.setrecursionlimit(max(sys.getrecursionlimit(), 16 * _MAX_DEPTH))

    def remember(self, key: Hashable, answer: Callable[[], T], bottom: Callable[[], T]) -> T:
        known = self._answers.get(key)
        if known is not None:
            self._rests_on = min(self._rests_on, self._provisional.get(key, _NOTHING))
            self._project.rest_on(known[1])
            return known[0]  # type: ignore[no-any-return]
        depth = len(self._open)
        if depth == 0:
            self._work = self._spent = 0
            self._answered = self._project.answered
            self._measure = _MAX_WORK
        self._work += 1
        if key in self._open:
            self._rests_on = min(self._rests_on, self._open[key])
            return bottom()
        if depth >= _MAX_DEPTH or self._work > self._measure:
            return bottom()
        return self._work_out(key, depth, answer)

    def __len__(self) -> int:
        return len(self._answers)

    def forget(self) -> None:
        """Drop all answers but those that last. What is being answered goes on."""
        self._answers = {key: self._answers[key] for key in self._lasting if key in self._answers}
        self._provisional.clear()
        self._resting_on.clear()

    def abandon(self) -> None:
        """Give up what is being answered: the work was interrupted."""
        self._open.clear()
        self._rests_on = _NOTHING

    def renew(self) -> bool:
        """The question being answered is many in one: what follows is its next part.

        False once all of it together has taken `_MAX_RENEWED`: it should come to an end.
        """
        self._spent += self._work + self._project.answered - self._answered
        self._answered = self._project.answered
        self._work, self._measure = 0, _MAX_PART
        return self._spent < _MAX_RENEWED

    def _work_out(self, key: Hashable, depth: int, answer: Callable[[], T]) -> T:
        around, self._rests_on = self._rests_on, _NOTHING
        self._open[key] = depth
        try:
            with self._recording(key) as recording:
                result = answer()
        finally:
            del self._open[key]
            self._forget(depth)
            rests_on = self._rests_on if self._rests_on < depth else _NOTHING
            self._rests_on = min(around, rests_on)
        self._answers[key] = result, recording.asked
        if rests_on is not _NOTHING:
            self._provisional[key] = rests_on
            self._resting_on[rests_on].append(key)
        return result

    def _recording(self, key: Hashable) -> AbstractContextManager[Recording]:
        is_lasting = isinstance(key, str) and key in self._lasting
        return self._project.stage() if is_lasting else self._project.recording()

    def _forget(self, depth: int) -> None:
        """Drop what rests on the question at `depth`, which closes."""
        for key in self._resting_on.pop(depth, ()):
            del self._provisional[key], self._answers[key]
