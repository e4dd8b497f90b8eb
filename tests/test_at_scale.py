"""The standard library and torch itself, as far as CI's time allows; `tests/at_scale.py` runs them whole."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from tests.at_scale import run


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
