"""A list of objects with the keys of ruff's JSON, and `name` and `severity`."""

from __future__ import annotations

import json
from typing import Any

from amplint.diagnostic import Diagnostic
from amplint.reporters import Report, url
from amplint.rule import Position


def render(report: Report) -> str:
    """One object a finding; an empty list when there is none."""
    if not report.diagnostics:
        return "[]\n"
    return json.dumps([record(diagnostic) for diagnostic in report.diagnostics], indent=2, ensure_ascii=True) + "\n"


def record(diagnostic: Diagnostic) -> dict[str, Any]:
    """The finding as plain data; places are 1-based, columns in characters."""
    finding = diagnostic.finding
    return {
        "cell": diagnostic.cell,
        "code": finding.code,
        "name": finding.name,
        "severity": str(finding.severity),
        "message": finding.message,
        "filename": str(finding.path),
        "location": _location(diagnostic.start),
        "end_location": _location(diagnostic.end),
        "fix": _fix(diagnostic),
        "related": [
            {"filename": str(r.path), "location": _location(r.start), "message": r.message} for r in finding.related
        ],
        "url": url(finding.code),
    }


def _fix(diagnostic: Diagnostic) -> dict[str, Any] | None:
    fix = diagnostic.finding.fix
    if fix is None:
        return None
    edits = [
        {"content": e.text, "location": _location(e.start), "end_location": _location(e.end), "cell": e.cell}
        for e in diagnostic.edits
    ]
    return {"applicability": str(fix.safety), "message": fix.message, "edits": edits}


def _location(position: Position) -> dict[str, int]:
    return {"row": position.line, "column": position.column}
