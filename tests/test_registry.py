"""The rules that are found, and the selectors that name them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from amplint import registry
from amplint.registry import RegistryError, UnknownSelectorError, all_rules, catalogue, find, matching, selection
from amplint.rule import Rule

PLUGIN = Path(__file__).parent / "plugin_example"
CODES = {rule.code for rule in all_rules()}


def test_rules_are_sorted_and_complete() -> None:
    rules = all_rules()
    assert [rule.code for rule in rules] == sorted(CODES)
    assert len({rule.name for rule in rules}) == len(rules)
    assert {"AMP000", "AMP001", "AMP002", "AMP101", "AMP201", "AMP301"} <= CODES
    for rule in rules:
        assert rule.summary
        assert type(rule).__doc__
        assert rule.fixable in ("safe", "unsafe", "safe/unsafe", "")


def test_the_catalogue_tells_of_rules_what_they_say() -> None:
    assert [tuple(entry) for entry in catalogue()] == [(rule.code, rule.name, rule.default) for rule in all_rules()]


def test_two_rules_of_one_code_are_refused_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    other = type("Other", (Rule,), {"code": "AMP104", "name": "other"})
    monkeypatch.setattr(registry, "_plugged_in", lambda: iter([other]))
    with pytest.raises(RegistryError, match="AMP104"):
        catalogue.__wrapped__()


@pytest.mark.parametrize("selector", ["AMP104", "amp104", "log-sum-exp", " LOG-SUM-EXP "])
def test_one_rule_by_code_or_name(selector: str) -> None:
    assert find(selector).code == "AMP104"
    assert matching(selector) == {"AMP104"}


def test_prefixes() -> None:
    assert matching("AMP10") == {code for code in CODES if code.startswith("AMP10")}
    assert matching("ALL") == CODES


@pytest.mark.parametrize(("selector", "nearest"), [("AMP1044", "AMP104"), ("log-sum-exps", "log-sum-exp"), ("?", None)])
def test_unknown_selectors(selector: str, nearest: str | None) -> None:
    for ask in (find, matching):
        with pytest.raises(UnknownSelectorError) as caught:
            ask(selector)
        assert caught.value.nearest == nearest


DEFAULT = frozenset(rule.code for rule in all_rules() if rule.default)
ALWAYS = frozenset({"AMP000", "AMP001"})


@pytest.mark.parametrize(
    ("select", "ignore", "extend", "expected"),
    [
        ([], [], [], DEFAULT),
        (["AMP104"], [], [], ALWAYS | {"AMP104"}),
        (["AMP104", "AMP105"], ["AMP105"], [], ALWAYS | {"AMP104"}),
        (["AMP104"], ["AMP1"], [], ALWAYS | {"AMP104"}),
        (["AMP1"], ["AMP"], ["AMP104"], (matching("AMP1") | {"AMP104"})),
        (["ALL"], ["AMP"], [], matching("ALL") - matching("AMP")),
        ([], ["AMP000", "AMP104"], [], DEFAULT - {"AMP000", "AMP104"}),
        (["AMP104"], ["log-sum-exp"], [], ALWAYS),
        (["log-sum-exp"], ["AMP1"], [], ALWAYS | {"AMP104"}),
        (["AMP104"], [], ["AMP105"], ALWAYS | {"AMP104", "AMP105"}),
        (["ALL"], [], [], CODES),
    ],
)
def test_selection(select: list[str], ignore: list[str], extend: list[str], expected: set[str]) -> None:
    assert selection(select, ignore, extend) == expected


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the example plug-in was installed by pip."""
    folder = tmp_path_factory.mktemp("plugin")
    source = folder / "source"
    for path in PLUGIN.rglob("*"):
        if path.is_file() and path.suffix in (".py", ".toml"):
            copy = source / path.relative_to(PLUGIN)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    quiet = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    target = folder / "installed"
    subprocess.run([sys.executable, "-m", "pip", "install", *quiet, "--target", target, source], check=True)
    return target


def with_plugin(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "amplint", *arguments],
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_plugin_rule_runs_like_any_other(installed: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nwith torch.autocast('cuda'):\n    pass\n")
    assert "EXA101" in with_plugin(installed, "rules").stdout
    done = with_plugin(installed, "check", "--isolated", "--select", "EXA", "--fail-on", "info", str(script))
    assert done.returncode == 1
    assert "EXA101 autocast-without-dtype info" in done.stdout
    with_plugin(installed, "fix", "--isolated", "--select", "EXA", "--apply", str(script))
    assert "torch.autocast('cuda', dtype=torch.float16)" in script.read_text()


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [("broken", "cannot be loaded"), ("broken:missing", "cannot be loaded"), ("os:getcwd", "no subclass")],
)
def test_a_broken_plugin_is_named(tmp_path: Path, entry: str, complaint: str) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    metadata = tmp_path / "broken-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[amplint.rules]\nbroken = {entry}\n")
    for command in (["check", "--isolated", str(tmp_path)], ["rules"], ["explain", "AMP104"], ["config"]):
        done = with_plugin(tmp_path, *command)
        assert done.returncode == 2
        assert complaint in done.stderr
        assert "Traceback" not in done.stderr
