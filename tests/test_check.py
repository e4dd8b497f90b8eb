"""`amplint check` as a user calls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from amplint.cli import cli
from amplint.registry import all_rules

FAULTY = "import torch\n\n\ndef loss(x):\n    return torch.log(torch.exp(x).sum(-1))\n"
CLEAN = "import torch\n\n\ndef loss(x):\n    return torch.logsumexp(x, -1)\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project folder to stand in, and an environment like a user's."""
    for name in ("GITHUB_ACTIONS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'program'\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def amplint(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli, arguments, input=stdin)


def codes(*arguments: str, stdin: str | None = None) -> list[str]:
    """The codes that a run with JSON output reports."""
    result = amplint("check", "--output-format", "json", "--exit-zero", *arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return [record["code"] for record in json.loads(result.stdout)]


# -- exit status ---------------------------------------------------------------------------------------------------


def test_clean(folder: Path) -> None:
    (folder / "clean.py").write_text(CLEAN)
    result = amplint("check")
    assert result.exit_code == 0
    assert result.stdout == "No findings in 1 file.\n"


def test_findings_fail(folder: Path) -> None:
    (folder / "train.py").write_text(FAULTY)
    result = amplint("check", "train.py")
    assert result.exit_code == 1
    assert result.stdout.startswith("train.py:5:12: AMP104 log-sum-exp error\n")
    assert "5 |     return torch.log(torch.exp(x).sum(-1))\n" in result.stdout
    assert "help: " in result.stdout
    assert amplint("check", "--exit-zero").exit_code == 0


@pytest.mark.parametrize(("threshold", "status"), [("info", 1), ("warning", 0), ("error", 0)])
def test_the_threshold(folder: Path, threshold: str, status: int) -> None:
    (folder / "old.py").write_text("x = 1  # amplint: ignore[AMP104]\n")
    assert codes() == ["AMP002"]
    assert amplint("check", "--fail-on", threshold).exit_code == status


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nowhere.py"], "nowhere.py"),
        (["--select", "AMP999"], "no rule has the code, prefix or name 'AMP999'"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
        (["--config", "pyproject.toml"], "no [tool.amplint] table"),
        (["--config", "pyproject.toml", "--isolated"], "exclude each other"),
        (["--stdin-filename", "a.py"], "--stdin-filename needs -"),
        (["-", "a.py"], "- cannot be combined"),
        (["--output-format", "yaml"], "yaml"),
        (["--fail-on", "never"], "never"),
        (["--target-torch", "newest"], "no torch version"),
        (["--baseline", "nowhere.json"], "nowhere.json"),
        (["--output-file", "nowhere/report.txt"], "nowhere/report.txt"),
        (["--frobnicate"], "--frobnicate"),
    ],
)
def test_mistakes_of_the_user(arguments: list[str], complaint: str) -> None:
    result = amplint("check", *arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr


def test_a_broken_configuration(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.amplint]\nselct = []\n")
    result = amplint("check")
    assert result.exit_code == 2
    assert "pyproject.toml: unknown key 'selct'; did you mean 'select'?" in result.stderr
    assert amplint("check", "--isolated").exit_code == 0


# -- what is judged ------------------------------------------------------------------------------------------------


def test_files_that_cannot_be_read(folder: Path) -> None:
    (folder / "a_broken.py").write_text("import torch\nx = torch.log(torch.exp(x).sum(\n")
    (folder / "b_encoding.py").write_bytes(b"import torch\n# \xff\nx = torch.log(torch.exp(x).sum())\n")
    (folder / "c_null.py").write_bytes(b"import torch\nx = torch.log(torch.exp(x).sum())\0\n")
    (folder / "d_faulty.py").write_text(FAULTY)
    assert codes() == ["AMP000", "AMP000", "AMP000", "AMP104"]
    assert codes("--select", "AMP104") == ["AMP000", "AMP000", "AMP000", "AMP104"]
    assert codes("--ignore", "AMP000") == ["AMP104"]
    assert amplint("check", "a_broken.py").exit_code == 1


def test_broken_files_without_torch_are_silent(folder: Path) -> None:
    (folder / "template.py").write_text("{% if x %}\n")
    (folder / "binary.py").write_bytes(bytes(range(256)))
    assert codes() == []


def test_nothing_to_check_is_said(folder: Path) -> None:
    result = amplint("check")
    assert result.exit_code == 0
    assert result.stderr == "No Python files or notebooks to check.\n"
    assert amplint("check", "-q").output == ""


def test_standard_input(folder: Path) -> None:
    assert codes("-", stdin=FAULTY) == ["AMP104"]
    result = amplint("check", "-", "--stdin-filename", "pkg/loss.py", stdin=FAULTY)
    assert result.stdout.startswith("pkg/loss.py:5:12: ")
    excluded = ("-", "--stdin-filename", "build/loss.py")
    assert codes(*excluded, stdin=FAULTY) == ["AMP104"]
    assert codes(*excluded, "--force-exclude", stdin=FAULTY) == []


def test_standard_input_stands_for_the_file(folder: Path) -> None:
    (folder / "helper.py").write_text("import torch\n\n\ndef total(x):\n    return torch.exp(x).sum(-1)\n")
    caller = "import torch\nfrom helper import total\n\n\ndef loss(x):\n    return torch.log(total(x))\n"
    assert codes("-", "--stdin-filename", "loss.py", stdin=caller) == ["AMP104"]


def test_standard_input_is_linked_with_the_project(folder: Path) -> None:
    (folder / "pyproject.toml").touch()
    (folder / "lib").mkdir()
    (folder / "lib" / "helper.py").write_text("import torch\n\n\ndef total(x):\n    return torch.exp(x).sum(-1)\n")
    caller = "import torch\nfrom lib.helper import total\n\n\ndef loss(x):\n    return torch.log(total(x))\n"
    assert codes("-", stdin=caller) == ["AMP104"]


def test_selection(folder: Path) -> None:
    (folder / "train.py").write_text(FAULTY)
    assert codes("--select", "AMP105,AMP2") == []
    assert codes("--select", "log-sum-exp") == ["AMP104"]
    assert codes("--ignore", "AMP1") == []
    assert codes("--select", "AMP2", "--extend-select", "AMP104") == ["AMP104"]
    (folder / "amplint.toml").write_text("[per-file-ignores]\n'train.py' = ['AMP104']\n")
    assert codes() == []
    assert codes("--isolated") == ["AMP104"]


def test_show_files(folder: Path) -> None:
    (folder / "a.py").write_text("")
    (folder / "build").mkdir()
    (folder / "build/b.py").write_text("")
    assert amplint("check", "--show-files").stdout == f"{folder / 'a.py'}\n"


def test_values_are_explained(folder: Path) -> None:
    (folder / "train.py").write_text(FAULTY)
    result = amplint("check", "--explain-values", "train.py:5")
    assert result.exit_code == 0
    assert "torch.exp(x): exp" in result.stdout
    for place in ("train.py", "train.py:x", ":5", "nowhere.py:5"):
        assert amplint("check", "--explain-values", place).exit_code == 2


def test_a_rule_that_fails_costs_one_note(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "train.py").write_text(FAULTY)
    rule = type(next(r for r in all_rules() if r.code == "AMP105"))

    def check(self: object, context: object) -> Iterator[None]:
        raise ZeroDivisionError("by design")
        yield

    monkeypatch.setattr(rule, "check", check)
    monkeypatch.setattr(rule, "triggers", ((b"torch",),))
    result = amplint("check", "-v")
    assert "AMP001 analysis-incomplete info" in result.stdout
    assert "AMP105 log1p-exp failed: ZeroDivisionError: by design" in result.stdout
    assert "Traceback" in result.stderr
    assert "AMP104" in result.stdout
    assert "Traceback" not in amplint("check").stderr


# -- output --------------------------------------------------------------------------------------------------------


def test_reports_into_files(folder: Path) -> None:
    (folder / "train.py").write_text(FAULTY)
    result = amplint("check", "--output-file", "json=out.json", "--output-file", "junit=out.xml")
    assert result.stdout.startswith("train.py:5:12: AMP104")
    assert json.loads((folder / "out.json").read_text())[0]["code"] == "AMP104"
    assert (folder / "out.xml").read_text().startswith("<?xml")
    result = amplint("check", "--output-format", "json", "--output-file", "only.json")
    assert result.stdout == ""
    assert json.loads((folder / "only.json").read_text())[0]["code"] == "AMP104"


def test_github_is_chosen_in_its_actions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "train.py").write_text(FAULTY)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert amplint("check").stdout.startswith("::error title=amplint (AMP104 log-sum-exp),file=train.py,line=5,")
    assert amplint("check", "--output-format", "text").stdout.startswith("train.py:5:12:")


def test_quiet_and_statistics(folder: Path) -> None:
    (folder / "train.py").write_text(FAULTY)
    assert "Found" not in amplint("check", "-q").stdout
    assert amplint("check", "-q", "--statistics").stdout == "1  AMP104  [*] log-sum-exp\n"


def test_names_that_try_to_steer_the_terminal(folder: Path) -> None:
    (folder / "a\n\x1b[31mb.py").write_text(FAULTY)
    for name in ("text", "github", "sarif"):
        output = amplint("check", "--output-format", name).stdout
        assert "\x1b" not in output
        assert "AMP104" in output


# -- known findings ------------------------------------------------------------------------------------------------


def test_baseline(folder: Path) -> None:
    (folder / "train.py").write_text(FAULTY)
    assert amplint("baseline").exit_code == 0
    known = ("check", "--baseline", "amplint-baseline.json")
    assert amplint(*known).exit_code == 0
    (folder / "train.py").write_text("import torch\n# moved\n\n" + FAULTY)
    assert amplint(*known).exit_code == 0
    (folder / "new.py").write_text(FAULTY)
    result = amplint(*known)
    assert result.exit_code == 1
    assert "new.py:5" in result.stdout
    assert "train.py" not in result.stdout
    (folder / "train.py").write_text(CLEAN)
    result = amplint(*known, "train.py")
    assert result.exit_code == 0
    assert "1 of the baseline are gone:\n  train.py:5: AMP104 return torch.log" in result.stderr
    assert "gone" not in amplint(*known, "new.py").stderr


def test_a_second_equal_line_is_new(folder: Path) -> None:
    (folder / "train.py").write_text(FAULTY)
    amplint("baseline")
    (folder / "train.py").write_text(FAULTY + FAULTY.replace("def loss", "def again"))
    result = amplint("check", "--baseline", "amplint-baseline.json", "--output-format", "json")
    assert [record["location"]["row"] for record in json.loads(result.stdout)] == [10]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"amplint-baseline": 1, "findings": [{}]}', "nonsense"])
def test_a_broken_baseline(folder: Path, text: str) -> None:
    (folder / "known.json").write_text(text)
    result = amplint("check", "--baseline", "known.json")
    assert result.exit_code == 2
    assert "known.json" in result.stderr


def git(*arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)


def test_findings_on_changed_lines_only(folder: Path) -> None:
    odd = folder / 'ol"d ü.py'
    odd.write_text(FAULTY)
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    assert codes("--diff-base", "HEAD") == []
    odd.write_text(FAULTY + "\n\ndef more(y):\n    return torch.log(\n        torch.exp(y).sum(-1)\n    )\n")
    (folder / "new.py").write_text(FAULTY)
    result = amplint("check", "--diff-base", "HEAD", "--output-format", "json")
    places = [(Path(r["filename"]).name, r["location"]["row"]) for r in json.loads(result.stdout)]
    assert places == [("new.py", 5), (odd.name, 9)]
    for revision in ("nonsense", "--output=x"):
        result = amplint("check", f"--diff-base={revision}")
        assert result.exit_code == 2
        assert "--diff-base" in result.stderr


def test_ignores_are_written(folder: Path) -> None:
    source = FAULTY + 's = """\n""" + str(torch.log(torch.exp(x).sum()))  # noqa: E501\n'
    source += "t = torch.log(torch.exp(x).sum()); u = torch.log1p(torch.exp(x))  # amplint: ignore[AMP104]\n"
    (folder / "train.py").write_text(source)
    result = amplint("check", "--add-ignore")
    assert result.exit_code == 0
    assert codes() == []
    text = (folder / "train.py").read_text()
    assert "    return torch.log(torch.exp(x).sum(-1))  # amplint: ignore[AMP104]\n" in text
    assert "# noqa: E501  # amplint: ignore[AMP104]\n" in text
    assert "# amplint: ignore[AMP104, AMP105]\n" in text


# -- as programs ---------------------------------------------------------------------------------------------------


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}, encoding="utf-8"
    )


def test_as_a_module(folder: Path) -> None:
    (folder / "train.py").write_text(FAULTY)
    done = run(sys.executable, "-m", "amplint", "check")
    assert done.returncode == 1
    assert "AMP104" in done.stdout
    assert done.stderr == ""


def test_output_survives_a_poor_encoding(folder: Path) -> None:
    (folder / "straße.py").write_text(FAULTY)
    done = run(sys.executable, "-m", "amplint", "check", PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert "stra\\xdfe.py" in done.stdout


UNMEASURED = {"COVERAGE_PROCESS_START": "", "COVERAGE_PROCESS_CONFIG": ""}
"""What measures the tests' coverage imports much itself."""


def test_nothing_slow_is_imported_for_the_version() -> None:
    program = "import sys\ntry:\n    from amplint.cli import cli; cli(['--version'])\nexcept SystemExit: pass\n"
    done = run(sys.executable, "-X", "importtime", "-c", program, **UNMEASURED)
    loaded = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "click" in loaded
    assert {name for name in loaded if name.startswith("amplint")} == {"amplint", "amplint.cli"}
    assert not loaded & {"libcst", "pathspec", "torch", "multiprocessing", "importlib.metadata"}


def test_a_clean_file_needs_no_libcst(folder: Path) -> None:
    (folder / "clean.py").write_text(CLEAN)
    done = run(sys.executable, "-X", "importtime", "-m", "amplint", "check", "clean.py", **UNMEASURED)
    loaded = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if "|" in line}
    assert not loaded & {"libcst", "torch", "multiprocessing"}


def test_what_the_cache_knows_needs_no_rule(folder: Path) -> None:
    (folder / "pyproject.toml").touch()
    for number in range(20):
        (folder / f"f{number}.py").write_text(FAULTY)
    program = (
        "import sys\nfrom amplint.cli import cli\ntry: cli(['check'])\nfinally: print(*sys.modules, file=sys.stderr)"
    )
    first, second = (run(sys.executable, "-c", program, **UNMEASURED) for _ in range(2))
    assert second.stdout == first.stdout
    assert "amplint.rules.amp104_log_sum_exp" in first.stderr.split()
    loaded = set(second.stderr.split())
    assert not {name for name in loaded if name.startswith(("amplint.rules.", "amplint.values", "amplint.tree"))}
    assert "importlib.metadata" not in loaded


def test_the_checked_tree_is_never_run(folder: Path) -> None:
    trap = f"open({str(folder / 'sprung')!r}, 'w').close()\n"
    for name in ("torch.py", "sitecustomize.py", "conftest.py", "setup.py", "click.py", "amplint/__init__.py"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(trap + FAULTY)
    done = run(str(Path(sys.executable).parent / "amplint"), "check", ".")
    assert "AMP104" in done.stdout
    assert not (folder / "sprung").exists()
