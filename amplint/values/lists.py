"""Lists of layers that are built step by step: `layers = [a]`, `layers.append(b)`, `nn.Sequential(*layers)`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amplint import torch_ops
from amplint.values import modules
from amplint.values.site import Given, Site, merged
from amplint.values.value import Argument

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


def _is_optional(site: Site, statement: ast.stmt, use: ast.expr) -> bool:
    """Whether `statement` stands in a branch or loop that `use` is not in."""
    around = {id(ancestor) for ancestor in site.module.ancestors(use)}
    return any(isinstance(a, _COMPOUND) and id(a) not in around for a in site.module.ancestors(statement))


def _optional(site: Site, argument: Argument) -> Argument:
    identity = torch_ops.by_name("identity")
    assert identity is not None
    values = (*site.engine.of_argument(argument), *modules.made(site, argument.node, identity, Given()))
    return Argument(argument.module, argument.node, argument.frame, merged(values))
