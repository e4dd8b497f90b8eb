"""Patterns of `.gitignore` that no name makes slow.

pathspec turns a pattern into a regular expression in which each `*` can match in many ways; with many of them, a name
that almost fits takes for ever to refuse. But a `*` with another after it in the same folder's name may stop at the
first place that fits, since the next takes up what it left, and so may a `**` with another after it. A lookahead that
captures tries that place alone (3.10 has no atomic groups).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

_STAR = "[^/]*"
_FOLDERS = "(?:/.+)?"


class _Pattern(GitIgnoreSpecPattern):
    """One line of an ignore file."""

    @classmethod
    def pattern_to_regex(cls, pattern: str) -> tuple[str | None, bool | None]:  # type: ignore[override]
        regex, include = super().pattern_to_regex(pattern)
        return (regex and without_backtracking(regex)), include


def ignore_spec(lines: Iterable[str]) -> GitIgnoreSpec:
    """The patterns as one. Raises ValueError if one of them is none."""
    return GitIgnoreSpec.from_lines(lines, _Pattern, backend="simple")


def without_backtracking(regex: str) -> str:
    """A regular expression of pathspec that matches the same, in time that grows with the name's length alone."""
    numbers = count()
    first, *others = (_stars_once(part, numbers) for part in regex.split(_FOLDERS))
    between = [_once(f"(?:/.+?)??{part}(?=/)", numbers) for part in others[:-1]]
    return "".join([first, *between, *(_FOLDERS + part for part in others[-1:])])


def _stars_once(regex: str, numbers: count[int]) -> str:
    first, *others = regex.split(_STAR)
    parts = [first]
    for index, part in enumerate(others):
        is_followed = index + 1 < len(others) and "/" not in part
        parts.append(_once(f"[^/]*?{part}", numbers) if is_followed else _STAR + part)
    return "".join(parts)


def _once(regex: str, numbers: count[int]) -> str:
    name = f"once{next(numbers)}"
    return f"(?=(?P<{name}>{regex}))(?P={name})"
