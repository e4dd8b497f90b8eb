"""The summary of a file: which names it calls, derives from and imports, read off its text without a parse.

It over-approximates (a comment or a string counts), so it answers only "which files are worth parsing"; the tree of
those files then decides. It is small and serializable, for a cache and for worker processes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_CALLED = re.compile(r"([^\W\d]\w*)[ \t]*\(")
_BASES = re.compile(r"^[ \t]*class[ \t]+[^\W\d]\w*[ \t]*\(([^)]*)", re.MULTILINE)
_RENAMED = re.compile(r"([^\W\d]\w*)[ \t]+as[ \t]+([^\W\d]\w*)")
_WORD = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class Summary:
    """Names without their dots: `self.scaler.step(opt)` calls `step`. An import's `as` name counts as its original."""

    called: frozenset[str]
    bases: frozenset[str]


def summarize(text: str) -> Summary:
    """The summary of a Python text."""
    called = set(_CALLED.findall(text))
    bases = {word for listed in _BASES.findall(text) for word in _WORD.findall(listed)}
    for original, renamed in _RENAMED.findall(text):
        for names in (called, bases):
            if renamed in names:
                names.add(original)
    return Summary(frozenset(called), frozenset(bases))
