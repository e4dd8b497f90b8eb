"""The interval of each operation, in exact arithmetic: as tight as the operands allow, its ends open where they are."""

from __future__ import annotations

import math
from math import e, inf, log, pi

import pytest

from amplint.values import Interval
from tests.values.programs import Program

HUGE = "1" + 400 * "0"
"""A whole number that no float can hold."""


def interval(expression: str, before: str = "") -> Interval:
    """Of an expression of tensors that nothing is known of."""
    program = Program(
        f"""
import math
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

def f(x, y, weights):
    {before}
    found = {expression}
"""
    )
    (value,) = program.of(expression)
    return value.interval


def between(lower: float, upper: float) -> Interval:
    """With both ends open."""
    return Interval(lower, upper, True, True)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("x.exp()", between(0.0, inf)),
        ("x.relu().exp()", Interval(1.0, inf, False, True)),
        ("x.sigmoid().exp()", between(1.0, e)),
        ("1 / x.exp()", between(0.0, inf)),
        ("x.exp2()", between(0.0, inf)),
        ("x.tanh().exp2()", between(0.5, 2.0)),
        ("x.expm1()", between(-1.0, inf)),
        ("x.relu().expm1()", Interval(0.0, inf, False, True)),
        ("x.tanh()", between(-1.0, 1.0)),
        ("x.relu().tanh()", Interval(0.0, 1.0, False, True)),
        ("x.sigmoid()", between(0.0, 1.0)),
        ("x.relu().sigmoid()", Interval(0.5, 1.0, False, True)),
        ("(-x.relu()).sigmoid()", Interval(0.0, 0.5, True)),
        ("F.softplus(x)", between(0.0, inf)),
        ("x.clamp(-1000, 1000).exp()", Interval(0.0, inf)),
        ("x.clamp(-1000, 1000).sigmoid()", Interval(0.0, 1.0)),
        ("x.log()", Interval()),
        ("x.relu().log()", Interval()),
        ("x.sigmoid().log()", between(-inf, 0.0)),
        ("(x.sigmoid() + 1).log()", between(0.0, log(2))),
        ("(x.sigmoid() + 1).log2()", between(0.0, 1.0)),
        ("(x.sigmoid() * 10).log10()", between(-inf, 1.0)),
        ("x.sigmoid().log1p()", between(0.0, log(2))),
        ("x.tanh().log1p()", between(-inf, log(2))),
    ],
)
def test_increasing_functions(expression: str, expected: Interval) -> None:
    assert interval(expression) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("x.sqrt()", Interval(0.0, inf)),
        ("(x.sigmoid() + 3).sqrt()", between(math.sqrt(3), 2.0)),
        ("x.rsqrt()", Interval(0.0, inf, True)),
        ("x.sigmoid().rsqrt()", between(1.0, inf)),
        ("(4 * x.sigmoid()).rsqrt()", between(0.5, inf)),
        ("x.sigmoid().reciprocal()", between(1.0, inf)),
        ("x.tanh().reciprocal()", Interval()),
        ("2 / (x.sigmoid() + 1)", between(1.0, 2.0)),
        ("x.square()", Interval(0.0, inf)),
        ("x.tanh().square()", Interval(0.0, 1.0, False, True)),
        ("(x.tanh() - 2) ** 2", between(1.0, 9.0)),
        ("x ** 3", Interval()),
        ("(x.sigmoid() + 1) ** 3", between(1.0, 8.0)),
        ("(x.sigmoid() + 1) ** -1", between(0.5, 1.0)),
        ("x ** -2", Interval(0.0, inf, True)),
        ("x ** y", Interval()),
        ("x ** math.inf", Interval()),
        ("x ** float('nan')", Interval()),
        ("x.tanh() * x.tanh()", Interval(0.0, 1.0, False, True)),
        ("x.tanh() * y.tanh()", between(-1.0, 1.0)),
        ("x.tanh() * x.sigmoid()", between(-1.0, 1.0)),
        ("(x.tanh() - 3).abs()", between(2.0, 4.0)),
        ("-x.sigmoid()", between(-1.0, 0.0)),
        ("+x.sigmoid()", between(0.0, 1.0)),
        ("x.sigmoid() - x.tanh()", between(-1.0, 2.0)),
        ("torch.rsub(x.sigmoid(), 3)", between(2.0, 3.0)),
    ],
)
def test_arithmetic(expression: str, expected: Interval) -> None:
    assert interval(expression) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("torch.minimum(x.sigmoid(), x.tanh())", between(-1.0, 1.0)),
        ("torch.minimum(x.sigmoid(), x)", Interval(-inf, 1.0, False, True)),
        ("torch.maximum(x.sigmoid(), x.tanh())", between(0.0, 1.0)),
        ("torch.fmin(x, x.sigmoid())", Interval(-inf, 1.0, False, True)),
        ("torch.fmax(x, x.sigmoid())", Interval(0.0, inf, True)),
        ("x.clamp(0.1, 0.9)", Interval(0.1, 0.9)),
        ("x.clamp(min=-1.0)", Interval(-1.0, inf)),
        ("x.clamp(max=2.0)", Interval(-inf, 2.0)),
        ("x.clamp_min(0.5)", Interval(0.5, inf)),
        ("x.clamp_max(0.5)", Interval(-inf, 0.5)),
        ("x.sigmoid().clamp(0.1, 3.0)", Interval(0.1, 1.0, False, True)),
        ("x.clamp(1.0, 0.5)", Interval(0.5, 0.5)),  # torch's choice
        ("x.clamp(min=float('nan'))", Interval()),
        ("torch.where(x > 0, x.sigmoid(), x.tanh())", between(-1.0, 1.0)),
        ("x.sigmoid().masked_fill(x > 0, 2.0)", Interval(0.0, 2.0, True)),
        ("x.sigmoid().index_fill(0, y, -2.0)", Interval(-2.0, 1.0, False, True)),
        ("torch.lerp(x.sigmoid(), x.tanh(), 0.5)", between(-1.0, 1.0)),
        ("torch.stack([x.sigmoid(), x.tanh()])", between(-1.0, 1.0)),
        ("torch.stack([t.sigmoid() for t in x])", between(0.0, 1.0)),
        ("x.sigmoid().reshape(-1)", between(0.0, 1.0)),
        ("x.sigmoid().max(1)[0]", between(0.0, 1.0)),
        ("x.sigmoid().max(1)[1]", Interval(0.0, inf)),
        ("x.sigmoid().sort().indices", Interval(0.0, inf)),
    ],
)
def test_selections(expression: str, expected: Interval) -> None:
    assert interval(expression) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("F.dropout(x.sigmoid())", Interval(0.0, 2.0, False, True)),
        ("F.dropout(x.sigmoid() + 1, 0.75)", Interval(0.0, 8.0, False, True)),
        ("F.dropout(x.tanh() - 2, 0.5)", Interval(-6.0, 0.0, True)),
        ("F.dropout(x.sigmoid(), 1.0)", Interval(0.0, inf, False, True)),
        ("F.dropout(x.sigmoid(), y)", Interval(0.0, inf, False, True)),
        ("F.dropout(x.sigmoid(), 0.0)", between(0.0, 1.0)),
        ("nn.Dropout(0.75)(x.sigmoid())", Interval(0.0, 4.0, False, True)),
    ],
)
def test_dropout_makes_zeros_and_scales_up_what_is_left(expression: str, expected: Interval) -> None:
    assert interval(expression) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("x.sigmoid().sum()", Interval(0.0, inf, True)),
        ("(x.sigmoid() + 1).cumsum(0)", Interval(1.0, inf, True)),
        ("(-x.relu()).nansum()", Interval(-inf, 0.0)),
        ("x.tanh().sum()", Interval()),
        ("torch.zeros(3).sum()", Interval(0.0, 0.0)),
        ("(-x.relu()).logcumsumexp(0)", Interval()),
        ("x.sigmoid().logsumexp(0)", Interval(0.0, inf, True)),
        ("x.sigmoid().prod()", Interval(0.0, 1.0)),
        ("(x.sigmoid() + 1).cumprod(0)", Interval(0.0, inf)),
        ("x.tanh().prod()", Interval()),
        ("x.sigmoid().mean()", between(0.0, 1.0)),
        ("x.softmax(-1).max()", Interval(0.0, 1.0)),
    ],
)
def test_reductions(expression: str, expected: Interval) -> None:
    assert interval(expression) == expected


@pytest.mark.parametrize(
    ("expression", "is_cosine"),
    [
        ("F.normalize(x) @ F.normalize(y).T", True),
        ("F.normalize(x) @ y.T", False),
        ("torch.bmm(F.normalize(x), F.normalize(y))", True),
        ("F.linear(F.normalize(x), F.normalize(weights))", True),
        ("F.linear(F.normalize(x), weights)", False),
        ("(x / x.norm(dim=-1, keepdim=True)) @ F.normalize(y).T", True),
        ("(x / (x.norm(dim=-1, keepdim=True) + 1e-8)) @ F.normalize(y).T", True),
        ("(x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)) @ F.normalize(y).T", True),
        ("(x / y.norm(dim=-1, keepdim=True)) @ F.normalize(y).T", False),
        ("(x / y) @ F.normalize(y).T", False),
        ("torch.einsum('nd,md->nm', F.normalize(x), F.normalize(y))", True),
        ("torch.einsum('nd, de -> ne', F.normalize(x), F.normalize(y))", True),
        ("torch.einsum('nd,nd->nd', F.normalize(x), F.normalize(y))", False),
        ("(F.normalize(x) * F.normalize(y)).sum(-1)", True),
        ("(F.normalize(x) * y).sum(-1)", False),
        ("(F.normalize(x) + F.normalize(y)).sum(-1)", False),
    ],
)
def test_products_of_vectors_of_length_one_are_cosines(expression: str, is_cosine: bool) -> None:
    found = interval(expression)
    assert (found == Interval(-1.0, 1.0)) == is_cosine
    assert found.bounded == is_cosine


def test_the_operands_of_einsum_are_those_of_the_caller() -> None:
    program = Program(
        """
        import torch
        import torch.nn.functional as F

        def similarity(a, b):
            return torch.einsum("nd,md->nm", a, b)

        def f(x, y):
            return similarity(F.normalize(x), F.normalize(y)), similarity(x, F.normalize(y))
        """
    )
    cosine, product = (
        value.interval
        for call in ("similarity(F.normalize(x), F.normalize(y))", "similarity(x, F.normalize(y))")
        for value in program.of(call)
    )
    assert cosine == Interval(-1.0, 1.0)
    assert not product.bounded


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("x.sigmoid() + torch.pi", between(pi, pi + 1)),
        ("x.sigmoid() * np.e", between(0.0, e)),
        ("x.sigmoid() - math.inf", Interval(-inf, -inf, True, True)),
        ("math.log(2) * x.sigmoid()", between(0.0, log(2))),
        ("math.log(-1.0) * x", Interval()),
        ("math.unheard(2.0) + x.sigmoid()", Interval()),
        ("math.log(y) + x.sigmoid()", Interval()),
        ("7 // 2 * x.sigmoid()", between(0.0, 3.0)),
        ("7 % 4 * x.sigmoid()", between(0.0, 3.0)),
        (f"x + {HUGE}", Interval()),
        (f"x.clamp(min=-{HUGE})", Interval()),
    ],
)
def test_numbers_that_reach_tensors(expression: str, expected: Interval) -> None:
    found = interval(expression)
    assert (found.lower, found.upper) == (expected.lower, expected.upper)
