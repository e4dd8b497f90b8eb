"""GitLab's code quality report."""

from __future__ import annotations

import json

from amplint.fingerprint import fingerprints
from amplint.reporters import Report, printable
from amplint.rule import Severity

_SEVERITIES = {Severity.ERROR: "major", Severity.WARNING: "minor", Severity.INFO: "info"}


def render(report: Report) -> str:
    """A list of issues with fingerprints; the lines of a notebook are its cell's."""
    prints = fingerprints(report.diagnostics, report.shown)
    issues = [
        {
            "check_name": diagnostic.finding.code,
            "description": printable(
                f"{diagnostic.finding.code} {diagnostic.finding.name}: {report.message(diagnostic)}"
            ),
            "fingerprint": mark,
            "severity": _SEVERITIES[diagnostic.finding.severity],
            "location": {
                "path": report.shown(diagnostic.finding.path),
                "lines": {"begin": diagnostic.start.line, "end": diagnostic.end.line},
            },
        }
        for diagnostic, mark in zip(report.diagnostics, prints, strict=True)
    ]
    return json.dumps(issues, indent=2) + "\n"
