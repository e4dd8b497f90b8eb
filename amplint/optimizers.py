"""Optimizer constructors: which class, which eps, over whose parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from amplint import edit
from amplint.context import Context
from amplint.flow import definitions
from amplint.tree import Module
from amplint.values import Dtype, Value

_MAX_STEPS = 4
"""Parameters are followed through this many variables."""


@dataclass(frozen=True, slots=True)
class Kind:
    """An optimizer that divides by sqrt(v) + eps: its default eps, and the position of the parameter."""

    name: str
    eps: float
    position: int


_KINDS = (
    Kind("Adam", 1e-8, 3),
    Kind("AdamW", 1e-8, 3),
    Kind("NAdam", 1e-8, 3),
    Kind("Adamax", 1e-8, 3),
    Kind("RMSprop", 1e-8, 3),
    Kind("Adagrad", 1e-10, 5),
)
_BY_NAME = {
    spelling: kind
    for kind in _KINDS
    for spelling in (f"torch.optim.{kind.name}", f"torch.optim.{kind.name.lower()}.{kind.name}")
}


@dataclass(frozen=True, slots=True)
class Optimizer:
    """One constructor call. `eps` is None where it is not known; `eps_node` is None for the default."""

    call: ast.Call
    kind: Kind
    eps: float | None
    eps_node: ast.expr | None


def optimizers(context: Context) -> Iterator[Optimizer]:
    """The constructor calls of a file of torch's optimizers that have an eps in the denominator."""
    for call in context.module.calls:
        kind = next((_BY_NAME[n] for n in context.module.names(call.func) if n in _BY_NAME), None)
        if kind is None:
            continue
        node = edit.argument(call, "eps", kind.position)
        is_open = any(keyword.arg is None for keyword in call.keywords)
        if node is not None:
            yield Optimizer(call, kind, context.values.number(context.values.of(context.module, node)), node)
        else:
            yield Optimizer(call, kind, None if is_open else kind.eps, None)


def is_half(context: Context, call: ast.Call) -> bool:
    """Whether a module whose parameters an optimizer is given is float16."""
    module = context.module
    owners = [value for owner in parameter_owners(module, call) for value in context.values.of(module, owner)]
    return any(owner.precision is Dtype.FLOAT16 and not _has_master_weights(owner) for owner in owners)


def _has_master_weights(model: Value) -> bool:
    """Whether a framework that cast the model (apex) steps float32 copies of its parameters."""
    return model.wrapped is not None and not model.wrapped.is_float16


def parameter_owners(module: Module, call: ast.Call) -> Iterator[ast.expr]:
    """The expressions whose `.parameters()` an optimizer is given: directly, filtered, in groups, through variables."""
    given = edit.argument(call, "params", 0)
    if given is not None:
        yield from _owners(module, given, _MAX_STEPS)


def _owners(module: Module, node: ast.AST, steps: int) -> Iterator[ast.expr]:
    for child in ast.walk(node):
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
            if child.func.attr in ("parameters", "named_parameters"):
                yield child.func.value
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load) and steps:
            for reaching in definitions(module, child):
                if reaching.value is not None:
                    yield from _owners(module, reaching.value, steps - 1)
