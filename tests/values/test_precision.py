"""Dtypes where autocast does not decide them: outside of it, or where it may be off."""

from __future__ import annotations

import pytest

from amplint.values import Dtype
from tests.values.programs import Program

HALF, SINGLE = {Dtype.FLOAT16}, {Dtype.FLOAT32}


def dtypes(asked: str, region: str = "contextlib.nullcontext()") -> set[Dtype]:
    program = Program(
        f"""
import contextlib
import torch
import torch.nn.functional as F

def f(labels, flag):
    single = torch.rand(3, 3)
    half = single.half()
    with {region}:
        found = {asked}
"""
    )
    return {dtype for value in program.of(asked) for dtype in value.dtypes}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("single.sum(dtype=torch.float16)", HALF),
        ("half.sum()", HALF),
        ("half.sum(dtype=torch.float32)", SINGLE),
        ("F.embedding(labels, half)", HALF),
        ("F.embedding(labels, single)", SINGLE),
        ("F.linear(half, half)", HALF),
        ("single[half.argmax()]", SINGLE),
        ("single + half", SINGLE),
        ("half * torch.rand(())", HALF),
        ("half * torch.rand((3,))", SINGLE),
        ("half * torch.zeros([])", HALF),
        ("half * torch.zeros([3])", SINGLE),
    ],
)
def test_outside_of_autocast(asked: str, expected: set[Dtype]) -> None:
    assert dtypes(asked) == expected


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("single @ single", HALF | SINGLE),
        ("half @ half", HALF),
        ("single.exp()", SINGLE),
        ("single.softmax(-1)", SINGLE),
        ("single + half", SINGLE),
    ],
)
def test_where_autocast_may_be_off(asked: str, expected: set[Dtype]) -> None:
    assert dtypes(asked, 'torch.autocast("cuda", torch.float16, enabled=flag)') == expected
