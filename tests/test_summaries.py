"""Summaries of files are kept between runs, and are those that the files give now."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from amplint import cache_folder, index
from amplint.cli import cli
from amplint.index import Summary
from amplint.summaries import Summaries

TEXT = """\
import torch as t
from .b import (c,  # why
    d)


class A(B):
    def f(self):
        self.x = g(h, 'ü')
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(cache_folder.WORTHWHILE):
        write(tmp_path / f"f{number}.py", TEXT.replace("A", f"A{number}"), 1)
    return tmp_path


def write(path: Path, text: str, hours: int) -> None:
    """Write a file so many hours after some point in the past."""
    path.write_text(text)
    os.utime(path, (1_700_000_000 + 3600 * hours,) * 2)


def run(folder: Path) -> tuple[dict[str, Summary], set[str]]:
    """The summaries of all files, and the names of those that were read."""
    read: set[str] = set()

    def bytes_of(path: Path) -> bytes:
        read.add(path.name)
        return path.read_bytes()

    summaries = Summaries(folder / "cache" / "1", bytes_of, lambda path, data: data.decode())
    found = {path.name: summaries.of(path) for path in sorted(folder.glob("*.py"))}
    summaries.save()
    return found, read


def kept(file: Path) -> list[Path]:
    """The files that there are summaries of."""
    return [Path(json.loads(line)[0]) for line in file.read_text().splitlines()[1:]]


def expected(folder: Path) -> dict[str, dict[str, set[str]]]:
    summaries = {path.name: index.summary(path.read_text(), with_links=True) for path in folder.glob("*.py")}
    return sets(summaries)


def sets(summaries: dict[str, Summary]) -> dict[str, dict[str, set[str]]]:
    return {name: {kind: set(names) for kind, names in found.items()} for name, found in summaries.items()}


def test_files_are_read_once(folder: Path) -> None:
    first, read = run(folder)
    assert len(read) == len(first)
    assert sets(first) == expected(folder)
    again, read = run(folder)
    assert (sets(again), read) == (sets(first), set())


def test_a_changed_file_is_read_again(folder: Path) -> None:
    run(folder)
    write(folder / "f3.py", "def other(): call()\n", 2)
    found, read = run(folder)
    assert read == {"f3.py"}
    assert sets(found) == expected(folder)


def test_the_same_content_is_not_looked_through_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = run(folder)
    write(folder / "f3.py", (folder / "f3.py").read_text(), 2)
    monkeypatch.setattr(index, "summary", None)  # whoever asks fails
    again, read = run(folder)
    assert (sets(again), read) == (sets(first), {"f3.py"})
    assert run(folder)[1] == set()


def test_a_file_changed_just_now_is_read_again(folder: Path) -> None:
    (folder / "f3.py").touch()
    run(folder)
    os.utime(folder / "f3.py")
    assert run(folder)[1] == {"f3.py"}


def test_what_is_gone_is_forgotten(folder: Path) -> None:
    run(folder)
    (folder / "f3.py").unlink()
    write(folder / "f4.py", "x = 1\n", 2)
    write(folder / "more.py", "x = 1\n", 2)
    run(folder)
    assert set(kept(folder / "cache" / "1" / "summaries.jsonl")) == set(folder.glob("*.py"))


@pytest.mark.parametrize("damage", ["", "[]", "{", "[" * 100_000, '["amplint\'s summaries, format 1", ""]\n'])
def test_a_broken_file_is_made_anew(folder: Path, damage: str) -> None:
    _, everything = run(folder)
    (folder / "cache" / "1" / "summaries.jsonl").write_text(damage)
    assert run(folder)[1] == everything
    assert run(folder)[1] == set()


@pytest.mark.parametrize("damage", ["", "{}", "[]", '["a", [1], "b", []]', '["a", [1, 2], "b", [1, 1, 1, 1, 1, 1, 1]]'])
def test_a_broken_line_spoils_no_summary(folder: Path, damage: str) -> None:
    run(folder)
    file = folder / "cache" / "1" / "summaries.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:3], damage, *lines[4:]]))
    found, _ = run(folder)
    assert sets(found) == expected(folder)


def test_few_files_are_not_kept(folder: Path) -> None:
    for path in list(folder.glob("*.py"))[1:]:
        path.unlink()
    run(folder)
    assert not (folder / "cache").exists()


def test_checking_one_file_keeps_them_for_its_project(folder: Path) -> None:
    (folder / "pyproject.toml").touch()
    write(
        folder / "train.py",
        "import torch\nfrom f1 import A1\n\ndef f(x):\n    return torch.log(torch.exp(x).sum())\n",
        1,
    )
    arguments = ["check", "--output-format", "pylint", str(folder / "train.py")]
    first = CliRunner().invoke(cli, arguments)
    assert "AMP104" in first.output
    file = next((folder / cache_folder.FOLDER).glob("*/summaries.jsonl"))
    assert folder / "f1.py" in kept(file)
    assert CliRunner().invoke(cli, arguments).output == first.output
    file.unlink()
    assert CliRunner().invoke(cli, [*arguments, "--no-cache"]).output == first.output
    assert not file.exists()
