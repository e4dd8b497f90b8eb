"""The numeric proof of the range rules' rewrites: a function and what the real fix makes of it, run side by side.

In float64 both sides agree, values and gradients, on random inputs of several shapes (those that change an epsilon, as
far as that goes). On its failing inputs the left side raises or is not finite where its operands are float16, in its
value or in a gradient, and the right side is finite. Autocast is CUDA's, simulated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from amplint.registry import all_rules  # noqa: E402
from amplint.runtime.simulated_cuda import simulated_cuda  # noqa: E402
from tests.programs import MAIN, fixed  # noqa: E402

SHAPES = ((1, 4), (5, 2), (2, 3, 4))
HEAD = "import torch\nimport torch.nn.functional as F\n"
AUTOCAST = """
def run(layer: torch.nn.Linear, z):
    with torch.autocast("cuda", dtype=torch.float16):
        h = layer(z)
        return f({given})
"""
HALF = """
def run(z):
    h = z.half()
    return f({given})
"""


@dataclass(frozen=True)
class Proof:
    """One rewrite of the body of `f`, whose arguments are float16 tensors of one shape."""

    code: str
    body: str
    failing: tuple[tuple[float, ...], ...]
    """Inputs on which the left side fails, one row for each argument."""
    arguments: str = "x"
    is_half_code: bool = False
    range: tuple[float, float] = (0.5, 4.0)
    tolerance: float = 1e-6
    gradients: bool = True
    """False where only the value is mended: the slope of log at 1e-10 is beyond float16 however it is written."""

    @property
    def source(self) -> str:
        body = "".join(f"    {line}\n" for line in self.body.splitlines())
        run = (HALF if self.is_half_code else AUTOCAST).format(given=", ".join(["h"] * self.tensors))
        return f"{HEAD}\ndef f({self.arguments}):\n{body}\n{run}"

    @property
    def tensors(self) -> int:
        return self.arguments.count(",") + 1


ZERO = (0.0, 0.0)
LARGE = (300.0, 2.0)
PROOFS = [
    # an epsilon that survives
    Proof("AMP301", "return x / (y + 1e-8)", (ZERO, ZERO), "x, y", tolerance=1e-3),
    Proof("AMP301", "return x / y.clamp(min=1e-8)", (ZERO, ZERO), "x, y", tolerance=1e-3),
    Proof("AMP301", "d = y + 1e-8\nreturn x / d", (ZERO, ZERO), "x, y", tolerance=1e-3),
    Proof("AMP301", "return torch.sqrt(x + 1e-12)", (ZERO,), tolerance=1e-3),
    Proof("AMP301", "return torch.log(x.clamp_min(1e-10))", (ZERO,), gradients=False),
    Proof("AMP301", "return torch.log(1 - x.clamp(max=1 - 1e-6))", ((1.0, 1.0),), range=(0.1, 0.9)),
    Proof("AMP301", "return torch.logit(x, eps=1e-6)", ((0.0, 1.0),), range=(0.1, 0.9)),
    Proof("AMP301", "return x / (x.norm(dim=-1, keepdim=True) + 1e-8)", (ZERO,), is_half_code=True, tolerance=1e-3),
    Proof("AMP301", "return F.normalize(x, dim=-1)", (ZERO,), is_half_code=True, gradients=False),
    # a mask that fits
    Proof("AMP302", "return x.masked_fill(x > 3, -1e9).softmax(-1)", ((4.0, 1.0),), range=(0.5, 2.9)),
    Proof(
        "AMP302",
        "return ((x > 3).to(x.dtype) * -1e9 + x).softmax(-1)",
        ((4.0, 5.0),),
        is_half_code=True,
        range=(0.5, 2.9),
    ),
    # a double where
    Proof("AMP305", "return torch.where(x > 0, torch.log(x), 0.0)", (ZERO,)),
    Proof("AMP305", "root = x.sqrt()\nreturn torch.where(x > 0, root, x)", (ZERO,)),
    Proof("AMP305", "return torch.where(y == 0, 0.0, x / y)", (ZERO, ZERO), "x, y"),
    Proof("AMP305", "return x.log().masked_fill(x <= 0, 0.0)", (ZERO,)),
    Proof("AMP305", "return torch.log(x) * (x > 0)", (ZERO,)),
    # an operation that float16 has not
    Proof("AMP306", "return torch.fft.rfft(x, dim=-1).abs()", ((1.0, 2.0, 4.0),)),
    Proof("AMP306", "return torch.linalg.svdvals(x)", ((1.0, 2.0),)),
    # equal dtypes
    Proof(
        "AMP307",
        "buffer = torch.zeros(x.shape)\nbuffer[torch.arange(len(x))] = x\nreturn buffer",
        ((1.0, 2.0),),
    ),
    Proof(
        "AMP307",
        "buffer = torch.zeros(x.shape)\nreturn buffer.index_add_(0, torch.arange(len(x)), x * 2)",
        ((1.0, 2.0),),
    ),
    # float32 where autocast is off
    Proof("AMP308", "with torch.autocast('cuda', enabled=False):\n    return x.exp()", ((12.0, 1.0),), gradients=False),
    # squares
    Proof("AMP310", "return (x * x).mean(-1)", (LARGE,)),
    Proof("AMP310", "return x * x + y * y", (LARGE, LARGE), "x, y"),
    Proof("AMP310", "return x.pow(2).mean(-1)", (LARGE,), is_half_code=True),
]


def named(proof: Proof) -> str:
    return f"{proof.code} {proof.body.splitlines()[-1].strip()}"


@cache
def sides(proof: Proof) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """The function before and after the fix."""
    rule = next(rule for rule in all_rules() if rule.code == proof.code)
    after = fixed(rule, {MAIN: proof.source})
    assert after != proof.source, "the rule has no fix for this program"
    return function(proof.source), function(after)


def function(source: str) -> Callable[..., Tensor]:
    names: dict[str, Callable[..., Tensor]] = {}
    exec(compile(source, "program", "exec"), names)  # type: ignore[arg-type]
    return names["f"]


@contextlib.contextmanager
def float16(proof: Proof) -> Iterator[None]:
    """Where the function runs in float16: under autocast, or in half code."""
    with simulated_cuda(), torch.autocast("cuda", dtype=torch.float16, enabled=not proof.is_half_code):
        yield


def is_finite(proof: Proof, f: Callable[..., Tensor]) -> bool:
    """Whether value and gradients are finite on the failing inputs; False if it raises."""
    leaves = [torch.tensor([row], dtype=torch.float16, requires_grad=True) for row in proof.failing]
    try:
        with float16(proof):
            value = f(*leaves)
        gradients = torch.autograd.grad(value.float().sum(), leaves) if proof.gradients else ()
    except RuntimeError:
        return False
    return all(bool(t.isfinite().all()) for t in (value, *gradients))


@pytest.mark.parametrize("proof", PROOFS, ids=named)
def test_only_the_left_side_fails_in_float16(proof: Proof) -> None:
    before, after = sides(proof)
    assert not is_finite(proof, before)
    assert is_finite(proof, after)


@pytest.mark.parametrize("proof", PROOFS, ids=named)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(shape=st.sampled_from(SHAPES), seed=st.integers(0, 2**31))
def test_both_sides_agree_in_float64(proof: Proof, shape: tuple[int, ...], seed: int) -> None:
    before, after = sides(proof)
    generator = torch.Generator().manual_seed(seed)
    low, high = proof.range
    inputs = [low + (high - low) * torch.rand(shape, generator=generator) for _ in range(proof.tensors)]
    with default_float64():
        left, right = value_and_gradients(before, inputs), value_and_gradients(after, inputs)
    for one, other in zip(left, right, strict=True):
        torch.testing.assert_close(other, one, rtol=proof.tolerance, atol=proof.tolerance, check_dtype=False)


@contextlib.contextmanager
def default_float64() -> Iterator[None]:
    """New tensors are float64, as buffers are float32 where their values are."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def value_and_gradients(f: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    leaves = [x.double().requires_grad_() for x in inputs]
    value = f(*leaves)
    return [value.detach(), *torch.autograd.grad(value.double().sum(), leaves)]


def test_half_adam_needs_an_eps_that_float16_keeps() -> None:
    """AMP303: one step with a gradient of zero."""

    def after_one_step(**options: float) -> Tensor:
        weight = torch.ones(2, dtype=torch.float16, requires_grad=True)
        weight.grad = torch.zeros_like(weight)
        torch.optim.Adam([weight], lr=1e-3, **options).step()
        return weight.detach()

    assert after_one_step().isnan().all()
    assert after_one_step(eps=1e-4).isfinite().all()
