"""What the watcher makes of small training loops, on the CPU without simulation."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

from amplint.runtime.verdict import Ending, FailureKind
from amplint.runtime.watcher import Ended, Watcher

Training = Callable[[], object]


def watch(training: Training, **options: float) -> Watcher:
    """Run a training under a watcher, whatever ends it."""
    watcher = Watcher(**options)  # type: ignore[arg-type]
    with watcher.watching(), contextlib.suppress(Ended):
        training()
    return watcher


def train(
    steps: int = 5,
    *,
    loss: Callable[[int, torch.Tensor], torch.Tensor] = lambda step, output: output.square().mean(),
    model: nn.Module | None = None,
    scaler: torch.amp.GradScaler | None = None,
    lr: float = 0.01,
) -> None:
    torch.manual_seed(0)
    model = model or nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    inputs = torch.randn(8, 4)
    for step in range(steps):
        optimizer.zero_grad()
        value = loss(step, model(inputs))
        if scaler is None:
            value.backward()
            optimizer.step()
        else:
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()


class BadGradient(torch.autograd.Function):
    """Passes its input on, and sends back infinity."""

    @staticmethod
    def forward(ctx: object, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * math.inf


def overflow_when(bad: Callable[[int], bool]) -> Callable[[int, torch.Tensor], torch.Tensor]:
    return lambda step, output: (BadGradient.apply(output) if bad(step) else output).square().mean()


def test_a_healthy_run() -> None:
    watcher = watch(lambda: train(5))
    assert watcher.ending is Ending.FINISHED
    assert watcher.failure is None
    assert watcher.steps == 5
    assert watcher.last_loss is not None
    assert watcher.scale is None


def test_the_step_limit_ends_the_script() -> None:
    watcher = watch(lambda: train(50), steps=10)
    assert (watcher.ending, watcher.steps) == (Ending.STEPS, 10)


def test_a_script_of_just_so_many_steps_comes_to_its_end() -> None:
    watcher = watch(lambda: train(10), steps=10)
    assert watcher.ending is Ending.FINISHED


def test_the_time_limit_ends_the_script() -> None:
    watcher = watch(lambda: train(10**6), seconds=0.05, steps=10**6)
    assert watcher.ending is Ending.TIME


def test_without_an_optimizer_backwards_are_counted() -> None:
    def by_hand() -> None:
        weight = torch.ones(1, requires_grad=True)
        for _ in range(3):
            weight.square().sum().backward()
            weight.data -= 0.1 * weight.grad

    assert watch(by_hand).steps == 3


def test_a_script_that_never_steps_is_ended() -> None:
    def backwards() -> None:
        weight = torch.ones(1, requires_grad=True)
        while True:
            weight.square().sum().backward()

    assert watch(backwards, steps=1).ending is Ending.STEPS


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_non_finite_loss(value: float) -> None:
    def loss(step: int, output: torch.Tensor) -> torch.Tensor:
        return output.sum() * (value if step == 2 else 1.0)

    failure = watch(lambda: train(loss=loss)).failure
    assert failure is not None
    assert (failure.kind, failure.step) == (FailureKind.LOSS, 3)
    assert failure.place.file == __file__
    assert failure.place.code == "value.backward()"


def test_the_loss_is_told_unscaled() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    watcher = watch(lambda: train(1, scaler=scaler, loss=lambda step, output: output.sum() * 0 + 3))
    assert watcher.last_loss == 3.0
    assert watcher.scale == 1024.0


def test_losses_scaled_before_either_backward() -> None:
    def training() -> None:
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        one, two = scaler.scale(weight.sum() * math.inf), scaler.scale(weight.sum())
        one.backward()
        two.backward()
        scaler.step(optimizer)

    failure = watch(training).failure
    assert failure is not None
    assert failure.place.code == "one.backward()"


def test_a_scaled_loss_divided_for_accumulation_is_told_whole() -> None:
    def training() -> None:
        weight = nn.Parameter(torch.ones(3))
        scaler = torch.amp.GradScaler("cpu")
        (scaler.scale(weight.sum()) / 4).backward()

    assert watch(training).last_loss == 3.0


def test_a_non_finite_parameter_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 2))
    failure = watch(lambda: train(model=model, loss=overflow_when(lambda step: step == 1))).failure
    assert failure is not None
    assert (failure.kind, failure.step) == (FailureKind.PARAMETER, 2)
    assert "0.weight" in failure.message
    assert failure.place.code == "optimizer.step()"


def test_a_large_but_finite_parameter_is_fine() -> None:
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.fill_(1e30)  # its norm overflows
    watcher = watch(lambda: train(1, model=model, loss=lambda step, output: (output * 1e-30).mean()))
    assert watcher.failure is None


def test_a_poisoned_running_statistic() -> None:
    def training() -> None:
        norm = nn.BatchNorm1d(4)
        optimizer = torch.optim.SGD(norm.parameters(), lr=0.1)
        for step in range(3):
            norm.train()
            inputs = torch.randn(8, 4)
            if step == 1:
                with torch.no_grad():
                    norm(inputs / 0)
            norm.eval() if step else None
            norm.weight.sum().backward()
            optimizer.step()

    failure = watch(training).failure
    assert failure is not None
    assert (failure.kind, failure.step) == (FailureKind.BUFFER, 2)
    assert "running_mean" in failure.message


def test_a_mask_of_infinities_is_no_failure() -> None:
    class Masked(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 2)
            self.register_buffer("mask", torch.full((2, 2), -math.inf))

    def training() -> None:
        train(model=Masked())

    assert watch(training).failure is None


def test_the_skips_of_a_settling_scale_are_no_failure() -> None:
    scaler = torch.amp.GradScaler("cpu")
    watcher = watch(lambda: train(20, scaler=scaler, loss=overflow_when(lambda step: step < 12)))
    assert watcher.failure is None
    assert watcher.skipped == 12
    assert watcher.scale == 16.0


def test_a_streak_of_skips() -> None:
    scaler = torch.amp.GradScaler("cpu")
    failure = watch(lambda: train(40, scaler=scaler, loss=overflow_when(lambda step: step > 4))).failure
    assert failure is not None
    assert (failure.kind, failure.step) == (FailureKind.SKIPPED, 16)


def test_skips_now_and_then_are_no_failure() -> None:
    scaler = torch.amp.GradScaler("cpu", growth_interval=1)
    watcher = watch(lambda: train(60, scaler=scaler, loss=overflow_when(lambda step: step % 2 == 0)))
    assert watcher.failure is None
    assert watcher.skipped == 30


def test_a_collapsed_scale() -> None:
    scaler = torch.amp.GradScaler("cpu")
    failure = watch(lambda: train(40, scaler=scaler, loss=overflow_when(lambda step: True))).failure
    assert failure is not None
    assert (failure.kind, failure.step) == (FailureKind.SCALE, 17)


def test_a_scale_that_begins_below_one_may_stay_there() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=0.5)
    assert watch(lambda: train(scaler=scaler)).failure is None


def test_a_disabled_scaler_is_as_none() -> None:
    watcher = watch(lambda: train(scaler=torch.amp.GradScaler("cpu", enabled=False)))
    assert (watcher.failure, watcher.steps, watcher.scale) == (None, 5, None)


def test_two_optimizers_step_side_by_side() -> None:
    def training() -> None:
        models = [nn.Linear(4, 2), nn.Linear(4, 2)]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        for _ in range(3):
            for model, optimizer in zip(models, optimizers, strict=True):
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()

    assert watch(training).steps == 3


def test_a_checkpoints_inner_backward_is_no_loss() -> None:
    def training() -> None:
        weight = torch.ones(1, requires_grad=True)
        output = torch.utils.checkpoint.checkpoint(lambda w: w * math.inf, weight, use_reentrant=True)
        (torch.nan_to_num(output) * 0).sum().backward()

    assert watch(training).failure is None


class GaveUp(BaseException):
    """What the watcher's owner does about a script that cannot be ended: leave the process, really."""


def test_a_swallowed_end_is_raised_again_and_then_told() -> None:
    def give_up() -> None:
        raise GaveUp

    swallowed = []

    def stubborn() -> None:
        while True:
            with contextlib.suppress(Ended):
                train(2)
            swallowed.append(True)

    with Watcher(steps=1, on_ignored=give_up).watching(), pytest.raises(GaveUp):
        stubborn()
    assert 1 < len(swallowed) < 10


def test_the_hooks_are_gone_afterwards() -> None:
    before = (torch.autograd.backward, torch.amp.GradScaler.step, nn.Module.register_buffer)
    with pytest.raises(ZeroDivisionError), Watcher().watching():
        _ = 1 / 0
    assert (torch.autograd.backward, torch.amp.GradScaler.step, nn.Module.register_buffer) == before
    watcher = watch(lambda: None)
    train(3)
    assert watcher.steps == 0
