"""Mathematical forms that several rules look for: 1 - x, a square, exponentials shifted by their maximum."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable

from amplint.flow import How, definitions
from amplint.tree import Module
from amplint.values import Certainty, Peeled, Value, Values

_DEPTH = 8
_MAXIMA = ("max", "amax", "maximum", "logsumexp", "cummax", "clamp", "clamp_min", "relu")
_MINIMA = ("min", "amin", "minimum", "cummin")

_ARRAY_LIBRARIES = ("numpy", "jax", "tensorflow", "cupy", "pandas", "polars", "sympy", "mxnet", "paddle", "mindspore")

ARRANGED = frozenset({"index", "shape", "cast"})
"""The layers of `Values.peel` that keep the numbers."""

GUARDED = ARRANGED | {"eps", "clamp"}

EXP_OVERFLOW = {"float32": 88.72, "float16": 11.09}
"""Above this, exp is infinite."""


def every(values: Iterable[Value], test: Callable[[Value], bool]) -> bool:
    """Whether there are values and all pass the test."""
    found = tuple(values)
    return bool(found) and all(test(value) for value in found)


def bare(value: Value) -> tuple[Value, ...]:
    """What `value` is without indexing, reshaping, detaching and casts: all it can be."""
    return tuple(peeled.core for peeled in value.engine.peel((value,), ARRANGED))


def part(value: Value, name: str = "input") -> ast.expr | None:
    """The operand as it is written within the expression `value`; None where it is not (a layer of a Sequential)."""
    node = value.argument(name)
    if node is None or not any(ancestor is value.node for ancestor in value.module.ancestors(node)):
        return None
    return node


def is_number(value: Value, name: str, number: float) -> bool:
    """Whether an operand of `value` is written as that number."""
    return _is_written(value.argument(name)) and value.number(name) == number


def one_minus(value: Value) -> tuple[Value, ...]:
    """x, where `value` is 1 - x."""
    if value.op == "sub" and is_number(value, "input", 1) and value.argument("alpha") is None:
        return value.operand("other")
    if value.op == "rsub" and is_number(value, "other", 1):
        return value.operand("input")
    if value.op == "add":
        for constant, negated in (("input", "other"), ("other", "input")):
            if is_number(value, constant, 1) and every(value.operand(negated), lambda v: v.op == "neg"):
                return tuple(x for v in value.operand(negated) for x in v.operand("input"))
    return ()


def one_plus(value: Value) -> tuple[Value, ...]:
    """x, where `value` is 1 + x."""
    if value.op != "add" or value.argument("alpha") is not None:
        return ()
    if is_number(value, "input", 1):
        return value.operand("other")
    return value.operand("input") if is_number(value, "other", 1) else ()


def squared(values: Values, value: Value) -> tuple[Value, ...]:
    """x, where `value` is x ** 2, x.square() or x * x."""
    return value.operand("input") if is_square(values, value) else ()


def is_square(values: Values, value: Value) -> bool:
    """Whether `value` is x ** 2, x.square() or x * x; it does not look at x, which may take long to find out."""
    if value.op == "square":
        return True
    if value.op == "pow":
        return _is_written(value.argument("exponent")) and value.number("exponent") == 2
    return value.op == "mul" and _reads_alike(values, value)


def _reads_alike(values: Values, product: Value) -> bool:
    """Whether both factors are written alike and are equal, calls included."""
    left, right = part(product, "input"), part(product, "other")
    if left is None or right is None or ast.dump(left) != ast.dump(right):
        return False
    if not any(isinstance(node, ast.Call) for node in ast.walk(left)):
        return True
    return values.same_all(product.operand("input"), product.operand("other"))


def rooted(value: Value) -> tuple[Value, ...]:
    """x, where `value` is sqrt(x) or x ** 0.5."""
    is_written = value.op == "pow" and _is_written(value.argument("exponent"))
    if value.op == "sqrt" or (is_written and value.number("exponent") == 0.5):
        return value.operand("input")
    return ()


def is_made_here(module: Module, node: ast.expr | None) -> bool:
    """Whether an expression is worked out in its own function: no constant or attribute, nor what only a caller gives.

    It spares the rules that look for compositions the search for callers.
    """
    if isinstance(node, ast.Name):
        return any(reaching.how is not How.PARAMETER for reaching in definitions(module, node))
    return node is not None and not isinstance(node, ast.Attribute) and not _is_written(node)


def local_operand(value: Value, name: str) -> tuple[Value, ...]:
    """An operand if it is worked out in its own function, see `is_made_here`; else ()."""
    return value.operand(name) if is_made_here(value.module, value.argument(name)) else ()


def _is_written(number: ast.expr | None) -> bool:
    """Whether a number is written out: `0.5`, `1 / 2`, `-1`."""
    names = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
    return number is not None and not any(isinstance(part, names) for part in ast.walk(number))


def exponential_factor(value: Value, depth: int = _DEPTH) -> Value | None:
    """The exponential that `value` is, or that is a factor of it (`exp(x) * mask`)."""
    if value.op == "exp":
        return value
    if value.op in ("mul", "masked_fill", "where", "div") and depth:
        names = ("input", "other") if value.op in ("mul", "where") else ("input",)
        operands = (inner for name in names for operand in local_operand(value, name) for inner in bare(operand))
        return next((e for v in operands if (e := exponential_factor(v, depth - 1))), None)
    return None


def is_shifted(value: Value, dim: float | None = None, depth: int = _DEPTH) -> bool:
    """Whether a maximum (or a logsumexp) was subtracted from `value`, so that its exponential cannot overflow.

    `dim`: where given, a maximum over another dimension does not count.
    """
    if depth == 0:
        return False
    if value.op == "log_softmax":
        return True
    if value.op == "sub":
        other = value.operand("other")
        if _is_extreme(other, _MAXIMA, dim) or _is_own_element(value):
            return True
        return _any_shifted(value.operand("input"), dim, depth)
    if value.op == "neg":
        return any(
            v.op == "sub"
            and (_is_extreme(v.operand("other"), _MINIMA, dim) or _is_extreme(v.operand("input"), _MAXIMA, dim))
            for v in value.operand("input")
        )
    if value.op in ("mul", "div", "add", "masked_fill", "where", "masked_scatter"):
        return _any_shifted((*value.operand("input"), *value.operand("other")), dim, depth)
    return any(inner is not value and is_shifted(inner, dim, depth - 1) for inner in bare(value))


def is_never_positive(value: Value, depth: int = _DEPTH) -> bool:
    """Whether `value` is at most 0: -(x - c)**2, possibly scaled by something whose sign is not known."""
    if value.interval.upper <= 0:
        return True
    if depth == 0:
        return False
    if value.op == "neg":
        return any(_is_scaled_magnitude(v, depth) for v in value.operand("input"))
    if value.op in ("mul", "div"):
        left, right = value.operand("input"), value.operand("other")
        if any(is_never_positive(v, depth - 1) for v in left):
            return True
        if value.op == "mul" and any(is_never_positive(v, depth - 1) for v in right):
            return True
        if value.op == "mul" and _is_negated(left, right, depth):
            return True
    return any(inner is not value and is_never_positive(inner, depth - 1) for inner in bare(value))


def exp_limit(exponential: Value) -> float:
    """Above this number the `exponential` is infinite, in the dtype that it is computed in."""
    return EXP_OVERFLOW["float16" if exponential.may_be_half else "float32"]


def is_tame(exponential: Value, *, one_sided: bool = False) -> bool:
    """Whether an `exponential` stays finite, and (unless one-sided) above zero, since its exponent's range is small."""
    limit = exp_limit(exponential)
    ranges = [exponent.interval for exponent in exponential.operand("input")]
    return all(range.upper < limit and (one_sided or range.lower > -limit) for range in ranges)


def _is_negated(left: Iterable[Value], right: Iterable[Value], depth: int) -> bool:
    """Whether a product is -k * x**2: `-k` of unknown sign is taken to be negative."""
    return any(v.op == "neg" for v in left) and any(_is_scaled_magnitude(v, depth - 1) for v in right)


def _is_scaled_magnitude(value: Value, depth: int) -> bool:
    """x**2, |x| or a norm, multiplied or divided by anything."""
    if value.interval.lower >= 0:
        return True
    if value.op in ("mul", "div") and depth:
        operands = value.operand("input") + (value.operand("other") if value.op == "mul" else ())
        return any(v.as_number() is None and _is_scaled_magnitude(v, depth - 1) for v in operands)
    return (
        any(inner is not value and _is_scaled_magnitude(inner, depth - 1) for inner in bare(value)) if depth else False
    )


def _is_own_element(difference: Value) -> bool:
    """Whether what is subtracted is an element of the tensor it is subtracted from: `x - x[0, x.argmax()]`."""
    peeled = difference.engine.peel(difference.operand("other"), ARRANGED)
    tensors = [core for value in difference.operand("input") for core in bare(value)]
    return any(p.took("index") and difference.engine.same(p.core, tensor) for p in peeled for tensor in tensors)


def _is_extreme(values: Iterable[Value], ops: tuple[str, ...], dim: float | None) -> bool:
    return any(v.op in ops and not _other_dim(v.number("dim"), dim) for value in values for v in bare(value))


def _other_dim(left: float | None, right: float | None) -> bool:
    """Whether two dimensions are certainly not the same (-1 may be 1)."""
    return left is not None and right is not None and left != right and (left < 0) == (right < 0)


def _any_shifted(values: Iterable[Value], dim: float | None, depth: int) -> bool:
    return any(is_shifted(value, dim, depth - 1) for value in values)


def fed_by(values: Values, loss: Value, ops: Collection[str]) -> tuple[Peeled, ...]:
    """What a loss is given as its input, guards and arrangement taken off, if that is certainly one of `ops`.

    () where it may be something else, or where it is not known which of several losses is called.
    """
    if not every(values.of(loss.module, loss.node, loss.frame), lambda v: v.op == loss.op):
        return ()
    peeled = values.peel(loss.operand("input"), GUARDED)
    return peeled if every((p.core for p in peeled), lambda core: core.op in ops) else ()


def unguarded(peeled: Peeled) -> ast.expr | None:
    """The expression of the core with the epsilons and clamps around it; None if something else lies between them."""
    guards = [number for number, step in enumerate(peeled.steps) if step.kind in ("eps", "clamp")]
    if not guards:
        return peeled.core.node
    inner = peeled.steps[guards[0] :]
    return inner[0].value.node if len(inner) == len(guards) else None


def is_only_guarded(peeled: Peeled) -> bool:
    """Whether nothing but epsilons and clamps was taken off."""
    return all(step.kind in ("eps", "clamp") for step in peeled.steps)


def is_torch(values: Values, value: Value) -> bool:
    """Whether `value` is a tensor for all that is known; operators on unknown operands may be numpy's, if imported."""
    certainty = values.is_tensor(value)
    if certainty is not Certainty.UNKNOWN:
        return certainty is Certainty.ALWAYS
    return not value.module.imports(*_ARRAY_LIBRARIES)
