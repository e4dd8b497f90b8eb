"""Where to begin: the functions that nothing in the project calls and that lead to the events of a file."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from amplint.project import Definition, Project
from amplint.protocol.interest import direct_events
from amplint.tree import Module

_MAX_ENTRIES = 12
_MAX_CLIMB = 6
_MAX_RECEIVERS = 6
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Entry:
    """A function or module to run; for a method, the class whose instance runs it."""

    function: Definition
    receiver: Definition | None = None


def entries(project: Project, module: Module) -> tuple[list[Entry], list[tuple[ast.AST, str]]]:
    """The entries that lead to the events of `module`; and its functions that have too many, each with the reason."""
    found: dict[Entry, None] = {}
    limits: list[tuple[ast.AST, str]] = []
    eventful = {module.function(node) or module.tree for node in direct_events(project, module)}
    for node in sorted(eventful, key=lambda node: getattr(node, "lineno", 0)):
        outermost = _outermost(project, Definition(module, node))
        if len(outermost) > _MAX_ENTRIES:
            limits.append((node, "called from too many places"))
            continue
        for function in outermost:
            for receiver in _receivers(project, function):
                found[Entry(function, receiver)] = None
    return list(found), limits


def _outermost(project: Project, function: Definition) -> list[Definition]:
    """The functions from which `function` is reached and that nothing else calls."""
    seen = {function}
    level = [function]
    outermost: dict[Definition, None] = {}
    for _ in range(_MAX_CLIMB):
        callers: list[Definition] = []
        for reached in level:
            above = [caller for caller in _callers(project, reached) if caller != reached]
            if not above:
                outermost[reached] = None
            callers += [caller for caller in above if caller not in seen]
            seen.update(above)
        level = list(dict.fromkeys(callers))
        if not level:
            break
    outermost.update(dict.fromkeys(level))
    return list(outermost) or [function]


def _callers(project: Project, function: Definition) -> list[Definition]:
    if not isinstance(function.node, _FUNCTIONS):
        return []
    sites = project.callers(function)
    return [Definition(site.module, _runner(site.module, site.call)) for site in sites]


def _runner(module: Module, call: ast.Call) -> ast.AST:
    return module.function(call) or module.tree


def _receivers(project: Project, function: Definition) -> list[Definition | None]:
    """The classes whose instances run a method: its own, and subclasses that inherit it and override another."""
    cls = function.module.class_of(function.node) if isinstance(function.node, _FUNCTIONS) else None
    if cls is None or any(_is_static(decorator) for decorator in function.node.decorator_list):  # type: ignore[attr-defined]
        return [None]
    own = Definition(function.module, cls)
    name = getattr(function.node, "name", "")
    heirs = [sub for sub in project.subclasses(own) if project.method(sub, name) == function]
    return [own, *heirs[:_MAX_RECEIVERS]]


def _is_static(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Name) and decorator.id in ("staticmethod", "classmethod")
