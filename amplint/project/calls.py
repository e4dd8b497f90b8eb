"""Which functions a call may enter, and which calls may enter a function."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from amplint.project import classes
from amplint.project.definitions import Callee, CallSite, Definition
from amplint.project.names import identity
from amplint.tree import Module

if TYPE_CHECKING:
    from amplint.project import Project

T = TypeVar("T")

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

_FEW_FILES = 8
"""Where more files call something of a name, only those that import the function's file are looked at."""
_MAX_FILES = 40
"""A name that more files mention is too common to follow where it is handed on."""


@dataclass(frozen=True, slots=True)
class _Target:
    """A function as an expression gives it: bound to a receiver, or with arguments given by `partial`."""

    definition: Definition
    receiver: ast.expr | None = None
    cls: Definition | None = None
    bound: bool = False
    given: ast.Call | None = None


def callees(project: Project, module: Module, call: ast.Call, receiver: Definition | None) -> tuple[Callee, ...]:
    key = ("callees", call, receiver.node if receiver else None, project.hops)
    return project.remember(key, lambda: _callees(project, module, call, receiver), ())


def callers(project: Project, function: Definition) -> tuple[CallSite, ...]:
    if project.hops == 0:
        return ()
    key = ("callers", function.node, project.hops)
    with project.one_hop():
        return project.remember(key, lambda: _callers(project, function), ())


def classes_of(project: Project, module: Module, expression: ast.expr) -> tuple[Definition, ...]:
    """The classes of this project that `expression` may stand for (not be an instance of)."""
    key = ("classes", identity(module, expression), project.hops)
    return project.remember(key, lambda: tuple(dict.fromkeys(_classes_of(project, module, expression))), ())


def _classes_of(project: Project, module: Module, expression: ast.expr) -> Iterator[Definition]:
    for found in project.resolve(module, expression) if isinstance(expression, ast.Name | ast.Attribute) else ():
        if isinstance(found.node, ast.ClassDef):
            yield found
    yield from _through(project, module, expression, project.classes_of)


def _through(project: Project, module: Module, expression: ast.expr, ask: classes.Ask[T]) -> list[T]:
    """What `ask` answers about the expressions that `expression` may hold, one step on."""
    steps: list[tuple[Module, ast.expr]] = []
    if isinstance(expression, ast.Name | ast.Attribute):
        variables = classes.variables(project, module, expression)
        return [found for variable in variables for found in classes.through(project, variable, ask)]
    if isinstance(expression, ast.IfExp):
        steps = [(module, expression.body), (module, expression.orelse)]
    elif isinstance(expression, ast.BoolOp):
        steps = [(module, part) for part in expression.values]
    elif isinstance(expression, ast.NamedExpr):
        steps = [(module, expression.value)]
    elif isinstance(expression, ast.Subscript):
        steps = list(classes.elements(project, module, expression.value))
    elif isinstance(expression, ast.Call) and isinstance(get := expression.func, ast.Attribute):
        steps = list(classes.elements(project, module, get.value)) if get.attr == "get" and expression.args else []
    return [found for found_in, value in steps for found in ask(found_in, value)]


def _callees(project: Project, module: Module, call: ast.Call, receiver: Definition | None) -> tuple[Callee, ...]:
    found: dict[tuple[ast.AST, ast.AST | None], Callee] = {}
    for target in _targets(project, module, call.func, receiver):
        callee = _bind(target, call)
        found.setdefault((callee.function, callee.cls.node if callee.cls else None), callee)
    return tuple(found.values())


def _targets(
    project: Project, module: Module, expression: ast.expr, receiver: Definition | None
) -> tuple[_Target, ...]:
    key = ("targets", identity(module, expression), receiver.node if receiver else None, project.hops)
    return project.remember(key, lambda: tuple(dict.fromkeys(_find_targets(project, module, expression, receiver))), ())


def _find_targets(
    project: Project, module: Module, expression: ast.expr, receiver: Definition | None
) -> Iterator[_Target]:
    if isinstance(expression, ast.Lambda):
        yield _Target(Definition(module, expression))
        return
    if isinstance(expression, ast.Attribute):
        if expression.attr != "apply" and not project.defines(expression.attr):
            return
        yield from _methods(project, module, expression, receiver)
    if isinstance(expression, ast.Name | ast.Attribute):
        for found in project.resolve(module, expression):
            if isinstance(found.node, _FUNCTIONS):
                yield _Target(found)
            elif isinstance(found.node, ast.ClassDef) and (init := project.method(found, "__init__")):
                yield _Target(init, cls=found, bound=True)
    yield from _through(
        project,
        module,
        expression,
        lambda found_in, value: _targets(project, found_in, value, receiver if found_in is module else None),
    )
    if isinstance(expression, ast.Call):
        yield from _of_call(project, module, expression, receiver)


def _methods(
    project: Project, module: Module, expression: ast.Attribute, receiver: Definition | None
) -> Iterator[_Target]:
    value = expression.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "super":
        yield from _inherited(project, module, expression, receiver)
        return
    for cls in _receivers(project, module, value, receiver):
        if method := project.method(cls, expression.attr):
            yield _Target(method, value, cls, bound=not _is_static(method.node))
        elif expression.attr == "apply" and (forward := project.method(cls, "forward")):
            yield _Target(forward, value, cls, bound=True)
    if expression.attr == "apply":
        for cls in project.classes_of(module, value):
            if forward := project.method(cls, "forward"):
                yield _Target(forward, value, cls, bound=True)


def _receivers(project: Project, module: Module, value: ast.expr, receiver: Definition | None) -> Iterator[Definition]:
    """The classes of the object a method is called on; for `self`, those of its overriding subclasses too."""
    declared = project.types(module, value)
    if not (isinstance(value, ast.Name) and _is_self(module, value)):
        yield from declared
        return
    for cls in declared:
        if receiver is not None and cls in project.mro(receiver):
            yield receiver
        else:
            yield cls
            yield from project.subclasses(cls)


def _inherited(
    project: Project, module: Module, expression: ast.Attribute, receiver: Definition | None
) -> Iterator[_Target]:
    """`super().m`: the next class after this one in the receiver's MRO."""
    cls = next((a for a in module.ancestors(expression) if isinstance(a, ast.ClassDef)), None)
    if cls is None:
        return
    here = Definition(module, cls)
    order = project.mro(receiver) if receiver else ()
    order = order if here in order else project.mro(here)
    for ancestor in order[order.index(here) + 1 :]:
        if method := project.method(ancestor, expression.attr):
            yield _Target(method, expression.value, receiver or here, bound=True)
            return


def _of_call(project: Project, module: Module, call: ast.Call, receiver: Definition | None) -> Iterator[_Target]:
    """What calling the result of a call enters: `partial(f, x)(y)`, `Net()(x)`."""
    if call.args and any(name.endswith("partial") for name in _spelled(module, call.func)):
        for target in _targets(project, module, call.args[0], receiver):
            if target.given is None:
                yield replace(target, given=call)
        return
    for cls in project.types(module, call):
        for name in ("__call__", "forward"):
            if method := project.method(cls, name):
                yield _Target(method, call, cls, bound=True)
                break


def _bind(target: _Target, call: ast.Call) -> Callee:
    function = target.definition.node
    assert isinstance(function, (*_FUNCTIONS, ast.Lambda))
    positional = [p.arg for p in (*function.args.posonlyargs, *function.args.args)][1 if target.bound else 0 :]
    named = set(positional) | {p.arg for p in function.args.kwonlyargs}
    given = [*(target.given.args[1:] if target.given else ()), *call.args]
    keywords = [*(target.given.keywords if target.given else ()), *call.keywords]
    arguments: dict[str, ast.expr] = {}
    is_open = False
    for parameter, value in zip(positional, given, strict=False):
        if isinstance(value, ast.Starred):
            break
        arguments[parameter] = value
    is_open = any(isinstance(value, ast.Starred) for value in given) or any(k.arg is None for k in keywords)
    arguments |= {k.arg: k.value for k in keywords if k.arg in named}
    return Callee(target.definition, target.receiver, target.cls, arguments, is_open)


def calling_files(project: Project, function: Definition) -> tuple[Path, ...]:
    """The files in which `function` may be called, by name and imports; nothing is parsed beyond what names need."""
    key = ("calling files", function.node)
    return project.remember(key, lambda: tuple(_calling_files(project, function)), ())


def _calling_files(project: Project, function: Definition) -> dict[Path, None]:
    here = function.module.source.path
    found: dict[Path, None] = {}
    for name in called_as(project, function):
        paths = project.files_calling(name)
        if len(paths) > _FEW_FILES:
            importing = project.files_importing(here)
            paths = tuple(path for path in paths if path in importing or path == here or _is_near(project, path, here))
        found |= dict.fromkeys(paths)
    return found


def _callers(project: Project, function: Definition) -> tuple[CallSite, ...]:
    found: dict[ast.Call, CallSite] = {}
    names = called_as(project, function)
    for path in calling_files(project, function)[:_MAX_FILES]:
        module = project.module(path)
        if module is None:
            continue
        for call in module.calls_of(*names):
            if _enters(project, module, call, function):
                found[call] = CallSite(module, call)
    return tuple(found.values())


def _is_near(project: Project, path: Path, here: Path) -> bool:
    """Whether a file that calls a function by name is likely to mean that of `here`, without importing it."""
    return project.are_siblings(path, here) and project.mentions(path, here.stem)


def _enters(project: Project, module: Module, call: ast.Call, function: Definition) -> bool:
    return any(callee.function is function.node for callee in project.callees(module, call))


def called_as(project: Project, function: Definition) -> tuple[str, ...]:
    """The names by which `function` may be called: its own, its class's, those its instances are held by."""
    key = ("called as", function.node)
    return project.remember(key, lambda: tuple(sorted(_called_as(project, function))), ())


def _called_as(project: Project, function: Definition) -> set[str]:
    node = function.node
    if isinstance(node, ast.Lambda):
        return set(_holders(project, function.module, node))
    assert isinstance(node, _FUNCTIONS)
    owner = function.module.class_of(node)
    if owner is None or node.name not in ("__init__", "__call__", "forward"):
        return {node.name} | _holders_of(project, node.name, call=False)
    cls = Definition(function.module, owner)
    names = {kind.node.name for kind in (cls, *project.subclasses(cls)) if isinstance(kind.node, ast.ClassDef)}
    if node.name == "__init__":
        return names
    if "torch.autograd.Function" in project.base_names(cls):
        return {"apply"} | _holders_of(project, "apply", call=False)
    return {node.name}.union(*(_holders_of(project, name, call=True) for name in names))


def _holders_of(project: Project, name: str, *, call: bool) -> set[str]:
    """The names that hold `name`, or with `call` what calling it gives."""
    paths = project.files_calling(name) if call else project.files_passing(name)
    if len(paths) > _MAX_FILES:
        return set()
    held: set[str] = set()
    for path in paths:
        module = project.module(path)
        if module is None:
            continue
        found: Iterable[ast.expr] = module.calls_of(name) if call else module.handed_on(name)
        for node in found:
            held.update(_holders(project, module, node))
    return held


def _holders(project: Project, module: Module, expression: ast.AST) -> Iterator[str]:
    """The names of the variables, attributes and parameters that an expression is given to, as it is or wrapped."""
    child, parent = expression, module.parent(expression)
    while isinstance(parent, ast.expr | ast.keyword) and not isinstance(parent, ast.Lambda):
        if isinstance(parent, ast.keyword) and parent.arg:
            yield parent.arg
        elif isinstance(parent, ast.NamedExpr) and isinstance(parent.target, ast.Name):
            yield parent.target.id
        elif isinstance(parent, ast.Call) and child in parent.args:
            for callee in project.callees(module, parent):
                for name, argument in callee.arguments.items():
                    if argument is child:
                        yield name
                        yield from _kept_as(callee, name)
        child, parent = parent, module.parent(parent)
    targets = parent.targets if isinstance(parent, ast.Assign) else [getattr(parent, "target", None)]
    yield from (_last_name(target) for target in targets if isinstance(target, ast.Name | ast.Attribute))


def _kept_as(callee: Callee, parameter: str) -> Iterator[str]:
    """The names of the attributes that a constructor keeps a parameter in."""
    for node in ast.walk(callee.function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id == parameter:
            yield from (target.attr for target in node.targets if isinstance(target, ast.Attribute))


def _is_self(module: Module, name: ast.Name) -> bool:
    found = module.lookup(name.id, name)
    if not found or not isinstance(found[1][0], ast.arg):
        return False
    function = module.parent(module.parent(found[1][0]) or name)
    return isinstance(function, _FUNCTIONS) and module.class_of(function) is not None


def _is_static(node: ast.AST) -> bool:
    return isinstance(node, _FUNCTIONS) and any(_last_name(d) == "staticmethod" for d in node.decorator_list)


def _spelled(module: Module, expression: ast.expr) -> tuple[str, ...]:
    return module.names(expression) or (_last_name(expression),)


def _last_name(expression: ast.AST) -> str:
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""
