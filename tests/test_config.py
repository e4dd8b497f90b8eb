"""Settings: where they are found, what they may be, and how the command line goes over them."""

from __future__ import annotations

from pathlib import Path

import pytest

from amplint.config import ConfigError, Settings, load, nearest, override, read, torch_version
from amplint.rule import Severity

FULL = """
[tool.amplint]
select = ["AMP1", "AMP2"]
ignore = ["log-softmax"]
extend-select = ["AMP405"]
exclude = ["old"]
extend-exclude = ["*_pb2.py"]
force-exclude = true
respect-gitignore = false
fail-on = "error"
max-norm = 5
torch-version = "2.4.1+cu121"

[tool.amplint.per-file-ignores]
"tests/*" = ["AMP2"]
"legacy.py" = ["ALL"]
"""


def written(folder: Path, text: str, name: str = "pyproject.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


def test_everything_can_be_set(tmp_path: Path) -> None:
    settings = read(written(tmp_path, FULL))
    assert settings.select == ("AMP1", "AMP2")
    assert settings.ignore == ("log-softmax",)
    assert settings.extend_select == ("AMP405",)
    assert settings.exclude == ("old",)
    assert settings.extend_exclude == ("*_pb2.py",)
    assert settings.force_exclude
    assert not settings.respect_gitignore
    assert settings.fail_on is Severity.ERROR
    assert settings.max_norm == 5.0
    assert settings.torch_version == (2, 4)
    assert settings.options.max_norm == 5.0
    assert settings.root == tmp_path


def test_amplint_toml_needs_no_table(tmp_path: Path) -> None:
    path = written(tmp_path, 'fail-on = "info"\n', "amplint.toml")
    assert read(path).fail_on is Severity.INFO


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.amplint]\nselct = []\n", "unknown key 'selct'; did you mean 'select'"),
        ("[tool.amplint]\nmax_norm = 1.0\n", "unknown key 'max_norm'; did you mean 'max-norm'"),
        ("[tool.amplint]\nzebra = 1\n", "unknown key 'zebra'$"),
        ('[tool.amplint]\nselect = "AMP101"\n', "select must be a list of strings, not 'AMP101'"),
        ("[tool.amplint]\nselect = [101]\n", "select must be a list of strings"),
        ('[tool.amplint]\nselect = ["AMP999"]\n', "select: no rule has the code, prefix or name 'AMP999'"),
        ('[tool.amplint]\nignore = ["log-sum-ex"]\n', "did you mean log-sum-exp"),
        ('[tool.amplint]\nfail-on = "fatal"\n', "fail-on must be one of info, warning, error, not 'fatal'"),
        ("[tool.amplint]\nmax-norm = 0\n", "max-norm must be a positive number, not 0"),
        ("[tool.amplint]\nmax-norm = true\n", "max-norm must be a positive number"),
        ("[tool.amplint]\nmax-norm = nan\n", "max-norm must be a positive number"),
        ("[tool.amplint]\nmax-norm = inf\n", "max-norm must be a positive number"),
        ("[tool.amplint]\ntorch-version = 2.4\n", 'torch-version must be a version in quotes such as "2.4"'),
        ('[tool.amplint]\ntorch-version = "new"\n', 'torch-version must be a version such as "2.4"'),
        ("[tool.amplint]\nforce-exclude = 1\n", "force-exclude must be true or false"),
        ("[tool.amplint]\nper-file-ignores = []\n", "per-file-ignores must be a table"),
        ('[tool.amplint.per-file-ignores]\n"a.py" = "AMP1"\n', "per-file-ignores must be a list of strings"),
        ("[tool]\namplint = 3\n", r"\[tool.amplint\] must be a table"),
        ("[tool.amplint\n", "amplint|line 1"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "amplint.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"amplint\.toml"):
        read(path)


def test_the_nearest_file_with_a_table_is_used(tmp_path: Path) -> None:
    outer = written(tmp_path, "[tool.amplint]\nmax-norm = 2\n")
    written(tmp_path / "inner", "[project]\nname = 'x'\n")
    assert nearest([tmp_path / "inner"]) == outer
    own = written(tmp_path / "inner/deep", "max-norm = 3\n", "amplint.toml")
    assert nearest([tmp_path / "inner/deep/a.py"]) == own
    assert nearest([tmp_path / "inner/deep", tmp_path / "inner"]) == outer
    assert load([tmp_path / "inner/deep"]).max_norm == 3.0


def test_isolated_reads_nothing(tmp_path: Path) -> None:
    written(tmp_path, "[tool.amplint]\nnonsense = 1\n")
    assert load([tmp_path], isolated=True).max_norm == Settings().max_norm


def test_the_command_line_goes_over_the_file(tmp_path: Path) -> None:
    settings = override(read(written(tmp_path, FULL)), select=("AMP3",), ignore=(), force_exclude=None)
    assert settings.select == ("AMP3",)
    assert settings.ignore == ("log-softmax",)
    assert settings.force_exclude
    assert settings.origins["select"] == "command line"
    assert settings.origins["ignore"] == str(tmp_path / "pyproject.toml")


def test_per_file_ignores(tmp_path: Path) -> None:
    settings = read(written(tmp_path, FULL))
    assert "AMP201" in settings.ignored_in(tmp_path / "tests/test_loss.py")
    assert "AMP101" not in settings.ignored_in(tmp_path / "tests/test_loss.py")
    assert "AMP101" in settings.ignored_in(tmp_path / "pkg/legacy.py")
    assert settings.ignored_in(tmp_path / "train.py") == frozenset()


@pytest.mark.parametrize(
    ("text", "version"), [("2.4", (2, 4)), ("2.13.0", (2, 13)), ("2.5.1+cu121", (2, 5)), ("2.6.0a0+git1", (2, 6))]
)
def test_torch_versions(text: str, version: tuple[int, int]) -> None:
    assert torch_version(text) == version


@pytest.mark.parametrize("text", ["", "2", "two", "2.x", "-1.2"])
def test_no_torch_versions(text: str) -> None:
    with pytest.raises(ValueError, match="no torch version"):
        torch_version(text)
