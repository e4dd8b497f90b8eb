"""What is put together step by step: `layers.append(b)` of a list, `net.append(b)` of nn.Sequential."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from amplint import flow, torch_ops
from amplint.project import Definition
from amplint.tree import Module
from amplint.values import conditions, modules, objects
from amplint.values.site import Given, Site, merged
from amplint.values.value import Argument, Value

_GROWING = ("append", "add_module", "register_module")
_COMPOUND = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.Match)


def layers(site: Site, node: ast.expr) -> tuple[Argument, ...] | None:
    """The elements of a list, in order; one that is added under a condition may also be nn.Identity.

    None where what is in the list is not known.
    """
    if isinstance(node, ast.List | ast.Tuple):
        return _displayed(site, node)
    if not isinstance(node, ast.Name):
        return None
    scope, function = site.module.scope(node), site.module.function(node)
    found: list[Argument] | None = None
    for statement in _statements(scope):
        if site.module.function(statement) is not function or statement.lineno > node.lineno:
            continue
        is_optional = _is_optional(site, statement, node)
        if isinstance(statement, ast.Assign) and _binds(statement, node.id):
            started = _displayed(site, statement.value)
            if started is None or is_optional:
                return None
            found = list(started)
        elif (added := _added(site, statement, node.id)) is not None and found is not None:
            found += [_optional(site, argument) for argument in added] if is_optional else added
    return None if found is None else tuple(found)


def _statements(scope: ast.AST) -> Iterator[ast.stmt]:
    nodes = [node for node in ast.walk(scope) if isinstance(node, ast.Assign | ast.AugAssign | ast.Expr)]
    return iter(sorted(nodes, key=lambda node: (node.lineno, node.col_offset)))


def _binds(statement: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in statement.targets)


def _displayed(site: Site, node: ast.expr) -> tuple[Argument, ...] | None:
    if not isinstance(node, ast.List | ast.Tuple) or any(isinstance(e, ast.Starred) for e in node.elts):
        return None
    return tuple(site.argument(element) for element in node.elts)


def _added(site: Site, statement: ast.stmt, name: str) -> tuple[Argument, ...] | None:
    """What `name += […]`, `name.append(…)` or `name.extend([…])` adds."""
    if isinstance(statement, ast.AugAssign):
        is_ours = isinstance(statement.target, ast.Name) and statement.target.id == name
        return _displayed(site, statement.value) if is_ours else None
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or len(call.args) != 1:
        return None
    if not isinstance(call.func.value, ast.Name) or call.func.value.id != name:
        return None
    if call.func.attr == "append":
        return (site.argument(call.args[0]),)
    return _displayed(site, call.args[0]) if call.func.attr == "extend" else None


def _is_optional(site: Site, statement: ast.AST, use: ast.AST) -> bool:
    """Whether `statement` stands in a branch or loop that `use` is not in."""
    around = {id(ancestor) for ancestor in site.module.ancestors(use)}
    return any(isinstance(a, _COMPOUND) and id(a) not in around for a in site.module.ancestors(statement))


def _optional(site: Site, argument: Argument) -> Argument:
    identity = torch_ops.by_name("identity")
    assert identity is not None
    values = (*site.engine.of_argument(argument), *modules.made(site, argument.node, identity, Given()))
    return Argument(argument.module, argument.node, argument.frame, merged(values))


# -- lists of anything -----------------------------------------------------------------------------------------


def appended(site: Site, made: ast.List) -> tuple[Argument, ...]:
    """What a function appends, in a loop or not, to a list that it makes and names."""
    calls = _additions_to(site, made)
    return tuple(site.argument(call.args[0]) for call in calls if getattr(call.func, "attr", "") == "append")


# -- containers that grow --------------------------------------------------------------------------------------


def grown(site: Site, made: ast.expr) -> tuple[Argument, ...]:
    """The layers that a function adds to the nn.Sequential that it makes and names: `net.add_module("fc", layer)`."""
    return tuple(layer for call in _additions_to(site, made) for layer in _layer(site, call, made))


def _additions_to(site: Site, made: ast.expr) -> Iterator[ast.Call]:
    """The calls in its function that may add something to a container that is made and named there."""
    statement, function = site.module.parent(made), site.module.function(made)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return
    for holder, call in _additions(site, site.module):
        if not isinstance(holder, ast.Name) or site.module.function(call) is not function:
            continue
        if any(reaching.value is made for reaching in flow.definitions(site.module, holder)):
            yield call


def grown_attribute(site: Site, node: ast.Attribute, instance: Value, held: Value) -> Value:
    """An nn.Sequential that is an attribute of an instance, with what the methods of its class add to it."""
    cls = instance.definition
    assert cls is not None
    found: list[Argument] = []
    for base in reversed(site.engine.project.mro(cls)):
        for holder, call in _additions(site, base.module):
            function = base.module.function(call)
            if function is None or base.module.class_of(function) is not base.node:
                continue
            if isinstance(holder, ast.Attribute) and holder.attr == node.attr and isinstance(holder.value, ast.Name):
                frame = objects.method_frame(site, Definition(base.module, function), instance, node)
                found += _layer(site.at(base.module, frame), call, function)
    if not found:
        return held
    return site.engine.remember(
        ("grown", held, instance), lambda: replace(held, elements=(*held.elements, *found)), lambda: held
    )


def _additions(site: Site, module: Module) -> tuple[tuple[ast.expr, ast.Call], ...]:
    """(container, call) of each call of a file that may add a layer to a container, in their order."""
    return site.engine.remember(("additions", module.tree), lambda: tuple(_find_additions(module)), tuple)


def _find_additions(module: Module) -> Iterator[tuple[ast.expr, ast.Call]]:
    return (
        (call.func.value, call)
        for call in sorted(module.calls_of(*_GROWING), key=lambda call: (call.lineno, call.col_offset))
        if isinstance(call.func, ast.Attribute) and call.args
    )


def _layer(site: Site, call: ast.Call, use: ast.AST) -> tuple[Argument, ...]:
    """The layer that a call adds; it may also be nn.Identity if it is not known to be added."""
    if not conditions.feasible(site, call):
        return ()
    argument = site.argument(call.args[-1])
    return (_optional(site, argument) if _is_optional(site, call, use) else argument,)
