"""What calls of torch's containers, builtins and other libraries give."""

from __future__ import annotations

import pytest

from amplint.values import Dtype
from tests.values.programs import Program

HEAD = """
import copy
import torch
import torch.nn.functional as F
import transformers
from apex import amp
from collections import OrderedDict
from einops import rearrange
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModel

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.Softmax(1)

    def forward(self, x):
        return self.act(x)

class Own(transformers.PreTrainedModel):
    def forward(self, x):
        return self.embed(x).softmax(1)

def f(x, y, flag, name, optimizer):
"""


def program(body: str) -> Program:
    return Program(HEAD + "".join(f"    {line}\n" for line in body.splitlines()))


PAIRS = "[('a', nn.Linear(2, 2)), ('b', nn.Softmax(1))]"


@pytest.mark.parametrize(
    ("made", "ops"),
    [
        ("nn.Sequential(nn.Softmax(1))", {"softmax"}),
        ("nn.Sequential(Net())", {"softmax"}),
        ("nn.Sequential(nn.Softmax(1) if flag else nn.Sigmoid())", {"softmax", "sigmoid"}),
        (f"nn.Sequential(OrderedDict({PAIRS}))", {"softmax"}),
        ("nn.Sequential(OrderedDict({'a': nn.Linear(2, 2), 'b': nn.Softmax(1)}))", {"softmax"}),
        ("nn.Sequential(OrderedDict((str(i), nn.Softmax(1)) for i in range(3)))", {"softmax"}),
        ("nn.Sequential(*[nn.Softmax(1) for _ in range(3)])", {"softmax"}),
        ("nn.Sequential(OrderedDict())", {"parameter"}),
        ("nn.Sequential(OrderedDict(y))", {"unknown"}),
        ("nn.Sequential(OrderedDict([('a', nn.Softmax(1)), y]))", {"unknown"}),
        ("nn.Sequential(y)", {"unknown"}),
        ("nn.Sequential(*y)", {"unknown"}),
        ("nn.ModuleList([nn.Softmax(1), nn.Sigmoid()])[0]", {"softmax"}),
        ("nn.ModuleList([nn.Softmax(1), nn.Sigmoid()])[name]", {"softmax", "sigmoid"}),
        ("nn.ModuleList(nn.Softmax(1) for _ in range(3))[0]", {"softmax"}),
        ("nn.ModuleList(y)[0]", {"unknown"}),
        ("nn.ModuleDict({'a': nn.Softmax(1), 'b': nn.Sigmoid()})[name]", {"softmax", "sigmoid"}),
        ("nn.DataParallel(Net())", {"softmax"}),
        ("copy.deepcopy(Net())", {"softmax"}),
        ("getattr(Net(), 'act')", {"softmax"}),
    ],
)
def test_what_a_container_of_layers_computes(made: str, ops: set[str]) -> None:
    assert program(f"net = {made}\nreturn net(x)").ops("net(x)") == ops


@pytest.mark.parametrize(
    ("expression", "ops"),
    [
        ("checkpoint(Net(), x)", {"softmax"}),
        ("checkpoint(lambda t: t.softmax(1), x, use_reentrant=False)", {"softmax"}),
        ("nn.parallel.data_parallel(Net(), x, [0, 1])", {"softmax"}),
        ("rearrange(x, 'a b -> b a')", {"reshape"}),
        ("abs(x)", {"abs"}),
        ("pow(x, 2)", {"pow"}),
        ("next(iter([x.softmax(1)]))", {"softmax"}),
        ("next(reversed([x.softmax(1)]))", {"softmax"}),
        ("next(y)", {"unknown"}),
        ("dict(a=x.softmax(1))['a']", {"softmax"}),
        ("getattr(F, 'softmax' if flag else 'log_softmax')(x, 1)", {"softmax", "log_softmax"}),
        ("getattr(F, name)(x)", {"unknown"}),
        ("getattr(y, 'weights', x.softmax(1))", {"softmax", "unknown"}),
        ("max(x)", {"unknown"}),
        ("sum([x.softmax(1)])", {"unknown"}),
        ("len(x)", {"python"}),
        ("isinstance(x, Net)", {"python"}),
    ],
)
def test_what_a_function_that_is_no_operation_gives(expression: str, ops: set[str]) -> None:
    assert program(f"return {expression}").ops(expression) == ops


@pytest.mark.parametrize(("text", "number"), [("'1e-3'", 1e-3), ("3", 3.0), ("'many'", 0.0), ("y", None)])
def test_float_of_a_constant_is_a_number(text: str, number: float | None) -> None:
    (value,) = program(f"return float({text})").of(f"float({text})")
    assert value.as_number() == number


@pytest.mark.parametrize(
    ("made", "dtype"),
    [
        ("Own.from_pretrained('a', torch_dtype=torch.float16)", Dtype.FLOAT16),
        ("Own.from_pretrained('a', dtype=torch.bfloat16)", Dtype.BFLOAT16),
        ("Own.from_pretrained('a', torch_dtype='auto')", Dtype.UNKNOWN),
        ("Own.from_pretrained('a', torch_dtype=y)", Dtype.UNKNOWN),
        ("AutoModel.from_pretrained('a', torch_dtype=torch.float16)", Dtype.FLOAT16),
        ("AutoModel.from_pretrained('a', torch_dtype=torch.float16).cuda().eval()", Dtype.FLOAT16),
        ("AutoModel.from_pretrained('a', torch_dtype=torch.float16).float()", Dtype.FLOAT32),
        ("AutoModel.from_pretrained('a').half()", Dtype.FLOAT16),
        ("AutoModel.from_pretrained('a')", Dtype.FLOAT32),
    ],
)
def test_a_pretrained_model_has_the_precision_it_is_loaded_in(made: str, dtype: Dtype) -> None:
    (model,) = program(f"return {made}").of(made)
    assert model.precision is dtype


@pytest.mark.parametrize(
    ("made", "ops"),
    [
        ("net, optimizer = amp.initialize(Net(), optimizer)", {"float"}),
        ("net, optimizer = amp.initialize(Net(), optimizer, opt_level='O2')", {"float"}),
        ("(net, other), optimizer = amp.initialize([Net(), y], optimizer, opt_level='O1')", {"float"}),
        ("net = amp.initialize(Net())", {"float"}),
        ("net, optimizer = amp.initialize(Net(), optimizer, opt_level='O0')", {"softmax"}),
        ("net, optimizer = amp.initialize(Net(), optimizer, enabled=False)", {"softmax"}),
    ],
)
def test_a_model_that_apex_wraps_gives_float32(made: str, ops: set[str]) -> None:
    assert program(f"{made}\nreturn net(x)").ops("net(x)") == ops
