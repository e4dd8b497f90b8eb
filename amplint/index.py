"""What a file's text tells without a parse: whether it calls, derives from or defines something of a given name.

It over-approximates (a comment or a string counts), so it answers only "which files are worth parsing"; the tree of
those files then decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

_WORD = re.compile(r"\w+")
_CALL = re.compile(r"\b\w+(?=\()")
_WORD_OR_CALL = re.compile(r"\w+\(?")
_ONLY_WORDS = {code: " " for code in range(128) if not (chr(code).isalnum() or chr(code) in "_(")}
_QUOTES = '"' * 3
_LONGEST_NAME = 80
_LONGEST_HEAD = 1000
"""Characters of a class's name and bases that are read."""
_SWITCHES = tuple(
    map(
        re.compile,
        (
            *("autocast", r"\.half\b", r"float16(?<!bfloat16)", r"fp16(?<=['\"]fp16)", "16-mixed", "HalfTensor"),
            *(r"Accelerator\b(?<=\bAccelerator)", r"Fabric\b(?<=\bFabric)", r"amp\.initialize\b(?<=\bamp\.initialize)"),
        ),
    )
)
"""Each begins with plain letters: that makes a search ten times faster."""
_FUNCTION = re.compile(r"def +(\w+)")
_CLASS = re.compile(r"class +(\w+)")
_ATTRIBUTE = re.compile(r"self\.(\w+) *(?::[^=\n]*)?=(?!=)")
_STATEMENT = re.compile(
    r"^[ \t]*(?:import[ \t]+([^\n#;]+)|from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n#;]+))", re.MULTILINE
)
_COMMENT = re.compile(r"#[^\n]*")
_DOTTED = re.compile(r"[.\w]+")
_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+([.\w]+)", re.MULTILINE)


def called(text: str) -> set[str]:
    """The (undotted) names of what seems to be called, and what the called names were imported as."""
    squeezed = text.replace(" (", "(")
    if text.isascii():  # twice as fast as the pattern
        parts = squeezed.translate(_ONLY_WORDS).split("(")
        names = {part.rpartition(" ")[2] for part in parts[:-1]}
    else:
        names = set(_CALL.findall(squeezed))
    return _with_originals(text, names)


def passed(text: str) -> set[str]:
    """The names that stand without being called there: what may be handed on, but also what an import names."""
    text = text.replace(" (", "(")
    words = text.translate(_ONLY_WORDS) if text.isascii() else " ".join(_WORD_OR_CALL.findall(text))
    return {word for word in words.replace("(", "( ").split() if word[-1] != "("}


def derived(text: str) -> set[str]:
    """The (undotted) names of what seem to be bases of classes, and what they were imported as."""
    found: set[str] = set()
    for rest in text.split("class ")[1:]:
        name, _, bases = rest[:_LONGEST_HEAD].partition("(")
        if name.isidentifier():
            found.update(_WORD.findall(bases.partition("):")[0]))
    return _with_originals(text, found)


def code(text: str) -> str:
    """The text without its docstrings, where those can be told apart."""
    parts = text.split(_QUOTES)
    return "".join(parts[::2]) if len(parts) % 2 and "'''" not in text else text


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
        names = [part.split(" as ")[0].strip() for part in (plain or _COMMENT.sub("", listed)).strip("()").split(",")]
        if base:
            found[base] = None
            separator = "" if base.endswith(".") else "."
            names = [f"{base}{separator}{name}" for name in names]
        found |= dict.fromkeys(name for name in names if _DOTTED.fullmatch(name))
    return list(found)


def _with_originals(text: str, names: set[str]) -> set[str]:
    """The names, and for those that `import … as` gave the names they stand for."""
    before, *parts = text.split(" as ") if names else (text,)
    for after in parts:
        alias = _WORD.match(after)
        if alias and alias[0] in names and (original := _WORD.findall(before[-_LONGEST_NAME:])):
            names.add(original[-1])
        before = after
    return names


def switched(text: str) -> set[str]:
    """{"half"} where something seems to switch half precision on, docstrings apart."""
    text = code(text)
    return {"half"} if any(switch.search(text) for switch in _SWITCHES) else set()


Summary: TypeAlias = Mapping[str, Sequence[str]]
"""What a text tells, each kind of names by its question."""

NAMES: dict[str, Callable[[str], Iterable[str]]] = {
    "files_calling": called,
    "files_deriving": derived,
    "files_passing": passed,
    "files_switching": switched,
    "defines": defined,
}
"""How a text is read for each primitive question about a name."""

IMPORTS = "imports"
"""The kind of what `imported` gives."""
LINKS = "links"
"""The kind of what `imported_names` gives."""


def summary(text: str, *, with_links: bool = False) -> Summary:
    """All names of a text, each once."""
    kinds = {**NAMES, IMPORTS: imported, **({LINKS: imported_names} if with_links else {})}
    return {kind: tuple(dict.fromkeys(read(text))) for kind, read in kinds.items()}
