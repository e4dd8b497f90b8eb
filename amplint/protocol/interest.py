"""Which parts of a file can matter to the protocol, so that all else is stepped over."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from amplint.project import NOTHING, Asked, Callee, Definition, Project
from amplint.protocol.liveness import Liveness
from amplint.protocol.recognise import CHECKS, NAMES_OF_EVENTS, is_clip_name
from amplint.protocol.roles import is_super, last_name, used_as_scaler
from amplint.tree import Module

_WORDS = re.compile(
    r"backward\(|unscale_|clip_grad|zero_grad|GradScaler|\.grad\b|isfinite|isnan|isinf|all_reduce|scaler|optim\w*\.step"
    r"|\b_?train\w*\(|trainer|\b_?fit\w*\(|epoch|_step\("
)
"""A file without one of these neither has events nor calls what has them. Most model code is without."""
_MAX_VISITED = 120
_HOPS = 1
"""How many calls back parameters are followed here: it is asked of every call of a file."""
_NO_STEPPER = re.compile(r"sched|lr_|warmup|^ema|^env|prof|^bar|pbar|timer|wandb|tracker|^lr$|scheduler", re.IGNORECASE)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


_Question: TypeAlias = tuple[ast.AST, bool]
"""A function, and whether tests of finiteness in it count."""


@dataclass(slots=True, eq=False)
class Interest:
    """For one file: nodes with events in them, names that steer the way to them."""

    nodes: set[ast.AST] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    """Variables and attributes that tests on the way, receivers and arguments of events read."""
    telling: dict[ast.AST, None] = field(default_factory=dict)
    """The expressions that these names come from."""
    naming: set[ast.AST] = field(default_factory=set)
    """Nodes with a `:=` in them."""
    _liveness: Liveness | None = None

    def tells(self, expression: ast.AST) -> None:
        """What an expression reads matters."""
        if expression not in self.telling:
            self.telling[expression] = None
            self.names |= names_in(expression)

    def liveness(self, module: Module) -> Liveness:
        """Where in the file what it reads still matters."""
        if self._liveness is None:
            self._liveness = Liveness(module, self.telling)
        return self._liveness


class Interests:
    """Looks files over, each once."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._of: dict[Module, tuple[Interest, Asked]] = {}
        self._eventful: dict[_Question, bool] = {}
        self._rests_on: dict[_Question, Asked] = {}

    def of(self, module: Module) -> Interest:
        """What matters in a file."""
        if module in self._of:
            interest, asked = self._of[module]
            self.project.rest_on(asked)
            return interest
        interest = Interest()
        self._of[module] = interest, NOTHING  # what looking the file over itself asks for
        with self.project.recording() as recording, self.project.at_most(_HOPS):
            self._look_over(module, interest)
        self._of[module] = interest, recording.asked
        return interest

    def callees(self, module: Module, call: ast.Call, receiver: Definition | None) -> list[Callee]:
        """The functions with events that a call enters."""
        return [c for c in self.project.callees(module, call, receiver) if self.is_eventful(c.definition)]

    def is_eventful(self, function: Definition) -> bool:
        """Whether running a function may bring about an event: it, or one that it leads to, has one of its own."""
        key = function.node, not _is_constructor(function)
        if key in self._eventful:
            self.project.rest_on(self._rests_on.get(key, NOTHING))
            return self._eventful[key]
        visited: set[_Question] = set()
        with self.project.recording() as recording, self.project.at_most(_HOPS):
            if not self._leads_to_event(function, visited, tests=True):
                self._eventful.update(dict.fromkeys(visited, False))
        for new in self._eventful.keys() - self._rests_on.keys():
            self._rests_on[new] = recording.asked
        return self._eventful.get(key, False)

    # -- inside --------------------------------------------------------------------------------------------------

    def _look_over(self, module: Module, interest: Interest) -> None:
        for node in direct_events(self.project, module):
            self._mark(module, node, interest)
        for call in module.calls:
            if call not in interest.nodes and any(
                self.is_eventful(callee.definition) for callee in self.project.callees(module, call)
            ):
                self._mark(module, call, interest)
        self._collect_names(module, interest)
        for node in module.nodes:
            if isinstance(node, ast.NamedExpr):
                interest.naming.update((node, *module.ancestors(node)))

    def _mark(self, module: Module, node: ast.AST, interest: Interest) -> None:
        """Mark a node and all around it, up to its function."""
        current: ast.AST | None = node
        while current is not None and current not in interest.nodes:
            interest.nodes.add(current)
            if isinstance(current, (*_FUNCTIONS, ast.Lambda, ast.ClassDef)):
                break
            current = module.parent(current)

    def _collect_names(self, module: Module, interest: Interest) -> None:
        direct = set(direct_events(self.project, module))
        for node in interest.nodes:
            if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
                interest.tells(node.test)
            elif isinstance(node, ast.Match):
                interest.tells(node.subject)
            elif isinstance(node, ast.Call) and node in direct:
                for part in (node.func, *node.args, *(keyword.value for keyword in node.keywords)):
                    interest.tells(part)
            elif isinstance(node, (*_FUNCTIONS, ast.Module)):
                for inner in ast.walk(node):
                    if isinstance(inner, ast.If) and has_jump(inner):
                        interest.tells(inner.test)
        assignments = [node for node in module.nodes if isinstance(node, ast.Assign) and _is_telling(node.value)]
        for _ in range(3):
            self._collect_arguments(module, interest)
            for node in assignments:
                if interest.names.intersection(map(last_name, node.targets)):
                    interest.tells(node.value)

    def _collect_arguments(self, module: Module, interest: Interest) -> None:
        """The arguments for parameters that matter in the functions entered."""
        for node in interest.nodes:
            if isinstance(node, ast.Call):
                callees = self.callees(module, node, None)
                if len(callees) > 1:  # which of them, may be a variable
                    interest.tells(node.func)
                for callee in callees:
                    there = self.of(callee.module).names
                    for parameter, argument in callee.arguments.items():
                        if parameter in there:
                            interest.tells(argument)

    def _leads_to_event(self, function: Definition, visited: set[_Question], *, tests: bool) -> bool:
        """`tests`: whether tests of finiteness count. A constructor has no loss to test, only its settings or data."""
        module, node = function.module, function.node
        tests = tests and not _is_constructor(function)
        key = node, tests
        if key in self._eventful or key in visited or len(visited) > _MAX_VISITED:
            return self._eventful.get(key, False)
        visited.add(key)
        if not speaks_of_events(self.project, module):
            return False
        found = self._has_event(function, tests=tests) or any(
            self._leads_to_event(callee.definition, visited, tests=tests)
            for call in module.calls_within(node)
            for callee in self.project.callees(module, call)
        )
        if found:
            self._eventful[key] = True
        return found

    def _has_event(self, function: Definition, *, tests: bool) -> bool:
        direct = direct_events_by_function(self.project, function.module, tests=tests)
        if isinstance(function.node, ast.Lambda):
            return any(event in direct.get(None, ()) for event in ast.walk(function.node))
        return function.node in direct or self._prepares(function, direct)

    def _prepares(self, function: Definition, direct: dict[ast.AST | None, set[ast.AST]]) -> bool:
        """Whether a function is the constructor of a class whose methods have events."""
        if not _is_constructor(function):
            return False
        cls = function.module.class_of(function.node)
        return any(cls is not None and function.module.class_of(other) is cls for other in direct if other is not None)


def _is_constructor(function: Definition) -> bool:
    return getattr(function.node, "name", "") == "__init__"


def speaks_of_events(project: Project, module: Module) -> bool:
    """Whether a file has one of the words without which nothing in it is an event or leads to one."""
    key = ("speaks of events", module.tree)
    return project.remember(key, lambda: _WORDS.search(module.source.text) is not None, False)


def direct_events(project: Project, module: Module) -> list[ast.AST]:
    """The calls and `.grad` expressions of a file that look like events."""
    key = ("direct events", module.tree)
    return project.remember(key, lambda: _direct_events(project, module), [])


def direct_events_by_function(project: Project, module: Module, *, tests: bool) -> dict[ast.AST | None, set[ast.AST]]:
    """The same, with tests of finiteness or without, by innermost function; those in lambdas under None as well."""

    def group() -> dict[ast.AST | None, set[ast.AST]]:
        grouped: dict[ast.AST | None, set[ast.AST]] = {}
        for node in direct_events(project, module):
            if not tests and isinstance(node, ast.Call) and last_name(node.func) in CHECKS:
                continue
            if any(isinstance(a, ast.Lambda) for a in module.ancestors(node)):
                grouped.setdefault(None, set()).add(node)
            else:
                grouped.setdefault(module.function(node) or module.tree, set()).add(node)
        return grouped

    return project.remember(("events by function", module.tree, tests), group, {})


def names_in(expression: ast.AST) -> set[str]:
    """The names of variables and attributes that an expression reads."""
    return {
        name
        for node in ast.walk(expression)
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and (name := last_name(node))
    }


@lru_cache(maxsize=1_000)
def has_jump(statement: ast.AST) -> bool:
    """Whether running the statement may leave it for elsewhere than the next one."""
    stack = list(ast.iter_child_nodes(statement))
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Return | ast.Raise | ast.Break | ast.Continue):
            return True
        if isinstance(node, ast.Call) and last_name(node.func) in ("exit", "_exit", "abort"):
            return True
        if not isinstance(node, (*_FUNCTIONS, ast.Lambda, ast.ClassDef)):
            stack += ast.iter_child_nodes(node)
    return False


@lru_cache(maxsize=1_000)
def stores(statement: ast.AST) -> tuple[ast.Name | ast.Attribute, ...]:
    """The names and attributes that a statement may assign."""
    return tuple(
        node
        for node in ast.walk(statement)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store)
    )


@lru_cache(maxsize=1_000)
def telling_targets(statement: ast.AST) -> tuple[ast.expr, ...]:
    """What a statement may give a value on which a later test or event can hang."""
    assignments = [node for node in ast.walk(statement) if isinstance(node, ast.Assign) and _is_telling(node.value)]
    return tuple(target for node in assignments for target in node.targets)


def _is_telling(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        name = last_name(value.func)
        return name[:1].isupper() or name == "scale" or "scaler" in name or "optim" in name
    return isinstance(value, ast.Constant | ast.Name | ast.Attribute | ast.Compare | ast.BoolOp | ast.IfExp)


def _direct_events(project: Project, module: Module) -> list[ast.AST]:
    found: list[ast.AST] = [call for call in module.calls if _looks_like_event(project, module, call)]
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and node.attr == "grad" and not _is_function(module, node):
            found.append(node)
    return found


def _looks_like_event(project: Project, module: Module, call: ast.Call) -> bool:
    name = last_name(call.func)
    if name in NAMES_OF_EVENTS or is_clip_name(name) or name.endswith("GradScaler"):
        return True
    if name.startswith("_foreach"):
        return True
    if not isinstance(call.func, ast.Attribute):
        return "loss_scaler" in name or (name == "grad" and _is_autograd(module, call))
    receiver = last_name(call.func.value)
    if name == "training_step":
        return is_super(call.func.value)
    if name == "step":
        return not _NO_STEPPER.search(receiver)
    if name in ("update", "scale"):
        return receiver in used_as_scaler(project, module)
    if name == "grad":
        return _is_autograd(module, call)
    return "loss_scaler" in name or (name in _TOUCHING and _may_be_gradient(call.func.value))


_TOUCHING = frozenset("clamp_ clip_ mul_ div_ add_ sub_ copy_ zero_".split())


def _may_be_gradient(receiver: ast.expr) -> bool:
    """Whether something is called a gradient, or is the data of one or of a variable; not `layer.weight.data`."""
    if isinstance(receiver, ast.Attribute) and receiver.attr == "data":
        return isinstance(receiver.value, ast.Name) or "grad" in last_name(receiver.value)
    return last_name(receiver) in ("grad", "g")


def _is_autograd(module: Module, call: ast.Call) -> bool:
    return any(name.endswith("autograd.grad") for name in module.names(call.func))


def _is_function(module: Module, node: ast.Attribute) -> bool:
    """Whether `x.grad` is torch.autograd.grad or some function, not a gradient."""
    parent = module.parent(node)
    if isinstance(parent, ast.Call) and parent.func is node:
        return True
    return any(name.endswith(("autograd.grad", "jax.grad")) for name in module.names(node))
