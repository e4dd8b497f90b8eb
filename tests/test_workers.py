"""Judging in several processes: the same findings, and a death that costs one file."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from amplint import workers
from amplint.context import Context
from amplint.pipeline import Linter, Plan
from amplint.registry import all_rules
from amplint.rule import Finding
from amplint.workers import judge_all

FAULTY = "import torch\n\n\ndef loss(x):\n    return torch.log(torch.exp(x).sum(-1))\n"
CLEAN = "import torch\n\n\ndef loss(x):\n    return torch.logsumexp(x, -1) - torch.log(x)\n"

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PATIENCE", 0.0)


@pytest.fixture
def project(tmp_path: Path) -> tuple[Linter, list[Path]]:
    paths = [tmp_path / f"m{number:02}.py" for number in range(12)]
    for number, path in enumerate(paths):
        path.write_text((FAULTY if number % 3 == 0 else CLEAN) + "# long\n" * number)
    return Linter(lambda: paths, Plan(frozenset({"AMP000", "AMP001", "AMP104"}))), paths


def codes(linter: Linter, paths: list[Path], jobs: int) -> list[list[str]]:
    judged = dict(judge_all(linter, paths, jobs))
    assert sorted(judged) == list(range(len(paths)))
    return [[d.finding.code for d in judged[index].diagnostics] for index in range(len(paths))]


def test_the_same_as_alone(project: tuple[Linter, list[Path]]) -> None:
    expected = [["AMP104"] if number % 3 == 0 else [] for number in range(12)]
    assert codes(*project, jobs=1) == expected
    assert codes(*project, jobs=3) == expected


@pytest.mark.parametrize("end", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: os._exit(3)])
def test_a_death_costs_one_file(
    project: tuple[Linter, list[Path]], monkeypatch: pytest.MonkeyPatch, end: object
) -> None:
    rule = type(next(rule for rule in all_rules() if rule.code == "AMP104"))
    judge = rule.check

    def check(self: object, context: Context) -> Iterator[Finding]:
        if context.source.path.stem == "m07":
            end()  # type: ignore[operator]
        return judge(self, context)  # type: ignore[arg-type]

    monkeypatch.setattr(rule, "check", check)
    linter, paths = project
    found = codes(linter, paths, jobs=3)
    assert found[7] == ["AMP001"]
    assert found[:7] + found[8:] == [["AMP104"] if number % 3 == 0 else [] for number in range(12) if number != 7]


def test_helpers_end_when_nobody_listens(project: tuple[Linter, list[Path]]) -> None:
    import multiprocessing

    judging = judge_all(*project, jobs=3)
    next(judging)
    assert multiprocessing.active_children()
    judging.close()  # type: ignore[attr-defined]
    for child in multiprocessing.active_children():
        child.join(10)
    assert not multiprocessing.active_children()
