"""Writes the comments that silence findings."""

from __future__ import annotations

import io
import tokenize
from collections import defaultdict
from collections.abc import Iterable

from amplint.own_rules import OWN_RULES
from amplint.rule import Edit, Finding
from amplint.source import Source
from amplint.suppress import Suppression, find_suppressions, ignore_comment

_OWN = frozenset(rule.code for rule in OWN_RULES)
"""What amplint says of its own work is no fault of the code; it is not silenced in it."""


def ignore_edits(source: Source, findings: Iterable[Finding]) -> tuple[list[Edit], list[Finding]]:
    """The edits that silence the findings, and the findings for which no line can carry a comment.

    A comment stands at the end of the first line of the anchor that can have one; codes join a comment that is there.
    """
    places = _line_ends(source)
    wanted: defaultdict[int, set[str]] = defaultdict(set)
    hopeless = []
    for finding in findings:
        if finding.code in _OWN:
            continue
        line = next((n for n in range(finding.start.line, finding.end.line + 1) if n in places), None)
        if line is None:
            hopeless.append(finding)
        else:
            wanted[line].add(finding.code)
    existing = {s.line: s for s in find_suppressions(source) if not s.foreign and not s.whole_file and s.selectors}
    edits = [
        _extended(source, existing[line], codes) if line in existing else _appended(source, places[line], codes)
        for line, codes in sorted(wanted.items())
    ]
    return edits, hopeless


def _extended(source: Source, suppression: Suppression, codes: set[str]) -> Edit:
    selectors = suppression.selectors or ()
    listed = [selector for selector, _, _ in selectors]
    return Edit(selectors[0][1], selectors[-1][2], ", ".join([*listed, *sorted(codes - set(listed))]))


def _appended(source: Source, offset: int, codes: set[str]) -> Edit:
    return Edit(offset, offset, f"  {ignore_comment(codes)}")


def _line_ends(source: Source) -> dict[int, int]:
    """The offset after the text of each line that a comment can follow: not inside a string, not continued."""
    ends: dict[int, int] = {}
    starts = source.line_starts
    try:
        for token in tokenize.generate_tokens(io.StringIO(source.text, newline="").readline):
            if token.type in (tokenize.NEWLINE, tokenize.NL):
                line = token.start[0]
                ends[line] = starts[line - 1] + len(source.line(line).rstrip())
    except (tokenize.TokenError, SyntaxError):
        pass
    return ends
