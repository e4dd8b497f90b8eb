"""The summary of a file: which names it calls, defines, derives from and imports, read off its text without a parse.

It over-approximates (a comment or a string counts), so it answers only "which files are worth parsing"; the tree of
those files then decides. It is small and serializable, for a cache and for worker processes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_CALLED = re.compile(r"([^\W\d]\w*)[ \t]*\(")
_DEFINED = re.compile(r"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+([^\W\d]\w*)", re.MULTILINE)
_BASES = re.compile(r"^[ \t]*class[ \t]+[^\W\d]\w*[ \t]*\(([^)]*)", re.MULTILINE)
_IMPORTED = re.compile(r"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import\b|import[ \t]+([^\n#;]+))", re.MULTILINE)
_WORD = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class Summary:
    """Names only, without their dots: `self.scaler.step(opt)` calls `step`."""

    called: frozenset[str]
    defined: frozenset[str]
    bases: frozenset[str]
    imported: frozenset[str]
    """Dotted modules as written: `torch.nn`, `..utils`."""


def summarize(text: str) -> Summary:
    """The summary of a Python text, in one pass per question and no parse."""
    return Summary(
        called=frozenset(_CALLED.findall(text)),
        defined=frozenset(_DEFINED.findall(text)),
        bases=frozenset(word for bases in _BASES.findall(text) for word in _WORD.findall(bases)),
        imported=frozenset(_imported(text)),
    )


def _imported(text: str) -> list[str]:
    modules: list[str] = []
    for origin, plain in _IMPORTED.findall(text):
        modules += [origin] if origin else [part.split()[0] for part in plain.split(",") if part.split()]
    return modules
