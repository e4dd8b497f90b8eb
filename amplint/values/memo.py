"""Memory for the value analysis: each question is answered once, and what the answer rests on is kept with it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from amplint.project import Project, Question

T = TypeVar("T")

_MAX_DEPTH = 240
"""How many questions may wait for each other. Each takes some eight Python calls."""

_MAX_WORK = 40_000
"""How many questions one outermost question may open."""


class Memo:
    """Answers by key. A question that needs itself, or is too deep or too much work, gets its bottom.

    An answer that rests on such a bottom of an outer question is not kept, as it depends on which was asked first.
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        self._answers: dict[Hashable, tuple[Any, frozenset[Question]]] = {}
        self._open: dict[Hashable, int] = {}
        self._outermost_cut = sys.maxsize
        self._work = 0
        sys.setrecursionlimit(max(sys.getrecursionlimit(), 16 * _MAX_DEPTH))

    def remember(self, key: Hashable, answer: Callable[[], T], bottom: Callable[[], T]) -> T:
        known = self._answers.get(key)
        if known is not None:
            self._project.rest_on(known[1])
            return known[0]  # type: ignore[no-any-return]
        depth = len(self._open)
        if depth == 0:
            self._work, self._outermost_cut = 0, sys.maxsize
        self._work += 1
        if key in self._open:
            self._outermost_cut = min(self._outermost_cut, self._open[key])
            return bottom()
        if depth >= _MAX_DEPTH or self._work > _MAX_WORK:
            self._outermost_cut = 0
            return bottom()
        self._open[key] = depth
        try:
            with self._project.recording() as asked:
                result = answer()
        finally:
            del self._open[key]
        if self._outermost_cut >= depth:
            self._outermost_cut = sys.maxsize
            self._answers[key] = result, frozenset(asked)
        return result
