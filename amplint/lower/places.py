"""Where the nodes of a LibCST tree stand, as `ast` counts."""

from __future__ import annotations

import ast
import re
import unicodedata
from bisect import bisect_right
from typing import Any, TypeVar

T = TypeVar("T")

_NEWLINE = re.compile(r"\r\n|\r|\n")
_FORM_FEED = re.compile(r"(?:[ \t]*\f)*")


def without_form_feeds(text: str) -> str:
    """`text` without the form feeds that begin lines, after which indentation counts anew: LibCST miscounts there."""
    if "\f" not in text:
        return text
    parts, done = [], 0
    for start in [0, *(match.end() for match in _NEWLINE.finditer(text))]:
        code = _FORM_FEED.match(text, start)
        assert code is not None
        parts.append(text[done:start])
        done = code.end()
    return "".join([*parts, text[done:]])


class Places:
    """The dispatch and the positions that lowering stands on; `needs` is the oldest Python that knows the syntax."""

    def __init__(self, text: str, positions: Any) -> None:
        self.text = text
        self.needs = (3, 0)
        self._positions = positions
        self._starts = [0, *(match.end() for match in _NEWLINE.finditer(text))]
        self._code_starts = [_FORM_FEED.match(text, start).end() for start in self._starts]  # type: ignore[union-attr]
        self._is_ascii = text.isascii()

    def lower(self, node: Any, *context: Any) -> Any:
        return getattr(self, f"_{type(node).__name__}")(node, *context)

    def load(self, node: Any) -> Any:
        """An expression that is read; None for none."""
        return None if node is None else self.lower(node, ast.Load())

    def span(self, node: Any) -> tuple[int, int]:
        """The offsets of a node without parentheses of its own."""
        place = self._positions[node]
        start, end = place.start, place.end
        return self._code_starts[start.line - 1] + start.column, self._code_starts[end.line - 1] + end.column

    def outer(self, node: Any) -> tuple[int, int]:
        """The offsets of a node with its parentheses."""
        start, end = self.span(node)
        if left := getattr(node, "lpar", ()):
            start, end = self.span(left[0])[0], self.span(node.rpar[-1])[1]
        return start, end

    def at(self, span: tuple[int, int], made: T) -> T:
        """`made`, located at these offsets."""
        node: Any = made
        node.lineno, node.col_offset = self._place(span[0])
        node.end_lineno, node.end_col_offset = self._place(span[1])
        return made

    def _place(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._starts, offset)
        start = self._starts[line - 1]
        if self._is_ascii:
            return line, offset - start
        return line, len(self.text[start:offset].encode("utf-8", "surrogatepass"))

    def require(self, *version: int) -> None:
        """Note that the syntax needs this version of Python."""
        self.needs = max(self.needs, (version[0], version[1]))

    def bracketed(self, node: Any) -> tuple[int, int]:
        """The span of a tuple or generator: its innermost parentheses are part of it."""
        start, end = self.span(node)
        if node.lpar:
            return self.span(node.lpar[-1])[0], self.span(node.rpar[0])[1]
        return start, end


def normalised(name: str) -> str:
    """An identifier as Python compares it (NFKC)."""
    return name if name.isascii() else unicodedata.normalize("NFKC", name)
