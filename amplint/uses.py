"""What becomes of an expression: is something divided by it, does another operation take it, or does it leave?"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from dataclasses import dataclass

from amplint import torch_ops
from amplint.tree import Module

_MAX_LOCALS = 4
"""A value is followed through this many local variables."""

_SHAPES = ("view", "reshape", "flatten", "unsqueeze", "squeeze", "expand", "expand_as", "clone", "contiguous", "to")
_PASSING = (*_SHAPES, "add", "sub", "mul", "div", "neg")
"""Operations that hand a small value on as a small value."""


class Role(enum.Enum):
    """What becomes of a value."""

    DENOMINATOR = "something is divided by it, or the slope of its square root is"
    OTHER = "it is an operand of something else"
    UNKNOWN = "it leaves the function"


@dataclass(frozen=True, slots=True)
class Use:
    """What becomes of an expression, and the largest expression around it up to the operation that consumes it."""

    role: Role
    consumer: ast.expr


def use(module: Module, node: ast.expr, locals_left: int = _MAX_LOCALS) -> Use:
    """What becomes of an expression: through arithmetic, reshaping and local variables."""
    inner, parent = node, module.parent(node)
    while isinstance(parent, ast.expr | ast.keyword):
        if isinstance(parent, ast.keyword):
            parent = module.parent(parent)
            continue
        role = _role(module, inner, parent)
        if role is Role.UNKNOWN:
            return Use(role, node)
        if role is not None:
            return Use(role, parent)
        inner, parent = parent, module.parent(parent)
    roles = set(_roles_of_local(module, parent, locals_left))
    if Role.DENOMINATOR in roles:
        return Use(Role.DENOMINATOR, node)
    return Use(Role.OTHER if roles == {Role.OTHER} else Role.UNKNOWN, node)


def _roles_of_local(module: Module, statement: ast.AST | None, locals_left: int) -> Iterator[Role]:
    """What becomes of the local that a statement assigns, wherever its name is read in the function."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    if not isinstance(target, ast.Name) or locals_left == 0:
        yield Role.UNKNOWN
        return
    scope = module.scope(target)
    for node in ast.walk(scope):
        if isinstance(node, ast.Name) and node.id == target.id and isinstance(node.ctx, ast.Load):
            yield use(module, node, locals_left - 1).role


def _role(module: Module, node: ast.expr, parent: ast.expr) -> Role | None:
    """The role of `node` in the expression right around it; None if that only hands it on."""
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Div | ast.FloorDiv):
        return Role.DENOMINATOR if node is parent.right else None
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Pow):
        return Role.OTHER if _is_whole(parent.right) else Role.DENOMINATOR
    if isinstance(parent, ast.Compare):
        return Role.OTHER
    return _role_in_call(module, node, parent) if isinstance(parent, ast.Call) else None


def _role_in_call(module: Module, node: ast.expr, call: ast.Call) -> Role | None:
    names = module.names(call.func)
    operation = next((found for name in names if (found := torch_ops.by_function(name))), None)
    if not names and isinstance(call.func, ast.Attribute):
        operation = torch_ops.by_method(call.func.attr)
    if operation is None:
        return Role.UNKNOWN
    is_input = node is call.func or (bool(names) and bool(call.args) and node is call.args[0])
    if operation.name in ("reciprocal", "rsqrt", "sqrt") or (operation.name == "div" and not is_input):
        return Role.DENOMINATOR
    return None if operation.name in _PASSING else Role.OTHER


def _is_whole(exponent: ast.expr) -> bool:
    return isinstance(exponent, ast.Constant) and isinstance(exponent.value, int)
