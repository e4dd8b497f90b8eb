"""`amplint fix` as a user calls it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from amplint.cli import cli

FAULTY = "import torch\n\n\ndef loss(x):\n    return torch.log(torch.exp(x).sum(-1))\n"
FIXED = "import torch\n\n\ndef loss(x):\n    return torch.logsumexp(x, dim=-1)\n"
UNSAFE = "import torch\n\n\ndef loss(x):\n    return torch.log(torch.exp(x).sum(-1) + 1e-8)\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'program'\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fix(*arguments: str, stdin: bytes | str | None = None) -> Result:
    return CliRunner().invoke(cli, ("fix", *arguments), input=stdin)


def test_a_diff_and_nothing_written(folder: Path) -> None:
    (folder / "train.py").write_text(FAULTY)
    result = fix()
    assert (folder / "train.py").read_text() == FAULTY
    assert result.stdout == (
        "--- train.py\n+++ train.py\n@@ -2,4 +2,4 @@\n \n \n def loss(x):\n"
        "-    return torch.log(torch.exp(x).sum(-1))\n+    return torch.logsumexp(x, dim=-1)\n"
    )
    assert result.stderr == "Would fix 1 finding in 1 file; 0 remain.\n"
    assert result.exit_code == 1


def test_the_diff_is_one_that_patch_applies(folder: Path) -> None:
    original = FAULTY.replace("\n", "\r\n").rstrip()
    (folder / "train.py").write_bytes(original.encode())
    diff = CliRunner().invoke(cli, ("fix", "train.py")).stdout_bytes
    subprocess.run(["git", "apply", "--unidiff-zero", "-p0", "-"], input=diff, check=True)
    assert (folder / "train.py").read_bytes() == FIXED.replace("\n", "\r\n").rstrip().encode()


def test_brackets_that_two_fixes_open_at_one_place_are_both_opened(folder: Path) -> None:
    (folder / "train.py").write_text(
        "import torch\n\n\ndef run(layer: torch.nn.Linear, z):\n"
        "    with torch.autocast('cuda', dtype=torch.float16):\n"
        "        h = layer(z)\n        return torch.linalg.svdvals(h * h + 1e-8)\n"
    )
    result = fix("--apply", "--unsafe-fixes")
    assert "Fixed 2 findings in 1 file" in result.stderr
    assert "svdvals(((h * h).float() + 1e-8).float())" in (folder / "train.py").read_text()


def test_applied(folder: Path) -> None:
    script = folder / "train.py"
    script.write_text(FAULTY)
    script.chmod(0o750)
    result = fix("--apply")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr == "Fixed 1 finding in 1 file; 0 remain.\n"
    assert script.read_text() == FIXED
    assert script.stat().st_mode & 0o777 == 0o750
    assert sorted(path.name for path in folder.iterdir()) == ["pyproject.toml", "train.py"]
    assert fix("--apply").stderr == "Fixed 0 findings in 0 files; 0 remain.\n"


def test_unsafe_fixes_are_asked_for(folder: Path) -> None:
    (folder / "train.py").write_text(UNSAFE)
    result = fix("--apply", "--select", "AMP104")
    assert result.exit_code == 1
    assert result.stderr == "Fixed 0 findings in 0 files; 1 remain. 1 more can be fixed with --unsafe-fixes.\n"
    assert (folder / "train.py").read_text() == UNSAFE
    result = fix("--apply", "--unsafe-fixes", "--select", "AMP104")
    assert result.exit_code == 0
    assert (folder / "train.py").read_text() == FIXED


def test_exit_status_follows_what_remains(folder: Path) -> None:
    (folder / "broken.py").write_text("import torch\nx = torch.log(torch.exp(x).sum(\n")
    (folder / "train.py").write_text(FAULTY)
    assert fix("--apply").exit_code == 1
    assert (folder / "train.py").read_text() == FIXED
    assert fix("--apply", "--exit-zero").exit_code == 0
    assert fix("--apply", "nowhere.py").exit_code == 2


def test_only_what_is_selected(folder: Path) -> None:
    (folder / "train.py").write_text(FAULTY)
    assert fix("--apply", "--select", "AMP105").exit_code == 0
    assert (folder / "train.py").read_text() == FAULTY


@pytest.mark.parametrize("data", [FAULTY.encode(), b"\xef\xbb\xbf" + FAULTY.encode(), b"x = (\n", b"\xff\x00", b""])
def test_standard_input_comes_out_whole(data: bytes) -> None:
    result = CliRunner().invoke(cli, ("fix", "--apply", "-"), input=data)
    assert result.stdout_bytes == data.replace(FAULTY.encode(), FIXED.encode())


def test_standard_input_as_a_diff() -> None:
    assert fix("-", "--stdin-filename", "loss.py", stdin=FAULTY).stdout.startswith("--- loss.py\n+++ loss.py\n")


def test_unused_suppressions_go(folder: Path) -> None:
    (folder / "train.py").write_text(FIXED.replace("-1)", "-1)  # amplint: ignore[AMP104]"))
    assert fix("--apply").exit_code == 0
    assert (folder / "train.py").read_text() == FIXED


def test_a_fix_that_makes_another_file_clean(folder: Path) -> None:
    (folder / "helper.py").write_text(FAULTY)
    (folder / "train.py").write_text("from helper import loss\n\n\ndef step(x):\n    return loss(x).mean()\n")
    result = fix("--apply")
    assert result.stderr == "Fixed 1 finding in 1 file; 0 remain.\n"
    assert CliRunner().invoke(cli, ("check",)).exit_code == 0


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everything")
def test_a_read_only_file_is_left_with_an_error(folder: Path) -> None:
    (folder / "locked.py").write_text(FAULTY)
    (folder / "locked.py").chmod(0o444)
    (folder / "train.py").write_text(FAULTY)
    result = fix("--apply")
    assert result.exit_code == 2
    assert "locked.py: not written: " in result.stderr
    assert (folder / "locked.py").read_text() == FAULTY
    assert (folder / "train.py").read_text() == FIXED


def test_a_link_stays_a_link(folder: Path) -> None:
    (folder / "real.txt").write_text(FAULTY)
    (folder / "train.py").symlink_to("real.txt")
    assert fix("--apply").exit_code == 0
    assert (folder / "train.py").is_symlink()
    assert (folder / "real.txt").read_text() == FIXED


def test_a_link_that_leads_out_of_the_checked_folder_is_left_alone(folder: Path) -> None:
    inner, outside = folder / "inner", folder / "outside.py"
    inner.mkdir()
    outside.write_text(FAULTY)
    (inner / "train.py").symlink_to("../outside.py")
    (inner / "own.py").write_text(FAULTY)
    for named in ("inner", "inner/train.py"):
        result = fix("--apply", named)
        assert result.exit_code == 2
        assert f"train.py: not written: it links to {outside}, outside of what is checked" in result.stderr
    assert outside.read_text() == FAULTY
    assert (inner / "train.py").is_symlink()
    assert (inner / "own.py").read_text() == FIXED
    assert fix("--apply", "inner/train.py", "outside.py").exit_code == 0
    assert outside.read_text() == FIXED


def test_a_checked_folder_may_itself_be_a_link(folder: Path) -> None:
    (folder / "real").mkdir()
    (folder / "real/train.py").write_text(FAULTY)
    (folder / "link").symlink_to("real")
    assert fix("--apply", "link").exit_code == 0
    assert (folder / "real/train.py").read_text() == FIXED


def test_names_that_try_to_steer_the_terminal(folder: Path) -> None:
    (folder / "a\x1b[31mb.py").write_text(FAULTY)
    result = fix()
    assert "\x1b" not in result.stdout + result.stderr
    assert result.stdout.startswith("--- a\\x1b[31mb.py\n")


def test_as_a_program(folder: Path) -> None:
    (folder / "train.py").write_text(FAULTY)
    done = subprocess.run([sys.executable, "-m", "amplint", "fix", "--apply"], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"")
    assert (folder / "train.py").read_text() == FIXED
