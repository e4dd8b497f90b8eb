"""Judgements as JSON and back: plain lists, so that nothing in a cache file can be more than data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from amplint.diagnostic import Diagnostic, Judgement, PlacedEdit
from amplint.rule import Edit, Finding, Fix, Position, Related, Safety, Severity

Json = Any


def encode(judgement: Judgement) -> Json:
    """A judgement as lists, strings and numbers."""
    return [[_diagnostic(d) for d in judgement.diagnostics], judgement.silenced, judgement.note]


def decode(data: Json) -> Judgement:
    """The judgement that `encode` made `data` of. Raises ValueError, TypeError or KeyError for anything else."""
    diagnostics, silenced, note = data
    return Judgement(tuple(_read_diagnostic(d) for d in diagnostics), silenced, (), note)


def _diagnostic(diagnostic: Diagnostic) -> Json:
    edits = [[_position(e.start), _position(e.end), e.text, e.cell] for e in diagnostic.edits]
    places = [_position(diagnostic.start), _position(diagnostic.end), diagnostic.cell, diagnostic.line]
    return [_finding(diagnostic.finding), *places, edits]


def _read_diagnostic(data: Json) -> Diagnostic:
    finding, start, end, cell, line, edits = data
    placed = tuple(PlacedEdit(Position(*first), Position(*last), text, at) for first, last, text, at in edits)
    return Diagnostic(_read_finding(finding), Position(*start), Position(*end), cell, line, placed)


def _finding(finding: Finding) -> Json:
    related = [[str(r.path), _position(r.start), r.message] for r in finding.related]
    what = [finding.code, finding.name, int(finding.severity), finding.message]
    return [str(finding.path), _position(finding.start), _position(finding.end), *what, _fix(finding.fix), related]


def _read_finding(data: Json) -> Finding:
    path, start, end, code, name, severity, message, fix, related = data
    places = tuple(Related(Path(at), Position(*where), text) for at, where, text in related)
    return Finding(
        Path(path), Position(*start), Position(*end), code, name, Severity(severity), message, _read_fix(fix), places
    )


def _fix(fix: Fix | None) -> Json:
    if fix is None:
        return None
    return [fix.message, fix.safety.value, [[e.start, e.end, e.text] for e in fix.edits], _fix(fix.unsafe_instead)]


def _read_fix(data: Json) -> Fix | None:
    if data is None:
        return None
    message, safety, edits, instead = data
    return Fix(message, Safety(safety), tuple(Edit(*edit) for edit in edits), _read_fix(instead))


def _position(position: Position) -> Json:
    return [position.line, position.column]
