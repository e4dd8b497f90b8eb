"""Where to begin: the functions that nothing in the project calls and that lead to the events of a file."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from amplint.project import Definition, Project
from amplint.protocol.interest import direct_events
from amplint.protocol.recognise import CHECKS, REDUCTIONS
from amplint.protocol.roles import is_of_step, last_name
from amplint.tree import Module

CLIMBS = (6, 2, 1, 0)
"""How many calls up the entries lie; fewer, where there is too much to run from above."""
_MAX_ENTRIES = 12
_MAX_RECEIVERS = 6
_ASIDE = CHECKS | REDUCTIONS
"""Calls that a step makes on the side, but layers, too."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Entry:
    """A function or module to run; for a method, the class whose instance runs it."""

    function: Definition
    receiver: Definition | None = None


def eventful(project: Project, module: Module) -> list[Definition]:
    """The functions of a file (or the file itself) with events of their own, in the order they stand.

    A file that does nothing but test for finiteness, and sum over processes, matters where it does so to a loss or to
    gradients; a layer that looks at its output takes no part in the protocol.
    """
    events = direct_events(project, module)
    if all(isinstance(event, ast.Call) and last_name(event.func) in _ASIDE for event in events):
        events = [event for event in events if is_of_step(event)]
    nodes = {module.function(node) or module.tree for node in events}
    return [Definition(module, node) for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0))]


def entries(project: Project, function: Definition, climb: int) -> list[Entry] | None:
    """The entries, at most `climb` calls up, that lead to a function. None: too many."""
    outermost = _outermost(project, function, climb)
    if len(outermost) > _MAX_ENTRIES:
        return None
    return [Entry(found, receiver) for found in outermost for receiver in _receivers(project, found)]


def _outermost(project: Project, function: Definition, climb: int) -> list[Definition]:
    """The functions from which `function` is reached and that nothing else calls, or that lie `climb` calls up."""
    seen = {function}
    level = [function]
    outermost: dict[Definition, None] = {}
    for _ in range(climb):
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
