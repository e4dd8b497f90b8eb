"""Looking through what does not change what a value is at heart, and telling whether two values are the same."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from amplint.torch_ops import Kind
from amplint.values.value import Alternatives, Peeled, Step, Value

_MAX_STEPS = 24
_MAX_EPS = 1e-2

_INDEXING = frozenset(
    "getitem gather index_select select take take_along_dim masked_select narrow chunk split unbind diagonal".split()
)
_SHAPING = frozenset(
    "identity view reshape flatten unflatten ravel clone detach squeeze unsqueeze transpose t permute movedim expand "
    "expand_as view_as reshape_as broadcast_to repeat repeat_interleave contiguous cuda cpu pin_memory requires_grad_ "
    "data tile flip roll fliplr flipud data".split()
)
_CASTING = frozenset("float half bfloat16 double to type type_as".split())

KINDS = ("index", "shape", "cast", "eps", "clamp", "cat")
"""The layers that `peel` knows:
  index    slices, items, gather and other selections
  shape    rearrangements, copies, detach
  cast     dtype and device
  eps      a positive constant up to 0.01 added (or subtracted)
  clamp    clamp, maximum or minimum with a constant, nan_to_num
  cat      cat and stack, if all their parts come to the same operation
"""


def peel(values: Alternatives, through: frozenset[str]) -> tuple[Peeled, ...]:
    """Each alternative without its outer layers of the given kinds; several, where an operand has alternatives."""
    found = [peeled for value in values for peeled in _peel(value, through, (), _MAX_STEPS)]
    return tuple(found[: 4 * _MAX_STEPS])


def _peel(value: Value, through: frozenset[str], steps: tuple[Step, ...], left: int) -> Iterator[Peeled]:
    if any(step.value is value for step in steps):
        return  # a loop comes back to it: it adds nothing to the other alternatives
    layer = _layer(value, through) if left else None
    if layer is None:
        yield Peeled(value, steps)
        return
    kind, inner = layer
    for operand in inner:
        yield from _peel(operand, through, (*steps, Step(kind, value)), left - 1)


def _layer(value: Value, through: frozenset[str]) -> tuple[str, Alternatives] | None:
    """The kind of the outermost layer of a value, and what is beneath it."""
    for kind in through:
        inner = _BENEATH[kind](value)
        if inner:
            return kind, inner
    return None


def _if_op(operations: frozenset[str]) -> Callable[[Value], Alternatives]:
    return lambda value: value.operand("input") if value.op in operations else ()


def _beneath_cast(value: Value) -> Alternatives:
    return value.operand("input") if value.op in _CASTING else ()


def _beneath_eps(value: Value) -> Alternatives:
    if value.op not in ("add", "sub") or value.arguments.get("alpha"):
        return ()
    for tensor, constant in (("input", "other"), ("other", "input")):
        number = value.number(constant)
        if number is not None and 0 < abs(number) <= _MAX_EPS and (value.op == "add" or constant == "other"):
            return value.operand(tensor)
    return ()


def _beneath_clamp(value: Value) -> Alternatives:
    if value.op in ("clamp", "clamp_min", "clamp_max", "nan_to_num"):
        return value.operand("input")
    if value.op in ("maximum", "minimum", "fmax", "fmin"):
        for tensor, constant in (("input", "other"), ("other", "input")):
            if _is_constant(value.operand(constant)):
                return value.operand(tensor)
    return ()


def _is_constant(values: Alternatives) -> bool:
    return bool(values) and all(
        v.as_number() is not None
        or (v.op in ("tensor", "full", "full_like", "scalar_tensor", "zeros_like", "ones_like", "new_tensor"))
        for v in values
    )


def _beneath_cat(value: Value) -> Alternatives:
    if value.op not in ("cat", "stack", "hstack", "vstack"):
        return ()
    parts: list[Value] = []
    for operand in value.operand("tensors"):
        if operand.op not in ("tuple", "comprehension"):
            return ()
        parts += [v for e in operand.elements for v in value.engine.of_argument(e)]
    return tuple(parts)


_BENEATH: dict[str, Callable[[Value], Alternatives]] = {
    "index": _if_op(_INDEXING),
    "shape": _if_op(_SHAPING),
    "cast": _beneath_cast,
    "eps": _beneath_eps,
    "clamp": _beneath_clamp,
    "cat": _beneath_cat,
}


# -- sameness --------------------------------------------------------------------------------------------------

_RANDOM = frozenset(
    "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout rrelu gumbel_softmax bernoulli "
    "multinomial rand randn randint randperm normal rand_like randn_like uniform_ normal_".split()
)
_SAME_DEPTH = 8


def same(a: Value, b: Value, depth: int = _SAME_DEPTH) -> bool:
    """Whether two values are certainly equal: one value, or the same pure operation on the same operands."""
    if a is b:
        return True
    if depth == 0 or a.op != b.op or a.op in _RANDOM or a.in_place or b.in_place:
        return False
    if a.op == "constant":
        return type(a.constant) is type(b.constant) and a.constant == b.constant
    if a.op == "parameter":
        return a.dotted == b.dotted and a.frame is b.frame
    if a.op in ("unknown", "external", "dtype", "weight"):
        return _same_reading(a, b, depth)
    operation = a.operation
    if not a.is_tensor_op or operation is None or operation.kind is Kind.CREATE:
        return False
    if a.owner is not None or b.owner is not None:
        return _same_owner(a, b) and _same_arguments(a, b, depth)
    return _same_arguments(a, b, depth)


def _same_owner(a: Value, b: Value) -> bool:
    return (
        a.owner is not None and b.owner is not None and a.owner.node is b.owner.node and a.owner.frame is b.owner.frame
    )


def _same_reading(a: Value, b: Value, depth: int) -> bool:
    """The same attribute or item read twice from the same object."""
    reads = isinstance(a.node, ast.Attribute | ast.Subscript) and isinstance(b.node, ast.Attribute | ast.Subscript)
    if a.op == "external":
        return a.dotted == b.dotted
    if not reads or a.dotted != b.dotted:
        return False
    if a.owner is not None and b.owner is not None:
        return a.owner is b.owner
    return bool(a.arguments) and _same_arguments(a, b, depth)


def _same_arguments(a: Value, b: Value, depth: int) -> bool:
    if a.arguments.keys() != b.arguments.keys():
        return False
    for name in a.arguments:
        left, right = a.operand(name), b.operand(name)
        if len(left) != len(right) or len(left) != 1:
            if not (len(left) == len(right) and all(x is y for x, y in zip(left, right, strict=False))):
                return False
            continue
        if not same(left[0], right[0], depth - 1) and not _same_container(left[0], right[0], depth - 1):
            return False
    return True


def _same_container(a: Value, b: Value, depth: int) -> bool:
    """Equal tuples and slices, such as indices."""
    if isinstance(a.node, ast.Slice | ast.Tuple | ast.Constant | ast.UnaryOp) and type(a.node) is type(b.node):
        return ast.dump(a.node) == ast.dump(b.node) and a.frame is b.frame and not _has_names(a.node)
    return False


def _has_names(node: object) -> bool:
    assert isinstance(node, ast.AST)
    return any(isinstance(n, ast.Name | ast.Call) for n in ast.walk(node))
