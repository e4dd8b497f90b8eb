"""Contexts that are entered by a call: `stack.enter_context(autocast())`, `context.__enter__()`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from amplint.tree import Module
from amplint.values import order
from amplint.values.value import Certainty

ENTERING = frozenset({"enter_context", "enter_async_context", "__enter__", "__aenter__"})
_ENDING = frozenset({"close", "aclose", "pop_all", "__exit__", "__aexit__"})


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
    ends: tuple[tuple[str, order.Place], ...]

    def open_at(self, module: Module, node: ast.AST) -> Iterator[tuple[Entry, bool]]:
        """The contexts that are open at a node, the last one first, and whether that is for certain.

        At the end of the function, if the node is that.
        """
        place = order.end(node) if node is self.function else order.start(node)
        for entry in reversed(self.entries):
            entered = order.end(entry.call)
            if any(holder == entry.holder and entered <= end <= place for holder, end in self.ends):
                continue
            has_run = order.has_run(module, entry.call, node)
            if has_run is not Certainty.NEVER:
                yield entry, has_run is Certainty.ALWAYS


def by_function(module: Module) -> dict[ast.AST, Entered]:
    """What calls enter in each function of a file (or the file itself); only those with such a call."""
    entries: dict[ast.AST, list[Entry]] = {}
    for call in module.calls_of(*ENTERING):
        if isinstance(call.func, ast.Attribute):
            context = call.args[0] if call.args else call.func.value
            entries.setdefault(_function(module, call), []).append(Entry(call, context, ast.unparse(call.func.value)))
    ends: dict[ast.AST, list[tuple[str, order.Place]]] = {}
    for node in module.nodes if entries else ():
        for holder in _ended(node):
            ends.setdefault(_function(module, node), []).append((ast.unparse(holder), order.end(node)))
    return {
        function: Entered(
            function, tuple(sorted(found, key=lambda e: order.start(e.call))), tuple(ends.get(function, ()))
        )
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


def _function(module: Module, node: ast.AST) -> ast.AST:
    return module.function(node) or module.tree
