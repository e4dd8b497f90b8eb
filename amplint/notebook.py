"""A notebook as one program over its code cells, and its JSON with nothing changed but the source of fixed cells."""

from __future__ import annotations

import difflib
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from amplint.magics import python_of
from amplint.rule import Edit, Position
from amplint.source import SkippedSourceError, Source, UnreadableSourceError, apply_edits

_GAP = "\n\n"  # between two cells: an empty line, so that no comment of one leads a statement of the next
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},:]|[^\s\[\]{},:"]+', re.DOTALL)
_UNIT = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u....|\\.|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _CodeCell:
    """`number` counts all cells from 1; `value` is the span of the source in the JSON, `start` that in the program."""

    number: int
    source: str
    value: tuple[int, int]
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.source)


class Notebook(Source):
    """The program of a notebook's code cells, a cell below the other. Its `text` cannot be changed but by `edited`."""

    def __init__(self, path: Path, document: str, bom: bytes = b"") -> None:
        self.document = document
        self.cells: list[_CodeCell] = []
        parts, length, line = [], 0, 1
        unreadable = []
        for number, source, value in _code_cells(document):
            self.cells.append(_CodeCell(number, source, value, length))
            cell = python_of(source)
            if cell.error is not None:
                where = line + min((cell.error.lineno or 1) - 1, source.count("\n"))
                unreadable.append((Position(where, 1), cell.error.msg))
            part = cell.python + _GAP
            parts.append(part)
            length += len(part)
            line += len(re.findall(r"\r\n|\r|\n", part))
        super().__init__(path, "".join(parts), "utf-8", bom)
        self.unreadable = unreadable

    @classmethod
    def from_bytes(cls, path: Path, data: bytes) -> Notebook:
        """Read a notebook. Raises UnreadableSourceError if it is none, SkippedSourceError if it is not for us."""
        document = Source.from_bytes(path, data)
        if document.encoding != "utf-8":
            raise UnreadableSourceError("not a notebook: it is no JSON")
        return cls(path, document.text, document.bom)

    def to_bytes(self, text: str) -> bytes:
        """The notebook's JSON. `text` must be its own."""
        if text != self.text:
            raise ValueError("the text of a notebook is changed by edits")
        return self.bom + self.document.encode("utf-8")

    def edited(self, edits: Iterable[Edit]) -> Notebook:
        """This notebook with `edits` made, each in one cell. Raises ValueError for one that reaches over two."""
        document = self.document
        for cell, own in reversed(list(self._by_cell(edits))):
            source = _edited_source(cell, own)
            start, end = cell.value
            document = f"{document[:start]}{_rewritten(document[start:end], cell.source, source)}{document[end:]}"
        return Notebook(self.path, document, self.bom)

    def locate(self, position: Position) -> tuple[int | None, Position]:
        """The cell, counted from 1 over all cells, and the place in it."""
        if not self.cells:
            return None, position
        index = max(bisect_right(self._first_lines, position.line) - 1, 0)
        return self.cells[index].number, Position(position.line - self._first_lines[index] + 1, position.column)

    @cached_property
    def _first_lines(self) -> list[int]:
        return [self.position(cell.start).line for cell in self.cells]

    def _by_cell(self, edits: Iterable[Edit]) -> Iterator[tuple[_CodeCell, list[Edit]]]:
        """The cells that edits fall in, in order, with edits relative to the cell's source and the gap after it."""
        grouped: dict[int, list[Edit]] = {}
        starts = [cell.start for cell in self.cells]
        for edit in edits:
            index = bisect_right(starts, edit.start) - 1
            if index < 0 or edit.end > self.cells[index].end + len(_GAP):
                raise ValueError("an edit reaches over two cells")
            offset = starts[index]
            grouped.setdefault(index, []).append(Edit(edit.start - offset, edit.end - offset, edit.text))
        for index in sorted(grouped):
            yield self.cells[index], grouped[index]


def _edited_source(cell: _CodeCell, edits: list[Edit]) -> str:
    """The cell's source with edits made in it and the gap after it, which ends its last line."""
    text = apply_edits(cell.source + _GAP, edits)
    for newline in reversed(_GAP):
        text = text.removesuffix(newline)
    return text


# -- the JSON --------------------------------------------------------------------------------------------------------


def _code_cells(document: str) -> Iterator[tuple[int, str, tuple[int, int]]]:
    """Number, source and span of the source's JSON value of each Python cell."""
    try:
        notebook = json.loads(document)
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise UnreadableSourceError(f"not a notebook: {getattr(error, 'msg', error)}", line) from None
    except RecursionError:
        raise UnreadableSourceError("not a notebook: too deeply nested") from None
    _refuse_what_is_not_for_us(notebook)
    spans = dict(_source_spans(document))
    for index, cell in enumerate(notebook["cells"]):
        source = cell.get("source", "")
        if cell.get("cell_type") != "code" or index not in spans or not _is_python_cell(cell):
            continue
        yield index + 1, source if isinstance(source, str) else "".join(source), spans[index]


def _refuse_what_is_not_for_us(notebook: Any) -> None:
    if not isinstance(notebook, dict):
        raise UnreadableSourceError("not a notebook: no object at the top")
    if "worksheets" in notebook or notebook.get("nbformat", 4) < 4:
        raise SkippedSourceError("a notebook of an old format (nbformat 3 or before)")
    cells = notebook.get("cells")
    if not isinstance(cells, list) or not all(_is_cell(cell) for cell in cells):
        raise UnreadableSourceError("not a notebook: no list of cells")
    metadata = _mapping(notebook.get("metadata"))
    names = [_mapping(metadata.get("kernelspec")).get("language"), _mapping(metadata.get("language_info")).get("name")]
    language = next((name for name in names if isinstance(name, str) and name), "python")
    if not language.lower().startswith(("python", "ipython")):
        raise SkippedSourceError(f"a notebook of {language}")


def _is_cell(cell: Any) -> bool:
    source = cell.get("source", "") if isinstance(cell, dict) else None
    return isinstance(source, str) or (isinstance(source, list) and all(isinstance(line, str) for line in source))


def _is_python_cell(cell: dict[str, Any]) -> bool:
    """Whether an editor has not marked the cell as one of another language."""
    return bool(_mapping(_mapping(cell.get("metadata")).get("vscode")).get("languageId", "python") == "python")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _source_spans(document: str) -> Iterator[tuple[int, tuple[int, int]]]:
    """The index of each cell and the span of its `source` value, in a text that is known to be JSON."""
    path: list[str | int] = []
    is_key, started = False, 0
    for match in _TOKEN.finditer(document):
        token = match[0]
        if token == ",":
            if isinstance(path[-1], int):
                path[-1] += 1
            is_key = isinstance(path[-1], str)
            continue
        if token == ":":
            is_key = False
            continue
        if token in "]}":
            path.pop()
        elif is_key:
            path[-1] = json.loads(token)
            continue
        elif _is_source(path):
            started = match.start()
        if token in "[{":
            path.append(0 if token == "[" else "")
            is_key = token == "{"
        elif _is_source(path):
            yield path[1], (started, match.end())  # type: ignore[misc]


def _is_source(path: list[str | int]) -> bool:
    return len(path) == 3 and path[0] == "cells" and path[2] == "source"


def _rewritten(value: str, old: str, new: str) -> str:
    """The JSON of a source, a string or a list of them, changed from `old` to `new`; what did not change is kept."""
    places = _places(value)
    if not old or len(places) != len(old) + 1:
        return _fresh(value, new)
    joint = _joint(value)
    is_ascii = value.isascii() and "\\u" in value
    parts, done = [], 0
    for start, end, text in _changes(old, new):
        first, last = places[start][0], places[end][0]
        if start < end == len(old):
            last = places[end - 1][1]
            first = first if text or not start else places[start - 1][1]
        parts += [value[done:first], _literal(old, end, text, joint, is_ascii=is_ascii)]
        done = last
    return "".join([*parts, value[done:]])


def _places(value: str) -> list[tuple[int, int]]:
    """The span in the JSON of each character of a source, and the place right after the last."""
    places: list[tuple[int, int]] = []
    for string in _TOKEN.finditer(value):
        if string[0][0] == '"':
            body = range(string.start() + 1, string.end() - 1)
            places += [unit.span() for unit in _UNIT.finditer(value, body.start, body.stop)]
    end = places[-1][1] if places else 0
    return [*places, (end, end)]


def _changes(old: str, new: str) -> Iterator[tuple[int, int, str]]:
    """Where `old` is to be replaced, and by what, so that it becomes `new`: whole lines, trimmed to what differs."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    offsets = [0]
    for line in before:
        offsets.append(offsets[-1] + len(line))
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        start, end, text = offsets[i1], offsets[i2], "".join(after[j1:j2])
        while start < end and text and old[start] == text[0]:
            start, text = start + 1, text[1:]
        while end > start and text and old[end - 1] == text[-1]:
            end, text = end - 1, text[:-1]
        yield start, end, text


def _joint(value: str) -> str:
    """What stands between the ends of two strings of a source's list: quote, comma, newline, quote; nothing in one."""
    if not value.startswith("["):
        return ""
    strings = [match for match in _TOKEN.finditer(value) if match[0][0] == '"']
    if len(strings) > 1:
        return value[strings[0].end() - 1 : strings[1].start() + 1]
    return f'",{value[1 : strings[0].start()]}"'


def _literal(old: str, end: int, text: str, joint: str, *, is_ascii: bool) -> str:
    """`text`, which replaces what ended at `end` of `old`, inside the JSON strings there."""
    lines = [json.dumps(line, ensure_ascii=is_ascii)[1:-1] for line in text.splitlines(keepends=True)]
    literal = joint.join(lines)
    if end < len(old):
        return literal + joint if text.endswith("\n") else literal
    return joint + literal if text and old.endswith("\n") else literal


def _fresh(value: str, new: str) -> str:
    """The JSON of a source that was empty."""
    return json.dumps(new if not value.startswith("[") else new.splitlines(keepends=True), ensure_ascii=False)
