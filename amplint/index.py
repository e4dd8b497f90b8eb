"""What a file's text tells without a parse: whether it calls, derives from or defines something of a given name.

It over-approximates (a comment or a string counts), so it answers only "which files are worth parsing"; the tree of
those files then decides. Plain searches for the name, for they are many times faster than patterns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_FUNCTION = re.compile(r"def +(\w+)")
_CLASS = re.compile(r"class +(\w+)")
_ATTRIBUTE = re.compile(r"self\.(\w+) *(?::[^=\n]*)?=(?!=)")
_STATEMENT = re.compile(
    r"^[ \t]*(?:import[ \t]+([^\n#;]+)|from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n#;]+))", re.MULTILINE
)
_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+([.\w]+)", re.MULTILINE)


def calls(text: str, name: str) -> bool:
    """Whether something of this (undotted) name, or of a name it is imported as, seems to be called."""
    return any(
        text[end : end + 8].lstrip(" \t").startswith("(")
        for spelling in _spellings(text, name)
        for _, end in _words(text, spelling)
    )


def derives(text: str, name: str) -> bool:
    """Whether a class of this (undotted) name, or of a name it is imported as, seems to be a base."""
    return any(
        "class " in text[max(0, text.rfind("(", 0, start) - 120) : start]
        for spelling in _spellings(text, name)
        for start, _ in _words(text, spelling)
    )


def defined(text: str) -> Iterator[str]:
    """The names of functions and classes, and of attributes that methods assign."""
    for pattern in (_FUNCTION, _CLASS, _ATTRIBUTE):
        yield from pattern.findall(text)


def imported(text: str) -> list[str]:
    """The dotted modules that the first names of import statements give: `..utils` of `from ..utils import f`."""
    return _IMPORT.findall(text)


def imported_names(text: str) -> list[str]:
    """The dotted names that import statements may load a file for: `a.b`, `a.b.c` of `from a.b import c`."""
    found: dict[str, None] = {}
    for plain, base, listed in _STATEMENT.findall(text):
        names = [part.split(" as ")[0].strip() for part in (plain or listed).strip("()").split(",")]
        if base:
            found[base] = None
            separator = "" if base.endswith(".") else "."
            names = [f"{base}{separator}{name}" for name in names]
        found |= dict.fromkeys(name for name in names if name and not name.endswith("*"))
    return list(found)


def _spellings(text: str, name: str) -> Iterator[str]:
    """The name, and what `import … as` makes of it."""
    yield name
    for _, end in _words(text, name):
        rest = text[end : end + 80]
        if rest.startswith(" as ") and (match := re.match(r"\w+", rest[4:].lstrip())):
            yield match[0]


def _words(text: str, name: str) -> Iterator[tuple[int, int]]:
    """Where `name` stands as a word of its own."""
    start = text.find(name)
    while start >= 0:
        end = start + len(name)
        if not _is_word(text[start - 1 : start]) and not _is_word(text[end : end + 1]):
            yield start, end
        start = text.find(name, end)


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"
