from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

# Without torch there is nothing to run.
collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]


@pytest.fixture
def cuda() -> Iterator[None]:
    """Simulated CUDA for one test."""
    from amplint.runtime.simulated_cuda import simulated_cuda

    with simulated_cuda():
        yield


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Where a test writes its script: alone in its folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    return folder / "train.py"
