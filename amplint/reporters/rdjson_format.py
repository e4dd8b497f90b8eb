"""The diagnostic format of reviewdog, with fixes as suggestions."""

from __future__ import annotations

import json
from typing import Any

from amplint.diagnostic import Diagnostic
from amplint.reporters import Report, printable, url
from amplint.rule import Position, Severity

_SEVERITIES = {Severity.ERROR: "ERROR", Severity.WARNING: "WARNING", Severity.INFO: "INFO"}


def render(report: Report) -> str:
    """One DiagnosticResult."""
    result = {
        "source": {"name": "amplint", "url": url("").rstrip("/")},
        "severity": "WARNING",
        "diagnostics": [_diagnostic(report, diagnostic) for diagnostic in report.diagnostics],
    }
    return json.dumps(result, indent=2) + "\n"


def _diagnostic(report: Report, diagnostic: Diagnostic) -> dict[str, Any]:
    finding = diagnostic.finding
    record: dict[str, Any] = {
        "message": printable(report.message(diagnostic)),
        "location": {"path": report.shown(finding.path), "range": _range(diagnostic.start, diagnostic.end)},
        "severity": _SEVERITIES[finding.severity],
        "code": {"value": finding.code, "url": url(finding.code)},
    }
    if diagnostic.edits and diagnostic.cell is None:
        record["suggestions"] = [{"range": _range(e.start, e.end), "text": e.text} for e in diagnostic.edits]
    return record


def _range(start: Position, end: Position) -> dict[str, dict[str, int]]:
    return {
        "start": {"line": start.line, "column": start.column},
        "end": {"line": end.line, "column": end.column},
    }
