"""`amplint explain`, `rules`, `config`, `check --watch` and the program itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner, Result

from amplint import __version__
from amplint.cli import cli
from amplint.registry import all_rules

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CLEAN = "import torch\n"
FAULTY = "import torch\n\n\ndef loss(x):\n    return torch.log(torch.exp(x).sum(-1))\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def amplint(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_version_and_help() -> None:
    assert __version__ in amplint("--version").stdout
    listed = amplint("--help").stdout
    for name in ("check", "fix", "explain", "rules", "baseline", "config", "verify", "trace"):
        assert f"\n  {name} " in listed
        assert amplint(name, "--help").exit_code == 0
    result = amplint("chekc")
    assert result.exit_code == 2
    assert "chekc" in result.stderr


@pytest.mark.parametrize("name", ["AMP104", "amp104", "log-sum-exp"])
def test_explain(name: str) -> None:
    text = amplint("explain", name).stdout
    assert text.startswith("# AMP104 log-sum-exp\n\n**Severity** error")
    assert "## Fix" in text


def test_explain_an_unknown_rule() -> None:
    result = amplint("explain", "log-sum-ex")
    assert result.exit_code == 2
    assert "did you mean log-sum-exp?" in result.stderr


def test_rules_in_every_format() -> None:
    codes = [rule.code for rule in all_rules()]
    lines = amplint("rules").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["code", *codes]
    records = json.loads(amplint("rules", "--output-format", "json").stdout)
    assert [record["code"] for record in records] == codes
    assert all(record["summary"] and record["explanation"] and record["url"] for record in records)
    rows = amplint("rules", "--output-format", "markdown").stdout.splitlines()
    assert [row.split("|")[1].strip() for row in rows] == ["code", "---", *codes]


def test_config_shows_values_and_origins(folder: Path) -> None:
    (folder / "amplint.toml").write_text("max-norm = 2\n[per-file-ignores]\n'a.py' = ['AMP1']\n")
    text = amplint("config").stdout
    shown = tomllib.loads(text)
    assert shown["max-norm"] == 2.0
    assert shown["per-file-ignores"] == {"a.py": ["AMP1"]}
    assert shown["fail-on"] == "warning"
    assert f"max-norm = 2.0  # {folder / 'amplint.toml'}\n" in text
    assert 'fail-on = "warning"  # default\n' in text
    assert f"max-norm = 2.0  # {folder / 'amplint.toml'}\n" not in amplint("config", "--isolated").stdout
    (folder / "amplint.toml").write_text("max-norm = 0\n")
    assert amplint("config").exit_code == 2


def test_what_config_shows_is_a_configuration(folder: Path) -> None:
    text = amplint("config", "--isolated").stdout
    (folder / "amplint.toml").write_text(text)
    assert amplint("check").exit_code == 0


def test_the_schema_knows_what_is_allowed() -> None:
    schema = json.loads(amplint("config", "--schema").stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    allowed = {
        "select": ["ALL"],
        "fail-on": "info",
        "max-norm": 0.5,
        "torch-version": "2.4",
        "per-file-ignores": {"a": ["AMP1"]},
    }
    jsonschema.validate(allowed, schema)
    for wrong in ({"selct": []}, {"select": "ALL"}, {"fail-on": "fatal"}, {"max-norm": 0}, {"torch-version": 2.4}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_watch_checks_again_when_a_file_changes(folder: Path) -> None:
    pytest.importorskip("watchfiles")
    train = folder / "train.py"
    train.write_text(CLEAN)
    os.utime(train, (1e9, 1e9))  # polling sees whole seconds
    command = [sys.executable, "-u", "-m", "amplint", "check", "--watch", "."]
    environment = {**os.environ, "WATCHFILES_FORCE_POLLING": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "No findings in 1 file.\n"
        train.write_text(FAULTY)  # at once: what changes during the first check counts
        line = process.stdout.readline()
        while "AMP104" not in line:
            assert process.poll() is None
            line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.wait(30)
