"""Dtypes as the analysis sees them: the half and full floats, integers, Python numbers, and not known."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TypeAlias


class Dtype(enum.Enum):
    """The dtype of a tensor; `NUMBER` is a Python number (it never promotes a float tensor)."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    INTEGER = "integer"
    BOOL = "bool"
    NUMBER = "python number"
    UNKNOWN = "unknown"

    def __repr__(self) -> str:
        return self.value


Dtypes: TypeAlias = frozenset[Dtype]
"""A set of possibilities. It is never empty."""

HALF: Dtypes = frozenset({Dtype.FLOAT16})
UNKNOWN: Dtypes = frozenset({Dtype.UNKNOWN})

FLOATS = frozenset({Dtype.FLOAT16, Dtype.BFLOAT16, Dtype.FLOAT32, Dtype.FLOAT64})

_SPELLINGS = {
    "half": Dtype.FLOAT16,
    "HalfTensor": Dtype.FLOAT16,
    "BFloat16Tensor": Dtype.BFLOAT16,
    "FloatTensor": Dtype.FLOAT32,
    "DoubleTensor": Dtype.FLOAT64,
    "float16": Dtype.FLOAT16,
    "fp16": Dtype.FLOAT16,
    "bfloat16": Dtype.BFLOAT16,
    "bf16": Dtype.BFLOAT16,
    "float": Dtype.FLOAT32,
    "float32": Dtype.FLOAT32,
    "fp32": Dtype.FLOAT32,
    "double": Dtype.FLOAT64,
    "float64": Dtype.FLOAT64,
    "bool": Dtype.BOOL,
    **dict.fromkeys(("int", "long", "short", "int8", "int16", "int32", "int64", "uint8"), Dtype.INTEGER),
}

_RANK = {
    Dtype.BOOL: 0,
    Dtype.INTEGER: 1,
    Dtype.FLOAT16: 2,
    Dtype.BFLOAT16: 2,
    Dtype.FLOAT32: 3,
    Dtype.FLOAT64: 4,
}


def by_torch_name(name: str) -> Dtype | None:
    """The dtype that `torch.<name>` is (`half`, `float32`, `long` …); None if it is no dtype known here."""
    return _SPELLINGS.get(name)


def promote(left: Dtype, right: Dtype, *, left_scalar: bool = False, right_scalar: bool = False) -> Dtype:
    """The dtype of an arithmetic operation of two operands, by torch's promotion rules.

    `left_scalar` says that the left operand is a 0-dim tensor: it does not promote within its own category
    (a 0-dim float32 and a float16 tensor give float16), as a Python number does not.
    An unknown operand leaves the result unknown, unless the other is float64.
    """
    if Dtype.UNKNOWN in (left, right):
        return Dtype.FLOAT64 if Dtype.FLOAT64 in (left, right) else Dtype.UNKNOWN
    if left is Dtype.NUMBER or right is Dtype.NUMBER:
        return _with_number(left, right)
    if left_scalar != right_scalar:
        tensor, scalar = (right, left) if left_scalar else (left, right)
        if _category(tensor) >= _category(scalar):
            return tensor
    if {left, right} == {Dtype.FLOAT16, Dtype.BFLOAT16}:
        return Dtype.FLOAT32
    return left if _RANK[left] >= _RANK[right] else right


def widest(operands: Iterable[Dtype]) -> Dtype:
    """The widest of several float dtypes, as autocast's "widest" policy casts them; unknown if one is unknown."""
    result: Dtype | None = None
    for dtype in operands:
        if dtype is Dtype.UNKNOWN:
            return Dtype.UNKNOWN
        if dtype in FLOATS:
            result = dtype if result is None or _RANK[dtype] > _RANK[result] else result
    return Dtype.UNKNOWN if result is None else result


def _category(dtype: Dtype) -> int:
    return 2 if dtype in FLOATS else _RANK[dtype]


def _with_number(left: Dtype, right: Dtype) -> Dtype:
    tensor = right if left is Dtype.NUMBER else left
    if tensor in FLOATS or tensor is Dtype.NUMBER:
        return tensor
    return Dtype.UNKNOWN  # an integer tensor and a number: the number's own type decides
