"""How much is held of a project: less changes nothing that is found, and what is let go of is gone at once."""

from __future__ import annotations

import gc
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from amplint import project, sections
from amplint.pipeline import Linter, Plan
from amplint.registry import all_rules

FILES = {
    "train.py": """
        import torch
        from model import Net
        from steps import step

        def main(loader):
            net = Net().cuda()
            optimizer = torch.optim.Adam(net.parameters())
            scaler = torch.amp.GradScaler()
            for x, y in loader:
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = net.loss(x, y)
                step(scaler, optimizer, net, loss)

        main([])
        """,
    "steps.py": """
        import torch

        def clip(net):
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)

        def step(scaler, optimizer, net, loss):
            scaler.scale(loss).backward()
            clip(net)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        """,
    "model.py": """
        import torch
        from torch import nn
        from norms import unit

        class Base(nn.Module):
            def __init__(self):
                super().__init__()
                self.head = nn.Linear(8, 2)

        class Net(Base):
            def forward(self, x):
                return self.head(unit(self.head(x)))

            def loss(self, x, y):
                return -(y * torch.log(torch.softmax(self(x), -1))).sum()
        """,
    "norms.py": """
        import torch

        def length(x):
            return x.abs().amax(-1, keepdim=True)

        def unit(x):
            return x / (length(x) + 1e-8)
        """,
    "half.py": """
        import torch
        from norms import unit

        class Gate(torch.nn.Module):
            def forward(self, x):
                return unit(torch.nn.functional.linear(x, x))

        gate = Gate().cuda().half()
        """,
}


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    for name, text in FILES.items():
        (tmp_path / name).write_text(textwrap.dedent(text))
    return sorted(tmp_path.glob("*.py"))


def hold_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "_KEPT_TREES", -1)
    monkeypatch.setattr(project, "_LEFT_TREES", 0)
    monkeypatch.setattr(sections, "_FEW", 0)


@pytest.fixture
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def linter(paths: list[Path]) -> Linter:
    return Linter(lambda: paths, Plan(frozenset(rule.code for rule in all_rules())))


def found(paths: list[Path], judge: Linter) -> list[tuple[str, str, int]]:
    diagnostics = [(path, d.finding) for path in paths for d in judge.judge(path).diagnostics]
    return [(path.name, finding.code, finding.start.line) for path, finding in diagnostics]


def test_what_is_found_does_not_depend_on_what_is_held(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    held = found(paths, linter(paths))
    assert {code for _, code, _ in held} >= {"AMP101", "AMP201", "AMP301"}
    hold_nothing(monkeypatch)
    assert found(paths, linter(paths)) == held
    assert sorted(found(paths[::-1], linter(paths))) == sorted(held)


@pytest.mark.usefixtures("_without_collector")
def test_trees_that_are_let_go_of_are_gone_without_the_collector(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_nothing(monkeypatch)
    judge = linter(paths)
    for path in paths:
        judge.judge(path)
        assert judge._analyses is not None
        judge._analyses.trim()
        assert not list(judge._analyses.project._modules)
