"""For people: the place, the reason, the line with the span underlined, and what to write instead."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator

from amplint.diagnostic import Diagnostic
from amplint.reporters import Report, printable
from amplint.rule import Safety, Severity, offers

WIDTH = 120
_TAB = 4
_COLOURS = {Severity.ERROR: "31", Severity.WARNING: "33", Severity.INFO: "36"}
_BOLD, _DIM, _GREEN = "1", "2", "32"


def render(report: Report) -> str:
    """The findings, each with its code frame, and a summary line (none if quiet)."""
    if report.statistics:
        parts = list(_statistics(report))
    else:
        parts = ["\n".join(_finding(report, diagnostic)) + "\n" for diagnostic in report.diagnostics]
    if not report.quiet:
        parts.append(summary(report))
    return "\n".join(parts).rstrip("\n") + "\n" if parts else ""


def summary(report: Report) -> str:
    """`Found 2 errors and 1 warning in 2 of 10 files; …`."""
    checked = _count(report.files, "file")
    if not report.diagnostics:
        return _paint(report, f"No findings in {checked}", _GREEN) + _silenced(report)
    counts = Counter(d.finding.severity for d in report.diagnostics)
    found = _join(
        [
            _count(counts[s], str(s)) if s is not Severity.INFO else f"{counts[s]} info"
            for s in sorted(counts, reverse=True)
        ]
    )
    places = len({d.finding.path for d in report.diagnostics})
    line = f"Found {found} in {places} of {checked}{_silenced(report)}"
    return _paint(report, line, _BOLD) + _fixable(report)


def _finding(report: Report, diagnostic: Diagnostic) -> Iterator[str]:
    finding = diagnostic.finding
    severity = _paint(report, str(finding.severity), _COLOURS[finding.severity])
    name = _paint(report, f"{finding.code} {finding.name}", _BOLD)
    yield f"{printable(place(report, diagnostic))}: {name} {severity}"
    yield from (f"  {printable(line)}" for line in finding.message.splitlines())
    margin = " " * len(str(diagnostic.start.line))
    if diagnostic.line.strip():
        text, underline = frame(diagnostic)
        yield _paint(report, f"{margin} |", _DIM)
        yield f"{_paint(report, f'{diagnostic.start.line} |', _DIM)} {text}"
        yield f"{_paint(report, f'{margin} |', _DIM)} {_paint(report, underline, _COLOURS[finding.severity])}"
    for related in finding.related:
        at = f"{report.shown(related.path)}:{related.start.line}:{related.start.column}"
        yield f"{margin} = {printable(at)}: {printable(related.message)}"
    for fix in offers(finding):
        help_ = _paint(report, "help:", _GREEN)
        yield f"{margin} = {help_} {printable(fix.message)} ({fix.safety} fix)"


def place(report: Report, diagnostic: Diagnostic) -> str:
    """`path:line:column`, with the cell in a notebook."""
    path = report.shown(diagnostic.finding.path)
    cell = f":cell {diagnostic.cell}" if diagnostic.cell is not None else ""
    return f"{path}{cell}:{diagnostic.start.line}:{diagnostic.start.column}"


def frame(diagnostic: Diagnostic) -> tuple[str, str]:
    """The source line and its underline, cut to a window around the span where the line is long."""
    line = diagnostic.line
    first = min(diagnostic.start.column - 1, len(line))
    last = len(line.rstrip()) if diagnostic.end.line > diagnostic.start.line else diagnostic.end.column - 1
    last = max(min(last, len(line)), first)
    lead, tail = "", ""
    if len(line) > WIDTH:
        begin = max(0, min(first - WIDTH // 4, len(line) - WIDTH))
        end = min(len(line), begin + WIDTH)
        lead, tail = "…" * (begin > 0), "…" * (end < len(line))
        line, first, last = line[begin:end], first - begin, min(last, end) - begin
    before, under, after = (_visible(part) for part in (line[:first], line[first:last], line[last:]))
    carets = "^" * max(_width(under), 1)
    return f"{lead}{before}{under}{after}{tail}".rstrip(), " " * (len(lead) + _width(before)) + carets


def _visible(text: str) -> str:
    return printable(text.replace("\t", " " * _TAB))


def _width(text: str) -> int:
    """How many terminal cells the text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def _statistics(report: Report) -> Iterator[str]:
    counts = Counter((d.finding.code, d.finding.name) for d in report.diagnostics)
    fixable = {d.finding.code for d in report.diagnostics if d.finding.fix}
    width = len(str(max(counts.values(), default=0)))
    for (code, name), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        yield f"{count:>{width}}  {code}  [{'*' if code in fixable else ' '}] {name}"
    if counts and not report.quiet:
        yield ""


def _fixable(report: Report) -> str:
    safe, unsafe = report.fixable(Safety.SAFE), report.fixable(Safety.UNSAFE)
    if not safe and not unsafe:
        return ""
    hint = f"{safe} fixable with `amplint fix --apply`" if safe else "None has a safe fix"
    return f"\n{hint}; {unsafe} more with `--unsafe-fixes`." if unsafe else f"\n{hint}."


def _silenced(report: Report) -> str:
    return f" ({report.silenced} suppressed)." if report.silenced else "."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _join(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _paint(report: Report, text: str, style: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if report.colour else text
