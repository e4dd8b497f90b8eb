"""JUnit XML: a suite for each file with findings, a failed case for each finding."""

from __future__ import annotations

from itertools import groupby
from xml.sax.saxutils import escape, quoteattr

from amplint.diagnostic import Diagnostic
from amplint.reporters import Report, printable


def render(report: Report) -> str:
    """A passed case stands for a run without findings, since an empty report counts as broken."""
    if report.diagnostics:
        suites = [
            _suite(report, report.shown(path), list(found))
            for path, found in groupby(report.diagnostics, key=lambda diagnostic: diagnostic.finding.path)
        ]
    else:
        case = '    <testcase name="No findings" classname="amplint"/>\n'
        suites = [f'  <testsuite name="amplint" tests="1" failures="0" errors="0">\n{case}  </testsuite>\n']
    count = len(report.diagnostics)
    head = f'<testsuites name="amplint" tests="{count or 1}" failures="{count}" errors="0">\n'
    return f'<?xml version="1.0" encoding="utf-8"?>\n{head}{"".join(suites)}</testsuites>\n'


def _suite(report: Report, path: str, diagnostics: list[Diagnostic]) -> str:
    count = len(diagnostics)
    cases = "".join(_case(report, path, diagnostic) for diagnostic in diagnostics)
    name = _attribute(path)
    return f'  <testsuite name={name} tests="{count}" failures="{count}" errors="0">\n{cases}  </testsuite>\n'


def _case(report: Report, path: str, diagnostic: Diagnostic) -> str:
    finding = diagnostic.finding
    at = f"line {diagnostic.start.line}, column {diagnostic.start.column}"
    message = report.message(diagnostic)
    name = _attribute(f"{finding.code} {finding.name}")
    failure = f"<failure type={_attribute(str(finding.severity))} message={_attribute(message)}>"
    place = f'file={_attribute(path)} line="{diagnostic.start.line}"'
    body = escape(printable(f"{at}: {message}"))
    return f"    <testcase name={name} classname={_attribute(path)} {place}>{failure}{body}</failure></testcase>\n"


def _attribute(text: str) -> str:
    return quoteattr(printable(text))
