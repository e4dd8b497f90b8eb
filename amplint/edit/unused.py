"""Locals that a fix leaves without a reader, and that go with it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from amplint import torch_ops
from amplint.flow import definitions
from amplint.tree import Module

_REFLECTION = ("locals", "vars", "eval", "exec")


def unused_after(
    module: Module,
    removed: Iterable[ast.AST],
    kept: Iterable[ast.AST] = (),
    *,
    is_pure: Callable[[Module, ast.expr], bool] | None = None,
) -> list[ast.stmt]:
    """The assignments to locals that nothing reads once `removed` is gone, and whose values have no effect.

    `removed`: the nodes that the fix replaces; `kept`: the nodes, wherever they stand, that its new text repeats. A
    local that only fed another one that goes, goes too. Names of the module itself stay: another file may import them.
    """
    return sorted(_Removal(module, is_pure or is_effect_free).of(removed, kept), key=lambda statement: statement.lineno)


def is_effect_free(
    module: Module,
    expression: ast.expr,
    apart_from: Sequence[ast.AST] = (),
    is_harmless: Callable[[ast.Call], bool] | None = None,
) -> bool:
    """Whether nothing is lost when `expression` is not evaluated: its calls are torch operations without effect.

    `apart_from`: parts that are evaluated elsewhere; `is_harmless`: whether a call of something else has no effect.
    """
    stack: list[ast.AST] = [expression]
    while stack:
        node = stack.pop()
        if any(node is part for part in apart_from):
            continue
        if isinstance(node, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr):
            return False
        if isinstance(node, ast.Call) and not (_is_operation(module, node) or (is_harmless and is_harmless(node))):
            return False
        stack += ast.iter_child_nodes(node)
    return True


def _is_operation(module: Module, call: ast.Call) -> bool:
    if any(keyword.arg == "out" for keyword in call.keywords):
        return False
    names = module.names(call.func)
    if names:
        return all(torch_ops.by_function(name) is not None and not name.endswith("_") for name in names)
    if not isinstance(call.func, ast.Attribute) or call.func.attr.endswith("_"):
        return False
    return torch_ops.by_method(call.func.attr) is not None


@dataclass(frozen=True, slots=True)
class _Local:
    """A local of a function: its plain assignments by the names they store to, and which of these each read sees."""

    assignments: dict[ast.AST, ast.Assign | ast.AnnAssign]
    sees: dict[ast.AST, tuple[ast.AST, ...]]
    others: tuple[ast.AST, ...]
    """Mentions that are no reads: while one stays, no assignment goes."""


class _Removal:
    """What goes with some nodes. Each read that goes is looked at once, so that a long chain takes no longer."""

    def __init__(self, module: Module, is_pure: Callable[[Module, ast.expr], bool]) -> None:
        self._module = module
        self._is_pure = is_pure
        self._kept: set[ast.AST] = set()
        self._gone: set[ast.AST] = set()
        self._readers: dict[ast.AST, set[ast.AST]] = {}
        """Who still reads each assignment."""
        self._opened: set[tuple[ast.AST, str]] = set()

    def of(self, removed: Iterable[ast.AST], kept: Iterable[ast.AST]) -> list[ast.stmt]:
        roots = list(removed)
        self._kept = {node for root in kept for node in ast.walk(root)}
        functions = {function for root in roots if (function := self._module.function(root)) is not None}
        unused: list[ast.stmt] = []
        pending = [name for root in roots for name in self._remove(root)]
        while pending:
            name = pending.pop()
            for function in functions:
                for statement in self._dead(function, name):
                    unused.append(statement)
                    pending += self._remove(statement)
        return unused

    def _remove(self, root: ast.AST) -> list[ast.Name]:
        """Take out what is not kept; the reads among it."""
        nodes = [node for node in ast.walk(root) if node not in self._kept]
        self._gone.update(nodes)
        return [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]

    def _dead(self, function: ast.AST, read: ast.Name) -> Iterator[ast.stmt]:
        """The assignments that nothing reads now that `read` is gone."""
        local = _local(self._module, function, read.id)
        if local is None or any(node not in self._gone for node in local.others):
            return
        for binding in self._left(local, function, read):
            statement = local.assignments[binding]
            value = statement.value
            if statement not in self._gone and value is not None and self._is_pure(self._module, value):
                yield statement

    def _left(self, local: _Local, function: ast.AST, read: ast.Name) -> list[ast.AST]:
        """The assignments without a reader that may have lost it by `read`; at first, all without one."""
        seen: Iterable[ast.AST] = local.sees.get(read, ())
        if (function, read.id) not in self._opened:
            self._opened.add((function, read.id))
            seen = local.assignments
            self._readers.update({binding: set() for binding in seen})
            for reader, bindings in local.sees.items():
                for binding in bindings if reader not in self._gone else ():
                    self._readers[binding].add(reader)
        for binding in seen:
            self._readers[binding].discard(read)
        return [binding for binding in seen if not self._readers[binding]]


def _local(module: Module, function: ast.AST, name: str) -> _Local | None:
    """A local of whose assignments some may go; None if none can."""
    return module.keep((_Local, function, name), lambda: _find_local(module, function, name))


def _find_local(module: Module, function: ast.AST, name: str) -> _Local | None:
    bindings = module.bindings(function, name)
    assignments: dict[ast.AST, ast.Assign | ast.AnnAssign] = {
        binding: statement  # type: ignore[misc]
        for binding in bindings
        if _is_plain_assignment(statement := module.parents[binding], binding)
    }
    if not assignments or any(isinstance(module.parents[binding], ast.AugAssign) for binding in bindings):
        return None  # before the function is walked: most names are parameters
    if _is_reflected(function):
        return None
    uses = list(_uses(module, function, name))
    reads = [node for node in uses if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    sees: dict[ast.AST, tuple[ast.AST, ...]] = {
        read: tuple(found.node for found in definitions(module, read) if found.node in assignments) for read in reads
    }
    return _Local(assignments, sees, tuple(node for node in uses if node not in sees))


def _is_plain_assignment(statement: ast.AST, binding: ast.AST) -> bool:
    if isinstance(statement, ast.AnnAssign):
        return statement.value is not None and statement.target is binding
    return isinstance(statement, ast.Assign) and len(statement.targets) == 1 and statement.targets[0] is binding


def _uses(module: Module, function: ast.AST, name: str) -> Iterator[ast.AST]:
    """Every mention of `name` in `function`: reads, deletions, and declarations in inner scopes."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Store):
            found = module.lookup(name, node)
            if found is None or found[0] is function:
                yield node
        elif isinstance(node, ast.Global | ast.Nonlocal) and name in node.names:
            yield node


def _is_reflected(function: ast.AST) -> bool:
    """Whether the function looks at its own locals."""
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _REFLECTION
        for node in ast.walk(function)
    )
