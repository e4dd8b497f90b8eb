"""Attributes, items and methods: of instances, of what annotations name, of containers, of tensors."""

from __future__ import annotations

import pytest

from amplint.values import Dtype
from tests.values.programs import Program

HEAD = """
import torch
from dataclasses import dataclass
from torch import nn
from typing import Optional

class Holder(nn.Module):
    def __init__(self, rate: float = 0.5):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.register_buffer("mask", torch.ones(3).half())
        self.rate = rate

    @property
    def act(self):
        return nn.Softmax(1)

    @staticmethod
    def soft(x):
        return x.softmax(1)

    @classmethod
    def make(cls):
        return cls(0.25)

    def forward(self, x):
        return self.soft(x)

@dataclass
class Point:
    a: float
    b: float = 2.0

class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.softmax(1)

def f(x, y, i, m: nn.Softmax, q: nn.modules.activation.Softmax, h: "Holder", o: Optional[Holder], n: Holder | None,
      bad: "a b", far: "other.Holder"):
"""


def values(expression: str) -> Program:
    return Program(f"{HEAD}    return {expression}\n")


@pytest.mark.parametrize(
    "expression",
    [
        "m(x)",
        "q(x)",
        "h(x)",
        "o(x)",
        "n(x)",
        "h.act(x)",
        "Holder.soft(x)",
        "Holder.make()(x)",
        "Own.apply(x)",
        "(lambda t: t.softmax(1))(x)",
        "{'a': x.softmax(1)}.copy()['a']",
        "{'a': x.softmax(1)}.pop('a')",
        "{'a': x.softmax(1)}.get('a', x.exp())",
        "{'a': x.exp()}.get('b', x.softmax(1))",
        "list({'a': x.softmax(1)}.values())[0]",
        "[v for _, v in {'a': x.softmax(1)}.items()][0]",
        "[x.softmax(1)].pop()",
        "[x.exp(), x.softmax(1)][-1]",
        "[t.softmax(1) for t in y][0]",
        "{k: v.softmax(1) for k, v in y.items()}['a']",
    ],
)
def test_softmax_wherever_it_is_kept(expression: str) -> None:
    assert values(expression).ops(expression) == {"softmax"}


@pytest.mark.parametrize(
    ("expression", "number"),
    [
        ("Holder.make().rate", 0.25),
        ("Holder().rate", 0.5),
        ("Point(1.0).a", 1.0),
        ("Point(1.0).b", 2.0),
        ("Point(1.0, 3.0).b", 3.0),
        ("Point(1.0, b=4.0).b", 4.0),
        ("torch.finfo(torch.float16).smallest_normal", 2.0**-14),
        ("torch.finfo(x.half().dtype).min", -65504.0),
        ("torch.finfo(torch.bfloat16).eps", 2.0**-7),
        ("torch.finfo(x.dtype).max", None),
        ("torch.finfo(torch.float16).bits", None),
        ("(1.5).real", None),
    ],
)
def test_numbers_that_objects_hold(expression: str, number: float | None) -> None:
    assert values(expression).of(expression)[0].as_number() == number


@pytest.mark.parametrize(
    ("expression", "dtype"),
    [
        ("h.mask", Dtype.FLOAT16),
        ("h.fc.weight", Dtype.FLOAT32),
        ("h.fc.nothing", Dtype.UNKNOWN),
        ("h.nothing", Dtype.UNKNOWN),
        ("bad(x)", Dtype.UNKNOWN),
        ("far(x)", Dtype.UNKNOWN),
        ("x.half().max(1).values", Dtype.FLOAT16),
        ("x.half().max(1).indices", Dtype.INTEGER),
        ("x.half().mT", Dtype.FLOAT16),
        ("x.to(x.half())", Dtype.FLOAT16),
        ("x.to('cuda', torch.float16)", Dtype.FLOAT16),
        ("x.half().to('cuda')", Dtype.FLOAT16),
        ("torch.zeros(2, 3, dtype=torch.float16)", Dtype.FLOAT16),
        ("torch.max(x.half(), other=x.half())", Dtype.FLOAT16),
        ("torch.sum(x.half(), axis=1, keepdims=True)", Dtype.FLOAT16),
        ("x.half().mean().item()", Dtype.NUMBER),
        ("x.log(10, 20, 30)", Dtype.UNKNOWN),
    ],
)
def test_dtypes_of_what_is_read_off_an_object(expression: str, dtype: Dtype) -> None:
    assert {d for v in values(expression).of(expression) for d in v.dtypes} == {dtype}


@pytest.mark.parametrize("expression", ["{'a': x}.keys()", "[x].index(x)", "{}.popitem()", "x.shape", "x.shape[0]"])
def test_what_is_no_tensor(expression: str) -> None:
    assert values(expression).ops(expression) == {"python"}
