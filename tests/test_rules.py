"""Every rule is tested by its own examples: where it reports, what it makes of the file, and where it stays silent."""

from __future__ import annotations

import ast

import pytest

from amplint.registry import all_rules
from amplint.rule import Example, Rule
from amplint.triggers import Triggers
from tests.programs import MAIN, fixed, judge, marks, places, program, unmarked

RULES = [rule for rule in all_rules() if rule.INVALID or rule.VALID]


def examples(kind: str) -> list[object]:
    return [
        pytest.param(rule, example, id=f"{rule.code}-{number}")
        for rule in RULES
        for number, example in enumerate(getattr(rule, kind), 1)
    ]


@pytest.mark.parametrize(("rule", "example"), examples("INVALID"))
def test_reports_the_marked_lines(rule: Rule, example: Example) -> None:
    files = program(example)
    assert marks(files), "an INVALID example marks its findings with `# expect`"
    assert places(judge(rule, unmarked(files))) == marks(files)


@pytest.mark.parametrize(("rule", "example"), examples("INVALID"))
def test_fixes_as_shown(rule: Rule, example: Example) -> None:
    files = unmarked(program(example))
    result = fixed(rule, files)
    ast.parse(result)
    expected = files if example.fixed is None else program(example.fixed)
    assert result == expected[MAIN]


@pytest.mark.parametrize(("rule", "example"), examples("VALID"))
def test_stays_silent(rule: Rule, example: Example | str) -> None:
    files = program(example)
    assert not marks(files)
    assert judge(rule, files) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_is_complete(rule: Rule) -> None:
    """At least as many clean examples as faulty ones, a page, and triggers that let its own examples pass."""
    assert len(list(rule.VALID)) >= len(list(rule.INVALID)) > 0
    assert rule.__doc__
    assert rule.summary
    for example in rule.INVALID:
        files = unmarked(program(example))
        for name, _ in marks(program(example)):
            text = files[name].encode()
            assert Triggers((rule,)).candidates(text), f"no trigger in {name}"
