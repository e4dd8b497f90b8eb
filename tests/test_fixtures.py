"""The fixtures: each `safe.py` is what `amplint fix --apply --unsafe-fixes` makes of the `unsafe.py` beside it.

Where a rule has no fix, `safe.py` is written by hand.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from amplint.cli import cli
from amplint.registry import all_rules

FIXTURES = Path(__file__).parent.parent / "fixtures"
FOLDERS = sorted(folder for folder in FIXTURES.iterdir() if (folder / "unsafe.py").exists())
FIXABLE = {rule.code for rule in all_rules() if rule.fixable}


@pytest.mark.parametrize("folder", [f for f in FOLDERS if f.name in FIXABLE], ids=lambda folder: folder.name)
def test_the_fix_of_unsafe_is_safe(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    shutil.copy(folder / "unsafe.py", script)
    result = CliRunner().invoke(cli, ["fix", "--isolated", "--apply", "--unsafe-fixes", str(script)])
    assert result.exit_code in (0, 1), result.output
    assert script.read_text() == (folder / "safe.py").read_text()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_unsafe_has_the_finding_and_safe_has_none(folder: Path) -> None:
    def codes(name: str) -> str:
        arguments = ["check", "--isolated", "--exit-zero", "--output-format", "pylint", str(folder / name)]
        return CliRunner().invoke(cli, arguments).output

    assert folder.name in codes("unsafe.py")
    assert folder.name not in codes("safe.py")
