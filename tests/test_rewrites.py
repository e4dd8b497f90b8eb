"""The numeric proof of the rewrites: each program and what the real fix makes of it, run side by side.

In float64 both sides agree, values and gradients, on random inputs of several shapes. On its failing inputs the left
side is not finite in float16, in its value or in a gradient, where the right side is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from amplint.registry import all_rules  # noqa: E402
from tests.programs import MAIN, fixed  # noqa: E402

SHAPES = ((3,), (1, 4), (5, 2), (2, 3, 4))
MATRICES = ((1, 4), (5, 2), (4, 3))
HEAD = "import math\nimport torch\nimport torch.nn.functional as F\n"

Result = tuple[Tensor, tuple[Tensor, ...]]


@dataclass(frozen=True)
class Proof:
    """One rewrite. `f` of the program takes float tensors of one shape, and integer labels as `y` if it has any."""

    code: str
    body: str
    failing: tuple[tuple[float, ...], ...]
    """Inputs on which the left side fails, one row for each argument."""
    arguments: str = "x"
    shapes: tuple[tuple[int, ...], ...] = SHAPES
    range: tuple[float, float] = (-4.0, 4.0)
    tolerance: float = 1e-9
    labels: tuple[int, ...] = ()
    """`y` for the failing inputs: class indices, or 0 and 1 where `y_is_float`."""
    y_is_float: bool = False
    reference: str = ""
    """What the right side must equal where the left side is another function by mistake."""

    @property
    def source(self) -> str:
        names = self.arguments + (", y" if self.labels else "")
        return f"{HEAD}\ndef f({names}):\n" + "".join(f"    {line}\n" for line in self.body.splitlines())

    @property
    def tensors(self) -> int:
        return self.arguments.count(",") + 1


PROOFS = [
    # log_softmax
    Proof("AMP101", "return torch.log(torch.softmax(x, dim=-1))", ((0.0, -20.0, -40.0),)),
    Proof("AMP101", "p = F.softmax(x, -1)\nreturn p.log()", ((0.0, 40.0),)),
    Proof("AMP101", "return torch.log(x.softmax(-1) + 1e-12)", ((0.0, -20.0),), tolerance=1e-6),
    Proof("AMP101", "return F.softmax(x, dim=-1).clamp(min=1e-12).log()", ((0.0, -20.0),), tolerance=1e-6),
    Proof(
        "AMP101",
        "return F.nll_loss(torch.log(torch.softmax(x, dim=1)), y)",
        ((0.0, 40.0),),
        shapes=MATRICES,
        labels=(0,),
    ),
    # logsigmoid
    Proof("AMP102", "return torch.log(torch.sigmoid(x))", ((-20.0, 0.0),)),
    Proof("AMP102", "return torch.log(1 - torch.sigmoid(x))", ((10.0, 0.0),)),
    Proof("AMP102", "return torch.log1p(-x.sigmoid())", ((10.0, 0.0),)),
    Proof("AMP102", "return torch.log(torch.sigmoid(x) + 1e-12)", ((-20.0, 0.0),), tolerance=1e-6),
    Proof(
        "AMP102",
        "p = torch.sigmoid(x)\nreturn -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()",
        ((-20.0, 10.0),),
        labels=(1, 0),
        y_is_float=True,
    ),
    # binary_cross_entropy_with_logits
    Proof(
        "AMP103",
        "return F.binary_cross_entropy(torch.sigmoid(x), y)",
        ((20.0, -20.0),),
        labels=(0, 1),
        y_is_float=True,
    ),
    Proof(
        "AMP103",
        "p = x.sigmoid().clamp(1e-9, 1 - 1e-9)\nreturn F.binary_cross_entropy(p, y, reduction='sum')",
        ((20.0, -20.0),),
        labels=(0, 1),
        y_is_float=True,
        tolerance=1e-6,
    ),
    # logsumexp, logaddexp
    Proof("AMP104", "return torch.log(torch.sum(torch.exp(x), dim=-1))", ((12.0, 0.0),)),
    Proof("AMP104", "return x.exp().sum(-1, keepdim=True).log()", ((-40.0, -50.0),)),
    Proof("AMP104", "return torch.log(torch.exp(x).sum())", ((12.0, 0.0),)),
    Proof("AMP104", "return torch.log(torch.exp(x).sum(-1) + 1e-12)", ((12.0, 0.0),), tolerance=1e-6),
    Proof("AMP104", "return torch.log(torch.exp(a) + torch.exp(b))", ((12.0, 0.0), (0.0, 1.0)), "a, b"),
    # softplus
    Proof("AMP105", "return torch.log(1 + torch.exp(x))", ((12.0, 0.0),)),
    Proof("AMP105", "return (-x).exp().log1p()", ((-12.0, 0.0),)),
    # softmax
    Proof("AMP106", "return torch.exp(x) / torch.exp(x).sum(dim=-1, keepdim=True)", ((12.0, 0.0),)),
    Proof("AMP106", "e = x.exp()\nreturn e / e.sum(0)", ((-40.0, -50.0),), shapes=MATRICES),
    Proof("AMP106", "e = torch.exp(x)\nreturn e / (e.sum(-1).unsqueeze(-1) + 1e-12)", ((12.0, 0.0),), tolerance=1e-6),
    # the log-determinant of tanh
    Proof("AMP108", "return torch.log(1 - torch.tanh(x) ** 2)", ((6.0, -6.0),), range=(-3.0, 3.0), tolerance=1e-7),
    Proof("AMP108", "return torch.log(1 - x.tanh().pow(2) + 1e-12)", ((6.0, 0.0),), range=(-3.0, 3.0), tolerance=1e-6),
    Proof(
        "AMP108", "return torch.log(2.5 * (1 - torch.tanh(x) ** 2))", ((6.0, 0.0),), range=(-3.0, 3.0), tolerance=1e-7
    ),
    # vector_norm
    Proof("AMP109", "return torch.sqrt(torch.sum(x**2, dim=-1))", ((0.0, 0.0),)),
    Proof("AMP109", "return (x * x).sum().sqrt()", ((300.0, 0.0),)),
    Proof("AMP109", "return (a - b).pow(2).sum(-1, keepdim=True) ** 0.5", ((1.0, 2.0), (1.0, 2.0)), "a, b"),
    Proof("AMP109", "return torch.sqrt(F.mse_loss(a, b))", ((1.0, 2.0), (1.0, 2.0)), "a, b", tolerance=1e-3),
    Proof(
        "AMP109", "return torch.sqrt(a**2 + b**2)", ((0.0, 1.0), (0.0, 1.0)), "a, b", range=(0.5, 4.0), tolerance=1e-6
    ),
    # losses given the wrong thing: the right side is what the loss means
    Proof(
        "AMP107",
        "return F.cross_entropy(torch.softmax(x, dim=1), y)",
        (),
        shapes=MATRICES,
        labels=(0,),
        reference="-torch.softmax(x, dim=1).gather(1, y[:, None]).log().mean()",
    ),
    Proof(
        "AMP107",
        "p = x.sigmoid()\nreturn F.binary_cross_entropy_with_logits(p, y)",
        (),
        labels=(0, 1),
        y_is_float=True,
        reference="F.binary_cross_entropy(torch.sigmoid(x), y)",
    ),
    Proof(
        "AMP110",
        "return F.nll_loss(F.softmax(x, dim=1), y)",
        (),
        shapes=MATRICES,
        labels=(0,),
        reference="-torch.softmax(x, dim=1).gather(1, y[:, None]).log().mean()",
    ),
    Proof(
        "AMP110",
        "return F.kl_div(a.softmax(-1), b.softmax(-1), reduction='sum')",
        (),
        "a, b",
        reference="(b.softmax(-1) * (b.softmax(-1) / a.softmax(-1)).log()).sum()",
    ),
    # expm1, log1p
    Proof("AMP112", "return torch.exp(x) - 1", (), range=(0.01, 4.0)),
    Proof("AMP112", "return 1 - (-x).exp()", (), range=(0.01, 4.0)),
    Proof("AMP112", "return torch.log(1 + x)", (), range=(0.01, 4.0)),
]
FAILING = [proof for proof in PROOFS if proof.failing]
LOSSY = [proof for proof in PROOFS if proof.code == "AMP112"]


def named(proof: Proof) -> str:
    return f"{proof.code} {proof.body.splitlines()[-1]}"


@cache
def sides(proof: Proof) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """The program's function before and after the fix."""
    rule = next(rule for rule in all_rules() if rule.code == proof.code)
    after = fixed(rule, {MAIN: proof.source})
    assert after != proof.source, "the rule has no fix for this program"
    left = f"{HEAD}\ndef f(*args):\n    {proof.arguments + (', y' if proof.labels else '')} = args\n"
    before = f"{left}    return {proof.reference}\n" if proof.reference else proof.source
    return function(before), function(after)


def function(source: str) -> Callable[..., Tensor]:
    names: dict[str, Callable[..., Tensor]] = {}
    exec(compile(source, "program", "exec"), names)  # type: ignore[arg-type]
    return names["f"]


def run(f: Callable[..., Tensor], inputs: list[Tensor], y: Tensor | None, weights: Tensor | None = None) -> Result:
    """The value of `f` and the gradients of a weighted sum of it."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    value = f(*leaves, *(() if y is None else (y,)))
    weighted = value if weights is None else value * weights.reshape(-1)[: value.numel()].reshape(value.shape)
    return value.detach(), torch.autograd.grad(weighted.sum(), leaves)


def is_finite(result: Result) -> bool:
    value, gradients = result
    return all(bool(t.isfinite().all()) for t in (value, *gradients))


@pytest.mark.parametrize("proof", PROOFS, ids=named)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(data=st.data())
def test_both_sides_agree_in_float64(proof: Proof, data: st.DataObject) -> None:
    before, after = sides(proof)
    shape = data.draw(st.sampled_from(proof.shapes))
    seed = data.draw(st.integers(0, 2**31))
    scale = data.draw(st.floats(0.05, 1.0))
    generator = torch.Generator().manual_seed(seed)
    low, high = proof.range

    def draw() -> Tensor:
        middle = (low + high) / 2
        return (
            middle + (torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low - middle) * scale
        )

    inputs = [draw() for _ in range(proof.tensors)]
    weights = torch.rand(max(64, inputs[0].numel()), generator=generator, dtype=torch.float64)
    y = None
    if proof.labels:
        y = (
            torch.rand(shape, generator=generator).round().double()
            if proof.y_is_float
            else torch.randint(shape[1], shape[:1], generator=generator)
        )
    left, right = run(before, inputs, y, weights), run(after, inputs, y, weights)
    assert left[0].shape == right[0].shape
    for one, other in zip((left[0], *left[1]), (right[0], *right[1]), strict=True):
        torch.testing.assert_close(other, one, rtol=proof.tolerance, atol=proof.tolerance)


@pytest.mark.parametrize("proof", FAILING, ids=named)
def test_only_the_left_side_fails_in_float16(proof: Proof) -> None:
    before, after = sides(proof)
    inputs = [torch.tensor(row, dtype=torch.float16) for row in proof.failing]
    y = None
    if proof.labels:
        y = torch.tensor(proof.labels, dtype=torch.float16 if proof.y_is_float else torch.int64)
        inputs = inputs if proof.y_is_float else [x.unsqueeze(0) for x in inputs]
    assert not is_finite(run(before, inputs, y))
    assert is_finite(run(after, inputs, y))


@pytest.mark.parametrize("proof", LOSSY, ids=named)
def test_only_the_left_side_loses_digits_in_float16(proof: Proof) -> None:
    before, after = sides(proof)
    x = torch.tensor([1e-3, 3e-4], dtype=torch.float16)
    exact = before(x.double())
    assert ((before(x).double() - exact) / exact).abs().max() > 0.02
    torch.testing.assert_close(after(x).double(), exact, rtol=1e-3, atol=0)


@pytest.mark.parametrize("code", sorted({proof.code for proof in PROOFS}))
def test_the_rule_can_fix(code: str) -> None:
    """Every rule proved here offers fixes, so that a proof cannot stand for a rewrite that is gone."""
    assert next(rule for rule in all_rules() if rule.code == code).fixable
