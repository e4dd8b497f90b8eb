"""IPython's own syntax in a notebook cell, masked so that the rest reads as Python, character for character."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

# Cell magics whose body is Python of this program; the bodies of others are another language or another program.
_PYTHON_CELLS = ("capture", "memit", "prun", "time", "timeit")
_CELL_MAGIC = re.compile(r"[ \t\r\n]*%%(?P<name>\w+)[^\r\n]*")
_LINE_MAGIC = re.compile(
    r"""^[ \t]*(?:
        (?P<timed>%time[ \t]+)(?=\S)                            # runs the Python after it
      | (?P<command>[%!?].*)                                    # %magic, !command, ?help
      | [\w.,\[\]"' \t*()]+?=[ \t]*(?P<assigned>[%!].*)         # files = !ls
      | (?P<help>[\w.\[\]"'*]+\?{1,2}[ \t]*$)                   # help?
    )""",
    re.VERBOSE,
)
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
_MAX_REPAIRS = 200


@dataclass(frozen=True, slots=True)
class Cell:
    """The Python of one cell: as long as its source, line for line. `error` says why there is none of it."""

    python: str
    error: SyntaxError | None = None


def python_of(source: str) -> Cell:
    """What of a cell's source is Python, with blanks or names of underscores in the place of the rest.

    A cell that is no Python even so becomes blank, with the error.
    """
    if magic := _CELL_MAGIC.match(source):
        if magic["name"] not in _PYTHON_CELLS:
            return Cell(_blank(source))
        source = _underscores(source, magic.start("name") - 2, magic.end())
    lines = [_Line(match.start(), match.end()) for match in _LINE.finditer(source) if match[0]]
    for _ in range(_MAX_REPAIRS):
        error = _error(source)
        if error is None:
            return Cell(source)
        repaired = _without_magic(source, lines, error.lineno or 1)
        if repaired is None:
            return Cell(source) if _is_newer_python(source) else Cell(_blank(source), error)
        source = repaired
    return Cell(_blank(source), error)


@dataclass(frozen=True, slots=True)
class _Line:
    start: int
    end: int


def _error(source: str) -> SyntaxError | None:
    try:
        ast.parse(source)
    except SyntaxError as error:
        return error
    except (ValueError, RecursionError, MemoryError) as error:
        return SyntaxError(str(error))
    return None


def _is_newer_python(source: str) -> bool:
    from amplint.lower import parse_with_libcst

    try:
        parse_with_libcst(source)
    except SyntaxError:
        return False
    return True


def _without_magic(source: str, lines: list[_Line], number: int) -> str | None:
    """`source` without the magic that the error at line `number` is about: that of the line, or the last before it."""
    for line in reversed(lines[:number]):
        match = _LINE_MAGIC.match(source[line.start : line.end].rstrip("\r\n"))
        if match is None:
            continue
        if match["timed"]:
            start, end = match.span("timed")
            return f"{source[: line.start + start]}0;{' ' * (end - start - 2)}{source[line.start + end :]}"
        kind = match.lastgroup
        assert kind is not None
        start = line.start + match.end(kind) - len(match[kind].lstrip())
        return _underscores(source, start, _end_of_command(source, line.start + match.end(kind)))
    return None


def _end_of_command(source: str, end: int) -> int:
    """The end of a command that backslashes carry on over lines."""
    while source[:end].endswith("\\") and end < len(source):
        following = _LINE.match(source, _after_newline(source, end))
        assert following is not None
        end = following.start() + len(following[0].rstrip("\r\n"))
    return end


def _after_newline(source: str, offset: int) -> int:
    return offset + (2 if source.startswith("\r\n", offset) else 1)


def _underscores(source: str, start: int, end: int) -> str:
    """`source` with `start` to `end` as a name of underscores; lines that a backslash adds become blank."""
    first, *rest = _pieces(source[start:end])
    is_continued = bool(rest)
    masked = "_" * (len(first.rstrip("\\\r\n")) or 1)
    masked = masked.ljust(len(first)) if not is_continued else masked + first[len(masked) :]
    return source[:start] + masked + "".join(_continued(piece) for piece in rest) + source[end:]


def _continued(piece: str) -> str:
    body = piece.rstrip("\\\r\n")
    return " " * len(body) + piece[len(body) :]


def _pieces(text: str) -> Iterator[str]:
    return (match[0] for match in _LINE.finditer(text) if match[0])


def _blank(source: str) -> str:
    return re.sub(r"[^\r\n]", " ", source)
