"""Suppression comments: `# noqa`, `# amplint: ignore`, `# amplint: ignore-file`, found by tokens.

Text in strings that looks like one is none. A comment silences the findings whose anchor covers its line.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from amplint.own_rules import UnusedSuppression
from amplint.registry import catalogue, matches
from amplint.rule import Edit, Finding, Fix, Safety
from amplint.source import Source

_WORTH_A_LOOK = re.compile(r"noqa|amplint", re.IGNORECASE)
_CODE = r"[A-Za-z]+[0-9]+"
_DIRECTIVE = re.compile(
    rf"""
    \#\s*
    (?: (?P<noqa>noqa) (?: \s*:\s* (?P<noqa_codes> {_CODE} (?: \s*[,\s]\s* {_CODE}\b )* ) )? (?![-\w])
      | amplint\s*:\s* (?P<ignore>ignore(?:-file)?) (?: \s* \[ (?P<codes>[^\]\#]*) \] | (?![-\w\[]) )
    )
    """,
    re.IGNORECASE | re.VERBOSE,
)
NEVER_SUPPRESSED = ("AMP000", "AMP002")


@dataclass(slots=True)
class Suppression:
    """One directive of a comment. `selectors` None silences every rule; `start` to `end` is its part of the text."""

    line: int
    start: int
    end: int
    foreign: bool
    """A noqa, which other tools read too."""
    whole_file: bool
    selectors: tuple[tuple[str, int, int], ...] | None
    """Each code, prefix or name, with its span in the text."""
    used: set[str] = field(default_factory=set)
    """The selectors that silenced something; `*` for a directive without any."""

    def covers(self, finding: Finding) -> bool:
        return self.whole_file or finding.start.line <= self.line <= finding.end.line

    def silence(self, finding: Finding) -> bool:
        """Whether it silences `finding`, noting what did."""
        if not self.covers(finding) or finding.code in NEVER_SUPPRESSED:
            return False
        if self.selectors is None:
            self.used.add("*")
            return True
        hits = {s for s, _, _ in self.selectors if s.casefold() == finding.name or _is_prefix(s, finding.code)}
        self.used |= hits
        return bool(hits)


@dataclass(frozen=True, slots=True)
class Suppressed:
    """What is left of the findings, and how many were silenced."""

    findings: list[Finding]
    silenced: int


def suppress(source: Source, findings: list[Finding], ran: Collection[str]) -> Suppressed:
    """Drop the findings that comments of `source` silence; report the comments that silence nothing, if AMP002 ran.

    `ran` are the codes that were looked for: a comment for one that was not is not called unused.
    """
    suppressions = list(find_suppressions(source))
    if not suppressions:
        return Suppressed(findings, 0)
    kept = [finding for finding in findings if not _silenced(finding, suppressions)]
    silenced = len(findings) - len(kept)
    if "AMP002" in ran:
        kept += unused(source, suppressions, ran)
    return Suppressed(kept, silenced)


def find_suppressions(source: Source) -> Iterator[Suppression]:
    """The directives of a text's comments, in order."""
    if not _WORTH_A_LOOK.search(source.text):
        return
    for line, offset, comment, alone in _comments(source):
        for match in _DIRECTIVE.finditer(comment):
            whole_file = (match["ignore"] or "").casefold() == "ignore-file"
            if whole_file and not alone:
                continue
            group = "noqa_codes" if match["noqa"] else "codes"
            yield Suppression(
                line=line,
                start=offset + match.start(),
                end=offset + _end_of_reason(comment, match.end()),
                foreign=match["noqa"] is not None,
                whole_file=whole_file,
                selectors=_selectors(match, group, offset),
            )


def unused(source: Source, suppressions: Iterable[Suppression], ran: Collection[str]) -> Iterator[Finding]:
    """An AMP002 finding for each directive, or part of one, that silenced nothing though its rules ran."""
    defaults = {rule.code for rule in catalogue() if rule.default}
    for suppression in suppressions:
        if suppression.selectors is None:
            if not suppression.foreign and not suppression.used and defaults <= set(ran):
                yield _unused_finding(source, suppression, "it silences nothing", _removal(source, suppression))
            continue
        idle = [s for s in suppression.selectors if s[0] not in suppression.used and _ran(s[0], ran)]
        if not idle:
            continue
        named = ", ".join(selector for selector, _, _ in idle)
        edit = _without(source, suppression, idle)
        yield _unused_finding(source, suppression, f"nothing of {named} is found here", edit)


def ignore_comment(codes: Iterable[str]) -> str:
    """The comment that silences `codes`."""
    return f"# amplint: ignore[{', '.join(sorted(codes))}]"


def _silenced(finding: Finding, suppressions: list[Suppression]) -> bool:
    """Whether any silences it; all that do are noted as used."""
    return sum(suppression.silence(finding) for suppression in suppressions) > 0


def _comments(source: Source) -> Iterator[tuple[int, int, str, bool]]:
    """(line, offset, comment, alone on its line) of each comment; up to the first place that does not tokenize."""
    lines = io.StringIO(source.text, newline="")
    starts = source.line_starts
    try:
        for token in tokenize.generate_tokens(lines.readline):
            if token.type == tokenize.COMMENT:
                line, column = token.start
                alone = not token.line[:column].strip()
                yield line, starts[line - 1] + column, token.string.rstrip("\r\n"), alone
    except (tokenize.TokenError, SyntaxError):
        return


def _end_of_reason(comment: str, start: int) -> int:
    """Where the directive ends with the reason that follows it: before the next `#`, or at the end."""
    following = comment.find("#", start)
    return len(comment) if following < 0 else following


def _selectors(match: re.Match[str], group: str, offset: int) -> tuple[tuple[str, int, int], ...] | None:
    if match[group] is None:
        return None
    base = offset + match.start(group)
    return tuple((m[0], base + m.start(), base + m.end()) for m in re.finditer(r"[\w-]+", match[group]))


def _is_prefix(selector: str, code: str) -> bool:
    return code.casefold().startswith(selector.casefold())


def _ran(selector: str, ran: Collection[str]) -> bool:
    """Whether rules have this code, prefix or name, and all of them were looked for."""
    meant = [rule.code for rule in catalogue() if matches(selector, rule)]
    return bool(meant) and set(meant) <= set(ran)


def _unused_finding(source: Source, suppression: Suppression, why: str, edit: Edit) -> Finding:
    rule = UnusedSuppression()
    end = suppression.start + len(source.text[suppression.start : suppression.end].rstrip())
    return Finding(
        path=source.path,
        start=source.position(suppression.start),
        end=source.position(end),
        code=rule.code,
        name=rule.name,
        severity=rule.severity,
        message=f"unused suppression: {why}",
        fix=Fix("remove it", Safety.SAFE, (edit,)),
    )


def _removal(source: Source, suppression: Suppression) -> Edit:
    """Take the directive out: with its line if nothing else stands there, else with the blanks before it."""
    text = source.text
    line_start = source.line_starts[suppression.line - 1]
    next_line = source.line_starts[suppression.line] if suppression.line < len(source.line_starts) else len(text)
    rest = text[suppression.end : next_line]
    if not text[line_start : suppression.start].strip() and not rest.strip():
        return Edit(line_start, next_line, "")
    if rest.strip():
        return Edit(suppression.start, suppression.end, "")
    start = len(text[: suppression.start].rstrip(" \t"))
    return Edit(start, suppression.end, "")


def _without(source: Source, suppression: Suppression, idle: list[tuple[str, int, int]]) -> Edit:
    """Take selectors out of a directive's list; the whole directive, if that empties it."""
    selectors = suppression.selectors or ()
    kept = [selector for selector, *_ in (s for s in selectors if s not in idle)]
    if not kept:
        return _removal(source, suppression)
    return Edit(selectors[0][1], selectors[-1][2], ", ".join(kept))
