"""What the tree alone tells: that an expression can only be a tensor, that a call cannot enter the project's code.

It spares asking, file after file, what is handed in.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amplint import torch_ops
from amplint.project import Project
from amplint.project.names import bound_value
from amplint.tree import Module
from amplint.values.tensors import FORWARD

_OF_MODULES = frozenset(
    "to type half float double bfloat16 cuda cpu requires_grad_ data add copy_ split select T H norm".split()
)
"""Names of tensors' methods that modules, what they hold, or collections have too."""
_TELLING = frozenset(
    "shape ndim size dim view reshape transpose permute unsqueeze squeeze contiguous detach clone numel expand "
    "masked_fill masked_fill_ pow item tolist numpy repeat chunk new_zeros new_ones".split()
)
"""Attributes that only tensors have."""
_CALLING = frozenset({"apply", "forward", "__call__"})
"""Methods that enter code which need not define one of that name."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def is_tensor(module: Module, expression: ast.expr) -> bool:
    """Whether an expression is what only tensors are, by what makes it or by what else is done with the variable."""
    expression = _uncast(expression)
    if not isinstance(expression, ast.Name):
        return _makes_a_tensor(module, expression)
    found = module.lookup(expression.id, expression)
    return found is not None and _is_tensor_variable(module, expression.id, *found)


def may_enter(project: Project, module: Module, call: ast.Call) -> bool:
    """Whether a call may run code of the project."""
    func = call.func
    if not isinstance(func, ast.Name | ast.Attribute):
        return True
    if names := module.names(func):
        return not any(name.startswith("torch.") and "checkpoint" not in name for name in names)
    if isinstance(func, ast.Name):
        return module.lookup(func.id, func) is not None
    if func.attr in _CALLING:
        return True
    if not project.defines(func.attr) or _is_keywords(module, func.value):
        return False
    is_method = func.attr in _TELLING or torch_ops.by_method(func.attr) is not None
    return not (is_method and is_tensor(module, func.value))


def _is_keywords(module: Module, expression: ast.expr) -> bool:
    """Whether it is the dict of a function's `**keywords`."""
    found = module.lookup(expression.id, expression) if isinstance(expression, ast.Name) else None
    return found is not None and any(getattr(module.parent(n), "kwarg", None) is n for n in found[1])


def _uncast(expression: ast.expr) -> ast.expr:
    """What `x.to(device).float()` is called on in the end."""
    while isinstance(call := expression, ast.Call) and isinstance(func := call.func, ast.Attribute):
        if func.attr not in _OF_MODULES:
            break
        expression = func.value
    return expression


def _makes_a_tensor(module: Module, expression: ast.expr) -> bool:
    match expression:
        case ast.BinOp() | ast.UnaryOp() | ast.Compare():
            return True
        case ast.Subscript(slice=index):
            return _indexes_a_tensor(index)
        case ast.Call(func=ast.Attribute(attr=name) as func):
            if names := module.names(func):
                return all(torch_ops.by_function(dotted) for dotted in names)
            return name not in _OF_MODULES and torch_ops.by_method(name) is not None
    return False


def _is_tensor_variable(module: Module, name: str, scope: ast.AST, bound: list[ast.AST]) -> bool:
    for node in bound:
        value = bound_value(module, node)
        if isinstance(node, ast.arg) and _is_tensor_parameter(module, scope, node):
            return True
        if value is not None and _makes_a_tensor(module, _uncast(value)):
            return True
    uses = (use for use in module.named(name) if isinstance(use, ast.Name))
    return any(_is_used_as_tensor(module, use) for use in uses if (module.lookup(name, use) or (None,))[0] is scope)


def _is_tensor_parameter(module: Module, scope: ast.AST, parameter: ast.arg) -> bool:
    """Whether its annotation says so, or it is what a module's forward is given."""
    if parameter.annotation is not None:
        return any(_last_name(node).endswith("Tensor") for node in ast.walk(parameter.annotation))
    is_forward = isinstance(scope, _FUNCTIONS) and scope.name in FORWARD and module.class_of(scope) is not None
    return is_forward and parameter.arg != "self"


def _is_used_as_tensor(module: Module, use: ast.Name) -> bool:
    match module.parent(use):
        case ast.BinOp():
            return True
        case ast.UnaryOp(op=op):
            return not isinstance(op, ast.Not)
        case ast.Subscript(value=base, slice=index):
            return base is use and _indexes_a_tensor(index)
        case ast.Attribute(attr=name):
            return name in _TELLING
        case ast.Call(func=func) as call:
            return func is not use and _makes_a_tensor(module, call)
    return False


def _indexes_a_tensor(index: ast.expr) -> bool:
    """`[None]`, `[:, 0]`, `[..., 1]`: what lists of modules and dicts are not indexed with."""
    parts: Iterator[ast.expr] = iter(index.elts if isinstance(index, ast.Tuple) else ())
    if any(isinstance(part, ast.Slice) for part in parts):
        return True
    return isinstance(index, ast.Constant) and index.value in (None, ...)


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
