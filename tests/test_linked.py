"""Which files imports connect, and what is judged of a file alone is what is judged of it among all."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from amplint.cli import cli
from amplint.index import imported_names
from amplint.linked import linked

FILES = {
    "train.py": "from losses import focal\nimport torch\n",
    "losses/focal.py": "import torch\n",
    "pkg/__init__.py": "",
    "pkg/a.py": "",
    "pkg/inner/__init__.py": "",
    "pkg/inner/b.py": "",
    "uses_pkg.py": "from pkg.inner.b import (\n    one,\n    two as three,\n)\n",
    "sibling.py": "import losses.focal\n",
    "alone.py": "import torch\n",
    "caller.py": "import alone_callee\n",
    "alone_callee.py": "",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("checked", "expected"),
    [
        ("train.py", {"train.py", "losses/focal.py"}),
        ("losses/focal.py", {"train.py", "losses/focal.py", "sibling.py"}),
        ("alone.py", {"alone.py"}),
        ("alone_callee.py", {"alone_callee.py", "caller.py"}),
        ("pkg/a.py", {"pkg/__init__.py", "pkg/a.py", "pkg/inner/__init__.py", "pkg/inner/b.py", "uses_pkg.py"}),
        ("uses_pkg.py", {"pkg/__init__.py", "pkg/a.py", "pkg/inner/__init__.py", "pkg/inner/b.py", "uses_pkg.py"}),
    ],
)
def test_imports_lead_to_the_checked_files_and_from_there(folder: Path, checked: str, expected: set[str]) -> None:
    paths = sorted(folder.rglob("*.py"))
    found = linked([folder / checked], paths, lambda path: imported_names(path.read_text()))
    assert {path.relative_to(folder).as_posix() for path in found} == expected


def test_what_import_statements_may_load() -> None:
    text = "import a.b, c as d\nfrom . import e\nfrom ..f import (g,\n  h as i)\nfrom j import *\n    from k import l\n"
    names = {"a.b", "c", ".", ".e", "..f", "..f.g", "..f.h", "j", "k", "k.l"}
    assert set(imported_names(text)) == names


def test_a_region_in_another_file_is_seen_when_one_file_is_checked(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "norms.py").write_text(
        "import torch\n\n\ndef unit(x):\n    return x / (torch.nn.functional.linear(x, x) + 1e-8)\n"
    )
    (tmp_path / "train.py").write_text(
        "import torch\nimport norms\n\n\ndef step(x):\n    with torch.autocast('cuda'):\n        return norms.unit(x)\n"
    )
    (tmp_path / "other.py").write_text("import torch\n\n\nx = torch.zeros(3).half()\n")
    arguments = ["check", "--isolated", "--exit-zero", "--output-format", "pylint"]
    alone = CliRunner().invoke(cli, [*arguments, str(tmp_path / "norms.py")]).output
    assert "AMP301" in alone
    assert alone == CliRunner().invoke(cli, [*arguments, str(tmp_path)]).output
