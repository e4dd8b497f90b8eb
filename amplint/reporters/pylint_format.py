"""One line a finding, as pylint's parseable output writes it; many tools read it."""

from __future__ import annotations

from amplint.diagnostic import Diagnostic
from amplint.reporters import Report, printable


def render(report: Report) -> str:
    """`path:line: [CODE name] message`."""
    return "".join(_line(report, diagnostic) + "\n" for diagnostic in report.diagnostics)


def _line(report: Report, diagnostic: Diagnostic) -> str:
    finding = diagnostic.finding
    message = " ".join(report.message(diagnostic).split())
    return printable(f"{report.shown(finding.path)}:{diagnostic.start.line}: [{finding.code} {finding.name}] {message}")
