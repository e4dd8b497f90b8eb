"""Input that was made to break the linter: it ends, says what it could not do, and runs nothing of what it reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from amplint import __version__, cache_folder
from amplint.config import ConfigError, read
from amplint.pipeline import Linter, Plan
from amplint.registry import all_rules

HEAD = "import torch\nfrom torch.amp import GradScaler\n\n\n"
LOSS = "torch.log(torch.exp(x).sum(-1))"
STEP = "scaler.scale(loss).backward(); scaler.step(opt); scaler.update()\n"


def judged(tmp_path: Path, text: str) -> list[tuple[str, str]]:
    """The code and message of each finding of all rules."""
    path = tmp_path / "hostile.py"
    path.write_text(text)
    plan = Plan(frozenset(rule.code for rule in all_rules()))
    checked = Linter(lambda: [path], plan).check(path)
    assert checked.failures == ()
    return [(finding.code, finding.message) for finding in checked.findings]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"def f(x):\n    return {'(' * 150}{LOSS}{')' * 150}\n", "AMP104"),
        (f"def f(x):\n    return {'(' * 500}{LOSS}{')' * 500}\n", "AMP000"),
        (f"def f(x):\n    y = x{'.a' * 2000}\n    return {LOSS}\n", "AMP104"),
        ("".join(f"{' ' * n}def f{n}(x):\n" for n in range(90)) + f"{' ' * 90}return {LOSS}\n", "AMP104"),
        ("".join(f"{' ' * n}if c{n}:\n" for n in range(90)) + f"{' ' * 90}y = {LOSS}\n", "AMP104"),
        (f"def f(x):\n    return {LOSS}\n" + "y = 1\n" * 100_000, "AMP104"),
        (f"s = '{'exp log ' * 1_250_000}'\ny = {LOSS}\n", "AMP104"),
        ("def f(x):\n" + f"    {LOSS}\n" * 1000, "AMP104"),
    ],
    ids=["parentheses", "parentheses-500", "attributes", "functions", "ifs", "lines", "line", "findings"],
)
def test_deep_and_long_programs(tmp_path: Path, text: str, expected: str) -> None:
    assert {code for code, _ in judged(tmp_path, HEAD + text)} == {expected}


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n" + "".join(f"    if c{n}:\n        x = torch.exp(x) + {n}\n" for n in range(100)),
        "def f(x):\n" + "    x = x * x + torch.exp(x)\n" * 500 + "    return torch.log(x)\n",
        "".join(
            f"def f{n}(x):\n    return torch.log(f{(n + 1) % 9}(x) + f{(n + 7) % 9}(torch.exp(x)))\n" for n in range(9)
        ),
        "class A(B):\n    def f(self, x): return torch.log(self.g(torch.exp(x)))\n"
        "class B(A):\n    def g(self, x): return self.f(x)\n",
    ],
    ids=["flags", "chain", "mutual", "cycle"],
)
def test_values_without_bound_are_bounded(tmp_path: Path, text: str) -> None:
    assert judged(tmp_path, HEAD + text) == []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "".join(
                f"    if c{n}():\n        scaler.unscale_(o{n})\n    clip_grad_norm_(o{n}, 1.0)\n" for n in range(200)
            ),
            "too many paths",
        ),
        ("".join(f"{' ' * n}for i{n} in x:\n" for n in range(4, 14)) + " " * 14 + STEP, "paths too long"),
    ],
    ids=["flags", "loops"],
)
def test_paths_without_bound_are_said(tmp_path: Path, body: str, reason: str) -> None:
    text = f"{HEAD}def train(scaler, opt, loss, x):\n{body}    {STEP}"
    assert ("AMP001", f"gradient scaling in train was not followed: {reason}") in judged(tmp_path, text)


def test_paths_within_bounds_say_nothing(tmp_path: Path) -> None:
    text = f"{HEAD}def train(scaler, opt, loss, x):\n    {STEP}"
    assert "AMP001" not in {code for code, _ in judged(tmp_path, text)}


@pytest.mark.parametrize("command", ["check", "fix"])
def test_nothing_in_the_current_folder_is_imported(tmp_path: Path, command: str) -> None:
    """Neither modules that amplint or its libraries ask for, nor plug-ins that lie there as if they were installed."""
    trap = f"open({str(tmp_path / 'sprung')!r}, 'w').close()\n"
    names = ("click", "pathspec", "libcst", "torch", "sitecustomize", "usercustomize", "conftest", "setup", "evil")
    for name in names:
        (tmp_path / f"{name}.py").write_text(trap)
    (tmp_path / "evil.pth").write_text(f"import os; {trap}")
    (tmp_path / "evil-1.0.dist-info").mkdir()
    (tmp_path / "evil-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (tmp_path / "evil-1.0.dist-info" / "entry_points.txt").write_text("[amplint.rules]\nevil = evil\n")
    (tmp_path / "pyproject.toml").write_text("[project.entry-points.'amplint.rules']\nevil = 'evil'\n")
    (tmp_path / "train.py").write_text(f"{HEAD}def f(x):\n    return {LOSS}\n")
    done = subprocess.run(
        [sys.executable, "-m", "amplint", command, "."], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "logsumexp" in done.stdout
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "program",
    [
        [str(Path(sys.executable).with_name("amplint"))],
        pytest.param(
            [sys.executable, "-P", "-m", "amplint"],
            marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="-P came with 3.11"),
        ),
    ],
    ids=["program", "module"],
)
def test_a_folder_of_the_same_name_is_checked_and_not_run(tmp_path: Path, program: list[str]) -> None:
    grown = tmp_path / "amplint"
    grown.mkdir()
    for name in ("__init__", "__main__", "cli"):
        (grown / f"{name}.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w').close()\n")
    (grown / "train.py").write_text(f"{HEAD}def f(x):\n    return {LOSS}\n")
    done = subprocess.run([*program, "check"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "AMP104" in done.stdout
    assert not (tmp_path / "sprung").exists()


def test_the_cache_follows_no_link(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    (root / cache_folder.FOLDER).mkdir(parents=True)
    assert cache_folder.folder_of(root, None) == root / cache_folder.FOLDER / __version__
    (root / cache_folder.FOLDER / __version__).symlink_to(outside)
    assert cache_folder.folder_of(root, None) is None


def test_a_configuration_without_bottom(tmp_path: Path) -> None:
    path = tmp_path / "amplint.toml"
    path.write_text(f"select = {'[' * 5000}{']' * 5000}\n")
    with pytest.raises(ConfigError):
        read(path)


@pytest.mark.skipif(os.name == "nt", reason="no such names there")
@pytest.mark.parametrize("form", ["text", "github", "sarif"])
def test_names_cannot_steer_the_reader(tmp_path: Path, form: str) -> None:
    (tmp_path / "a\n::error::b\x1b[2J.py").write_text(f"{HEAD}def f(x):\n    return {LOSS}\n")
    done = subprocess.run(
        [sys.executable, "-m", "amplint", "check", "--output-format", form],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert not any(line.startswith("::error::b") for line in done.stdout.splitlines())
    if form == "sarif":
        (result,) = json.loads(done.stdout)["runs"][0]["results"]
        assert result["ruleId"] == "AMP104"
