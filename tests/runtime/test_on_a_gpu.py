"""Where there is a GPU: the fixtures on it, and the simulation against it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

from amplint.runtime.process import Limits
from amplint.runtime.simulated_cuda import simulated_cuda
from amplint.runtime.verify import Plan, Verifier, scripts_in
from amplint.torch_ops import Operation
from tests.runtime.test_thresholds import ZERO, fails, log_sigmoid_by_hand, log_softmax_by_hand, logits, threshold
from tests.torch_calls import SPELLINGS, call

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
FIXTURES = Path(__file__).parents[2] / "fixtures"
HALF, SINGLE = torch.float16, torch.float32

REAL = contextlib.nullcontext
DEVICES: tuple[Callable[[], Any], ...] = (REAL, simulated_cuda)

GROUPS = [
    pytest.param(group[0][0], [spelling for _, spelling in group], id=group[0][0].name)
    for group in (list(pairs) for _, pairs in groupby(SPELLINGS, key=lambda pair: pair[0].name))
]


def dtypes(operation: Operation, spelling: str, operands: tuple[torch.dtype, ...]) -> list[torch.dtype] | None:
    """The dtypes of the results under autocast, None for an error."""
    with torch.autocast("cuda", dtype=HALF):
        try:
            result = call(operation, spelling, operands, "cuda")
        except Exception:  # an operation may refuse a dtype in any way it likes
            return None
    return [leaf.dtype for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize(("operation", "spellings"), GROUPS)
@pytest.mark.filterwarnings("ignore")
def test_operations_have_the_dtypes_of_the_gpu(operation: Operation, spellings: list[str]) -> None:
    for spelling in spellings:
        for operands in ((SINGLE,), (HALF,), (SINGLE, HALF), (HALF, SINGLE)):
            real = dtypes(operation, spelling, operands)
            with simulated_cuda():
                simulated = dtypes(operation, spelling, operands)
            if operation.half or HALF not in operands:
                assert simulated == real or simulated is None, (spelling, operands)


@pytest.mark.parametrize("loss", [log_softmax_by_hand, log_sigmoid_by_hand])
@pytest.mark.parametrize("mode", ["float32", "autocast", "half"])
def test_thresholds_are_those_of_the_gpu(loss: Callable[[torch.Tensor], torch.Tensor], mode: str) -> None:
    found = []
    for device in DEVICES:
        with device():
            found.append([threshold(loss, logits, mode, of) for of in (0, 1)])
    assert found[0] == pytest.approx(found[1], abs=0.2)


@pytest.mark.parametrize(
    "expression",
    [
        lambda y: torch.ones_like(y) / (y + 1e-8),
        lambda y: torch.ones_like(y) / (y + 1e-4),
        lambda p: torch.log(p + 1e-10),
        lambda x: torch.log(torch.softmax(x, -1) + 1e-10),
        lambda x: (x - x.mean()) / torch.sqrt(x.var() + 1e-12),
        lambda x: F.layer_norm(x, (4,), eps=1e-12),
        lambda x: F.normalize(x),
    ],
)
def test_epsilons_are_those_of_the_gpu(expression: Callable[[torch.Tensor], torch.Tensor]) -> None:
    found = []
    for device in DEVICES:
        with device():
            found.append(fails(lambda x: expression(x).float().sum(), ZERO, "autocast"))
    assert found[0] == found[1]


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(64, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(tokens).mean(1))


def convolutions() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(32, 10)),
    )


def losses(model: nn.Module, inputs: torch.Tensor, steps: int = 50) -> Iterator[float]:
    model, inputs = model.cuda(), inputs.cuda()
    targets = torch.arange(len(inputs), device="cuda") % 10
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=HALF):
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        yield loss.item()


@pytest.mark.parametrize(("make", "shape"), [(Transformer, (16, 12, 64)), (convolutions, (16, 3, 16, 16))])
def test_losses_follow_those_of_the_gpu(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    curves = []
    for device in DEVICES:
        torch.manual_seed(0)
        model, inputs = make(), torch.randn(shape)
        with device():
            curves.append(list(losses(model, inputs)))
    assert curves[1] == pytest.approx(curves[0], rel=0.05, abs=0.02)


def test_fixtures_on_the_gpu() -> None:
    verifier = Verifier(Plan(device="cuda", limits=Limits(seconds=60.0), trace=False))
    outcomes = list(verifier.verify(scripts_in([FIXTURES]), jobs=4))
    assert outcomes
    assert {str(outcome.script): outcome.problem for outcome in outcomes if not outcome.ok} == {}
