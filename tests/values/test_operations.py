"""Which operation an expression is, through every spelling, and what constants reach it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from amplint.budget import OutOfTimeError
from tests.values.programs import Program

HEAD = """
import math
import numpy as np
import torch
import torch.nn.functional as F
from functools import partial
from torch import log as logarithm, nn, softmax

"""


@pytest.mark.parametrize(
    "body",
    [
        "print(F.softmax(x, 1))",
        "print(x.softmax(dim=1))",
        "print(torch.softmax(x, dim=1))",
        "print(torch.Tensor.softmax(x, 1))",
        "print(torch.special.softmax(x, 1))",
        "print(softmax(x, 1))",
        "print(nn.Softmax(dim=1)(x))",
        "act = nn.Softmax(1)\nprint(act(x))",
        "act = partial(F.softmax, dim=1)\nprint(act(x))",
        "act = lambda t: t.softmax(1)\nprint(act(x))",
        "net = nn.Sequential(nn.Linear(2, 2), nn.Softmax(1))\nprint(net(x))",
        "net = nn.Sequential(*[nn.Linear(2, 2), nn.Softmax(1)])\nprint(net(x))",
        "net = nn.Sequential()\nnet.add_module('fc', nn.Linear(2, 2))\nnet.append(nn.Softmax(1))\nprint(net(x))",
        "acts = {'soft': F.softmax, 'hard': torch.relu}\nprint(acts['soft'](x, 1))",
        "print(getattr(F, 'softmax')(x, 1))",
        "a, b = x.sum(), x.softmax(1)\nprint(b)",
        "def inner(t):\n    if t is None:\n        return None\n    return t.softmax(1)\nprint(inner(x + 1))",
        "p = None\nif p is None:\n    p = x.softmax(1)\nprint(p)",
        "p = x.softmax(1)\nassert p.sum() > 0\nprint(p)",
        "print(p := x.softmax(1))",
    ],
)
def test_every_spelling_of_softmax(body: str) -> None:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    program = Program(f"{HEAD}def f(x):\n{lines}")
    argument = next(c for c in reversed(program.main.calls) if getattr(c.func, "id", "") == "print").args[0]
    values = [v for v in program.values.of(program.main, argument) if not (v.op == "constant" and v.constant is None)]
    assert {v.op for v in values} == {"softmax"}
    assert {v.number("dim") for v in values} == {1}


@pytest.mark.parametrize(
    ("expression", "op"),
    [
        ("math.log(x)", "python"),
        ("np.log(x)", "python"),
        ("np.exp(x).sum()", "python"),
        ("self.log('loss', x)", "unknown"),
        ("logger.log(10, x)", "unknown"),
        ("logarithm(x)", "log"),
        ("x.log()", "log"),
        ("x.log_()", "log"),
        ("x @ x", "matmul"),
        ("x[0]", "getitem"),
        ("torch.max(x.exp(), x.sin())", "maximum"),
        ("x.max(1)", "max"),
        ("torch.add(x, 1)", "add"),
        ("-x", "neg"),
        ("~x", "bitwise_not"),
        ("x.T", "t"),
        ("F.dropout(x)", "dropout"),
        ("open(x)", "unknown"),
    ],
)
def test_canonical_operation(expression: str, op: str) -> None:
    program = Program(f"{HEAD}class C(nn.Module):\n    def forward(self, x, logger):\n        return {expression}\n")
    assert program.ops(expression) == {op}


def test_attributes_constructors_and_inheritance() -> None:
    program = Program(
        """
        from torch import nn
        from base import Base

        class Net(Base):
            FLOOR = 1e-6

            def __init__(self, act=nn.Sigmoid, scale=2.0):
                super().__init__(eps=1e-5)
                self.act = act()
                self.scale = scale

            def forward(self, x):
                self.kept = self.act(x)
                return self.kept * self.scale + self.eps + self.FLOOR

            def later(self):
                return self.kept + 1

        net = Net(scale=3.0)
        y = net(1)
        """,
        base="""
        from torch import nn

        class Base(nn.Module):
            def __init__(self, eps=1e-8):
                super().__init__()
                self.eps = eps
        """,
    )
    assert program.ops("self.act(x)") == {"sigmoid"}
    assert [v.op for v in program.of("self.kept + 1")[0].operand("input")] == ["sigmoid"]
    (result,) = program.of("net(1)")
    assert result.number("other") == 1e-6
    (with_eps,) = result.operand("input")
    assert with_eps.number("other") == 1e-5
    (scaled,) = with_eps.operand("input")
    assert scaled.number("other") == 3.0


@pytest.mark.parametrize(
    ("expression", "number"),
    [
        ("1e-8", 1e-8),
        ("-1e9", -1e9),
        ("1 - 1e-3", 0.999),
        ("10 ** 6", 1e6),
        ("EPS", 1e-7),
        ("EPS * 10", 1e-6),
        ("Config.tiny", 1e-9),
        ("Config().tiny", 1e-9),
        ("Config(tiny=1e-4).tiny", 1e-4),
        ("default", 0.25),
        ("math.sqrt(4)", 2.0),
        ("float('1e-3')", 1e-3),
        ("torch.finfo(torch.float16).max", 65504.0),
        ("torch.finfo(torch.float32).min", -3.4028234663852886e38),
        ("x", None),
        ("True", None),
        ("1 / 0", None),
    ],
)
def test_numbers(expression: str, number: float | None) -> None:
    program = Program(
        f"""
import math
import torch
from dataclasses import dataclass

EPS = 1e-7

@dataclass
class Config:
    tiny: float = 1e-9

def f(x, default=0.25):
    y = {expression}
"""
    )
    assert program.values.number(program.of(expression)) == pytest.approx(number)


def test_parameters_are_what_callers_give() -> None:
    program = Program(
        """
        from losses import log_loss, twice

        def train(scores):
            log_loss(scores.softmax(1))
            log_loss((scores / 2).softmax(1))
            twice(scores.softmax(1))
            twice(scores)
        """,
        losses="""
        import torch

        def log_loss(p):
            return torch.log(p)

        def twice(p):
            return p * 2

        def public(p):
            return p * 3
        """,
    )
    inputs = {text: {v.op for v in program.of(text, "losses")[0].operand("input")} for text in ("p * 2", "p * 3")}
    assert {v.op for v in program.of("torch.log(p)", "losses")[0].operand("input")} == {"softmax"}
    assert inputs == {"p * 2": {"softmax", "parameter"}, "p * 3": {"parameter"}}


def test_flags_choose_the_branch_of_a_helper() -> None:
    program = Program(
        """
        import torch

        def activate(x, log=False, soft=True):
            if log:
                return torch.log_softmax(x, 1)
            if not soft:
                return x.relu()
            return torch.softmax(x, 1)

        def use(x):
            a = activate(x)
            b = activate(x, log=True)
            c = activate(x, soft=False)
            d = activate(x, unknown(x))
        """
    )
    assert program.ops("activate(x)") == {"softmax"}
    assert program.ops("activate(x, log=True)") == {"log_softmax"}
    assert program.ops("activate(x, soft=False)") == {"relu"}
    assert program.ops("activate(x, unknown(x))") == {"softmax", "log_softmax"}


def test_peeling() -> None:
    program = Program(
        """
        import torch

        def f(x, i, mask):
            p = x.softmax(-1)
            q = torch.log(p[:, i].float().clamp(min=1e-6) + 1e-8)
            r = torch.log(p * mask + 1e-8)
        """
    )
    layers = {"index", "cast", "clamp", "eps"}
    values = program.values
    (found,) = values.peel(program.of("torch.log(p[:, i].float().clamp(min=1e-6) + 1e-8)")[0].operand("input"), layers)
    assert found.core.op == "softmax"
    assert [step.kind for step in found.steps] == ["eps", "clamp", "cast", "index"]
    (masked,) = values.peel(program.of("torch.log(p * mask + 1e-8)")[0].operand("input"), layers)
    assert (masked.core.op, [step.kind for step in masked.steps]) == ("mul", ["eps"])
    (kept,) = values.peel(program.of("p[:, i]"), {"cast"})
    assert (kept.core.op, kept.steps) == ("getitem", ())


@pytest.mark.parametrize(
    ("expression", "layers", "core"),
    [
        ("p.clamp(min=1e-6)", ["clamp"], "softmax"),
        ("torch.nan_to_num(p)", ["clamp"], "softmax"),
        ("torch.maximum(p, torch.tensor(1e-6))", ["clamp"], "softmax"),
        ("torch.maximum(torch.full_like(p, 1e-6), p)", ["clamp"], "softmax"),
        ("torch.maximum(p, x)", [], "maximum"),
        ("p + 1e-8", ["eps"], "softmax"),
        ("1e-8 + p", ["eps"], "softmax"),
        ("p - 1e-8", ["eps"], "softmax"),
        ("1e-8 - p", [], "sub"),
        ("p + 0.5", [], "add"),
        ("p + 0", [], "add"),
        ("torch.add(p, 1e-8, alpha=9)", [], "add"),
        ("torch.cat([p, p[:, 0]])", ["cat"], "softmax"),
        ("torch.stack((p, p), dim=1)", ["cat"], "softmax"),
        ("torch.stack([q.softmax(1) for q in x])", ["cat"], "softmax"),
        ("torch.cat(x)", [], "cat"),
        ("p.float().half().view(-1).detach()", ["shape", "shape", "cast", "cast"], "softmax"),
        ("p.gather(1, i).squeeze(1)", ["shape", "index"], "softmax"),
    ],
)
def test_layers_that_are_looked_through(expression: str, layers: list[str], core: str) -> None:
    program = Program(f"import torch\n\ndef f(x, i):\n    p = x.softmax(1)\n    return {expression}\n")
    peeled = program.values.peel(program.of(expression), {"index", "shape", "cast", "eps", "clamp", "cat"})
    assert {found.core.op for found in peeled} == {core}
    assert [step.kind for step in peeled[0].steps if step.kind in layers or not layers] == layers


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("x.sum(1, keepdim=True)", "x.sum(1, keepdim=True)", True),
        ("x.sum(1)", "x.sum(0)", False),
        ("x.sum(1)", "x.sum()", False),
        ("x.sum((0, 1))", "x.sum((0, 1))", True),
        ("x.sum((0, i))", "x.sum((0, i))", False),
        ("x[:, 1:]", "x[:, 1:]", True),
        ("x[:, 1:]", "x[:, 2:]", False),
        ("x[i]", "x[i]", True),
        ("self.w", "self.w", True),
        ("self.w", "self.v", False),
        ("batch['x']", "batch['x']", True),
        ("batch.x.y", "batch.x.y", True),
        ("batch.x", "other.x", False),
        ("work(x)", "work(x)", False),
        ("torch.rand(2)", "torch.rand(2)", False),
        ("torch.zeros(2)", "torch.zeros(2)", False),
        ("x.exp_()", "x.exp_()", False),
        ("self.act(x)", "self.act(x)", True),
        ("self.act(x)", "self.act(y)", False),
        ("self.act(x)", "x.softmax(1)", False),
        ("1e-8", "1e-8", True),
        ("1", "1.0", False),
        ("math.pi", "math.pi", True),
        ("math.pi", "math.e", False),
    ],
)
def test_whether_two_expressions_are_certainly_equal(left: str, right: str, same: bool) -> None:
    program = Program(
        f"""
import math
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, w, v):
        super().__init__()
        self.w, self.v = w, v
        self.act = nn.Softmax(1)

    def forward(self, x, y, i, batch, other):
        return pair({left}, {right})
"""
    )
    (call,) = (c for c in program.main.calls if getattr(c.func, "id", "") == "pair")
    first, second = (program.values.of(program.main, node) for node in call.args)
    assert program.values.same_all(first, second) is same


def test_sameness() -> None:
    program = Program(
        """
        import torch
        import torch.nn.functional as F

        def f(x, y, i):
            e = torch.exp(x)
            pairs = (torch.exp(x) / e, torch.exp(y) / e, x[0] / x[0], x[0] / x[1], F.dropout(x) / F.dropout(x))
        """
    )
    texts = ("torch.exp(x) / e", "torch.exp(y) / e", "x[0] / x[0]", "x[0] / x[1]", "F.dropout(x) / F.dropout(x)")
    verdicts = []
    for text in texts:
        (division,) = program.of(text)
        verdicts.append(program.values.same_all(division.operand("input"), division.operand("other")))
    assert verdicts == [True, False, True, False, False]


def test_recursion_and_long_chains_end() -> None:
    chain = " + ".join(f"x[{i}]" for i in range(300))
    program = Program(
        f"""
def even(n):
    return odd(n - 1)

def odd(n):
    return even(n - 1)

def f(x):
    y = {chain}
    z = even(x)
    for _ in x:
        z = z * z + f(z)
    return z
"""
    )
    assert program.of("even(x)")[0].dtypes
    assert program.of(chain)[0].dtypes
    assert program.of("z * z + f(z)")[0].interval


@pytest.mark.parametrize(("file", "ops"), [("fabric/fabric", {"softmax"}), ("other/fabric", {"unknown"})])
def test_a_framework_that_is_judged_itself(file: str, ops: set[str]) -> None:
    program = Program(
        f"""
        from torch import nn
        from {file.replace("/", ".")} import Fabric

        def f(x, optimizer):
            fabric = Fabric()
            net, optimizer = fabric.setup(nn.Softmax(1), optimizer)
            print(net(x))
        """,
        **{file: "class Fabric:\n    def setup(self, module, *optimizers):\n        return wrap(module)\n"},
    )
    assert program.ops("net(x)") == ops


def test_nodes_that_an_interruption_left_uncounted_are_found_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(dict[ast.AST, ast.AST]):
        def __iter__(self) -> Iterator[ast.AST]:
            raise OutOfTimeError

    program = Program("y = x + 1\n")
    monkeypatch.setattr(program.main, "parents", Interrupted())
    with pytest.raises(OutOfTimeError):
        program.values.nodes(program.main, ast.BinOp)
    monkeypatch.undo()
    assert len(program.values.nodes(program.main, ast.BinOp)) == 1
