"""Which files are parsed at all."""

from __future__ import annotations

from pathlib import Path

from amplint.relevance import Relevance


def relevant(**files: str) -> set[str]:
    """The stems of the files, dots for folders, that concern torch."""
    data = {Path("/p", *name.split("__")).with_suffix(".py"): text.encode() for name, text in files.items()}
    relevance = Relevance(lambda: data, data.__getitem__)
    return {path.stem for path, text in data.items() if relevance.concerns(path, text)}


def test_words() -> None:
    files = {
        "a": "import torch\n",
        "b": "with autocast():\n",
        "c": "import json  # c accelerates transformers\n",
        "d": "scaler.step(opt)\n",
        "e": "from accelerate import Accelerator\n",
        "f": "self.scaler.fit(x)\n",
    }
    assert relevant(**files) == {"a", "b", "d", "e"}


def test_what_a_torch_file_imports_directly_or_not() -> None:
    found = relevant(
        train="import torch\nfrom pkg.ops import (\n    norm,\n)\nfrom . import losses\n",
        pkg__ops="from .deep import eps\n",
        pkg__deep="eps = 1e-8\n",
        losses="def dice(p, t): ...\n",
        other="import json\n",
        json_tools="from deep_thought import answer\n",
    )
    assert found == {"train", "ops", "deep", "losses"}


def test_what_imports_a_torch_file() -> None:
    assert relevant(engine="import torch\n", main="from engine import run\n", tools="import os\n") == {"engine", "main"}


def test_packages_go_by_their_folder() -> None:
    data = {Path("/p/train.py"): b"import torch, helpers\n", Path("/p/helpers/__init__.py"): b"x = 1\n"}
    relevance = Relevance(lambda: data, data.__getitem__)
    assert all(relevance.concerns(path, text) for path, text in data.items())


def test_a_file_that_cannot_be_read_is_connected_with_none() -> None:
    def read(path: Path) -> bytes:
        raise PermissionError

    path = Path("/p/a.py")
    assert not Relevance(lambda: [path], read).concerns(path, b"x = 1\n")
