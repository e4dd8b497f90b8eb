"""The standard library and torch itself, as far as CI's time allows; `tests/at_scale.py` runs them whole."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from amplint import fix
from tests.at_scale import run

LOSSES = "import torch\n\n\ndef likelihood(x):\n    return torch.log(torch.sigmoid(x))\n"
TRAINING = """\
import torch
from losses import likelihood


def step(model, batch):
    with torch.autocast("cuda", dtype=torch.float16):
        return likelihood(torch.log(torch.exp(torch.log(torch.softmax(model(batch), -1))).sum(-1)))
"""


def test_the_standard_library() -> None:
    tally = run([Path(sysconfig.get_path("stdlib"))], limit=1500, bound=30)
    assert tally.faults == []
    assert tally.files > 500


@pytest.mark.parametrize(
    "part", ["amp", "optim", "cuda/amp", "nn/utils", "distributed/fsdp", "testing/_internal/optests"]
)
def test_torch(part: str) -> None:
    torch = pytest.importorskip("torch")
    folder = Path(torch.__file__).parent / part
    tally = run([folder], limit=100, bound=30)
    assert tally.faults == []
    assert tally.files > 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "losses.py").write_text(LOSSES)
    (tmp_path / "training.py").write_text(TRAINING)
    return tmp_path


def test_linked_files_are_fixed_in_memory_alone(folder: Path) -> None:
    tally = run([folder], limit=10, bound=30)
    assert (tally.files, tally.findings, tally.fixes, tally.faults) == (2, 3, 3, [])
    assert tally.slowest_file in set(folder.iterdir())
    assert (folder / "losses.py").read_text() == LOSSES
    assert (folder / "training.py").read_text() == TRAINING


def test_a_file_over_the_bound_is_a_fault(folder: Path) -> None:
    tally = run([folder], limit=1, bound=0)
    assert [fault.partition(": took")[0] for fault in tally.faults] == [str(folder / "losses.py")]


def test_a_second_run_that_changes_more_is_a_fault(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fix, "MAX_ROUNDS", 1)
    tally = run([folder], limit=10, bound=30)
    assert tally.faults == [f"{folder / 'training.py'}: a second run changes more"]


def test_a_fix_that_does_not_parse_is_a_fault(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fix, "_edits", lambda finding, unsafe: (fix.Edit(0, 0, "("),) if finding.fix else ())
    tally = run([folder], limit=10, bound=30)
    assert any("would not parse" in fault for fault in tally.faults)


def test_a_file_that_only_compile_reads_is_a_fault(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: object) -> None:
        raise SyntaxError

    monkeypatch.setattr("tests.at_scale.parse", refuse)
    tally = run([folder], limit=1, bound=30)
    assert tally.faults == [f"{folder / 'losses.py'}: compile() reads it, amplint does not"]
