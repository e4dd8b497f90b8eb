"""Workflow commands, which GitHub Actions shows as annotations on the lines of a pull request."""

from __future__ import annotations

from amplint.diagnostic import Diagnostic
from amplint.reporters import Report, printable
from amplint.rule import Severity

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def render(report: Report) -> str:
    """One command a finding."""
    return "".join(_command(report, diagnostic) + "\n" for diagnostic in report.diagnostics)


def _command(report: Report, diagnostic: Diagnostic) -> str:
    finding = diagnostic.finding
    shown = report.shown(finding.path)
    message = report.message(diagnostic)
    properties = {"title": f"amplint ({finding.code} {finding.name})", "file": shown}
    if diagnostic.cell is None:
        properties |= {"line": str(diagnostic.start.line), "col": str(diagnostic.start.column)}
        properties["endLine"] = str(diagnostic.end.line)
        if diagnostic.end.line == diagnostic.start.line:
            properties["endColumn"] = str(diagnostic.end.column)
    if finding.fix:
        message += f"\nhelp: {finding.fix.message} ({finding.fix.safety} fix)"
    listed = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{_COMMANDS[finding.severity]} {listed}::{_data(message)}"


def _data(text: str) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return printable(text)


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
