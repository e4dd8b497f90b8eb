"""Interval arithmetic with open ends, and what rounding to a dtype makes of it."""

from __future__ import annotations

import math
from math import inf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amplint.values import Dtype, Interval, round_to
from tests.values.programs import Program

eighths = st.integers(-4000, 4000).map(lambda number: number / 8)
"""Numbers on which sums and products are exact."""


@st.composite
def intervals_with_a_member(draw: st.DrawFn) -> tuple[Interval, float]:
    low, member, high = sorted(draw(eighths) for _ in range(3))
    interval = Interval(low, high, draw(st.booleans()) and low < member, draw(st.booleans()) and member < high)
    return interval, member


@given(intervals_with_a_member(), intervals_with_a_member())
def test_operations_hold_their_members(first: tuple[Interval, float], second: tuple[Interval, float]) -> None:
    (a, x), (b, y) = first, second
    assert x + y in a + b
    assert x - y in a - b
    assert x * y in a * b
    assert -x in -a
    assert abs(x) in a.absolute()
    assert x * x in a.square()
    assert x in a.union(b)
    if x != 0:
        assert 1 / x in a.reciprocal()
    if x >= 0:
        assert math.sqrt(x) in a.root()


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Interval(0.0, 1.0) * Interval(2.0, 3.0), Interval(0.0, 3.0)),
        (Interval(0.0, 1.0, True) * Interval(2.0, 3.0), Interval(0.0, 3.0, True)),
        (Interval(0.0, 1.0, True) * Interval(0.0, 3.0), Interval(0.0, 3.0)),
        (Interval(1.0, 2.0, True, True) * Interval(3.0, 4.0), Interval(3.0, 8.0, True, True)),
        (Interval(-1.0, 2.0) * Interval(-3.0, 4.0), Interval(-6.0, 8.0)),
        (Interval(0.0, inf) * Interval(0.0, 0.0), Interval(0.0, 0.0)),
        (Interval(1.0, 2.0, True) + Interval(3.0, 4.0, False, True), Interval(4.0, 6.0, True, True)),
        (Interval(1.0, inf) + Interval(-inf, 2.0), Interval()),
        (Interval(1.0, 2.0, True) - Interval(3.0, 5.0), Interval(-4.0, -1.0, True)),
        (-Interval(1.0, 2.0, True), Interval(-2.0, -1.0, False, True)),
        (Interval(2.0, 4.0, True).reciprocal(), Interval(0.25, 0.5, False, True)),
        (Interval(0.0, 4.0, True).reciprocal(), Interval(0.25, inf, False, True)),
        (Interval(-4.0, 0.0, False, True).reciprocal(), Interval(-inf, -0.25)),
        (Interval(-4.0, -2.0).reciprocal(), Interval(-0.5, -0.25)),
        (Interval(0.0, 0.0, False, True).reciprocal(), Interval()),
        (Interval(0.0, 4.0).reciprocal(), Interval()),
        (Interval(-1.0, 4.0).reciprocal(), Interval()),
        (Interval(-3.0, 2.0, True).absolute(), Interval(0.0, 3.0, False, True)),
        (Interval(-2.0, 2.0, True).absolute(), Interval(0.0, 2.0)),
        (Interval(-3.0, -2.0).absolute(), Interval(2.0, 3.0)),
        (Interval(-3.0, 4.0).root(), Interval(0.0, 2.0)),
        (Interval(1.0, 4.0, True).root(), Interval(1.0, 2.0, True)),
        (Interval(-3.0, 2.0).power(2), Interval(0.0, 9.0)),
        (Interval(4.0, 9.0).power(0.5), Interval(2.0, 3.0)),
        (Interval(-3.0, 2.0, True).power(1), Interval(-3.0, 2.0, True)),
        (Interval(-3.0, 2.0).power(4), Interval(0.0, inf)),
        (Interval(-3.0, 2.0).power(-2), Interval(0.0, inf, True)),
        (Interval(-3.0, 2.0).power(3), Interval()),
        (Interval(0.0, 2.0, True).power(3), Interval(0.0, 8.0, True)),
        (Interval(0.0, 1e200).power(3), Interval(0.0, inf)),
        (Interval(0.0, 2.0).power(-1), Interval()),
        (Interval(0.0, 2.0, True).power(-1), Interval(0.5, inf, False, True)),
        (Interval(4.0, 9.0).power(-0.5), Interval(1 / 3, 0.5)),
        (Interval(0.0, 4.0).power(1.5), Interval(0.0, 8.0)),
        (Interval(0.0, 16.0, False, True).power(0.25), Interval(0.0, 2.0, False, True)),
        (Interval(0.0, 2.0).power(0), Interval(0.0, inf, True)),
        (Interval(0.5, 2.0).power(inf), Interval(0.0, inf)),
        (Interval(-1.0, 2.0).power(inf), Interval()),
        (Interval(0.5, 2.0).power(math.nan), Interval()),
        (Interval(-1.0, 2.0).power(1.5), Interval()),
        (Interval(0.0, 1.0, True).union(Interval(0.0, 2.0, False, True)), Interval(0.0, 2.0, False, True)),
        (Interval(0.0, 1.0, True).union(Interval(0.0, 1.0, True, True)), Interval(0.0, 1.0, True)),
        (Interval(0.0, 2.0).intersection(Interval(0.0, 1.0, True, True)), Interval(0.0, 1.0, True, True)),
        (Interval(0.0, 1.0, True).intersection(Interval(2.0, 3.0, True)), Interval(2.0, 2.0)),
    ],
)
def test_operations_are_tight(found: Interval, expected: Interval) -> None:
    assert found == expected


def test_what_lies_outside_is_no_member() -> None:
    assert [value in Interval(1.0, 2.0) for value in (0.5, 1.0, 1.5, 2.0, 2.5)] == [False, True, True, True, False]
    assert [value in Interval(1.0, 2.0, True, True) for value in (1.0, 1.5, 2.0)] == [False, True, False]
    assert [Interval(low, 2.0, is_open).positive for low, is_open in ((0.0, False), (0.0, True), (0.5, False))] == [
        *(False, True, True)
    ]
    assert [Interval(*ends).bounded for ends in ((-1.0, 1.0), (-inf, 1.0), (1.0, inf))] == [True, False, False]
    assert Interval.point(math.nan) == Interval()


@given(st.floats(allow_nan=False, width=32))
@example(1 + 2**-8)  # halfway between two of bfloat16, of which the even one is taken
@example(1 + 3 * 2**-8)
def test_rounds_as_torch_does(number: float) -> None:
    torch = pytest.importorskip("torch")
    for dtype, other in ((Dtype.FLOAT16, torch.float16), (Dtype.BFLOAT16, torch.bfloat16)):
        assert round_to(number, dtype) == torch.tensor(number, dtype=torch.float32).to(other).item()


@pytest.mark.parametrize(
    ("interval", "dtype", "rounded"),
    [
        (Interval(0.0, 1.0, True, True), Dtype.FLOAT16, Interval(0.0, 1.0)),
        (Interval(1e-8, inf), Dtype.FLOAT16, Interval(0.0, inf)),
        (Interval(2.0**-25, inf), Dtype.FLOAT16, Interval(0.0, inf)),
        (Interval(6e-8, inf), Dtype.FLOAT16, Interval(2.0**-24, inf)),
        (Interval(-1e9, 0.0), Dtype.FLOAT16, Interval(-inf, 0.0)),
        (Interval(0.0, 1 - 1e-7), Dtype.FLOAT16, Interval(0.0, 1.0)),
        (Interval(0.0, 1 - 1e-3), Dtype.FLOAT16, Interval(0.0, 0.9990234375)),
        (Interval(1e-8, 1.0), Dtype.BFLOAT16, Interval(round_to(1e-8, Dtype.BFLOAT16), 1.0)),
        (Interval(1e-8, 1.0), Dtype.INTEGER, Interval(1e-8, 1.0)),
    ],
)
def test_rounding_closes_ends(interval: Interval, dtype: Dtype, rounded: Interval) -> None:
    assert interval.rounded(dtype) == rounded


@pytest.mark.parametrize(
    ("expression", "interval"),
    [
        ("h.clamp(min=1e-8)", Interval(0.0, inf)),
        ("x.float().clamp(min=1e-8)", Interval(round_to(1e-8, Dtype.FLOAT32), inf)),
        ("1 - h.sigmoid()", Interval(0.0, 1.0)),
        ("h.softmax(-1)", Interval(0.0, 1.0)),
        ("h.relu() + 1e-8", Interval(0.0, inf)),
        ("h.relu() + 1e-3", Interval(round_to(1e-3, Dtype.FLOAT16), inf)),
        ("h.abs().clamp(max=0.5)", Interval(0.0, 0.5)),
        ("torch.cosine_similarity(h, x)", Interval(-1.0, 1.0)),
        ("F.normalize(h, dim=1) @ F.normalize(x, dim=1).T", Interval(-1.0, 1.0)),
        ("(h * h).sum(-1)", Interval(0.0, inf)),
        ("1 - h.tanh() ** 2", Interval(0.0, 1.0)),
        ("h.masked_fill(mask, -1e9)", Interval(-inf, inf)),
        ("torch.where(mask, h.sigmoid(), 2.0)", Interval(0.0, 2.0)),
        ("torch.cat([h.sigmoid(), -h.sigmoid()])", Interval(-1.0, 1.0)),
        ("(-h.relu()).sum(-1)", Interval(-inf, 0.0)),
        ("h.abs().clamp(max=+0.5)", Interval(0.0, 0.5)),
        ("torch.einsum('nd,md->nm', F.normalize(h, dim=1), F.normalize(x, dim=1))", Interval(-1.0, 1.0)),
        ("torch.einsum('nd,nd->', F.normalize(h, dim=1), F.normalize(x, dim=1))", Interval()),
        ("torch.einsum('nd,md->nm', F.normalize(h, dim=1), x)", Interval()),
        ("torch.einsum(mask, F.normalize(h, dim=1), F.normalize(x, dim=1))", Interval()),
    ],
)
def test_of_expressions_under_autocast(expression: str, interval: Interval) -> None:
    program = Program(
        f"""
import torch
import torch.nn.functional as F
from torch import nn

def f(fc: nn.Linear, x, mask):
    with torch.autocast("cuda", dtype=torch.float16):
        h = fc(x)
        y = {expression}
"""
    )
    (value,) = program.of(expression)
    assert value.interval == interval
