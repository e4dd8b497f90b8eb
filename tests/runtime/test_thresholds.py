"""Where float16 compositions fail under CUDA autocast: the numbers that the rules' messages and pages quote."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

HALF = torch.float16
Loss = Callable[[torch.Tensor], torch.Tensor]


def logits(gap: float) -> list[list[float]]:
    return [[-gap, 0.0]]


def fails(loss: Loss, values: list[list[float]], mode: str) -> tuple[bool, bool]:
    """(the loss is not finite, its gradient is not) for inputs that were computed in float16 (or in float32)."""
    inputs = torch.tensor(values, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype=HALF, enabled=mode == "autocast"):
        value = loss(inputs * 1.0 if mode == "float32" else (inputs * 1.0).to(HALF))
    value.float().backward()
    assert inputs.grad is not None
    return not torch.isfinite(value), not bool(torch.isfinite(inputs.grad).all())


def threshold(loss: Loss, at: Callable[[float], list[list[float]]], mode: str, of: int) -> float | None:
    """The smallest size in (0, 300) for which the loss (of=0) or its gradient (of=1) fails."""
    if not fails(loss, at(299.0), mode)[of]:
        return None
    low, high = 0.0, 299.0
    while high - low > 0.004:
        middle = (low + high) / 2
        low, high = (low, middle) if fails(loss, at(middle), mode)[of] else (middle, high)
    return round(high, 1)


def log_softmax_by_hand(x: torch.Tensor) -> torch.Tensor:
    return -torch.log(torch.softmax(x, -1))[:, 0].mean()


def log_sigmoid_by_hand(x: torch.Tensor) -> torch.Tensor:
    return -torch.log(torch.sigmoid(x[:, 0])).mean()


def log_one_minus_sigmoid(x: torch.Tensor) -> torch.Tensor:
    return -torch.log(1 - torch.sigmoid(-x[:, 0])).mean()


def log_sigmoid_cast_late(x: torch.Tensor) -> torch.Tensor:
    return -torch.log(torch.sigmoid(x[:, 0]).float()).mean()


def log_sigmoid_cast_early(x: torch.Tensor) -> torch.Tensor:
    return -torch.log(torch.sigmoid(x[:, 0].float())).mean()


def log_sum_exp(x: torch.Tensor) -> torch.Tensor:
    return torch.log(torch.exp(-x).sum())


def tanh_jacobian(x: torch.Tensor) -> torch.Tensor:
    return torch.log(1 - torch.tanh(x[:, 0]) ** 2).mean()


def product(x: torch.Tensor) -> torch.Tensor:
    return (x * x).mean()


def power(x: torch.Tensor) -> torch.Tensor:
    return (x**2).mean()


@pytest.mark.parametrize(
    ("loss", "mode", "forward", "gradient"),
    [
        (log_softmax_by_hand, "float32", 104.0, 88.7),
        (log_softmax_by_hand, "autocast", 104.0, 88.7),
        (log_softmax_by_hand, "half", 17.3, 11.1),
        (log_sigmoid_by_hand, "float32", 88.7, 88.7),
        (log_sigmoid_by_hand, "autocast", 17.3, 11.1),
        (log_one_minus_sigmoid, "float32", 16.6, 16.6),
        (log_one_minus_sigmoid, "autocast", 8.3, 8.3),
        (log_sigmoid_cast_late, "autocast", 17.3, 11.1),
        (log_sigmoid_cast_early, "autocast", 88.7, 88.7),
        (log_sum_exp, "autocast", 88.7, 88.7),
        (log_sum_exp, "half", 11.1, 11.1),
        (tanh_jacobian, "autocast", 4.5, 4.5),
        (product, "autocast", 255.9, None),
        (power, "autocast", None, None),
        (power, "half", 255.9, None),
    ],
)
def test_threshold(loss: Loss, mode: str, forward: float, gradient: float | None, cuda: None) -> None:
    assert threshold(loss, logits, mode, 0) == pytest.approx(forward, abs=0.11)
    if gradient is not None:
        assert threshold(loss, logits, mode, 1) == pytest.approx(gradient, abs=0.11)


@pytest.mark.parametrize("mode", ["float32", "autocast", "half"])
@pytest.mark.parametrize(
    "loss",
    [
        lambda x: F.cross_entropy(x, torch.zeros(1, dtype=torch.long, device="cuda")),
        lambda x: -F.logsigmoid(x).mean(),
        lambda x: F.binary_cross_entropy_with_logits(x, torch.ones_like(x)),
        lambda x: torch.logsumexp(-x, 1).mean(),
        lambda x: F.softplus(-x).mean(),
    ],
)
def test_the_stable_forms_never_fail(loss: Loss, mode: str, cuda: None) -> None:
    assert fails(loss, logits(299.0), mode) == (False, False)


ZERO = [[0.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (lambda y: torch.ones_like(y) / (y + 1e-8), (True, True)),
        (lambda y: torch.ones_like(y) / y.clamp(min=1e-8), (True, True)),
        (lambda y: torch.ones_like(y) / (y + 1e-4), (False, True)),
        (lambda y: 1.0 / (y + 1e-8), (True, True)),
        (lambda p: torch.log(p + 1e-10), (True, True)),
        (lambda p: torch.log(p + 1e-6), (False, True)),
        (lambda x: torch.log(torch.softmax(x, -1) + 1e-10), (False, False)),
        (lambda x: (x - x.mean()) / torch.sqrt(x.var() + 1e-12), (True, True)),
        (lambda x: (x - x.mean()) / torch.sqrt(x.var() + 1e-5), (False, False)),
        (lambda x: x * torch.rsqrt(x.pow(2).mean() + 1e-8), (False, False)),
        (lambda x: F.layer_norm(x, (4,), eps=1e-12), (False, False)),
        (lambda x: F.normalize(x), (False, True)),
        (lambda x: x / (x.detach().float() + 2e-5), (False, False)),
        (lambda x: x / (x.detach().float() + 1e-5), (False, True)),
    ],
)
def test_epsilons(expression: Loss, expected: tuple[bool, bool], cuda: None) -> None:
    assert fails(lambda x: expression(x).float().sum(), ZERO, "autocast") == expected


@pytest.mark.parametrize(
    "write",
    [
        lambda a: a.masked_fill(a == 0, -1e9),
        lambda a: a.fill_(-1e9),
        lambda a: a.clamp(min=-1e9),
        lambda a: torch.full_like(a, -1e9),
        lambda a: F.pad(a, (1, 1), value=-1e9),
    ],
)
def test_constants_that_raise(write: Loss, cuda: None) -> None:
    with pytest.raises(RuntimeError, match="cannot be converted to type"):
        write(torch.zeros(1, 4, device="cuda", dtype=HALF))


@pytest.mark.parametrize(
    "write",
    [
        lambda a: a - 1e9,
        lambda a: torch.where(a == 0, -1e9, a),
        lambda a: torch.tensor(-1e9, dtype=a.dtype, device=a.device),
    ],
)
def test_constants_that_become_infinite(write: Loss, cuda: None) -> None:
    assert torch.isinf(write(torch.zeros(1, 4, device="cuda", dtype=HALF))).all()


@pytest.mark.parametrize(
    ("optimizer", "options", "finite"),
    [
        (torch.optim.Adam, {}, False),
        (torch.optim.Adam, {"foreach": False}, False),
        (torch.optim.Adam, {"eps": 1e-4}, True),
        (torch.optim.Adam, {"fused": True}, True),
        (torch.optim.SGD, {}, True),
        (torch.optim.Adadelta, {}, True),
        (torch.optim.RMSprop, {}, False),
        (torch.optim.Adagrad, {}, False),
    ],
)
def test_optimizers_of_half_parameters(
    optimizer: type[torch.optim.Optimizer], options: dict[str, object], finite: bool, cuda: None
) -> None:
    parameter = torch.nn.Parameter(torch.ones(4, device="cuda", dtype=HALF))
    parameter.grad = torch.zeros_like(parameter)
    optimizer([parameter], lr=1e-3, **options).step()
    assert bool(torch.isfinite(parameter).all()) is finite
