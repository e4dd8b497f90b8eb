"""The definitions that stand at the top level of a file, told apart by the text, so that each can be parsed by itself.

Most questions to another file concern one function or class of it. What is not certainly such a definition is left to
the rest of the file: a text that is not understood here is parsed as a whole, no worse than without sections.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_STARTER = re.compile(r"^(?:(@)|(?:async +)?def +(\w+)|class +(\w+)|[^\s#)\]}])", re.MULTILINE)
"""A line that a statement of the top level may begin on."""
_FEW = 4_000
"""Characters of a text that is parsed as fast as it is divided."""
_GLOBAL = re.compile(r"^[ \t]+global\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Section:
    """A function or class with its decorators: its name, the text's part that it is, and the lines before it."""

    name: str
    start: int
    end: int
    lines_before: int
    lines: int

    def holds(self, line: int) -> bool:
        """Whether a line (1-based) belongs to it."""
        return self.lines_before < line <= self.lines_before + self.lines


def divide(text: str) -> list[Section]:
    """The sections of a text, in its order; none where dividing it would not pay, or its lines are told apart otherwise
    than by `\\n`, or names of the file are bound within functions."""
    if len(text) < _FEW or "\r" in text or "\f" in text:
        return []
    found: list[tuple[str, int, int]] = []
    name, start, read = "", -1, 0
    for match in (*_STARTER.finditer(text), None):
        at = match.start() if match else len(text)
        if _is_within_string(text, read, at):
            name, start = "", -1  # a line of a string, or a string that is not understood
            continue
        read = at
        if name:
            found.append((name, start, at))
        decorator, function, cls = match.groups() if match else ("", "", "")
        if name or start < 0:
            start = at
        name = function or cls or ""
        if not (name or decorator):
            start = -1
    return [section for section in _counted(text, found) if not _GLOBAL.search(text, section.start, section.end)]


def without(text: str, sections: Iterable[Section]) -> str:
    """The text with empty lines where these sections stand."""
    parts, read = [], 0
    for section in sections:
        parts += [text[read : section.start], "\n" * text.count("\n", section.start, section.end)]
        read = section.end
    return "".join([*parts, text[read:]])


def only(text: str, sections: Iterable[Section]) -> str:
    """These sections of a text, on the lines where they stand."""
    parts, lines = [], 0
    for section in sections:
        parts += ["\n" * (section.lines_before - lines), text[section.start : section.end]]
        lines = section.lines_before + section.lines
    return "".join(parts)


def _is_within_string(text: str, start: int, end: int) -> bool:
    """Whether an odd number of triple quotes stands in a part of the text that begins outside of any."""
    return bool(text.count('"' * 3, start, end) % 2 or text.count("'" * 3, start, end) % 2)


def _counted(text: str, found: list[tuple[str, int, int]]) -> Iterable[Section]:
    lines, read = 0, 0
    for name, start, end in found:
        before = lines + text.count("\n", read, start)
        lines = before + text.count("\n", start, end)
        read = end
        yield Section(name, start, end, before, lines - before + (end == len(text)))
