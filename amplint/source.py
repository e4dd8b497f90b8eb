"""Bytes to text and back, exactly: encodings, BOM, newlines; and the three ways to name a place in a text."""

from __future__ import annotations

import ast
import codecs
import re
from bisect import bisect_right
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from amplint.rule import Edit, Position

_COOKIE = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_BLANK = re.compile(rb"^[ \t\f]*(?:#[^\r\n]*)?(?:\r?\n|\r|$)")
_NEWLINE = re.compile(r"\r\n|\r|\n")
_WIDE = re.compile(r"[^\x00-\x7f]")


class UnreadableSourceError(Exception):
    """The bytes are no text in the encoding they declare. `line` is where that shows, 1-based."""

    def __init__(self, message: str, line: int = 1) -> None:
        super().__init__(message)
        self.line = line


class SkippedSourceError(UnreadableSourceError):
    """The file is fine, but not ours to judge; the message says why."""


class Source:
    """The text of one Python file, with what is needed to write it back byte for byte.

    `text` keeps the file's own newlines. Offsets are indices into `text`; `ast` columns are UTF-8 bytes.
    """

    def __init__(self, path: Path, text: str, encoding: str = "utf-8", bom: bytes = b"") -> None:
        self.path = path
        self.text = text
        self.encoding = encoding
        self.bom = bom
        self.unreadable: list[tuple[Position, str]] = []
        """Parts that are no Python (cells of a notebook): the first place of each in `text`, and why."""

    @classmethod
    def from_bytes(cls, path: Path, data: bytes) -> Source:
        """Decode as Python would: BOM, then the cookie of the first two lines, then UTF-8."""
        bom = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
        body = data[len(bom) :]
        encoding = _declared_encoding(body) or "utf-8"
        try:
            if bom and codecs.lookup(encoding).name != "utf-8":
                raise UnreadableSourceError(f"a UTF-8 mark, but the cookie says {encoding}")
            text = body.decode(encoding)
        except LookupError:
            raise UnreadableSourceError(f"unknown encoding: {encoding}") from None
        except UnicodeDecodeError as error:
            line = body.count(b"\n", 0, error.start) + 1
            raise UnreadableSourceError(f"not {encoding} text: {error.reason}", line) from None
        return cls(path, text, encoding, bom)

    def edited(self, edits: Iterable[Edit]) -> Source:
        """This file with `edits` made in its text."""
        return Source(self.path, apply_edits(self.text, edits), self.encoding, self.bom)

    def to_bytes(self, text: str) -> bytes:
        """The bytes of `text` in this file's encoding, with its BOM."""
        return self.bom + text.encode(self.encoding)

    @cached_property
    def line_starts(self) -> list[int]:
        """The offset at which each line begins; lines end as Python's do (LF, CRLF or CR)."""
        return [0, *(match.end() for match in _NEWLINE.finditer(self.text))]

    @cached_property
    def newline(self) -> str:
        """The file's newline: the one it uses first."""
        match = _NEWLINE.search(self.text)
        return match[0] if match else "\n"

    @cached_property
    def _ascii(self) -> bool:
        return self.text.isascii()

    @cached_property
    def _wide(self) -> dict[int, tuple[list[int], list[int]]]:
        """Of each line asked for: the byte columns after its non-ASCII characters, and the bytes beyond one so far."""
        return {}

    def offset(self, line: int, byte_column: int) -> int:
        """The offset of an `ast` place: 1-based line, column in UTF-8 bytes."""
        start = self.line_starts[line - 1]
        if self._ascii:
            return start + byte_column
        if line not in self._wide:
            self._wide[line] = self._wide_columns(line)
        columns, surplus = self._wide[line]
        return start + byte_column - surplus[bisect_right(columns, byte_column)]

    def _wide_columns(self, line: int) -> tuple[list[int], list[int]]:
        start = self.line_starts[line - 1]
        end = self.line_starts[line] if line < len(self.line_starts) else len(self.text)
        columns, surplus = [], [0]
        for match in _WIDE.finditer(self.text, start, end):
            surplus.append(surplus[-1] + len(match[0].encode("utf-8", "surrogatepass")) - 1)
            columns.append(match.end() - start + surplus[-1])
        return columns, surplus

    def position(self, offset: int) -> Position:
        """The 1-based line and column (in characters) of an offset."""
        line = bisect_right(self.line_starts, offset)
        return Position(line, offset - self.line_starts[line - 1] + 1)

    def locate(self, position: Position) -> tuple[int | None, Position]:
        """Where a place of the text is in the file: the notebook cell (1-based; None in a module), and there."""
        return None, position

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The offsets a located node covers. A definition's span starts at `def` or `class`, not at a decorator."""
        line, column = node.lineno, node.col_offset  # type: ignore[attr-defined]
        end_line, end_column = node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
        return self.offset(line, column), self.offset(end_line, end_column)

    def segment(self, node: ast.AST) -> str:
        """The text of a located node, verbatim (without parentheses around it)."""
        start, end = self.span(node)
        return self.text[start:end]

    def line(self, number: int) -> str:
        """The text of a 1-based line, without its newline."""
        start = self.line_starts[number - 1]
        end = self.line_starts[number] if number < len(self.line_starts) else len(self.text)
        return self.text[start:end].rstrip("\r\n")


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """`text` with `edits` made. They must not overlap; insertions at one place keep their order."""
    parts, done = [], 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        if edit.start < done:
            raise ValueError(f"overlapping edits at {edit.start}")
        parts += [text[done : edit.start], edit.text]
        done = edit.end
    return "".join([*parts, text[done:]])


def _declared_encoding(body: bytes) -> str | None:
    """The encoding that a cookie on the first two lines declares (PEP 263)."""
    rest = body
    for _ in range(2):
        line = re.split(rb"\r\n|\r|\n", rest[:4096], maxsplit=1)[0]
        if match := _COOKIE.match(line):
            return match[1].decode("ascii", "replace")
        blank = _BLANK.match(rest)
        if not blank or blank.end() == 0:
            return None
        rest = rest[blank.end() :]
    return None
