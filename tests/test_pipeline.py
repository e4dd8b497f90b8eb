"""The stages of judging a file: what reaches the rules, and what is said when something goes wrong."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from amplint.context import Context
from amplint.pipeline import Linter, Plan
from amplint.registry import all_rules
from amplint.rule import Finding, Rule
from amplint.tree import Module
from amplint.values.frames import Frames
from amplint.values.switches import Switching

FAULTY = "import torch\n\n\ndef loss(x):\n    return torch.log(torch.exp(x).sum(-1))\n"


def linter(tmp_path: Path, *codes: str, seconds: float = 30.0, **files: str | bytes) -> tuple[Linter, list[Path]]:
    """A linter over files given by stem."""
    paths = []
    for name, text in files.items():
        path = tmp_path / f"{name}.py"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        paths.append(path)
    plan = Plan(frozenset(("AMP000", "AMP001", *codes)), seconds=seconds)
    return Linter(lambda: paths, plan), paths


def codes(found: Linter, path: Path) -> list[str]:
    return [finding.code for finding in found.check(path).findings]


def test_a_file_without_the_words_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge, (path,) = linter(tmp_path, "AMP104", main="import torch\nx = torch.sigmoid(\n")
    assert judge.check(path).findings == ()
    judge, (path,) = linter(tmp_path, "AMP104", main="import torch\nx = torch.log(torch.exp(\n")
    assert codes(judge, path) == ["AMP000"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"# coding: klingon\nlog = torch.log\n", "unknown encoding: klingon"),
        (b"log = torch.log\n# \xe9\n", "not utf-8 text"),
        (b"log = torch.log\nx = (\n", "cannot be parsed"),
        (b"log = torch.log\n\0", "cannot be parsed"),
        (b"print torch.log\n", "cannot be parsed"),
    ],
)
def test_one_finding_for_what_cannot_be_read(tmp_path: Path, data: bytes, message: str) -> None:
    judge, (path,) = linter(tmp_path, "AMP104", main=data)
    (found,) = judge.check(path).findings
    assert found.code == "AMP000"
    assert message in found.message


def test_what_half_precision_does_not_reach_is_read_all_the_same(tmp_path: Path) -> None:
    whole = "import torch\n\n\ndef f(x):\n    return x / (x.sum() + 1e-8)\n"
    judge, paths = linter(tmp_path, "AMP000", "AMP301", broken=whole + "print 1\n", main=whole)
    assert [codes(judge, path) for path in paths] == [["AMP000"], []]


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    judge, (path,) = linter(tmp_path, "AMP104", main=FAULTY)
    path.unlink()
    (found,) = judge.check(path).findings
    assert found.code == "AMP000"
    assert "cannot be read" in found.message


def test_a_judgement_can_go_between_processes(tmp_path: Path) -> None:
    judge, (path,) = linter(tmp_path, "AMP104", main=FAULTY)
    judgement = judge.judge(path)
    assert pickle.loads(pickle.dumps(judgement)) == judgement
    (diagnostic,) = judgement.diagnostics
    assert diagnostic.line == "    return torch.log(torch.exp(x).sum(-1))"
    assert diagnostic.edits[0].start == diagnostic.start


def test_a_replaced_file_is_judged_anew_for_all(tmp_path: Path) -> None:
    caller = "import torch\nfrom helper import total\n\n\ndef loss(x):\n    return torch.log(total(x))\n"
    helper = "import torch\n\n\ndef total(x):\n    return torch.exp(x).sum(-1)\n"
    judge, (main, other) = linter(tmp_path, "AMP104", main=caller, helper=helper)
    assert codes(judge, main) == ["AMP104"]
    judge.replace(other, helper.replace("exp", "relu").encode())
    assert codes(judge, main) == []
    judge.replace(other, helper.encode())
    assert codes(judge, main) == ["AMP104"]


class Broken(Rule):
    def check(self, context: Context) -> Iterator[Finding]:
        raise KeyError("by design")


class Endless(Rule):
    def check(self, context: Context) -> Iterator[Finding]:
        while True:
            pass


def plant(monkeypatch: pytest.MonkeyPatch, cls: type[Rule]) -> None:
    """Let AMP105 be judged by another class."""
    rule = type(next(rule for rule in all_rules() if rule.code == "AMP105"))
    monkeypatch.setattr(rule, "check", cls.check)
    monkeypatch.setattr(rule, "triggers", ((b"torch",),))


def test_a_rule_that_fails_costs_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, Broken)
    judge, (path,) = linter(tmp_path, "AMP104", "AMP105", main=FAULTY)
    checked = judge.check(path)
    assert [finding.code for finding in checked.findings] == ["AMP001", "AMP104"]
    assert checked.findings[0].message == "AMP105 log1p-exp failed: KeyError: 'by design'"
    assert "Traceback" in checked.failures[0]


@pytest.mark.skipif(sys.platform == "win32", reason="no such timer")
def test_a_rule_without_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, Endless)
    judge, (path,) = linter(tmp_path, "AMP104", "AMP105", seconds=0.3, main=FAULTY)
    found = judge.check(path).findings
    assert [finding.code for finding in found] == ["AMP001", "AMP104"]
    assert found[0].message == "stopped after 0.3 s, without AMP105"


@pytest.mark.skipif(sys.platform == "win32", reason="no such timer")
def test_following_the_project_does_not_count_as_the_time_of_the_file_that_asks_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(frames: Frames) -> dict[Module, Switching]:
        end = time.process_time() + 0.6
        while time.process_time() < end:
            pass
        return follow(frames)

    follow = Frames._find_switching
    monkeypatch.setattr(Frames, "_find_switching", slowly)
    halved = f"{FAULTY}\n\nwith torch.autocast('cuda'):\n    y = 1 / (loss(x) + 1e-8)\n"
    judge, (path,) = linter(tmp_path, "AMP104", "AMP301", seconds=0.3, main=halved)
    assert codes(judge, path) == ["AMP104"]


@pytest.mark.skipif(sys.platform == "win32", reason="no such timer")
def test_a_file_that_takes_too_long_to_parse_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(source: object) -> None:
        while True:
            pass

    judge, (path,) = linter(tmp_path, "AMP104", seconds=0.3, main=FAULTY)
    with monkeypatch.context() as patched:
        patched.setattr("amplint.project.parse", endless)
        (found,) = judge.check(path).findings
    assert (found.code, found.message) == ("AMP001", "not judged: not parsed in 0.3 s")
    assert codes(judge, path) == ["AMP104"]  # nothing of the interrupted attempt is left
