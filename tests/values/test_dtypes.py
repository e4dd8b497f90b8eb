"""The dtype of an expression: promotion as torch does it, autocast's casts, modules in half."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amplint.values import Certainty, Dtype
from amplint.values.dtype import promote, widest
from tests.values.programs import Program

TORCH = {
    Dtype.FLOAT16: "float16",
    Dtype.BFLOAT16: "bfloat16",
    Dtype.FLOAT32: "float32",
    Dtype.FLOAT64: "float64",
    Dtype.INTEGER: "int64",
    Dtype.BOOL: "bool",
}
OURS = {name: ours for ours, name in TORCH.items()}


@pytest.mark.parametrize(("left", "right"), list(product(TORCH, TORCH)))
@pytest.mark.parametrize(("left_scalar", "right_scalar"), list(product((False, True), repeat=2)))
def test_promotes_as_torch_does(left: Dtype, right: Dtype, left_scalar: bool, right_scalar: bool) -> None:
    torch = pytest.importorskip("torch")
    a = torch.ones(() if left_scalar else (2,), dtype=getattr(torch, TORCH[left]))
    b = torch.ones(() if right_scalar else (2,), dtype=getattr(torch, TORCH[right]))
    promoted = promote(left, right, left_scalar=left_scalar, right_scalar=right_scalar)
    assert f"torch.{TORCH[promoted]}" == str((a + b).dtype)


def test_what_is_not_known_stays_so() -> None:
    assert promote(Dtype.UNKNOWN, Dtype.FLOAT16) is Dtype.UNKNOWN
    assert promote(Dtype.NUMBER, Dtype.FLOAT16) is Dtype.FLOAT16
    assert promote(Dtype.NUMBER, Dtype.INTEGER) is Dtype.UNKNOWN
    assert widest([Dtype.FLOAT16, Dtype.FLOAT32]) is Dtype.FLOAT32
    assert widest([Dtype.FLOAT16, Dtype.UNKNOWN]) is Dtype.UNKNOWN


LEAVES = ("a", "b", "s", "i", "2.0", "a[:1]", "a.sum()", "b.mean()")
UNARY = (
    "torch.sigmoid({})",
    "torch.exp({})",
    "torch.abs({})",
    "torch.relu({})",
    "torch.tanh({})",
    "-({})",
    "torch.clamp({}, min=1e-8)",
    "torch.clamp(torch.as_tensor({}), -200.0, 0.5)",
    "torch.log(torch.as_tensor({}))",
    "torch.log1p(torch.as_tensor({}))",
    "torch.exp2(torch.as_tensor({}))",
    "torch.expm1(torch.as_tensor({}))",
    "torch.sqrt(torch.as_tensor({}))",
    "torch.rsqrt(torch.as_tensor({}))",
    "torch.reciprocal(torch.as_tensor({}))",
    "torch.square(torch.as_tensor({}))",
    "torch.as_tensor({}) ** 3",
    "torch.as_tensor({}) ** -1.5",
    "torch.as_tensor({}).prod()",
    "torch.as_tensor({}).reshape(-1).cumsum(0)",
    "torch.logsumexp(torch.as_tensor({}).reshape(-1) * 1.0, 0, keepdim=True)",
    "torch.nn.functional.softplus(torch.as_tensor({}) * 1.0)",
    "torch.nn.functional.dropout(torch.as_tensor({}) * 1.0, 0.25)",
    "torch.as_tensor({}).float()",
    "torch.as_tensor({}).half()",
    "torch.as_tensor({}).reshape(-1)",
    "torch.softmax(torch.as_tensor({}) * 1.0, dim=-1)",
    "torch.where(a > 0, torch.as_tensor({}), torch.as_tensor(0.5))",
)
BINARY = (
    "({}) + ({})",
    "({}) - ({})",
    "({}) * ({})",
    "({}) / ({})",
    "torch.maximum(torch.as_tensor({}), b * ({}))",
    "torch.minimum(torch.as_tensor({}), b * ({}))",
)

expressions = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        st.builds(lambda form, x: form.format(x), st.sampled_from(UNARY), inner),
        st.builds(lambda form, x, y: form.format(x, y), st.sampled_from(BINARY), inner, inner),
    ),
    max_leaves=6,
)
HEAD = """
import torch
a = torch.rand(3).half()
b = torch.rand(3)
s = torch.tensor(0.5)
i = torch.arange(3)
"""


@pytest.mark.filterwarnings("ignore:The recursion limit")
@settings(max_examples=100, deadline=None)
@given(expressions)
@example("torch.clamp(i - 2.0, min=1e-8)")
def test_dtype_and_interval_hold_what_torch_computes(text: str) -> None:
    """Without autocast, on the CPU: the dtype is among the possible ones, each number within the interval."""
    torch = pytest.importorskip("torch")
    names: dict[str, object] = {}
    try:
        exec(HEAD + f"y = torch.as_tensor({text})\n", names)
    except (RuntimeError, TypeError):
        return  # torch refuses it, or a number got no tensor
    result = names["y"]
    assert isinstance(result, torch.Tensor)
    value = Program(HEAD + f"y = torch.as_tensor({text})\n").of(f"torch.as_tensor({text})")[0]
    (inner,) = value.operand("data")
    possible = inner.dtypes
    ours = OURS[str(result.dtype).removeprefix("torch.")]
    assert possible & {ours, Dtype.UNKNOWN, Dtype.NUMBER}
    if Dtype.NUMBER in possible:
        return
    interval = inner.interval.rounded(ours)  # that of an unknown dtype is exact
    for number in result.double().flatten().tolist():
        assert number != number or number in interval, (text, number, interval)


def under_autocast(body: str, asked: str, dtype: str = "torch.float16") -> frozenset[Dtype]:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    program = Program(
        f"""
import torch
import torch.nn.functional as F
from torch import nn

def f(fc: nn.Linear, x, labels):
    with torch.autocast("cuda", dtype={dtype}):
        h = fc(x)
        bias = torch.zeros(8)
{lines}
"""
    )
    return frozenset(dtype for value in program.of(asked) for dtype in value.dtypes)


HALF = frozenset({Dtype.FLOAT16})
SINGLE = frozenset({Dtype.FLOAT32})


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("h.sigmoid()", HALF),
        ("h @ h.T", HALF),
        ("torch.einsum('bd,bd->b', x, x)", HALF),
        ("h.std(dim=1)", HALF),
        ("h + 1e-8", HALF),
        ("h.clamp(min=1e-8)", HALF),
        ("h / (h.sum() + 1e-8)", HALF),  # a 0-dim float32 tensor does not promote
        ("h.half() * 2", HALF),
        ("h.exp_()", HALF),  # in place: as given
        ("torch.cat([h, h])", HALF),
        ("torch.where(h > 0, h, 0.0)", HALF),
        ("h.softmax(-1)", SINGLE),
        ("h ** 2", SINGLE),
        ("h.sum(-1)", SINGLE),
        ("torch.exp(h)", SINGLE),
        ("1 / h", SINGLE),
        ("h.norm(dim=-1)", SINGLE),
        ("F.layer_norm(h, (8,))", SINGLE),
        ("F.cross_entropy(h, labels)", SINGLE),
        ("h + bias", SINGLE),
        ("h / (h.sum(-1, keepdim=True) + 1e-8)", SINGLE),
        ("h.float().mean()", SINGLE),
        ("h.to(torch.float32)", SINGLE),
        ("h.to(dtype=bias.dtype)", SINGLE),
        ("torch.cat([h, bias])", SINGLE),
        ("h.sum(dtype=torch.float16)", HALF),
        ("h.argmax(-1)", frozenset({Dtype.INTEGER})),
        ("h > 0", frozenset({Dtype.BOOL})),
        ("x + 1", frozenset({Dtype.UNKNOWN})),
    ],
)
def test_cuda_autocast(expression: str, expected: frozenset[Dtype]) -> None:
    assert under_autocast(f"y = {expression}", expression) == expected


def test_bfloat16_is_not_half() -> None:
    assert under_autocast("y = h + 1", "h + 1", "torch.bfloat16") == {Dtype.BFLOAT16}


def test_a_loop_keeps_what_it_may_become() -> None:
    body = "y = torch.zeros(8)\nfor _ in range(3):\n    y = y + h.sigmoid()\nprint(y)"
    assert under_autocast(body, "y") == SINGLE
    body = "y = h\nfor _ in range(3):\n    y = y.softmax(-1)\nprint(y)"
    assert under_autocast(body, "y") == HALF | SINGLE


@pytest.mark.parametrize(
    ("cast", "expected"),
    [
        ("net.half()", HALF),
        ("net.to('cuda', dtype=torch.float16)", HALF),
        ("net = net.cuda().half().eval()", HALF),
        ("net.bfloat16()", frozenset({Dtype.BFLOAT16})),
        ("net.cuda()", SINGLE),
        ("copy = __import__('copy').deepcopy(net).half()", SINGLE),
    ],
)
def test_modules_in_half(cast: str, expected: frozenset[Dtype]) -> None:
    program = Program(
        f"""
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x):
        return self.inner(x)

def run(x):
    net = Net()
    {cast}
    return net(x)
"""
    )
    dtypes = {dtype for value in program.of("net(x)") for dtype in value.dtypes}
    wanted = expected if expected != {Dtype.BFLOAT16} else SINGLE | expected
    assert dtypes <= wanted
    assert dtypes


def test_half_says_how_sure_it_is() -> None:
    program = Program(
        """
import torch
from torch import nn

def scale(x):
    return x * 0.5

def anywhere(x):
    return x * 0.25

def always(fc: nn.Linear, x):
    with torch.autocast("cuda", dtype=torch.float16):
        return scale(fc(x))

def maybe(fc: nn.Linear, x, amp):
    with torch.autocast("cuda", enabled=amp):
        return fc(x) * 2.0
"""
    )
    certainty = {text: program.values.half(program.of(text)[0]) for text in ("x * 0.5", "x * 0.25", "fc(x) * 2.0")}
    assert certainty == {
        "x * 0.5": Certainty.ALWAYS,
        "x * 0.25": Certainty.UNKNOWN,
        "fc(x) * 2.0": Certainty.MAY,
    }


DEFAULT = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x)

"""


@pytest.mark.parametrize(
    ("body", "dtypes"),
    [
        ("torch.set_default_dtype(torch.float16)\ny = torch.rand(3)\n", {Dtype.FLOAT16}),
        ("torch.set_default_tensor_type(torch.cuda.HalfTensor)\ny = torch.tensor([0.5])\n", {Dtype.FLOAT16}),
        ("torch.set_default_tensor_type('torch.cuda.HalfTensor')\ny = torch.full((3,), 0.5)\n", {Dtype.FLOAT16}),
        ("torch.set_default_dtype(torch.half)\ndef f():\n    y = torch.zeros(3)\n", {Dtype.FLOAT16}),
        ("def f():\n    torch.set_default_dtype(torch.half)\n    y = torch.zeros(3)\n", {Dtype.FLOAT16}),
        ("torch.set_default_dtype(torch.float64)\ny = torch.linspace(0, 1, 3)\n", {Dtype.FLOAT64}),
        (
            "def f(flag):\n    if flag:\n        torch.set_default_dtype(torch.half)\n    y = torch.zeros(3)\n",
            {Dtype.FLOAT16, Dtype.FLOAT32},
        ),
        ("y = torch.rand(3)\ntorch.set_default_dtype(torch.float16)\n", {Dtype.FLOAT32}),
        ("torch.set_default_dtype(torch.float16)\ny = torch.rand(3, dtype=torch.float32)\n", {Dtype.FLOAT32}),
        ("torch.set_default_dtype(torch.float16)\ny = torch.tensor([1, 2])\n", {Dtype.INTEGER}),
        ("def g():\n    torch.set_default_dtype(torch.half)\ndef f():\n    y = torch.zeros(3)\n", {Dtype.FLOAT32}),
        (
            "torch.set_default_dtype(torch.half)\nnet = Net()\ntorch.set_default_dtype(torch.float32)\n"
            "y = torch.zeros(3)\n",
            {Dtype.FLOAT32},
        ),
        (
            "torch.set_default_dtype(torch.half)\nnet = Net()\ntorch.set_default_dtype(torch.float32)\ny = net(1)\n",
            {Dtype.FLOAT16},
        ),
        ("net = Net()\ntorch.set_default_dtype(torch.half)\ny = net(1)\n", {Dtype.FLOAT32}),
    ],
)
def test_the_default_dtype(body: str, dtypes: set[Dtype]) -> None:
    indent = "    " if "    y =" in body else ""
    program = Program(f"{DEFAULT}{body}{indent}print(y)\n")
    assert {d for v in program.of("y") for d in v.dtypes} == dtypes


def test_the_default_dtype_of_callers_and_of_what_they_load() -> None:
    program = Program(
        """
        import torch
        from nets import Net

        def load():
            torch.set_default_tensor_type(torch.cuda.HalfTensor)
            net = Net()
            torch.set_default_tensor_type(torch.FloatTensor)
            return net

        def main(x):
            return load()(x)
        """,
        nets="""
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 4)
                self.scale = nn.Parameter(torch.ones(4))

            def forward(self, x):
                return self.fc(x) * self.scale + 1.0
        """,
    )
    (value,) = program.seen("self.fc(x) * self.scale + 1.0", "nets")
    assert value.is_half
