"""The dtype of a value: torch's promotion rules, CUDA autocast's cast policy, explicit casts, modules' parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from itertools import product

from amplint.torch_ops import Cast, Kind, Operation
from amplint.values import defaults
from amplint.values.dtype import FLOATS, Dtype, Dtypes, promote, widest
from amplint.values.value import Alternatives, RegionKind, Value

UNKNOWN: Dtypes = frozenset({Dtype.UNKNOWN})
FLOAT32: Dtypes = frozenset({Dtype.FLOAT32})
INTEGER: Dtypes = frozenset({Dtype.INTEGER})
NUMBER: Dtypes = frozenset({Dtype.NUMBER})

_WITH_INDICES = frozenset("max min median nanmedian sort topk kthvalue mode cummax cummin aminmax".split())
_CASTS = {
    "float": Dtype.FLOAT32,
    "half": Dtype.FLOAT16,
    "bfloat16": Dtype.BFLOAT16,
    "double": Dtype.FLOAT64,
    "bool": Dtype.BOOL,
    **dict.fromkeys(("int", "long", "short", "char", "byte"), Dtype.INTEGER),
}
_LIKE = frozenset("zeros_like ones_like full_like empty_like randn_like rand_like bernoulli".split())
_NEW = frozenset("new_zeros new_ones new_full new_empty new_tensor".split())
_COUNTS = frozenset("sum prod cumsum cumprod nansum".split())
_WEIGHTED = frozenset(
    "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d embedding embedding_bag bilinear "
    "lstm gru rnn lstm_cell gru_cell rnn_cell prelu multi_head_attention_forward".split()
)
_KEEP_INTEGERS = frozenset("abs neg positive relu masked_fill sign square".split())
_CLAMPS = ("clamp", "clamp_min", "clamp_max")
_FLOAT_RESULT = frozenset({Kind.ELEMENTWISE, Kind.NORM, Kind.LOSS})


def dtypes(value: Value) -> Dtypes:
    """All dtypes that a value can have; empty inside a loop whose value depends on itself alone."""
    if value.op == "constant":
        return NUMBER if isinstance(value.constant, int | float) else UNKNOWN
    if value.op == "python":
        return NUMBER if value.dotted == "number" or value.dotted.startswith("math.") else UNKNOWN
    if value.op == "setting":
        return NUMBER
    if value.op == "parameter":
        return _of_parameter(value)
    if value.op == "weight":
        return _of_weight(value)
    operation = value.operation if value.is_tensor_op else None
    if operation is None:
        return UNKNOWN
    if operation.result:
        result = {"bool": Dtype.BOOL, "int64": Dtype.INTEGER, "number": Dtype.NUMBER}[operation.result]
        return frozenset({result})
    if operation.kind is Kind.CAST:
        return _of_cast(value)
    if operation.kind is Kind.CREATE:
        return _of_creation(value)
    return _under_region(value, operation)


# -- values that are no operations -----------------------------------------------------------------------------


def _of_parameter(value: Value) -> Dtypes:
    if value.as_number() is not None:
        return NUMBER
    receiver = value.frame.receiver
    if receiver is not None and value.frame.call is None and Dtype.FLOAT16 in module_precision(receiver):
        return frozenset({Dtype.FLOAT16, Dtype.UNKNOWN})
    return UNKNOWN


def module_precision(value: Value | None) -> Dtypes:
    """The dtype of a module's parameters: its own cast, what is marked where it is made, or its holder's."""
    seen = 0
    while value is not None and seen < 20:
        if value.cast is not None:
            return frozenset({value.cast})
        if (marked := value.engine.regions.cast_of(value)) is not None:
            return marked
        if isinstance(value.node, ast.Call) and (default := defaults.dtypes(value)) != FLOAT32:
            return default
        value, seen = value.owner, seen + 1
    return FLOAT32


def _of_weight(value: Value) -> Dtypes:
    """A parameter or buffer: a float one follows its module's cast."""
    precision = module_precision(value.owner)
    data = value.operand("input")
    if not data:
        return precision
    found: set[Dtype] = set()
    for dtype in value.engine.dtypes_of(data):
        cast = precision if dtype in FLOATS and precision != FLOAT32 else {dtype}
        found |= cast
    return frozenset(found)


# -- casts and creation ----------------------------------------------------------------------------------------


def _of_cast(value: Value) -> Dtypes:
    if value.op in _CASTS:
        return frozenset({_CASTS[value.op]})
    engine = value.engine
    if value.op == "type_as" or value.arguments.get("other") is not None:
        return engine.dtypes_of(value.operand("other"))
    own = engine.dtypes_of(value.operand("input"))
    if value.arguments.get("dtype") is not None:
        named = engine.named_dtypes(value.operand("dtype"))
        return named or own
    return own | UNKNOWN if value.arguments.get("unclear") is not None else own


def _of_creation(value: Value) -> Dtypes:
    engine = value.engine
    if value.arguments.get("dtype") is not None and (named := engine.named_dtypes(value.operand("dtype"))):
        return named
    if value.op in _LIKE or value.op in _NEW:
        return engine.dtypes_of(value.operand("input"))
    if value.op in ("tensor", "as_tensor", "scalar_tensor"):
        return _of_data(value)
    if value.op == "full":
        return _of_number(value.operand("fill_value"), defaults.dtypes(value))
    if value.op == "arange":
        bounds = [v for name in ("start", "end", "step") for v in value.operand(name)]
        return defaults.dtypes(value) if any(isinstance(v.constant, float) for v in bounds) else INTEGER
    return UNKNOWN if value.op == "from_numpy" else defaults.dtypes(value)


def _of_data(value: Value) -> Dtypes:
    found: set[Dtype] = set()
    for data in value.operand("data") or value.operand("s"):
        elements = [v for e in data.elements for v in value.engine.of_argument(e)] if data.op == "tuple" else [data]
        given = data.dtypes if value.op == "as_tensor" and data.is_tensor_op else NUMBER
        found |= given - NUMBER
        if given & NUMBER:
            found |= _of_number(tuple(elements), defaults.dtypes(value))
    return frozenset(found) or UNKNOWN


def _of_number(numbers: Alternatives, floating: Dtypes) -> Dtypes:
    """The dtype that torch gives a tensor made of Python numbers; `floating` for floats."""
    constants = [v.constant if v.op == "constant" else v.as_number() for v in numbers]
    if any(isinstance(c, float) for c in constants):
        return floating
    if constants and all(isinstance(c, bool) for c in constants):
        return frozenset({Dtype.BOOL})
    return INTEGER if constants and all(isinstance(c, int) for c in constants) else UNKNOWN


# -- operations ------------------------------------------------------------------------------------------------


def _under_region(value: Value, operation: Operation) -> Dtypes:
    """The dtype that an operation returns where it runs, over the states that autocast may be in there."""
    region = value.region
    cast = Cast.AS_GIVEN if value.in_place else operation.policy(value.engine.options.torch_version)
    if value.op == "div" and value.engine.dtypes_of(value.operand("input")) == NUMBER and not value.in_place:
        cast = Cast.FLOAT32
    found: set[Dtype] = set()
    if region.kind in (RegionKind.FLOAT16, RegionKind.BFLOAT16):
        half = Dtype.FLOAT16 if region.is_float16 else Dtype.BFLOAT16
        found |= _under_autocast(value, operation, cast, half)
        if not region.certain:
            given = _as_given(value, operation)  # an operand that is half only under autocast is none where it is off
            found |= given if cast is Cast.AS_GIVEN else given - {half} or given
    elif region.kind is RegionKind.UNKNOWN and cast is not Cast.AS_GIVEN:
        found |= UNKNOWN
    elif region.kind is RegionKind.CPU and cast is Cast.FLOAT16:
        found.add(Dtype.BFLOAT16)
    else:
        found |= _as_given(value, operation)
    return frozenset(found)


def _under_autocast(value: Value, operation: Operation, cast: Cast, half: Dtype) -> Dtypes:
    if cast is Cast.AS_GIVEN:
        result = _as_given(value, operation)
        if operation.returns is Cast.FLOAT32:
            return FLOAT32
        return result
    if cast is Cast.FLOAT16:
        return frozenset({half})
    if cast is Cast.WIDEST:
        sets = [value.engine.dtypes_of(value.operand(p)) for p in operation.parameters if value.operand(p)]
        return frozenset(widest(choice) for choice in product(*sets)) if sets else UNKNOWN
    if cast is Cast.FLOAT32_UNLESS_DTYPE:
        if value.arguments.get("dtype") is not None and (named := value.engine.named_dtypes(value.operand("dtype"))):
            return named
        given = value.engine.dtypes_of(value.operand(operation.parameters[0]))
        if operation.name in _COUNTS and given and given <= {Dtype.INTEGER, Dtype.BOOL}:
            return INTEGER
    given = value.engine.dtypes_of(value.operand(operation.parameters[0])) if operation.parameters else frozenset()
    if operation.kind in (Kind.ARITHMETIC, Kind.ELEMENTWISE) and _is_of_numbers(value, operation):
        return NUMBER
    return frozenset({Dtype.FLOAT64}) if given == {Dtype.FLOAT64} else FLOAT32


def _is_of_numbers(value: Value, operation: Operation) -> bool:
    """Whether all operands are Python numbers: then it is Python's own operator."""
    operands = [value.engine.dtypes_of(value.operand(name)) for name in operation.parameters if value.operand(name)]
    return bool(operands) and all(dtypes and dtypes <= NUMBER for dtypes in operands)


def _as_given(value: Value, operation: Operation) -> Dtypes:
    """The dtype without autocast's casts."""
    engine = value.engine
    if value.op in _WEIGHTED:
        return _of_layer(value)
    if value.arguments.get("dtype") is not None and (named := engine.named_dtypes(value.operand("dtype"))):
        return named
    if operation.kind is Kind.ARITHMETIC:
        return _promoted(value, operation)
    if value.op == "getitem" and takes_indices(value):
        return INTEGER
    if operation.kind is Kind.FFT or (operation.kind is Kind.SCATTER and not value.operand("input")):
        return UNKNOWN
    if operation.kind is Kind.MATMUL:
        return _promoted(value, operation) if value.op != "einsum" else engine.dtypes_of(value.operand("operands"))
    first = operation.parameters[0] if operation.parameters else ""
    given = _of_tensors(value.operand(first))
    if operation.name in _COUNTS:
        return frozenset(Dtype.INTEGER if d is Dtype.BOOL else d for d in given)
    if operation.kind in _FLOAT_RESULT:
        return frozenset(_floating(d, value, operation) for d in given)
    return given


def _floating(dtype: Dtype, value: Value, operation: Operation) -> Dtype:
    """Functions such as sigmoid give float32 for integers; abs and their like keep them, clamp with whole bounds."""
    if dtype not in (Dtype.INTEGER, Dtype.BOOL) or operation.name in _KEEP_INTEGERS:
        return dtype
    if operation.name in _CLAMPS:
        bounds = [v for name in ("min", "max") for v in value.operand(name)]
        return Dtype.FLOAT32 if any(isinstance(v.constant, float) for v in bounds) else dtype
    return Dtype.FLOAT32


def _of_tensors(values: Alternatives) -> Dtypes:
    """The dtype of an operand; of a list of tensors, what they promote to."""
    found: set[Dtype] = set()
    for value in values:
        if value.op in ("tuple", "comprehension") and value.elements:
            sets = [value.engine.dtypes_of(value.engine.of_argument(e)) for e in value.elements[:6]]
            found |= _fold([(s, False) for s in sets if s])
        else:
            found |= value.engine.dtypes_of((value,))
    return frozenset(found)


def _of_layer(value: Value) -> Dtypes:
    """A layer with weights gives their dtype: torch refuses operands that differ from them."""
    if value.owner is not None:
        return module_precision(value.owner)
    weight = value.operand("weight")
    of_weight = value.engine.dtypes_of(weight) if weight else UNKNOWN
    if value.op in ("embedding", "embedding_bag"):
        return of_weight
    given = value.engine.dtypes_of(value.operand("input"))
    return given if Dtype.UNKNOWN not in given else of_weight


def takes_indices(value: Value) -> bool:
    """Whether an item is the positions that `x.max(1)` or `x.sort()` give beside the values."""
    index = value.operand("index")
    return value.engine.number(index) == 1 and any(v.op in _WITH_INDICES for v in value.operand("input"))


def _promoted(value: Value, operation: Operation) -> Dtypes:
    operands = []
    for name in operation.parameters:
        if name in ("condition", "alpha", "rounding_mode", "dims") or not value.operand(name):
            continue
        values = value.operand(name)
        operands.append((value.engine.dtypes_of(values), all(is_zero_dim(v) for v in values)))
    found = _fold([(dtypes, scalar) for dtypes, scalar in operands if dtypes])
    if value.op == "div":
        found = frozenset(Dtype.FLOAT32 if d in (Dtype.INTEGER, Dtype.BOOL) else d for d in found)
    return found


def _fold(operands: Iterable[tuple[Dtypes, bool]]) -> Dtypes:
    """What several operands, each with its possibilities, promote to."""
    result: set[tuple[Dtype, bool]] = set()
    for dtypes, scalar in operands:
        if not result:
            result = {(d, scalar) for d in dtypes}
            continue
        result = {
            (promote(a, b, left_scalar=a_scalar, right_scalar=scalar), a_scalar and scalar)
            for a, a_scalar in result
            for b in dtypes
        }
    return frozenset(d for d, _ in result)


def is_zero_dim(value: Value, depth: int = 16) -> bool:
    """Whether a value is certainly a 0-dim tensor (False where it is not known)."""
    if depth == 0:
        return False
    if value.op == "weight":
        return _is_scalar_data(value.operand("input"))
    operation = value.operation if value.is_tensor_op else None
    if operation is None:
        return False
    if value.op in ("tensor", "scalar_tensor", "as_tensor"):
        data = value.operand("data") or value.operand("s")
        return all(v.as_number() is not None or is_zero_dim(v, depth - 1) for v in data)
    if operation.kind is Kind.CREATE and isinstance(value.node, ast.Call) and _empty_size(value.node):
        return True
    if operation.kind is Kind.LOSS:
        return value.arguments.get("reduction") is None
    if operation.kind is Kind.REDUCTION or value.op in ("mean", "max", "min", "amax", "amin", "median"):
        return value.arguments.get("dim") is None and bool(value.arguments.get("input")) and not _more_given(value)
    if operation.kind in (Kind.ELEMENTWISE, Kind.CAST) or value.op in ("detach", "clone", "data"):
        operand = value.operand("input")
        return bool(operand) and all(is_zero_dim(v, depth - 1) for v in operand)
    if operation.kind is Kind.ARITHMETIC:
        operands = [value.operand(p) for p in operation.parameters if value.operand(p)]
        kinds = [all(is_zero_dim(v, depth - 1) for v in o) for o in operands]
        numbers = [value.engine.dtypes_of(o) <= NUMBER for o in operands]
        return any(kinds) and all(k or n for k, n in zip(kinds, numbers, strict=False))
    return False


def _more_given(value: Value) -> bool:
    """Whether a call may name dimensions in a `*` or `**` argument."""
    call = value.node
    return isinstance(call, ast.Call) and (
        any(isinstance(argument, ast.Starred) for argument in call.args)
        or any(keyword.arg is None for keyword in call.keywords)
    )


def _is_scalar_data(values: Alternatives) -> bool:
    """Whether the data of a parameter is 0-dim: `torch.zeros(())`, `torch.tensor(0.1)`, `torch.ones([])`."""
    return bool(values) and all(
        is_zero_dim(v) or (isinstance(v.node, ast.Call) and _empty_size(v.node)) or _scaled_scalar(v) for v in values
    )


def _scaled_scalar(value: Value) -> bool:
    return value.op in ("mul", "add", "log", "exp", "div") and _is_scalar_data(value.operand("input"))


def _empty_size(call: ast.Call) -> bool:
    return bool(call.args) and isinstance(call.args[0], ast.Tuple | ast.List) and not call.args[0].elts
