"""The hooks for pre-commit and the GitHub action, as far as they can be run without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parent.parent
FAULTY = "import torch\n\n\ndef loss(x):\n    return torch.log(torch.exp(x).sum(-1))\n"
FIXED = "import torch\n\n\ndef loss(x):\n    return torch.logsumexp(x, dim=-1)\n"


def hooks() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    return found


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository whose pre-commit configuration runs our hooks from this environment."""
    monkeypatch.setenv("PRE_COMMIT_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    folder = tmp_path / "repository"
    folder.mkdir()
    local = [{**hook, "language": "system"} for hook in hooks()]
    (folder / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": [{"repo": "local", "hooks": local}]}))
    (folder / "pyproject.toml").write_text("[tool.amplint]\nextend-exclude = ['generated']\n")
    git(folder, "init", "-q")
    return folder


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)


def pre_commit(folder: Path, hook: str) -> subprocess.CompletedProcess[str]:
    git(folder, "add", ".")
    command = [sys.executable, "-m", "pre_commit", "run", hook, "--all-files", "--color=never"]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)


needs_pre_commit = pytest.mark.skipif(shutil.which("git") is None, reason="git is not here")


@needs_pre_commit
def test_the_check_passes_fails_and_respects_excludes(repository: Path) -> None:
    (repository / "train.py").write_text(FIXED)
    (repository / "generated").mkdir()
    (repository / "generated/old.py").write_text(FAULTY)
    assert pre_commit(repository, "amplint").returncode == 0
    (repository / "train.py").write_text(FAULTY)
    done = pre_commit(repository, "amplint")
    assert done.returncode == 1
    assert "train.py:5:12: AMP104 log-sum-exp error" in done.stdout
    assert "old.py" not in done.stdout


@needs_pre_commit
def test_the_fix_changes_the_file_and_then_passes(repository: Path) -> None:
    (repository / "train.py").write_text(FAULTY)
    done = pre_commit(repository, "amplint-fix")
    assert done.returncode == 1
    assert "files were modified by this hook" in done.stdout
    assert (repository / "train.py").read_text() == FIXED
    assert pre_commit(repository, "amplint-fix").returncode == 0


def test_the_action_calls_options_that_exist() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    (script,) = [step["run"] for step in action["runs"]["steps"] if step.get("name") == "Check"]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
def test_the_check_of_the_action(tmp_path: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (script,) = [step["run"] for step in action["runs"]["steps"] if step.get("name") == "Check"]
    (tmp_path / "train.py").write_text(FAULTY)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PATHS": "train.py",
        "ARGS": "--isolated --select AMP104",
        "SARIF": "true",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "RUNNER_TEMP": str(tmp_path),
    }
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout.startswith("::error title=amplint (AMP104 log-sum-exp),file=train.py,line=5,")
    assert "AMP104" in (tmp_path / "summary.md").read_text()
    assert '"version": "2.1.0"' in (tmp_path / "amplint.sarif").read_text()
