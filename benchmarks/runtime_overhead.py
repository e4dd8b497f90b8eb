"""What simulated CUDA costs: a training step against plain CPU float32, with one thread, and the start-up.

    python benchmarks/runtime_overhead.py

Aims: a step of the transformer at most 1.6 times, of the CNN 2 times, of the small MLP 5 times plain float32;
start-up beyond importing torch under one second. torch's optimizers import torch._dynamo, in plain runs too; that
counts as importing torch.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from amplint.runtime.simulated_cuda import simulated_cuda
from amplint.runtime.tracer import Tracer
from amplint.runtime.watcher import Watcher

STEPS = 40
ROUNDS = 5
AIMS = {"mlp": 5.0, "cnn": 2.0, "transformer": 1.6}

START_UP = """
import time, torch, torch._dynamo
begun = time.perf_counter()
from amplint.runtime.simulated_cuda import simulated_cuda
from amplint.runtime.watcher import Watcher
with simulated_cuda(), Watcher().watching():
    print(time.perf_counter() - begun)
"""


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(128, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(tokens).mean(1))


def mlp() -> tuple[nn.Module, torch.Tensor]:
    layers = (nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return nn.Sequential(*layers), torch.randn(32, 32)


def cnn() -> tuple[nn.Module, torch.Tensor]:
    body = (nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
    body += (nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(32, 10)), torch.randn(16, 3, 32, 32)


def transformer() -> tuple[nn.Module, torch.Tensor]:
    return Transformer(), torch.randn(8, 64, 128)


def step_time(make: Callable[[], tuple[nn.Module, torch.Tensor]], device: str) -> float:
    """CPU seconds of one step, in the fastest of several rounds; a busy machine hardly changes them."""
    torch.manual_seed(0)
    model, inputs = make()
    model, inputs = model.to(device), inputs.to(device)
    targets = torch.zeros(len(inputs), dtype=torch.long, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, enabled=device == "cuda")
    region: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    if device == "cuda":
        region = lambda: torch.autocast("cuda", dtype=torch.float16)  # noqa: E731

    def step() -> None:
        optimizer.zero_grad()
        with region():
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    def timed() -> float:
        begun = time.process_time()
        for _ in range(STEPS // ROUNDS):
            step()
        return (time.process_time() - begun) / (STEPS // ROUNDS)

    timed()
    return min(timed() for _ in range(ROUNDS))


def main() -> int:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread; times plain CPU float32")
    missed = False
    for make in (mlp, cnn, transformer):
        plain = step_time(make, "cpu")
        with simulated_cuda():
            simulated = step_time(make, "cuda")
            with Watcher(steps=10**6).watching():
                watched = step_time(make, "cuda")
                with Tracer():
                    traced = step_time(make, "cuda")
        aim = AIMS[make.__name__]
        missed |= simulated / plain > aim
        print(
            f"{make.__name__:12} {plain * 1e3:6.2f} ms  simulated {simulated / plain:.1f}x (aim {aim}x)"
            f"  watched {watched / plain:.1f}x  traced {traced / plain:.1f}x"
        )
    start_up = [float(subprocess.check_output([sys.executable, "-c", START_UP])) for _ in range(3)]
    print(f"start-up beyond importing torch: {statistics.median(start_up):.2f} s (aim 1 s)")
    return int(missed or statistics.median(start_up) > 1.0)


if __name__ == "__main__":
    sys.exit(main())
