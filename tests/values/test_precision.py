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
        ("half.max(1)[0]", HALF),
        ("half.max(1)[1]", {Dtype.INTEGER}),
        ("half.sort()[0][1]", HALF),
        ("half.topk(2).values[1]", HALF),
        ("single + half", SINGLE),
        ("half * torch.rand(())", HALF),
        ("half * torch.rand((3,))", SINGLE),
        ("half * torch.zeros([])", HALF),
        ("half * torch.zeros([3])", SINGLE),
        ("half * torch.tensor(0.5).reshape(1)", SINGLE),
        ("half * torch.tensor(0.5).expand(3)", SINGLE),
        ("half * single.mean()", HALF),
        ("half * single.mean(1)", SINGLE),
        ("half * torch.mean(single)", HALF),
        ("half * torch.mean(single, 1)", SINGLE),
        ("half * torch.mean(single, dim=1)", SINGLE),
        ("half * single.mean(*labels)", SINGLE),
        ("half * single.mean(**flag)", SINGLE),
        ("half * single.norm(2)", HALF),
        ("half * single.norm(2, 1)", SINGLE),
        ("torch.arange(3) / torch.arange(3)", SINGLE),
        ("torch.arange(3).square()", {Dtype.INTEGER}),
        ("torch.as_tensor(2.0 + 2.0)", SINGLE),
        ("torch.as_tensor(half * 2.0)", HALF),
        ("torch.as_tensor(labels + 1)", {Dtype.UNKNOWN}),
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


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("(half > 0).sum(-1)", {Dtype.INTEGER}),
        ("torch.arange(3).cumsum(0)", {Dtype.INTEGER}),
        ("half.sum(-1)", SINGLE),
        ("half.sum(-1, dtype=torch.float16)", HALF),
        ("half.softmax(-1)", SINGLE),
        ("torch.arange(3).softmax(-1)", SINGLE),
    ],
)
def test_counts_stay_whole_under_autocast(asked: str, expected: set[Dtype]) -> None:
    assert dtypes(asked, 'torch.autocast("cuda", torch.float16)') == expected


@pytest.mark.parametrize(("made", "expected"), [("Net()", set()), ("Net().half()", HALF), ("Net().bfloat16()", set())])
def test_what_a_module_is_given_may_be_half_where_it_is(made: str, expected: set[Dtype]) -> None:
    program = Program(
        f"""
        from torch import nn

        class Net(nn.Module):
            def forward(self, x):
                self.kept = x + 1

            def loss(self):
                return self.kept * 2

        net = {made}
        loss = net.loss()
        """
    )
    assert {d for value in program.of("net.loss()") for d in value.dtypes} == {Dtype.UNKNOWN, *expected}
