"""Places on a path in the words of the source: how to write an object there, under which test, how one came there."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from amplint.protocol.events import Event, Kind, Path
from amplint.protocol.symbols import Symbol
from amplint.rule import Position, Related
from amplint.tree import Module

_SAID = {
    Kind.BACKWARD: "backward pass here",
    Kind.UNSCALE: "gradients unscaled here",
    Kind.CLIP: "gradients clipped here",
    Kind.READ: "gradients read here",
    Kind.WRITE: "gradients changed here",
    Kind.ZERO: "gradients cleared here",
    Kind.REDUCE: "gradients reduced here",
    Kind.STEP: "optimizer stepped here",
    Kind.UPDATE: "scaler updated here",
    Kind.CHECK: "tested for finiteness here",
    Kind.DIFFERENTIATE: "differentiated here",
    Kind.HOOK: "hook registered here",
    Kind.SCALER: "scaler constructed here",
    Kind.ROUND: "next iteration begins here",
}
_MAX_TESTS = 4


def related(path: Path, events: Iterable[Event]) -> tuple[Related, ...]:
    """The places of `events` in the order of the path, with the tests around them and the calls into helpers."""
    wanted = {id(event) for event in events}
    places: list[Related] = []
    tests: list[Event] = []
    for event in path.events:
        if event.kind is Kind.BRANCH:
            tests.append(event)
        elif id(event) in wanted:
            deciding = [test for test in tests if _encloses(test, event)]
            places += [_related(test, _outcome(test)) for test in deciding[-_MAX_TESTS:]]
            places += [
                Related(call.module.source.path, _position(call.module, call.call), "through this call")
                for call in event.calls[-1:]
            ]
            places.append(_related(event, _said(event)))
            tests.clear()
    return tuple(dict.fromkeys(places))


def written(symbol: Symbol, events: Iterable[Event], module: Module, at: ast.AST) -> str | None:
    """How the scaler or optimizer `symbol` can be written at `at`, after how `events` write it."""
    candidates = [
        (event.module, expression)
        for event in events
        for known, expression in expressions(event)
        if known == symbol and _is_plain(expression)
    ]
    here = module.function(at)
    candidates.sort(key=lambda found: (found[0] is not module, found[0].function(found[1]) is not here))
    for found_in, expression in candidates:
        if means_the_same(found_in, expression, module, at):
            return found_in.source.segment(expression)
    return None


def expressions(event: Event) -> Iterator[tuple[Symbol, ast.expr]]:
    """The scaler and the optimizer of an event, each with the expression it is written as there."""
    call = event.node
    if event.framework or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return
    receiver = call.func.value
    if event.kind in (Kind.UNSCALE, Kind.STEP, Kind.UPDATE) and event.scaler is not None:
        yield event.scaler, receiver
        if event.optimizer is not None and event.subject is not None:
            yield event.optimizer, event.subject
    elif event.kind in (Kind.STEP, Kind.ZERO) and event.optimizer is not None:
        yield event.optimizer, receiver
    elif (
        event.kind is Kind.BACKWARD
        and event.scaler is not None
        and (
            isinstance(receiver, ast.Call)
            and isinstance(receiver.func, ast.Attribute)
            and receiver.func.attr == "scale"
        )
    ):
        yield event.scaler, receiver.func.value


def guard(backward: Event, event: Event) -> str | None:
    """The tests around the scaled backward pass that do not stand around `event`, joined; None if there are none.

    Only those that decide whether the pass is scaled: their other branch has a backward pass of its own, or none.
    """
    module = backward.module
    around = {id(node) for node in event.module.ancestors(event.node)}
    tests: list[str] = []
    child: ast.AST = backward.node
    for parent in module.ancestors(backward.node):
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            break
        if isinstance(parent, ast.If) and id(parent) not in around and child is not parent.test:
            text = module.source.segment(parent.test)
            if any(child is statement for statement in parent.body):
                tests.append(text)
            elif isinstance(parent.test, ast.UnaryOp) and isinstance(parent.test.op, ast.Not):
                tests.append(module.source.segment(parent.test.operand))
            else:
                simple = isinstance(parent.test, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
                tests.append(f"not {text}" if simple else f"not ({text})")
        child = parent
    return " and ".join(reversed(tests)) or None


def means_the_same(found_in: Module, expression: ast.expr, module: Module, at: ast.AST) -> bool:
    """Whether an expression written elsewhere names the same object at `at`."""
    root: ast.expr = expression
    while isinstance(root, ast.Attribute | ast.Subscript):
        root = root.value
    if not isinstance(root, ast.Name):
        return False
    if module.class_of(module.function(at) or at) is not None and root.id == "self" and expression is not root:
        return True
    if found_in is not module:
        return False
    there, here = (found and found[0] for found in (module.lookup(root.id, expression), module.lookup(root.id, at)))
    return there is here  # in neither place: a builtin


def _is_plain(expression: ast.expr) -> bool:
    """A variable, its attributes and constant items: written again, it is the same object."""
    match expression:
        case ast.Name():
            return True
        case ast.Attribute(value=value) | ast.Subscript(value=value, slice=ast.Constant() | ast.Name()):
            return _is_plain(value)
    return False


def _encloses(test: Event, event: Event) -> bool:
    statement = test.module.parent(test.node)
    return statement is not None and any(statement is node for node in event.module.ancestors(event.node))


def _outcome(test: Event) -> str:
    text = " ".join(test.module.source.segment(test.node).split())
    return f"when `{text}` holds" if test.taken else f"when `{text}` does not hold"


def _said(event: Event) -> str:
    text = _SAID[event.kind]
    if event.kind is Kind.BACKWARD:
        return f"scaled {text}" if event.scaled else f"unscaled {text}" if event.scaler is None else text
    return text


def _related(event: Event, message: str) -> Related:
    return Related(event.module.source.path, _position(event.module, event.node), message)


def _position(module: Module, node: ast.AST) -> Position:
    return module.source.position(module.source.span(node)[0])
