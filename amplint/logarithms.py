"""The logarithm of an activation: what lies between the two, the losses written with it, and the text without it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from amplint import patterns
from amplint.context import Context
from amplint.edit import Precedence
from amplint.flow import exclude_each_other
from amplint.rewrite import Rewrite, UnmovableError
from amplint.values import Value

LAYERS = frozenset({"index", "shape", "cast", "eps", "clamp", "cat"})
"""What may lie between a logarithm and its activation."""

_DROPPED = ("eps", "clamp", "complement")
_MAX_TERMS = 8


@dataclass(frozen=True, slots=True)
class Layer:
    """Something between the logarithm and the activation: a layer of `Values.peel`, or "complement" for 1 - x."""

    kind: str
    node: ast.expr


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation under a logarithm, with the layers above it, outermost first."""

    core: Value
    layers: tuple[Layer, ...]

    @property
    def is_complement(self) -> bool:
        """Whether it is 1 minus the activation."""
        return any(layer.kind == "complement" for layer in self.layers)

    @property
    def is_guarded(self) -> bool:
        """Whether an epsilon or a clamp lies between."""
        return any(layer.kind in ("eps", "clamp") for layer in self.layers)

    @property
    def is_plain(self) -> bool:
        """Whether nothing lies between that would have to be written again."""
        return all(layer.kind in _DROPPED for layer in self.layers)


def under(log: Value) -> tuple[Activation, ...]:
    """What lies under a logarithm, one for each alternative; 1 - x and log1p(-x) are looked through."""
    found: list[Activation] = []
    for outer in log.engine.peel(log.operand("input"), LAYERS):
        layers = tuple(Layer(step.kind, step.value.node) for step in outer.steps)
        complement, guards = _complement(log, outer.core)
        if not complement:
            found.append(Activation(outer.core, layers))
            continue
        layers = (*layers, *guards, Layer("complement", outer.core.node))
        for inner in log.engine.peel(complement, LAYERS):
            steps = tuple(Layer(step.kind, step.value.node) for step in inner.steps)
            found.append(Activation(inner.core, (*layers, *steps)))
    return tuple(activation for activation in found if not _is_elsewhere(log, activation.core))


def _is_elsewhere(log: Value, core: Value) -> bool:
    """Whether the logarithm does not run where `core` did: under the other outcome of the same test."""
    return core.module is log.module and exclude_each_other(log.module, log.node, core.node)


def _complement(log: Value, core: Value) -> tuple[tuple[Value, ...], tuple[Layer, ...]]:
    """x, where `core` is 1 - x (or -x under log1p); and the epsilon in `1 + eps - x`."""
    if log.op == "log1p":
        return (core.operand("input") if core.op == "neg" else ()), ()
    if found := patterns.one_minus(core):
        return found, ()
    one = core.number("input") if core.op == "sub" else None
    if one is not None and 1 < one <= 1.01:
        return core.operand("other"), (Layer("eps", core.node),)
    return (), ()


def is_watched_entropy(log: Value, activations: tuple[Activation, ...]) -> bool:
    """Whether it is `p * log(p + eps)`, no gradient flows, and the guard survives the dtype: 0 at p = 0, as it is."""
    values = log.engine
    if not all(a.is_guarded and not a.is_complement for a in activations) or not _is_weighted(log, activations):
        return False
    kept = all(inside.interval.positive for seen in values.seen(log) for inside in seen.operand("input"))
    return kept and not values.gradients(log)


def _is_weighted(log: Value, activations: tuple[Activation, ...]) -> bool:
    """Whether a logarithm is multiplied by the very activation that it is of."""
    product = log.module.parent(log.node)
    while isinstance(product, ast.UnaryOp):
        product = log.module.parent(product)
    if not isinstance(product, ast.BinOp) or not isinstance(product.op, ast.Mult):
        return False
    values = log.engine
    factors = [f for side in (product.left, product.right) for f in values.of(log.module, side, log.frame)]
    cores = [peeled.core for peeled in values.peel(tuple(factors), patterns.ARRANGED)]
    return all(any(values.same(core, a.core) for core in cores) for a in activations)


def text_of(rewrite: Rewrite, activation: Activation, text: str) -> str:
    """The layers that stay, with `text` in the place of the activation. Raises UnmovableError."""
    return _text(rewrite, activation.layers, activation.core.node, text)


def _text(rewrite: Rewrite, layers: tuple[Layer, ...], core: ast.expr, text: str) -> str:
    if not layers:
        return text
    first, rest = layers[0], layers[1:]
    inner = _text(rewrite, rest, core, text)
    if first.kind in _DROPPED:
        return inner
    if first.kind == "cat":
        raise UnmovableError("several tensors are joined")
    return rewrite.through(first.node, rest[0].node if rest else core, inner)


def log_softmax(rewrite: Rewrite, softmax: Value) -> str:
    """The call that `softmax` is, with log_softmax in its place."""
    call, tensor = softmax.node, patterns.part(softmax)
    if not isinstance(call, ast.Call) or tensor is None:
        raise UnmovableError("no call")
    names = rewrite.module.names(call.func)
    is_function = bool(names) and all(name.endswith(".softmax") for name in names)
    is_method = isinstance(call.func, ast.Attribute) and call.func.value is tensor
    if not is_function and not is_method:
        dim = softmax.number("dim")
        if dim is None:
            raise UnmovableError("a module of unknown dimension")
        return rewrite.call("torch.nn.functional.log_softmax", rewrite.text(tensor), f"dim={dim:.0f}")
    arguments = [rewrite.text(argument) for argument in call.args]
    arguments += [f"{keyword.arg}={rewrite.text(keyword.value)}" for keyword in call.keywords if keyword.arg]
    if is_method:
        return f"{rewrite.text(tensor, Precedence.ATOM)}.log_softmax({', '.join(arguments)})"
    return rewrite.call(names[0].replace(".softmax", ".log_softmax"), *arguments)


# -- losses ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor of a term: its value, and the expression as it is written there."""

    value: Value
    written: ast.expr


@dataclass(frozen=True, slots=True)
class Term:
    """A term of a sum: a sign and factors."""

    sign: int
    factors: tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class Loss:
    """A hand-written loss: the expression, its reduction, the dimension summed over before it, and its terms."""

    node: ast.expr
    reduction: str
    dim: float | None
    terms: tuple[Term, ...]


def losses_around(context: Context, log: Value) -> Iterator[Loss]:
    """The expressions around a logarithm in its statement, read as losses, outermost first."""
    around: list[ast.expr] = []
    for ancestor in context.module.ancestors(log.node):
        if not isinstance(ancestor, ast.expr) or isinstance(ancestor, ast.Lambda | ast.IfExp):
            break
        around.append(ancestor)
    for node in reversed(around):
        values = context.values.of(context.module, node)
        if len(values) == 1 and values[0].node is node and (loss := _loss(values[0])) is not None:
            yield loss


def _loss(value: Value) -> Loss | None:
    node, sign, reduction, dim = value.node, 1, "none", None
    while True:
        if value.op == "neg":
            sign = -sign
        elif value.op in ("mean", "sum") and dim is None and value.argument("dim") is None and reduction == "none":
            reduction = value.op
        elif value.op == "sum" and dim is None and (own := _summed_dim(value)) is not None:
            dim = own
        else:
            break
        operands = value.operand("input")
        if len(operands) != 1:
            return None
        value = operands[0]
    terms = tuple(_terms(value, sign))
    return Loss(node, reduction, dim, terms) if terms and len(terms) <= _MAX_TERMS else None


def _summed_dim(total: Value) -> float | None:
    return None if total.argument("keepdim") is not None else total.number("dim")


def _terms(value: Value, sign: int, depth: int = 6) -> Iterator[Term]:
    """The signed terms that a sum, difference or product is made of."""
    if depth and value.op in ("add", "sub") and value.argument("alpha") is None:
        sides = (("input", sign), ("other", -sign if value.op == "sub" else sign))
        for name, own in sides:
            operands = value.operand(name)
            if len(operands) == 1:
                yield from _terms(operands[0], own, depth - 1)
        return
    if depth and value.op == "neg" and len(value.operand("input")) == 1:
        yield from _terms(value.operand("input")[0], -sign, depth - 1)
        return
    if value.op == "mul":
        yield _product(value, sign)


def _product(value: Value, sign: int) -> Term:
    term = Term(sign, ())
    for name in ("input", "other"):
        operands, written = value.operand(name), value.argument(name)
        if len(operands) != 1 or written is None:
            continue
        operand, negated = operands[0], operands[0].argument("input")
        if operand.op == "neg" and len(operand.operand("input")) == 1 and negated is not None:
            term = replace(term, sign=-term.sign)
            operand, written = operand.operand("input")[0], negated
        if operand.op == "mul" and operand.module is value.module:
            product = _product(operand, term.sign)
            term = Term(product.sign, (*term.factors, *product.factors))
        else:
            term = replace(term, factors=(*term.factors, Factor(operand, written)))
    return term


def factors_apart(term: Term, *ops: str) -> tuple[Factor, tuple[Factor, ...]] | None:
    """The one factor that is a logarithm, and the others; None if there is not exactly one."""
    logs = [factor for factor in term.factors if factor.value.op in ops]
    if len(logs) != 1:
        return None
    return logs[0], tuple(factor for factor in term.factors if factor is not logs[0])
