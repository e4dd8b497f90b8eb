"""A table in Markdown, for the summary of a CI job."""

from __future__ import annotations

import re
from collections import Counter

from amplint.diagnostic import Diagnostic
from amplint.reporters import Report, printable, url

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#&])")


def render(report: Report) -> str:
    """A heading, and a row for each finding."""
    counts = Counter(str(d.finding.severity) for d in report.diagnostics)
    if not counts:
        return f"### amplint\n\nNo findings in {report.files} files.\n"
    listed = ", ".join(f"{counts[name]} {name}" for name in ("error", "warning", "info") if counts[name])
    rows = "".join(_row(report, diagnostic) for diagnostic in report.diagnostics)
    return f"### amplint\n\n{listed}\n\n| place | rule | severity | message |\n| --- | --- | --- | --- |\n{rows}"


def _row(report: Report, diagnostic: Diagnostic) -> str:
    finding = diagnostic.finding
    place = f"{report.shown(finding.path)}:{diagnostic.start.line}"
    rule = f"[{finding.code}]({url(finding.code)}) {_plain(finding.name)}"
    return f"| {_plain(place)} | {rule} | {finding.severity} | {_plain(report.message(diagnostic))} |\n"


def _plain(text: str) -> str:
    """The text on one line, its Markdown and HTML signs escaped."""
    return _SPECIAL.sub(r"\\\1", printable(" ".join(text.split(" ")).replace("\n", " ")))
