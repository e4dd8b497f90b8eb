"""GradScaler under simulated CUDA: every message it has for a wrong use, and the wrong uses it says nothing of."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("cuda")


class Training:
    """A linear model between scaled backward and step."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 2).to("cuda", dtype)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)

    def backward(self) -> torch.Tensor:
        inputs = torch.ones(8, 4, device="cuda", dtype=self.model.weight.dtype)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = self.model(inputs).float().square().mean()
        self.scaler.scale(loss).backward()
        return loss


@pytest.fixture
def training() -> Iterator[Training]:
    return Training()


def test_half_parameters() -> None:
    training = Training(torch.float16)
    training.backward()
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        training.scaler.unscale_(training.optimizer)


def test_unscaled_twice(training: Training) -> None:
    training.backward()
    training.scaler.unscale_(training.optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) has already been called on this optimizer"):
        training.scaler.unscale_(training.optimizer)


def test_unscaled_after_step(training: Training) -> None:
    training.backward()
    training.scaler.step(training.optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) is being called after step\(\)"):
        training.scaler.unscale_(training.optimizer)


def test_stepped_twice(training: Training) -> None:
    training.backward()
    training.scaler.step(training.optimizer)
    with pytest.raises(RuntimeError, match=r"step\(\) has already been called since the last update"):
        training.scaler.step(training.optimizer)


def test_updated_without_a_step(training: Training) -> None:
    training.backward()
    with pytest.raises(AssertionError, match="No inf checks were recorded prior to update"):
        training.scaler.update()


def test_stepped_without_gradients(training: Training) -> None:
    training.backward()
    training.optimizer.zero_grad()
    with pytest.raises(AssertionError, match="No inf checks were recorded for this optimizer"):
        training.scaler.step(training.optimizer)


def test_updated_before_it_scaled(training: Training) -> None:
    with pytest.raises(AssertionError, match="Attempted update but _scale is None"):
        training.scaler.update()


def test_unscaled_before_it_scaled(training: Training) -> None:
    training.model(torch.ones(8, 4, device="cuda")).mean().backward()
    with pytest.raises(AssertionError, match="Attempted unscale_ but _scale is None"):
        training.scaler.unscale_(training.optimizer)


def test_a_closure(training: Training) -> None:
    training.backward()
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        training.scaler.step(training.optimizer, closure=training.backward)


def test_an_overflow_is_skipped_and_halves_the_scale(training: Training) -> None:
    training.backward()
    before = training.model.weight.detach().clone()
    training.model.weight.grad[0, 0] = float("inf")
    training.scaler.step(training.optimizer)
    training.scaler.update()
    assert torch.equal(training.model.weight, before)
    assert training.scaler.get_scale() == 512.0


def test_clipping_scaled_gradients_stalls(training: Training) -> None:
    """What rule AMP201 is about: hardly anything is left of the step."""
    moved = {}
    for unscale in (True, False):
        step = Training()
        before = step.model.weight.detach().clone()
        step.backward()
        if unscale:
            step.scaler.unscale_(step.optimizer)
        nn.utils.clip_grad_norm_(step.model.parameters(), 0.1)
        step.scaler.step(step.optimizer)
        moved[unscale] = (step.model.weight - before).norm().item()
    assert moved[False] < moved[True] / 500


def test_a_banned_operation() -> None:
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        nn.BCELoss()(torch.rand(4, device="cuda"), torch.ones(4, device="cuda"))
