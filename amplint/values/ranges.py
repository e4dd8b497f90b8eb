"""The interval in which a value's numbers lie, and the one number that a constant expression is."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from math import inf

from amplint.torch_ops import Operation
from amplint.values import peeling, precision
from amplint.values.dtype import FLOATS, Dtype
from amplint.values.interval import ALL, NON_NEGATIVE, UNIT, Interval
from amplint.values.value import Value

_COSINES = frozenset("matmul mm bmm mv dot vdot inner einsum linear".split())
_DEFAULTED = ("parameter", "setting")
"""What has a number where no other is given: it may be any."""


def number(value: Value) -> float | None:
    """The number that a value is: a constant, arithmetic on numbers, a parameter's default."""
    engine = value.engine
    return engine.remember(("number", value), lambda: _number(value), lambda: None)


def _number(value: Value) -> float | None:
    if value.op == "constant":
        return _float(value.constant)
    if value.op in _DEFAULTED and value.default is not None:
        return value.engine.number(value.engine.of_argument(value.default))
    if value.op in ("neg", "positive"):
        inner = value.number("input")
        return inner if inner is None or value.op == "positive" else -inner
    if value.op in _ARITHMETIC:
        operands = [value.number(name) for name in ("input", "exponent" if value.op == "pow" else "other")]
        left, right = operands
        if left is None or right is None:
            return None
        try:
            result = _ARITHMETIC[value.op](left, right)
        except (ArithmeticError, ValueError):
            return None
        return result if isinstance(result, float) else None
    if value.op == "python" and value.dotted.startswith("math.") and len(value.elements) == 1:
        inner = value.engine.number(value.engine.of_argument(value.elements[0]))
        function = getattr(math, value.dotted.removeprefix("math."), None)
        try:
            return None if inner is None or function is None else float(function(inner))
        except (TypeError, ValueError, OverflowError):
            return None
    return _MATH_CONSTANTS.get(value.dotted) if value.op == "external" else None


def _float(constant: object) -> float | None:
    if isinstance(constant, bool) or not isinstance(constant, int | float):
        return None
    try:
        return float(constant)
    except OverflowError:  # a whole number with hundreds of digits
        return None


_MATH_CONSTANTS = {
    f"{module}.{name}": number
    for module in ("math", "numpy", "torch")
    for name, number in (("pi", math.pi), ("e", math.e), ("inf", inf))
}
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": lambda a, b: a**b,
    "floor_divide": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
}


def interval(value: Value) -> Interval:
    """The numbers a value can be for finite inputs, as rounded in the dtypes it can have."""
    exact = number(value)
    if exact is not None and value.op not in _DEFAULTED:
        return Interval.point(exact)
    if not value.is_tensor_op:
        return ALL
    operation = value.operation
    assert operation is not None
    found = _exact(value, operation)
    if found == ALL:
        return ALL
    floats = value.dtypes & FLOATS
    if not floats:
        return found
    rounded: Interval | None = found if Dtype.UNKNOWN in value.dtypes else None
    for dtype in floats:
        part = found.rounded(dtype)
        rounded = part if rounded is None else rounded.union(part)
    return rounded or found


def _exact(value: Value, operation: Operation) -> Interval:
    """The interval in exact arithmetic, from the operands' (already rounded) intervals."""
    if (transfer := _TRANSFER.get(value.op)) is not None:
        return transfer(value)
    if value.op in _COSINES and _is_cosine(value):
        return Interval(-1.0, 1.0)
    if value.op == "getitem" and precision.takes_indices(value):
        return NON_NEGATIVE
    if operation.keeps_range:
        return _kept(value, operation)
    if value.op in ("sum", "nansum", "cumsum"):
        return _sum(value)
    limits = operation.range
    return Interval(limits.lower, limits.upper, not limits.lower_attained, not limits.upper_attained)


def _of(value: Value, name: str = "input") -> Interval:
    return value.engine.interval_of(value.operand(name)) if value.operand(name) else ALL


def _other(value: Value) -> Interval:
    return _of(value, "other")


def _kept(value: Value, operation: Operation) -> Interval:
    name = operation.parameters[0] if operation.parameters else "input"
    found: Interval | None = None
    for operand in value.operand(name):
        parts = [operand.interval]
        if operand.op in ("tuple", "comprehension"):
            parts = [value.engine.interval_of(value.engine.of_argument(e)) for e in operand.elements[:8]]
        for part in parts:
            found = part if found is None else found.union(part)
    return found or ALL


def _sum(value: Value) -> Interval:
    terms = _of(value)
    if any(_is_unit_product(v) for v in value.operand("input")):
        return Interval(-1.0, 1.0)
    if terms.lower >= 0:
        return Interval(terms.lower, inf if terms.upper > 0 else 0.0, terms.lower_open)
    return Interval(-inf, 0.0) if terms.upper <= 0 else ALL


def _log_of_sum(value: Value) -> Interval:
    """log(Σ exp(x)) is at least the largest x, and as large as there are many."""
    terms = _of(value)
    return Interval(terms.lower, inf, terms.lower_open)


def _product(value: Value) -> Interval:
    left, right = value.operand("input"), value.operand("other")
    if left and right and value.engine.same_all(left, right):
        return _of(value).square()
    return _of(value) * _other(value)


def _quotient(value: Value) -> Interval:
    return _of(value) * _other(value).reciprocal()


def _power(value: Value) -> Interval:
    exponent = value.number("exponent")
    return ALL if exponent is None else _of(value).power(exponent)


def _clamped(value: Value) -> Interval:
    lower, upper = _of(value, "min"), _of(value, "max")
    given = _of(value)
    if value.arguments.get("min") is not None:
        floor = _in_dtypes(value, lower)
        given = _at_least(given, floor)
    if value.arguments.get("max") is not None:
        ceiling = _in_dtypes(value, upper)
        given = -_at_least(-given, -ceiling)
    return given


def _in_dtypes(value: Value, bound: Interval) -> Interval:
    """A clamp's bound as the tensor's dtype holds it."""
    rounded: Interval | None = bound if Dtype.UNKNOWN in value.dtypes else None
    for dtype in value.dtypes & FLOATS:
        part = bound.rounded(dtype)
        rounded = part if rounded is None else rounded.union(part)
    return rounded or bound


def _at_least(given: Interval, floor: Interval) -> Interval:
    """The interval of max(x, f) for x and f in the two."""
    lower, lower_open = max((given.lower, given.lower_open), (floor.lower, floor.lower_open))
    upper, upper_closed = max((given.upper, not given.upper_open), (floor.upper, not floor.upper_open))
    return Interval(lower, upper, lower_open, not upper_closed)


def _maximum(value: Value) -> Interval:
    return _at_least(_of(value), _other(value))


def _minimum(value: Value) -> Interval:
    return -_at_least(-_of(value), -_other(value))


def _rectified(value: Value) -> Interval:
    return _at_least(_of(value), Interval.point(0.0))


def _monotone(function: Callable[[float], float], limits: Interval) -> Callable[[Value], Interval]:
    """The transfer of an increasing function with these limits at minus and plus infinity."""

    def transfer(value: Value) -> Interval:
        given = _of(value)
        lower = limits.lower if given.lower == -inf else _call(function, given.lower)
        upper = limits.upper if given.upper == inf else _call(function, given.upper)
        return Interval(
            lower,
            upper,
            limits.lower_open if given.lower == -inf else given.lower_open,
            limits.upper_open if given.upper == inf else given.upper_open,
        )

    return transfer


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def _call(function: Callable[[float], float], x: float) -> float:
    try:
        return function(x)
    except OverflowError:
        return inf
    except ValueError:
        return -inf


def _selected(value: Value) -> Interval:
    return _of(value).union(_other(value))


def _filled(value: Value) -> Interval:
    return _of(value).union(_of(value, "value"))


def _dropped_out(value: Value) -> Interval:
    """Some values become zero, and the others are scaled up to make good for them; all stay in evaluation."""
    rate = value.number("p") if value.arguments.get("p") is not None else 0.5
    if rate == 0:
        return _of(value)
    return _of(value) * Interval(0.0, inf if rate is None or rate >= 1 else 1 / (1 - rate))


def _probability_product(value: Value) -> Interval:
    given = _of(value)
    return UNIT if given.lower >= 0 and given.upper <= 1 else NON_NEGATIVE if given.lower >= 0 else ALL


def _is_cosine(value: Value) -> bool:
    """Whether a product of matrices is one of normalized vectors."""
    if value.op == "einsum":
        return _is_einsum_cosine(value)
    names = [n for n in ("input", "other", "mat2", "weight", "vec", "tensor", "operands") if value.arguments.get(n)]
    return len(names) >= 2 and all(all(is_unit(v) for v in value.operand(name)) for name in names[:2])


def _is_einsum_cosine(value: Value) -> bool:
    """Whether it contracts one dimension of two tensors of normalized vectors: `einsum("nd,md->nm", a, b)`."""
    equations = [v.constant for v in value.operand("equation")]
    operands = value.node.args[1:] if isinstance(value.node, ast.Call) else []
    if len(equations) != 1 or not isinstance(equations[0], str) or len(operands) != 2:
        return False
    inputs, _, output = equations[0].replace(" ", "").partition("->")
    left, _, right = inputs.partition(",")
    is_single = len((set(left) & set(right)) - set(output)) == 1
    alternatives = [value.engine.of(value.module, operand, value.frame) for operand in operands]
    return is_single and all(is_unit(v) for values in alternatives for v in values)


def _is_unit_product(value: Value) -> bool:
    return value.op == "mul" and all(
        value.operand(name) and all(is_unit(v) for v in value.operand(name)) for name in ("input", "other")
    )


def is_unit(value: Value) -> bool:
    """Whether a value is a set of vectors of length 1: `F.normalize(x)`, `x / x.norm(…)`, and their rearrangements."""
    for peeled in peeling.peel((value,), frozenset({"index", "cast", "shape"})):
        core = peeled.core
        if core.op == "normalize":
            continue
        if core.op == "div":
            denominators = peeling.peel(core.operand("other"), frozenset({"eps", "clamp", "cast", "shape"}))
            same = [
                p.core.op in ("norm", "vector_norm", "linalg_norm")
                and value.engine.same_all(core.operand("input"), p.core.operand("input") or p.core.operand("x"))
                for p in denominators
            ]
            if same and all(same):
                continue
        return False
    return True


_TRANSFER: dict[str, Callable[[Value], Interval]] = {
    "add": lambda v: _of(v) + _other(v),
    "sub": lambda v: _of(v) - _other(v),
    "rsub": lambda v: _other(v) - _of(v),
    "mul": _product,
    "div": _quotient,
    "neg": lambda v: -_of(v),
    "positive": _of,
    "abs": lambda v: _of(v).absolute(),
    "square": lambda v: _of(v).square(),
    "pow": _power,
    "sqrt": lambda v: _of(v).root(),
    "rsqrt": lambda v: _of(v).root().reciprocal() if _of(v).non_negative else Interval(0.0, inf, True),
    "reciprocal": lambda v: _of(v).reciprocal(),
    "clamp": _clamped,
    "clamp_min": _clamped,
    "clamp_max": _clamped,
    "maximum": _maximum,
    "fmax": _maximum,
    "minimum": _minimum,
    "fmin": _minimum,
    "relu": _rectified,
    "exp": _monotone(math.exp, Interval(0.0, inf, True, True)),
    "exp2": _monotone(lambda x: 2.0**x, Interval(0.0, inf, True, True)),
    "expm1": _monotone(math.expm1, Interval(-1.0, inf, True, True)),
    "tanh": _monotone(math.tanh, Interval(-1.0, 1.0, True, True)),
    "sigmoid": _monotone(_sigmoid, Interval(0.0, 1.0, True, True)),
    "log": _monotone(math.log, ALL),
    "log2": _monotone(math.log2, ALL),
    "log10": _monotone(math.log10, ALL),
    "log1p": _monotone(math.log1p, ALL),
    "where": _selected,
    "masked_fill": _filled,
    "setitem": _filled,
    "index_fill": _filled,
    "logcumsumexp": _log_of_sum,
    "logsumexp": _log_of_sum,
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "dropout3d"), _dropped_out),
    "prod": _probability_product,
    "cumprod": _probability_product,
    "lerp": lambda v: _of(v).union(_of(v, "end")),
}
