"""Locals that a fix leaves without a reader, and that go with it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence

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
    pure = is_pure or is_effect_free
    read = {id(node) for root in kept for node in ast.walk(root)}
    gone = {id(node) for root in removed for node in ast.walk(root)} - read
    candidates = {node.id for root in removed for node in ast.walk(root) if isinstance(node, ast.Name)}
    functions = {id(f): f for root in removed if (f := module.function(root)) is not None}
    unused: list[ast.stmt] = []
    while candidates:
        found = [
            statement
            for function in functions.values()
            for name in sorted(candidates)
            for statement in _dead_assignments(module, function, name, gone, pure)
        ]
        unused += found
        names = [node for statement in found for node in ast.walk(statement)]
        gone |= {id(node) for node in names} - read
        candidates = {node.id for node in names if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return sorted(unused, key=lambda statement: statement.lineno)


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


def _dead_assignments(
    module: Module,
    function: ast.AST,
    name: str,
    gone: set[int],
    pure: Callable[[Module, ast.expr], bool],
) -> Iterator[ast.stmt]:
    """The assignments to `name` that reach no reader that stays."""
    bindings = module.bindings(function, name)
    if not any(_is_plain_assignment(module.parents[binding], binding) for binding in bindings):
        return  # before the function is walked: most names are parameters
    if _is_reflected(function) or any(isinstance(module.parents[b], ast.AugAssign) for b in bindings):
        return
    readers = [node for node in _uses(module, function, name) if id(node) not in gone]
    if not all(isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) for node in readers):
        return
    read = {id(reaching.node) for node in readers for reaching in definitions(module, node)}  # type: ignore[arg-type]
    for binding in module.bindings(function, name):
        statement = module.parents[binding]
        if id(binding) in read or id(statement) in gone or not _is_plain_assignment(statement, binding):
            continue
        if pure(module, statement.value):  # type: ignore[attr-defined]
            yield statement  # type: ignore[misc]


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
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("locals", "vars", "eval", "exec")
        for node in ast.walk(function)
    )
