"""Reads what the running Python's `ast` cannot, through LibCST, and gives the same kind of tree with positions.

Newer syntax (`except*`, type parameters, f-strings of 3.12, t-strings) is written in the nodes that the running
Python has: `except*` as `except`, a type alias as an assignment, a t-string as an f-string. What is nested too deeply
for `ast` in an ordinary stack is read in a thread with a large one.
"""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_STACKS = (512 << 20, 128 << 20, 32 << 20)
_RECURSION_LIMIT = 1_000_000
# CPython's own limits, the same in every version: a program beyond them runs nowhere.
_LIMITS = ("too many nested parentheses", "too many nested f-strings", "too many levels of indentation")
# LibCST's parser recurses, and takes minutes over one statement with thousands of operators.
_MAX_OPERATORS = 2_000
_CHAIN = 3  # how many operators a link of a chain of calls or subscripts counts for
_MAX_BRACKETS = 200
_MAX_BRANCHES = 5_000
_TOKEN = re.compile(
    r"""(?P<skip>(?s:\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3})|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\#.*)
    |(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<newline>(?<!\\)\n)
    |(?P<operator>\b(?:not|lambda|if|and|or|await)\b|\*\*|~|(?<=[\w)\]}])[ \t]*[-+*/%@&|^<>.]|[-+](?=\s*[-+]))""",
    re.VERBOSE,
)


def parse_with_libcst(text: str) -> ast.Module:
    """The tree of a text that `ast.parse` refused.

    Raises SyntaxError, with line, column (1-based) and a short message, where the text is no Python of any version.
    """
    if (offset := text.find("\0")) >= 0:
        start = text.rfind("\n", 0, offset) + 1
        raise _error("a NUL byte", text.count("\n", 0, offset) + 1, offset - start + 1)
    try:
        return _deeply(lambda: ast.parse(text))
    except SyntaxError as error:
        refusal = error
    except (RecursionError, MemoryError):
        raise _error("too deeply nested", 1, 1) from None
    if not refusal.msg.startswith(_LIMITS) and not _is_monstrous(text):
        tree, needs = _deeply(lambda: _lowered(text))
        if tree is not None and needs > sys.version_info[:2]:
            return tree
    raise _error(refusal.msg, refusal.lineno or 1, refusal.offset or 1)


def _error(message: str, line: int, column: int) -> SyntaxError:
    return SyntaxError(message, ("<source>", max(line, 1), max(column, 1), None))


def _deeply(work: Callable[[], T]) -> T:
    """What `work` gives or raises, run in a thread with a large stack and a high recursion limit."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(_RECURSION_LIMIT)
    try:
        _started(run).join()
    finally:
        sys.setrecursionlimit(limit)
    if errors:
        raise errors[0]
    return results[0]


def _started(run: Callable[[], None]) -> threading.Thread:
    """A running thread with the largest stack that there is memory for; it does not outlive the program."""
    before = threading.stack_size()
    for size in _STACKS:
        threading.stack_size(size)
        thread = threading.Thread(target=run, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if size == _STACKS[-1]:
                raise
            continue
        finally:
            threading.stack_size(before)
        return thread
    raise AssertionError("the loop returns or raises")


def _is_monstrous(text: str) -> bool:
    """Whether a statement is so deep or so long that LibCST would not come to an end with it."""
    depth = operators = 0
    if text.count("elif") > _MAX_BRANCHES:
        return True
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        depth += (kind == "open") - (kind == "close")
        operators += kind == "operator"
        operators += _CHAIN * (text[match.start() - 1 : match.start()] in (")", "]") and match[0] in (".", "[", "("))
        if depth > _MAX_BRACKETS or operators > _MAX_OPERATORS:
            return True
        if kind == "newline" and depth <= 0:
            depth = operators = 0
    return False


def _lowered(text: str) -> tuple[ast.Module | None, tuple[int, int]]:
    """LibCST's tree as `ast`, and the oldest Python that knows the syntax in it; None if LibCST cannot read it."""
    import libcst as cst
    from libcst.metadata import MetadataWrapper, PositionProvider

    from amplint.lower.places import without_form_feeds
    from amplint.lower.statements import Lowering

    try:
        module = cst.parse_module(without_form_feeds(text))
    except cst.ParserSyntaxError:
        return None, (0, 0)
    wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
    lowering = Lowering(text, wrapper.resolve(PositionProvider))
    return lowering.module(module), lowering.needs
