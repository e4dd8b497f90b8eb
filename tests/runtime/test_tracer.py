"""Which operation and which line the tracer blames."""

from __future__ import annotations

import contextlib
import linecache
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from amplint.runtime.tracer import Tracer
from amplint.runtime.verdict import BadTensor
from amplint.runtime.watcher import Ended, Watcher


def trace(training: Callable[[], object]) -> BadTensor | None:
    """The first bad tensor of a training, watched and traced as `amplint trace` does it."""
    tracer = Tracer()
    watcher = Watcher(on_step=lambda watcher, taken: tracer.end_step(taken))
    with watcher.watching(), tracer, contextlib.suppress(Ended):
        training()
    return tracer.first()


def blamed(training: Callable[[], object]) -> BadTensor:
    """The same, where there has to be one; its line must hold `# here`."""
    bad = trace(training)
    assert bad is not None
    assert linecache.getline(bad.place.file, bad.place.line).rstrip().endswith("# here")
    return bad


def train(loss: Callable[[int, torch.Tensor], torch.Tensor], steps: int = 5, lr: float = 0.1) -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.ones(4, 2))
    optimizer = torch.optim.SGD([weight], lr=lr)
    for step in range(steps):
        optimizer.zero_grad()
        loss(step, weight).backward()
        optimizer.step()


def test_forward() -> None:
    def loss(step: int, weight: torch.Tensor) -> torch.Tensor:
        shifted = weight - (step == 2) * weight.detach()
        logarithm = torch.log(shifted)  # here
        return (logarithm * 2).sum()

    bad = blamed(lambda: train(loss))
    assert (bad.step, bad.phase, bad.operation, bad.value) == (3, "forward", "log", "inf")
    assert bad.dtypes == ("float32",)
    assert bad.shapes == ((4, 2),)


def test_inside_a_module_the_line_that_calls_it() -> None:
    class Net(nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(weight, weight.detach() * 1e30 * 1e30)  # here

    assert blamed(lambda: train(lambda step, weight: Net()(weight).sum())).phase == "forward"


def test_backward_belongs_to_its_forward_line() -> None:
    def loss(step: int, weight: torch.Tensor) -> torch.Tensor:
        doubled = weight * 2
        root = torch.sqrt(doubled * 0)  # here
        return root.sum()

    bad = blamed(lambda: train(loss))
    assert (bad.phase, bad.operation) == ("backward", "div in SqrtBackward")


def test_optimizer() -> None:
    def training() -> None:
        weight = nn.Parameter(torch.ones(2, dtype=torch.float16))
        optimizer = torch.optim.Adam([weight], foreach=False)
        (weight * 0).sum().backward()
        optimizer.step()  # here

    bad = blamed(training)
    assert (bad.phase, bad.value) == ("optimizer", "nan")


def test_clipping() -> None:
    def training() -> None:
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        (weight * 1e30).sum().backward()
        nn.utils.clip_grad_norm_([weight], 1.0, norm_type=40.0)  # here
        (weight * math.nan).sum().backward()
        optimizer.step()

    assert blamed(training).phase == "clipping"


def test_the_overflow_of_a_settling_scale_is_not_blamed() -> None:
    def training() -> None:
        weight = nn.Parameter(torch.ones(4, dtype=torch.float32))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        for step in range(6):
            optimizer.zero_grad()
            half = (weight * 100).half()
            loss = half.sum().float()
            if step == 4:
                loss = loss + torch.log(weight.detach().sum() * 0)  # here
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    bad = blamed(training)
    assert (bad.step, bad.operation) == (5, "log")


def test_a_streak_of_skips_is_blamed_on_its_last() -> None:
    def training() -> None:
        weight = nn.Parameter(torch.zeros(4))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(30):
            optimizer.zero_grad()
            scaler.scale(torch.sqrt(weight).sum()).backward()  # here
            scaler.step(optimizer)
            scaler.update()

    assert blamed(training).operation == "div in SqrtBackward"


@pytest.mark.parametrize(
    "mask",
    [
        lambda scores: scores.masked_fill(scores > 0, -math.inf),
        lambda scores: torch.where(scores > 0, torch.tensor(-math.inf), scores),
        lambda scores: scores + torch.full_like(scores, -math.inf).triu(1),
    ],
)
def test_a_mask_is_not_blamed(mask: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def loss(step: int, weight: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(mask(weight * torch.tensor([[1.0, -1.0]])), -1)
        return weights.sum()

    assert trace(lambda: train(loss)) is None


def test_a_healthy_step_clears_what_it_had() -> None:
    def loss(step: int, weight: torch.Tensor) -> torch.Tensor:
        return weight.sum() + 0 * torch.nan_to_num(torch.log(weight.detach() * 0), neginf=0.0).sum()

    assert trace(lambda: train(loss)) is None


def test_nothing_is_blamed_for_what_came_in_bad() -> None:
    poisoned = torch.tensor([math.nan, 1.0])
    assert trace(lambda: train(lambda step, weight: (weight * poisoned).sum())) is None
