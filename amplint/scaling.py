"""What the rules of the gradient-scaling protocol share: faults on paths, and what their fixes look for in the text."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from amplint.context import Context
from amplint.project import CallSite, Definition
from amplint.protocol import Event, Kind, Path, Symbol
from amplint.rule import Related
from amplint.tree import Function, Module

_PRECISION = ("mixed_precision", "precision")
_FLOAT16_PRECISION = (16, "16", "16-mixed", "fp16")
_LEAVING = (ast.Continue, ast.Return, ast.Break)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault on one path: the event to report, and the earlier or later ones that make it one."""

    path: Path
    event: Event
    causes: tuple[Event, ...] = ()
    call: CallSite | None = None
    """Where to report, if not on the event: the call of the helper that it happens in."""

    @property
    def module(self) -> Module:
        return self.call.module if self.call else self.event.module

    @property
    def node(self) -> ast.AST:
        return self.call.call if self.call else self.event.node

    def related(self, context: Context) -> tuple[Related, ...]:
        return context.protocol.related(self.path, *self.causes, self.event)

    def between(self, start: Event, end: Event) -> tuple[Event, ...]:
        """The events of the path after `start` and before `end`."""
        events = self.path.events
        return events[events.index(start) + 1 : events.index(end)]


def once(context: Context, find: Callable[[Path], Iterable[Fault]]) -> Iterator[Fault]:
    """The faults that `find` sees on the paths of the judged file: the first one of each place in it."""
    seen: set[ast.AST] = set()
    for path in context.protocol.paths(context.module):
        for fault in find(path):
            if fault.module is context.module and fault.node not in seen:
                seen.add(fault.node)
                if not _is_expected_to_raise(fault.module, fault.node):
                    yield fault


def _is_expected_to_raise(module: Module, node: ast.AST) -> bool:
    """Whether a test wants the error: `with pytest.raises(RuntimeError):`."""
    around = (a for a in module.ancestors(node) if isinstance(a, ast.With))
    calls = (item.context_expr for block in around for item in block.items)
    return any(isinstance(c, ast.Call) and called(c) in ("raises", "assertRaises", "assertRaisesRegex") for c in calls)


def always(context: Context, find: Callable[[Path], Iterable[Fault]], node: ast.AST) -> bool:
    """Whether every path through `node` has the fault there, each time it passes."""
    for path in context.protocol.paths(context.module):
        passed = {event for event in path.events if event.node is node and event.kind is not Kind.BRANCH}
        if passed and not any(fault.event in passed for fault in find(path)):
            return False
    return True


def is_scaling(event: Event) -> bool:
    """Whether the event is a call on an enabled scaler."""
    return event.scaler is not None and not event.inert


def is_scaled_by_hand(backward: Event) -> bool:
    """Whether the loss is multiplied by something called a scale: `loss * scaler.get_scale()`."""
    for symbol in backward.value.walk() if backward.value else ():
        names = [part for part in symbol.parts if isinstance(part, str)]
        names += [called(part) for part in symbol.parts if isinstance(part, ast.Call)]
        if any("scale" in name.lower() for name in names):
            return True
    return False


def in_float16(event: Event) -> bool | None:
    """Whether the framework of an event was told to train in float16; None if it cannot be read off its constructor."""
    source = event.scaler.source if event.scaler else None
    flags = [k.value for k in source.keywords if k.arg in _PRECISION] if isinstance(source, ast.Call) else []
    if not flags or not isinstance(flags[0], ast.Constant) or flags[0].value is None:
        return None
    return flags[0].value in _FLOAT16_PRECISION


def events_of(context: Context, *kinds: Kind) -> Iterator[tuple[Path, Event]]:
    """The events of these kinds on all paths of the judged file, wherever they stand."""
    for path in context.protocol.paths(context.module):
        for event in path.events:
            if event.kind in kinds:
                yield path, event


def line(event: Event) -> int:
    """The line an event starts on."""
    return int(event.node.lineno)  # type: ignore[attr-defined]


def where(event: Event, seen_from: Module) -> str:
    """`line 12`, or `train.py:12` in another file."""
    if event.module is seen_from:
        return f"line {line(event)}"
    return f"{event.module.source.path.name}:{line(event)}"


def is_within(module: Module, node: ast.AST, *ancestors: ast.AST) -> bool:
    """Whether `node` is one of `ancestors` or stands in one."""
    return any(any(item is ancestor for ancestor in ancestors) for item in (node, *module.ancestors(node)))


def guarded_alone(module: Module, statement: ast.stmt) -> ast.stmt:
    """The `if` around a statement that holds nothing else, such as `if scaler is not None:`; else the statement."""
    parent = module.parent(statement)
    if isinstance(parent, ast.If) and len(parent.body) == 1 and not parent.orelse:
        return parent
    return statement


def leaves(body: list[ast.stmt]) -> bool:
    """Whether a suite ends by leaving the loop's turn or the function."""
    return isinstance(body[-1], _LEAVING)


def taken_suite(event: Event) -> list[ast.stmt] | None:
    """The suite of an `if` statement that a BRANCH event goes into; None where there is none."""
    parent = event.module.parent(event.node)
    if not isinstance(parent, ast.If) or parent.test is not event.node:
        return None
    return parent.body if event.taken else parent.orelse or None


def function_of(event: Event) -> Function | None:
    """The function an event stands in."""
    return event.module.function(event.node)


def call_into(event: Event, other: Event) -> CallSite | None:
    """The call through which `event` was reached from the function that it has in common with `other`."""
    depth = 0
    while depth < min(len(event.calls), len(other.calls)) and event.calls[depth].call is other.calls[depth].call:
        depth += 1
    return event.calls[depth] if depth < len(event.calls) else None


def same_function(first: Event, second: Event) -> bool:
    return first.module is second.module and function_of(first) is function_of(second)


def constructor(context: Context, optimizer: Symbol | None) -> Definition | None:
    """The call that made an optimizer, where the path has seen it."""
    for symbol in optimizer.walk() if optimizer else ():
        if symbol.kind in ("new", "made") and isinstance(symbol.parts[0], ast.Call) and symbol.module:
            return Definition(symbol.module, symbol.parts[0])
    return None


def called(call: ast.Call) -> str:
    """The last part of the name that is called: `clip_grad_norm_`."""
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
