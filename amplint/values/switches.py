"""Where a file may switch half precision on, and the calls that may hand it on from there. Read off the tree alone.

What is in half precision is over-approximated by names: a variable or attribute that is assigned, within a block that
may be autocast or from an expression that speaks of float16 or of such a name, is one. What remains is a small part of
most files, and only that is evaluated.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from amplint.tree import Module, Spot, spot
from amplint.values.defaults import SETTERS
from amplint.values.entered import ENTERING

_NAMES = frozenset({"autocast", "half", "float16", "HalfTensor", "Accelerator", "Fabric"})
_STRINGS = frozenset({"fp16", "float16", "16-mixed", "torch.HalfTensor", "torch.cuda.HalfTensor"})
_PLAIN_CONTEXTS = frozenset(
    "no_grad inference_mode enable_grad set_grad_enabled open record_function profile tqdm suppress catch_warnings "
    "set_detect_anomaly device stream no_sync accumulate join Pool ThreadPoolExecutor TemporaryDirectory "
    "Progress raises warns subTest assertRaises assertRaisesRegex assertWarns patch TemporaryFile".split()
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_MAX_ROUNDS = 6
_TAKING = frozenset({"half", "to", "type", "append", "extend", "insert", "add", "update"})
"""Methods after which their object may be, or hold, half precision."""
_LIKELY = re.compile("cast|amp|context|ctx|scope|precision|mixed|half|fp16|policy", re.IGNORECASE)
"""What context managers around autocast are called."""

_Name = tuple[ast.AST | None, str]
"""A variable by the function that assigns it; an attribute, of whatever object, by None."""


@dataclass(frozen=True, slots=True)
class Switching:
    """What a file does with half precision of its own making, by what outlasts its tree."""

    functions: tuple[Spot, ...] = ()
    """Those (or the module) that may use it."""
    returning: tuple[Spot, ...] = ()
    """Those of them that may return something in it."""
    contexts: tuple[Spot, ...] = ()
    """Those of them that are, or may return, context managers; and the classes that are. Other files may enter them."""
    calls: frozenset[Spot] = frozenset()
    """The calls that may hand it on: they stand in a block that may be autocast, or are given what may be in it."""
    autocast: frozenset[Spot] = frozenset()
    """The functions with calls in such a block: far the most of what is in half precision comes from them."""


def switching(module: Module) -> Switching:
    """What a file does with half precision that it switches on; nothing where it does not."""
    switches = {node for node in module.nodes if _is_switch(node) and not _is_asked_or_off(module, node)}
    return _Spread(module, switches).found() if switches else Switching()


class _Spread:
    """What half precision spreads to in one file."""

    def __init__(self, module: Module, switches: set[ast.AST]) -> None:
        self.module = module
        self.switches = switches
        self.around: set[ast.AST] = set()
        """The blocks and functions that may be autocast, and the classes that cast themselves: `self.half()`."""
        self.names: set[_Name] = set()
        self.spelled: set[str] = set()
        self._spread()

    def found(self) -> Switching:
        functions: dict[ast.AST, None] = {self.module.tree: None}
        returning: dict[ast.AST, None] = {}
        for node in self.module.nodes:
            if isinstance(node, ast.Return) and (self._is_within(node) or self._is_switched(node)):
                returning[self._function(node)] = None
            if node in self.around or self._is_tainted_itself(node):
                functions[self._function(node)] = None
        for function in self.module.functions:
            if function in self.around or self.module.class_of(function) in self.around:
                functions[function] = None
        within = {call for call in self.module.calls if self._is_within(call)}
        given = {call for call in self.module.calls if self._is_tainted(call)}
        autocast = set(map(self._function, within))
        contexts = [context for function in functions for context in self._contexts(function, returning)]
        return Switching(
            functions=tuple(map(spot, functions)),
            returning=tuple(map(spot, returning)),
            contexts=tuple(map(spot, contexts)),
            calls=frozenset(map(spot, within | given)),
            autocast=frozenset(map(spot, autocast)),
        )

    def _contexts(self, function: ast.AST, returning: Container[ast.AST]) -> Iterator[ast.AST]:
        if not isinstance(function, _FUNCTIONS):
            return
        is_generator = any(_last_name(decorator) == "contextmanager" for decorator in function.decorator_list)
        if is_generator or (function in returning and _speaks_of_autocast(function)):
            yield function
        elif function.name == "__enter__" and (owner := self.module.class_of(function)):
            yield owner

    def _is_switched(self, node: ast.AST) -> bool:
        return any(inner in self.switches for inner in ast.walk(node))

    def _spread(self) -> None:
        assignments = [pair for node in self.module.nodes for pair in _assigned(node)]
        calls = [c for c in self.module.calls if isinstance(c.func, ast.Attribute) and c.func.attr in _TAKING]
        entering = [c for c in self.module.calls if isinstance(c.func, ast.Attribute) and c.func.attr in ENTERING]
        setting = [call for call in self.module.calls if _last_name(call) in SETTERS]
        blocks = [node for node in self.module.nodes if isinstance(node, ast.With | ast.AsyncWith)]
        for _ in range(_MAX_ROUNDS):
            known = len(self.names), len(self.around)
            self.around.update(b for b in blocks if any(self._may_be_autocast(item.context_expr) for item in b.items))
            self.around.update(f for f in self.module.functions if any(map(self._decorates, f.decorator_list)))
            for call in entering:
                assert isinstance(call.func, ast.Attribute)
                if self._may_be_autocast(call.args[0] if call.args else call.func.value):
                    self.around.add(self._function(call))
            self.around.update(self._function(call) for call in setting if self._is_tainted(call))
            for targets, value in assignments:
                if self._is_tainted(value) or self._is_within(value):
                    self._taint(targets)
            for call in calls:
                assert isinstance(call.func, ast.Attribute)
                if call.func in self.switches or any(map(self._is_tainted, (*call.args, *call.keywords))):
                    self._taint([call.func.value])
            if known == (len(self.names), len(self.around)):
                return

    def _taint(self, targets: Iterable[ast.AST]) -> None:
        for target in targets:
            match target:
                case ast.Tuple(elts=elements) | ast.List(elts=elements):
                    self._taint(elements)
                case ast.Starred(value=value) | ast.Subscript(value=value):
                    self._taint([value])
                case ast.Attribute(attr=name):
                    self._add(None, name)
                case ast.Name(id=name) | ast.arg(arg=name):
                    self._taint_variable(target, name)

    def _taint_variable(self, node: ast.AST, name: str) -> None:
        function = self.module.function(node)
        owner = self.module.class_of(function) if function else None
        if name == "self" and owner is not None:
            self.around.add(owner)
        elif found := self.module.lookup(name, node):
            self._add(found[0], name)

    def _add(self, scope: ast.AST | None, name: str) -> None:
        self.names.add((scope, name))
        self.spelled.add(name)

    def _is_within(self, node: ast.AST) -> bool:
        return any(ancestor in self.around for ancestor in self.module.ancestors(node))

    def _is_tainted(self, expression: ast.AST) -> bool:
        return any(map(self._is_tainted_itself, ast.walk(expression)))

    def _is_tainted_itself(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute) and node.attr in self.spelled:
            return (None, node.attr) in self.names or node in self.switches
        if isinstance(node, ast.Name) and node.id in self.spelled:
            found = self.module.lookup(node.id, node)
            return (found is not None and (found[0], node.id) in self.names) or node in self.switches
        return node in self.switches

    def _may_be_autocast(self, context: ast.expr) -> bool:
        """Whether a context manager or decorator may be autocast: it speaks of it, or is a variable that may hold one,
        or a function or class of this file that speaks of it."""
        name = _last_name(context)
        if name in _PLAIN_CONTEXTS:
            return False
        if _LIKELY.search(name) or self._is_tainted(context):
            return not _is_off(context)
        if not isinstance(context, ast.Call):
            return True
        found = self.module.lookup(name, context) if isinstance(context.func, ast.Name) else None
        makers = [node for node in found[1] if isinstance(node, (*_FUNCTIONS, ast.ClassDef))] if found else []
        return any(map(self._is_tainted, makers))

    def _decorates(self, decorator: ast.expr) -> bool:
        return ("autocast" in _last_name(decorator) or self._is_tainted(decorator)) and not _is_off(decorator)

    def _function(self, node: ast.AST) -> ast.AST:
        """The function that runs a node; for what decorates a function, that function."""
        return self.module.function(node) or self.module.tree


def _speaks_of_autocast(function: ast.AST) -> bool:
    return any("autocast" in (getattr(node, "attr", ""), getattr(node, "id", "")) for node in ast.walk(function))


def _assigned(node: ast.AST) -> Iterator[tuple[list[ast.AST], ast.expr]]:
    """The targets that a node assigns, with what."""
    match node:
        case ast.Assign(targets=targets, value=value):
            yield list(targets), value
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.AugAssign(target=target, value=value):
            yield [target], value
        case ast.NamedExpr(target=target, value=value):
            yield [target], value
        case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
            yield [target], value
        case ast.comprehension(target=target, iter=value):
            yield [target], value
        case ast.withitem(optional_vars=ast.expr() as target, context_expr=value):
            yield [target], value
        case ast.arguments():
            positional = [*node.posonlyargs, *node.args]
            for parameter, default in zip(reversed(positional), reversed(node.defaults), strict=False):
                yield [parameter], default
            for parameter, optional in zip(node.kwonlyargs, node.kw_defaults, strict=True):
                if optional is not None:
                    yield [parameter], optional


def _is_switch(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in _NAMES or (node.attr == "initialize" and _last_name(node.value) == "amp")
    if isinstance(node, ast.Name):
        return node.id in _NAMES
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in _STRINGS


def _is_asked_or_off(module: Module, node: ast.AST) -> bool:
    """Whether something is compared with what would switch it on, or it is switched off: `autocast(enabled=False)`."""
    call = module.parent(node)
    if isinstance(call, ast.Call) and call.func is node and _is_off(call):
        return True
    for ancestor in module.ancestors(node):
        if isinstance(ancestor, ast.Compare):
            return True
        if not isinstance(ancestor, ast.Tuple | ast.List | ast.Set | ast.Attribute):
            return False
    return False


def _is_off(context: ast.expr) -> bool:
    if not isinstance(context, ast.Call):
        return False
    return any(k.arg == "enabled" and isinstance(k.value, ast.Constant) and not k.value.value for k in context.keywords)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
