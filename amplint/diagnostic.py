"""A finding as it is reported: with its notebook cell, its source line and the places of its edits.

Plain data, so that it can come from another process or from a cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amplint.rule import Finding, Position
from amplint.source import Source

if TYPE_CHECKING:
    from amplint.project.asked import Question


@dataclass(frozen=True, slots=True)
class PlacedEdit:
    """Replace what stands between two places by `text`; in a notebook the places are relative to their cell."""

    start: Position
    end: Position
    text: str
    cell: int | None = None


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """`start` and `end` are relative to `cell` (1-based) in a notebook, to the file elsewhere."""

    finding: Finding
    start: Position
    end: Position
    cell: int | None
    line: str
    """The text of the line that `start` is on."""
    edits: tuple[PlacedEdit, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is said of one file. `failures` are tracebacks of rules that broke; `silenced` counts suppressions."""

    diagnostics: tuple[Diagnostic, ...] = ()
    silenced: int = 0
    failures: tuple[str, ...] = ()
    note: str | None = None
    """Why the file was not judged, if it was skipped."""
    rests_on: tuple[tuple[Question, tuple[str, ...] | None], ...] | None = None
    """The questions to the project that the judgement rests on, if they were recorded, each with its answer as paths
    or words (None: told before)."""
    staged: tuple[tuple[Question, tuple[str, ...]], ...] = ()
    """Those that half precision in the project rests on, if they were not told before."""
    cut_short: bool = False
    """Whether time ran out."""


def place(source: Source, finding: Finding) -> Diagnostic:
    """The finding with everything a report shows of it."""
    edits = finding.fix.edits if finding.fix else ()
    cell, start = source.locate(finding.start)
    _, end = source.locate(finding.end)
    return Diagnostic(
        finding=finding,
        start=start,
        end=end,
        cell=cell,
        line=source.line(finding.start.line),
        edits=tuple(_place_edit(source, edit.start, edit.end, edit.text) for edit in edits),
    )


def unplaced(finding: Finding) -> Diagnostic:
    """A finding in a file that has no readable text."""
    return Diagnostic(finding, finding.start, finding.end, None, "", ())


def _place_edit(source: Source, start: int, end: int, text: str) -> PlacedEdit:
    cell, first = source.locate(source.position(start))
    _, last = source.locate(source.position(end))
    return PlacedEdit(first, last, text, cell)
