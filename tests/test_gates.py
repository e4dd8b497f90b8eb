"""The gates before a rule (byte triggers, what has to do with torch, where half precision reaches) lose nothing.

The rules run on every file, as if there were no gates, and through the linter; both find the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from amplint.context import Analyses, Context
from amplint.own_rules import OwnRule
from amplint.pipeline import Linter, Plan, read_bytes, read_source
from amplint.project import Project
from amplint.registry import all_rules
from amplint.rule import Rule
from tests.programs import ROOT, program, unmarked

RULES = [rule for rule in all_rules() if not isinstance(rule, OwnRule)]
FIXTURES = sorted(path for path in (Path(__file__).parent.parent / "fixtures").iterdir() if path.is_dir())
Found = set[tuple[str, str, int]]


def ungated(contents: Mapping[Path, bytes], rules: list[Rule]) -> Found:
    project = Project(contents, lambda path: read_source(path, contents[path]))
    analyses = Analyses(project, Plan(frozenset()).options)
    found: Found = set()
    for path in contents:
        if module := project.whole(path):
            context = Context(module, analyses)
            found |= {(f.code, f.path.name, f.start.line) for rule in rules for f in rule.check(context)}
    return found


def gated(contents: Mapping[Path, bytes], rules: list[Rule]) -> Found:
    linter = Linter(lambda: contents, Plan(frozenset(rule.code for rule in rules)), dict(contents))
    findings = (finding for path in contents for finding in linter.check(path).findings)
    return {(f.code, f.path.name, f.start.line) for f in findings}


def examples(rule: Rule) -> Iterator[dict[Path, bytes]]:
    for example in (*rule.INVALID, *rule.VALID):
        files = unmarked(program(example))
        if not any("amplint: ignore" in text for text in files.values()):
            yield {ROOT / name: text.encode() for name, text in files.items()}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_no_example_is_lost(rule: Rule) -> None:
    for contents in examples(rule):
        assert gated(contents, [rule]) == ungated(contents, [rule])


@pytest.mark.parametrize("folder", FIXTURES, ids=lambda folder: folder.name)
def test_no_fixture_is_lost(folder: Path) -> None:
    contents = {path: read_bytes(path) for path in sorted(folder.rglob("*.py"))}
    assert gated(contents, RULES) == ungated(contents, RULES)


@pytest.mark.skipif(find_spec("torch") is None, reason="no torch, no files of it")
def test_no_finding_in_files_of_torch_is_lost() -> None:
    """Its distributions take logarithms, exponentials and roots in many ways, and nobody wrote them for this test."""
    spec = find_spec("torch.distributions")
    assert spec is not None
    (folder,) = spec.submodule_search_locations or ()
    contents = {path: read_bytes(path) for path in sorted(Path(folder).glob("*.py"))}
    found = gated(contents, RULES)
    assert found
    assert found == ungated(contents, RULES)
