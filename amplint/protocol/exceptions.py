"""Where the body of a `try` may be left by an exception, as far as the protocol is concerned.

Every statement may raise; but to begin a handler after each would find faults that nobody ever meets, such as an
out-of-memory error between `unscale_` and `step`. A body fails where a model runs or a loss goes backward, in a helper,
or where a clip is told to raise. Only where it does none of these, its calls on scalers and optimizers are what the
handler is there for.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from dataclasses import dataclass

from amplint.protocol.recognise import is_clip_name
from amplint.protocol.roles import last_name
from amplint.tree import Module

_BACKWARD = frozenset({"backward", "manual_backward"})
_PROTOCOL = frozenset("scale unscale_ step update zero_grad get_scale".split())
_TELLING = ("log", "print", "write", "record", "add_scalar", "append")
_LIBRARIES = frozenset("torch math numpy logging time os tqdm wandb contextlib functools".split())
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class Failures:
    """The statements of a body that an exception may leave: at their beginning, or when they have done their work."""

    before: frozenset[ast.stmt] = frozenset()
    after: frozenset[ast.stmt] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.before or self.after)


def failures(statement: ast.Try, module: Module, eventful: Set[ast.AST]) -> Failures:
    """Where the body of `statement` may fail; nowhere, if nothing of the protocol happens in it."""
    if not any(inner in eventful for inner in statement.body):
        return Failures()
    simple = list(_simple(statement.body))
    if fragile := frozenset(inner for inner in simple if any(_may_fail(module, call) for call in _calls(inner))):
        return Failures(before=fragile)
    steps = frozenset(inner for inner in simple if inner in eventful and _steps(inner))
    return Failures(before=frozenset(inner for inner in simple if inner in eventful) - steps, after=steps)


def _simple(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements in a body, at any depth, that hold no others."""
    for statement in body:
        if isinstance(statement, _SCOPES):
            continue
        blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        if not any(blocks):
            yield statement
        for block in blocks:
            yield from _simple(block)


def _calls(statement: ast.stmt) -> Iterator[ast.Call]:
    return (node for node in ast.walk(statement) if isinstance(node, ast.Call))


def _may_fail(module: Module, call: ast.Call) -> bool:
    """Whether a call runs a model, a backward pass or a helper, or is a clip that raises."""
    name = last_name(call.func)
    if any(keyword.arg == "error_if_nonfinite" for keyword in call.keywords):
        return True
    if name in _PROTOCOL or is_clip_name(name) or any(word in name.lower() for word in _TELLING):
        return False
    if name in _BACKWARD:
        return True
    if isinstance(call.func, ast.Attribute):
        return isinstance(call.func.value, ast.Name) and call.func.value.id == "self"
    if not isinstance(call.func, ast.Name) or module.lookup(call.func.id, call.func) is None:
        return False
    return not any(dotted.split(".")[0] in _LIBRARIES for dotted in module.names(call.func))


def _steps(statement: ast.stmt) -> bool:
    """Whether a statement steps an optimizer: it unscales before it can fail."""
    return any(last_name(call.func) == "step" for call in _calls(statement))
