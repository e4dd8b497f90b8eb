"""How to write the parameters that an optimizer holds, for a clip at some place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from amplint.project import Project
from amplint.project.names import bound_value
from amplint.protocol.places import means_the_same
from amplint.protocol.roles import last_name
from amplint.protocol.symbols import Symbol
from amplint.tree import Module

_MODEL_NAME = re.compile(
    r"(^|_)(model|net|network|module|backbone|unet|generator|policy)(_|$)|^[a-z]*net$", re.IGNORECASE
)


def written_parameters(project: Project, optimizer: Symbol, written: str, module: Module, at: ast.AST) -> str:
    """The parameters of an optimizer that is written `written` at `at`.

    What its constructor was given, if that can be written there too; else those of the one model at hand; else what
    its groups hold.
    """
    groups = f'[p for group in {written}.param_groups for p in group["params"]]'
    if isinstance(optimizer.source, ast.Call) and optimizer.kind in ("new", "made") and optimizer.module is module:
        return _of_constructor(module, optimizer.source, at) or groups
    models = set(_models(module, at))
    return f"{models.pop()}.parameters()" if len(models) == 1 else groups


def _of_constructor(module: Module, call: ast.Call, at: ast.AST) -> str | None:
    given = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "params"), None)
    if given is None:
        return None
    if isinstance(given, ast.Name) and (value := _single_value(module, given)) is not None:
        if isinstance(value, ast.List | ast.ListComp):
            return given.id if means_the_same(module, given, module, at) else None
        given = value
    if not _is_parameters(given):
        return None
    text = module.source.segment(given)
    replaced: list[tuple[int, int, str]] = []
    start = module.source.span(given)[0]
    for name in (node for node in ast.walk(given) if isinstance(node, ast.Name)):
        if means_the_same(module, name, module, at):
            continue
        attribute = _kept_as(module, name, at)
        if attribute is None:
            return None
        begin, end = module.source.span(name)
        replaced.append((begin - start, end - start, attribute))
    for begin, end, attribute in sorted(replaced, reverse=True):
        text = text[:begin] + attribute + text[end:]
    return text


def _is_parameters(given: ast.expr) -> bool:
    """`model.parameters()`, or a display or chain of such calls: iterated again, the same parameters."""
    match given:
        case ast.Call(func=ast.Attribute(attr="parameters"), args=[]):
            return True
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return all(isinstance(e, ast.Starred) and _is_parameters(e.value) for e in elements)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return _is_parameters(left) and _is_parameters(right)
        case ast.Call(func=function, args=arguments) if last_name(function) in ("list", "chain"):
            return all(_is_parameters(argument) for argument in arguments)
    return False


def _single_value(module: Module, name: ast.Name) -> ast.expr | None:
    found = module.lookup(name.id, name)
    return bound_value(module, found[1][0]) if found and len(found[1]) == 1 else None


def _kept_as(module: Module, parameter: ast.Name, at: ast.AST) -> str | None:
    """`self.model`, where the constructor keeps its parameter `model` and `at` stands in a method of the class.

    `self` in both stands for itself.
    """
    constructor = module.function(parameter)
    method = module.function(at)
    if constructor is None or method is None or module.class_of(constructor) is None:
        return None
    if module.class_of(method) is not module.class_of(constructor):
        return None
    if parameter.id == "self":
        return parameter.id
    for node in ast.walk(constructor):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            value = bound_value(module, node)
            if isinstance(value, ast.Name) and value.id == parameter.id:
                return module.source.segment(node)
    return None


def _models(module: Module, at: ast.AST) -> Iterator[str]:
    """The variables that a function calls, trains or takes parameters of as models."""
    function = module.function(at) or module.tree
    for call in ast.walk(function):
        if not isinstance(call, ast.Call):
            continue
        holder: ast.expr | None = None
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("train", "parameters", "named_parameters"):
            holder = call.func.value
        elif _MODEL_NAME.search(last_name(call.func)):
            holder = call.func
        if isinstance(holder, ast.Name | ast.Attribute) and means_the_same(module, holder, module, at):
            yield module.source.segment(holder)
