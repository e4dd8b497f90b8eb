"""Where things stand in the text: brackets, comments, lines and indentation, for a tree that knows none of them."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterator
from functools import cached_property

from amplint.rule import Edit
from amplint.tree import Module

_NEWLINE = re.compile(r"\r\n|\r|\n")
_BLANKS = re.compile(r"[ \t\f]*")
_COMMENT = re.compile(r"#[^\r\n]*")
_CONTINUATION = re.compile(r"\\(\r\n|\r|\n)")
_WORD_END = re.compile(r"[\w\])}\"']\Z")
_LAST_WORD = re.compile(r"[^\W\d]\w*\Z")
# Comments that structure a file rather than lead a statement: cells of notebooks kept as scripts, shebang, cookie.
_MARKER = re.compile(r"#\s*(?:%%|\+(?:\s|$)|-(?:\s|$)|In\[|region\b|endregion\b)|#!|#.*?coding[:=]")
_STRINGS = (ast.JoinedStr, *((ast.TemplateStr,) if hasattr(ast, "TemplateStr") else ()))
_UNIT = "    "


class Layout:
    """The text of a module with strings, comments and line continuations masked, character for character.

    In `mask` a string is a run of `_`, a comment a run of blanks, so that brackets and newlines in it are syntax.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self.source = module.source
        self.text = module.source.text
        self.mask = _masked(module)

    # -- expressions -------------------------------------------------------------------------------------------

    def span(self, node: ast.AST, *, parentheses: bool = False) -> tuple[int, int]:
        """The offsets of `node`, with all parentheses of its own if asked (not those of a call or a class)."""
        start, end = self.source.span(node)
        while parentheses and (around := self._parentheses(start, end)):
            start, end = around
        return start, end

    def is_parenthesised(self, node: ast.AST) -> bool:
        """Whether the expression has parentheses of its own."""
        return self._parentheses(*self.source.span(node)) is not None

    def next_char(self, offset: int) -> int:
        """The offset of the next character at or after `offset` that is neither blank nor comment."""
        while offset < len(self.mask) and self.mask[offset].isspace():
            offset += 1
        return offset

    def previous_char(self, offset: int) -> int:
        """The offset of the last character before `offset` that is neither blank nor comment; -1 if none."""
        offset -= 1
        while offset >= 0 and self.mask[offset].isspace():
            offset -= 1
        return offset

    def _parentheses(self, start: int, end: int) -> tuple[int, int] | None:
        left, right = self.previous_char(start), self.next_char(end)
        if left < 0 or right >= len(self.mask) or self.mask[left] != "(" or self.mask[right] != ")":
            return None
        before = self.mask[max(0, left - 40) : left].rstrip(" \t\f")
        if _WORD_END.search(before):
            word = _LAST_WORD.search(before)
            if not (word and keyword.iskeyword(word[0])):
                return None
        return left, right + 1

    # -- lines -------------------------------------------------------------------------------------------------

    def line_start(self, offset: int) -> int:
        """The start of the line of code that holds `offset` (a backslash continues a line)."""
        return max(self.mask.rfind("\n", 0, offset), self.mask.rfind("\r", 0, offset)) + 1

    def line_end(self, offset: int) -> int:
        """The end of the line of code that holds `offset`, before its newline."""
        newline = _NEWLINE.search(self.mask, offset)
        return newline.start() if newline else len(self.mask)

    def after_newline(self, offset: int) -> int:
        """The offset past the newline that starts at `offset` (itself, at the end of the text)."""
        newline = _NEWLINE.match(self.text, offset)
        return newline.end() if newline else offset

    def lines(self, start: int, end: int) -> Iterator[int]:
        """The starts of the physical lines within `start` to `end` that do not begin inside a string."""
        for match in _NEWLINE.finditer(self.mask, start, end):
            if match.end() < end:
                yield match.end()
        for match in _CONTINUATION.finditer(self.text, start, end):
            if self.mask[match.start(1)] == " " and match.end() < end:
                yield match.end()

    # -- statements --------------------------------------------------------------------------------------------

    def start(self, statement: ast.stmt) -> int:
        """Where a statement starts, at its first decorator's `@` if it has any."""
        decorators = getattr(statement, "decorator_list", None)
        if not decorators:
            return self.source.span(statement)[0]
        return self.mask.rindex("@", 0, self.source.span(decorators[0])[0])

    def end(self, statement: ast.stmt) -> int:
        return self.source.span(statement)[1]

    def starts_line(self, statement: ast.stmt) -> bool:
        """Whether nothing but blanks stands before the statement on its line (not so after `;` or `if x:`)."""
        start = self.start(statement)
        return not self.mask[self.line_start(start) : start].strip()

    def ends_line(self, statement: ast.stmt) -> bool:
        """Whether nothing but `;` or a comment stands after the statement on its line."""
        end = self.end(statement)
        return not self.mask[end : self.line_end(end)].strip("; \t\f")

    def is_inline(self, statement: ast.stmt) -> bool:
        """Whether the statement belongs to a suite on its header's line: `if x: statement`."""
        parent = self.module.parent(statement)
        return not isinstance(parent, ast.Module) and not self.starts_line(self.module.block(statement)[0])

    def is_elif(self, statement: ast.stmt) -> bool:
        """Whether an `if` is spelled `elif`."""
        parent = self.module.parent(statement)
        if not isinstance(statement, ast.If) or not isinstance(parent, ast.If) or statement not in parent.orelse:
            return False
        return self.mask.startswith("elif", self.start(statement))

    def indentation(self, statement: ast.stmt) -> str:
        """The blanks before the line that the statement stands on."""
        first = self.module.block(statement)[0]
        owner = self.module.parent(statement) if self.is_inline(statement) else first
        if not isinstance(owner, ast.stmt):  # the handler or case of an inline suite
            offset = self.line_start(self.start(first))
        else:
            offset = self.line_start(self.start(owner))
        blanks = _BLANKS.match(self.text, offset)
        assert blanks is not None
        return blanks[0].rpartition("\f")[2]

    @cached_property
    def unit(self) -> str:
        """One level of indentation as the file writes it: that of its first indented block, else four blanks."""
        for node in ast.walk(self.module.tree):
            body = getattr(node, "body", None)
            if not isinstance(node, ast.stmt) or not isinstance(body, list) or not self.starts_line(body[0]):
                continue
            outer, inner = self.indentation(node), self.indentation(body[0])
            if inner.startswith(outer) and inner != outer:
                return inner[len(outer) :]
        return _UNIT

    def leading_comments(self, statement: ast.stmt) -> int:
        """The start of the comment lines right above a statement, at its indentation; its own line if none."""
        line = self.line_start(self.start(statement))
        indentation = self.indentation(statement)
        while line > 0:
            above = self._physical_line_start(line)
            text = self.text[above:line].rstrip("\r\n")
            comment = text.lstrip(" \t\f")
            blanks = text[: len(text) - len(comment)].rpartition("\f")[2]
            is_comment = comment.startswith("#") and not self.mask[above:line].strip()
            if not is_comment or blanks != indentation or _MARKER.match(comment):
                break
            line = above
        return line

    def indented(self, line: str, indentation: str) -> str:
        """`line`, whose own indentation is in levels of four blanks, under `indentation` in the file's units."""
        body = line.lstrip(" ")
        levels, rest = divmod(len(line) - len(body), len(_UNIT))
        return f"{indentation}{self.unit * levels}{' ' * rest}{body}" if body else ""

    def _physical_line_start(self, offset: int) -> int:
        """The start of the line above the one that starts at `offset`."""
        end = offset - (2 if self.text.endswith("\r\n", 0, offset) else 1)
        return self.line_start(end)


def layout(module: Module) -> Layout:
    """The layout of a module. One fix asks many times."""
    return module.keep(Layout, lambda: Layout(module))


def spaced(layout: Layout, start: int, end: int, text: str) -> Edit:
    """Replace `start` to `end` by `text`, with a blank where two words would run together."""
    before, after = layout.text[start - 1 : start], layout.text[end : end + 1]
    if before and text and _is_word(before) and _is_word(text[0]):
        text = f" {text}"
    if after and text and _is_word(text[-1]) and _is_word(after):
        text = f"{text} "
    return Edit(start, end, text)


def _is_word(character: str) -> bool:
    return character.isalnum() or character in "_\"'"


def _masked(module: Module) -> str:
    parts, done = [], 0
    text = module.source.text
    for start, end in _string_spans(module):
        if start >= done:
            parts += [_code(text[done:start]), "_" * (end - start)]
            done = end
    parts.append(_code(text[done:]))
    return "".join(parts)


def _code(text: str) -> str:
    text = _COMMENT.sub(lambda match: " " * len(match[0]), text)
    return _CONTINUATION.sub(lambda match: " " * len(match[0]), text)


def _string_spans(module: Module) -> list[tuple[int, int]]:
    spans = []
    for node in ast.walk(module.tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
        if is_text or isinstance(node, _STRINGS):
            spans.append(module.source.span(node))
    return sorted(spans, key=lambda span: (span[0], -span[1]))
