"""Logging commands of Azure Pipelines."""

from __future__ import annotations

from amplint.diagnostic import Diagnostic
from amplint.reporters import Report, printable
from amplint.rule import Severity

_ESCAPES = (("%", "%AZP25"), ("\r", "%0D"), ("\n", "%0A"), (";", "%3B"), ("]", "%5D"))


def render(report: Report) -> str:
    """One `task.logissue` a finding; it knows errors and warnings only."""
    return "".join(_command(report, diagnostic) + "\n" for diagnostic in report.diagnostics)


def _command(report: Report, diagnostic: Diagnostic) -> str:
    finding = diagnostic.finding
    properties = {
        "type": "error" if finding.severity is Severity.ERROR else "warning",
        "sourcepath": report.shown(finding.path),
        "linenumber": str(diagnostic.start.line),
        "columnnumber": str(diagnostic.start.column),
        "code": finding.code,
    }
    listed = "".join(f"{key}={_escaped(value)};" for key, value in properties.items())
    message = report.message(diagnostic).replace("%", "%AZP25").replace("\r", "%0D").replace("\n", "%0A")
    return f"##vso[task.logissue {listed}]{printable(f'{finding.name}: {message}')}"


def _escaped(text: str) -> str:
    for character, escape in _ESCAPES:
        text = text.replace(character, escape)
    return printable(text)
