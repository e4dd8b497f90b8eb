"""The cache: what it keeps, when that still holds, and that it never stands in the way."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from amplint import cache as cache_module
from amplint import cache_folder
from amplint.cache import Cache
from amplint.cache_folder import FOLDER
from amplint.cli import cli
from amplint.diagnostic import Judgement
from amplint.pipeline import Linter, Plan
from amplint.registry import all_rules
from amplint.rule import Finding
from amplint.stored import decode, encode

TRAIN = """\
import torch
from norms import unit


def step(model, x):
    with torch.autocast("cuda", dtype=torch.float16):
        return unit(model(x))
"""
NORMS = """\
import torch


def unit(x):
    h = torch.nn.functional.linear(x, x)
    return x / (h + 1e-8)
"""
OTHER = """\
import torch


def loss(x, y):
    return torch.nn.functional.nll_loss(torch.log(torch.softmax(x, 1)), y)
"""
PLAIN = "import torch\n\n\ndef double(x):\n    return torch.exp(x) * 2\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {"train.py": TRAIN, "norms.py": NORMS, "other.py": OTHER, "plain.py": PLAIN, "pyproject.toml": ""}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (1_700_000_000, 1_700_000_000))
    return tmp_path


def change(path: Path, text: str) -> None:
    """Write a file some time after it was written first."""
    path.write_text(text)
    os.utime(path, (1_700_000_100, 1_700_000_100))


def run(folder: Path) -> tuple[dict[str, set[str]], set[str]]:
    """The codes found in each file, and the names of the files that were judged anew."""
    paths = sorted(folder.glob("*.py"))
    linter = Linter(lambda: paths, Plan(frozenset(rule.code for rule in all_rules())))
    linter.records = True
    cache = Cache(folder / FOLDER / "test", "key", paths, linter)
    known = {path: judgement for path in paths if (judgement := cache.known(path))}
    judged = {path: linter.judge(path) for path in paths if path not in known}
    for path, judgement in judged.items():
        cache.store(path, judgement)
    cache.save()
    everything: dict[Path, Judgement] = {**known, **judged}
    codes = {path.name: {d.finding.code for d in judgement.diagnostics} for path, judgement in everything.items()}
    return codes, {path.name for path in judged}


def test_nothing_is_judged_twice(folder: Path) -> None:
    first, judged = run(folder)
    assert judged == {"train.py", "norms.py", "other.py", "plain.py"}
    assert first["norms.py"] == {"AMP301"}
    assert first["other.py"] == {"AMP101"}
    assert run(folder) == (first, set())


def test_a_changed_file_is_judged_anew_and_no_other(folder: Path) -> None:
    run(folder)
    change(folder / "other.py", OTHER.replace("torch.log(torch.softmax(x, 1))", "torch.log_softmax(x, 1)"))
    codes, judged = run(folder)
    assert judged == {"other.py"}
    assert codes["other.py"] == set()


def test_a_fresh_checkout_has_not_changed(folder: Path) -> None:
    first, _ = run(folder)
    for path in folder.glob("*.py"):
        os.utime(path, (1_700_000_200, 1_700_000_200))
    assert run(folder) == (first, set())
    change(folder / "other.py", PLAIN)
    assert run(folder)[1] == {"other.py"}


def test_a_moved_region_judges_the_other_file_anew(folder: Path) -> None:
    run(folder)
    change(folder / "train.py", TRAIN.replace("float16", "bfloat16"))
    codes, judged = run(folder)
    assert codes["norms.py"] == set()
    assert judged == {"train.py", "norms.py"}


def test_a_region_that_stays_judges_no_other_file_anew(folder: Path) -> None:
    first, _ = run(folder)
    change(folder / "train.py", TRAIN + "\n\ndef more(x):\n    return x\n")
    assert run(folder) == (first, {"train.py", "norms.py"})  # which is reached through it


def test_a_region_that_is_switched_on_elsewhere_counts_from_then_on(folder: Path) -> None:
    run(folder)
    change(folder / "train.py", TRAIN.replace("float16", "bfloat16"))
    run(folder)
    (folder / "late.py").write_text(TRAIN)
    os.utime(folder / "late.py", (1_700_000_200, 1_700_000_200))
    codes, judged = run(folder)
    assert codes["norms.py"] == {"AMP301"}
    assert judged == {"late.py", "norms.py"}
    change(folder / "late.py", PLAIN)
    assert run(folder)[0]["norms.py"] == set()


def test_files_that_come_and_go(folder: Path) -> None:
    run(folder)
    (folder / "train.py").unlink()
    codes, _ = run(folder)
    assert codes["norms.py"] == set()
    (folder / "train.py").write_text(TRAIN)
    codes, _ = run(folder)
    assert codes["norms.py"] == {"AMP301"}


def test_a_file_that_comes_to_speak_of_torch_connects_others(folder: Path) -> None:
    helper = "from plain import double\n\n\ndef log(x):\n    return x\n"
    change(folder / "helper.py", helper)
    first, _ = run(folder)
    assert run(folder) == (first, set())
    change(folder / "plain.py", PLAIN.replace("import torch", "import numpy").replace("torch.exp", "abs"))
    _, judged = run(folder)
    assert {"plain.py", "helper.py"} <= judged


def test_a_file_changed_just_now_is_judged_again(folder: Path) -> None:
    soon = time.time() + 100
    os.utime(folder / "plain.py", (soon, soon))
    run(folder)
    assert run(folder)[1] == {"plain.py"}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 1}', '{"format": 99, "paths": []}', "\x00\x01"])
def test_a_broken_cache_is_made_anew(folder: Path, text: str) -> None:
    first, everything = run(folder)
    file = folder / FOLDER / "test" / "key.json"
    file.write_text(text)
    assert run(folder) == (first, everything)
    assert run(folder) == (first, set())


def test_a_broken_entry_is_ignored(folder: Path) -> None:
    first, _ = run(folder)
    file = folder / FOLDER / "test" / "key.json"
    data = json.loads(file.read_text())
    data["judgements"] = {path: ["nonsense"] for path in data["judgements"]}
    file.write_text(json.dumps(data))
    assert run(folder)[0] == first


def test_a_cache_that_cannot_be_written_is_done_without(folder: Path) -> None:
    (folder / FOLDER).write_text("a file in its place")
    first, everything = run(folder)
    assert run(folder) == (first, everything)


def test_judgements_survive_storing(folder: Path) -> None:
    path = folder / "other.py"
    linter = Linter(lambda: [path], Plan(frozenset(rule.code for rule in all_rules())))
    judgement = linter.judge(path)
    assert judgement.diagnostics
    restored = decode(json.loads(json.dumps(encode(judgement))))
    assert restored.diagnostics == judgement.diagnostics
    assert isinstance(restored.diagnostics[0].finding, Finding)


def check(folder: Path, *arguments: str) -> str:
    result = CliRunner().invoke(cli, ["check", "--exit-zero", "--output-format", "pylint", *arguments, str(folder)])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_keeps_a_cache_git_does_not_see(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_folder, "WORTHWHILE", 1)
    first = check(folder)
    assert "AMP301" in first
    assert (folder / FOLDER / ".gitignore").read_text() == "*\n"
    assert check(folder) == first == check(folder, "--no-cache")
    assert CliRunner().invoke(cli, ["clean", str(folder)]).exit_code == 0
    assert not (folder / FOLDER).exists()


def test_no_cache_through_a_link(folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(cache_folder, "WORTHWHILE", 1)
    outside = tmp_path_factory.mktemp("outside")
    (folder / FOLDER).symlink_to(outside)
    check(folder)
    assert list(outside.iterdir()) == []


def test_clean_leaves_a_folder_that_is_not_its_own(folder: Path) -> None:
    (folder / FOLDER).mkdir()
    (folder / FOLDER / "precious").write_text("mine")
    CliRunner().invoke(cli, ["clean", str(folder)])
    assert (folder / FOLDER / "precious").exists()


def test_other_settings_are_another_cache() -> None:
    assert cache_module.key_of(["AMP101"], 1.0) != cache_module.key_of(["AMP102"], 1.0)
    assert cache_module.key_of(["AMP101"], 1.0) == cache_module.key_of(["AMP101"], 1.0)


def test_an_unchanged_file_may_import_another_one_now(folder: Path) -> None:
    """Once the nearer `norms.py` is gone, `sub/train.py` loads the one that was judged."""
    near = folder / "sub" / "norms.py"
    near.parent.mkdir()
    for path, text in ((near, NORMS), (near.parent / "train.py", TRAIN)):
        path.write_text(text)
        os.utime(path, (1_700_000_000, 1_700_000_000))
    judged = folder / "norms.py"

    def cache() -> Cache:
        paths = sorted(folder.rglob("*.py"))
        return Cache(folder / FOLDER / "test", "key", paths, Linter(lambda: paths, Plan(frozenset())))

    question = ("files_importing", str(judged))
    first = cache()
    first.store(judged, Judgement(rests_on=((question, (str(folder / "train.py"),)),)))
    first.save()
    assert cache().known(judged) is not None
    near.unlink()
    assert cache().known(judged) is None


def test_what_time_ran_out_for_is_judged_again(folder: Path) -> None:
    paths = sorted(folder.glob("*.py"))

    def cache() -> Cache:
        return Cache(folder / FOLDER / "test", "key", paths, Linter(lambda: paths, Plan(frozenset())))

    whole, cut = paths[:2]
    first = cache()
    first.store(whole, Judgement(rests_on=()))
    first.store(cut, Judgement(rests_on=(), cut_short=True))
    first.save()
    assert cache().known(whole) is not None
    assert cache().known(cut) is None
