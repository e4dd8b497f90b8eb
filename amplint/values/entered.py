"""Contexts that are entered by a call: `stack.enter_context(autocast())`, `context.__enter__()`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from amplint.tree import Module

ENTERING = frozenset({"enter_context", "enter_async_context", "__enter__", "__aenter__"})
_ENDING = frozenset({"close", "aclose", "pop_all", "__exit__", "__aexit__"})
_PERHAPS = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Match, ast.BoolOp)
_Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Entry:
    """One such call: what it enters, and the text of what ends it: the stack, or the context itself."""

    call: ast.Call
    context: ast.expr
    holder: str


@dataclass(frozen=True, slots=True)
class Entered:
    """The contexts that calls enter in one function, in the order of the text, and where holders end."""

    function: ast.AST
    entries: tuple[Entry, ...]
    ends: tuple[tuple[str, _Place], ...]

    def open_at(self, module: Module, node: ast.AST) -> Iterator[tuple[Entry, bool]]:
        """The contexts that are open at a node, the last one first, and whether that is for certain.

        At the end of the function, if the node is that.
        """
        is_all = self.function is node
        start = _end(node) if is_all else _start(node)
        around = {node, *module.ancestors(node)}
        for entry in reversed(self.entries):
            entered = _end(entry.call)
            if entered > start or any(h == entry.holder and entered <= end <= start for h, end in self.ends):
                continue
            own = [a for a in module.ancestors(entry.call) if isinstance(a, _PERHAPS)]
            if all(_same_branch(module, a, entry.call, node) for a in own if a in around):
                yield entry, all(a in around for a in own)


def by_function(module: Module) -> dict[ast.AST, Entered]:
    """What calls enter in each function of a file (or the file itself); only those with such a call."""
    entries: dict[ast.AST, list[Entry]] = {}
    for call in module.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr in ENTERING:
            context = call.args[0] if call.args else call.func.value
            entries.setdefault(_function(module, call), []).append(Entry(call, context, ast.unparse(call.func.value)))
    ends: dict[ast.AST, list[tuple[str, _Place]]] = {}
    for node in module.parents if entries else ():
        for holder in _ended(node):
            ends.setdefault(_function(module, node), []).append((ast.unparse(holder), _end(node)))
    return {
        function: Entered(function, tuple(sorted(found, key=lambda e: _start(e.call))), tuple(ends.get(function, ())))
        for function, found in entries.items()
    }


def _ended(node: ast.AST) -> Iterator[ast.expr]:
    """What a call, or the end of a block, ends."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ENDING:
        yield node.func.value
    elif isinstance(node, ast.With | ast.AsyncWith):
        for item in node.items:
            yield item.context_expr
            if item.optional_vars is not None:
                yield item.optional_vars


def _same_branch(module: Module, test: ast.AST, a: ast.AST, b: ast.AST) -> bool:
    return _branch(module, test, a) == _branch(module, test, b)


def _branch(module: Module, test: ast.AST, node: ast.AST) -> str:
    """The field of a compound statement or expression that a node stands in."""
    child = node
    for ancestor in module.ancestors(node):
        if ancestor is test:
            break
        child = ancestor
    for name, value in ast.iter_fields(test):
        if value is child or (isinstance(value, list) and child in value):
            return name
    return ""


def _function(module: Module, node: ast.AST) -> ast.AST:
    return module.function(node) or module.tree


def _start(node: ast.AST) -> _Place:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _end(node: ast.AST) -> _Place:
    return getattr(node, "end_lineno", 0) or 0, getattr(node, "end_col_offset", 0) or 0
