"""Suppression comments: which are found, what they silence, and which are called unused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplint.registry import all_rules
from amplint.rule import Finding, Position, Severity
from amplint.source import Source, apply_edits
from amplint.suppress import find_suppressions, ignore_comment, suppress

ALL = frozenset(rule.code for rule in all_rules())
PATH = Path("/program/main.py")


def finding(line: int, code: str = "AMP101", name: str = "log-softmax", *, last: int | None = None) -> Finding:
    end = Position(last or line, 9)
    return Finding(PATH, Position(line, 1), end, code, name, Severity.ERROR, "a fault")


def left(text: str, *findings: Finding, ran: frozenset[str] = frozenset({"AMP101", "AMP102"})) -> list[Finding]:
    return suppress(Source(PATH, text), list(findings), ran).findings


@pytest.mark.parametrize(
    "comment",
    [
        "# noqa",
        "#noqa",
        "# NOQA",
        "# noqa: AMP101",
        "# noqa:amp101",
        "# noqa : AMP101 , E501",
        "# noqa: E501,AMP101 because the tool rounds so",
        "# noqa: kept as published",
        "# noqa - kept as published",
        "# amplint: ignore",
        "# amplint:ignore[AMP101]",
        "# AMPLINT: IGNORE [ amp102 , AMP101 ] as in the paper",
        "# amplint: ignore[log-softmax]",
        "# amplint: ignore[AMP1]",
        "# type: ignore  # amplint: ignore[AMP101]",
        "# amplint: ignore[AMP101]  # type: ignore",
    ],
)
def test_silences_its_line(comment: str) -> None:
    assert left(f"x = 1  {comment}\n", finding(1)) == []


@pytest.mark.parametrize(
    "text",
    [
        "x = 1  # noqa: E501\n",
        "x = 1  # noqa-later\n",
        "x = 1  # see noqa\n",
        "x = 1  # ruff: noqa\n",
        "x = 1  # amplint: ignore[AMP102]\n",
        "x = 1  # amplint: ignored\n",
        "x = 1  # amplint: ignore[]\n",
        "x = 1  # amplint: ignore-file\n",
        "x = 1  # amplint: ignore-file[AMP101]\n",
        's = "# amplint: ignore[AMP101]"\n',
        "s = '''\n# amplint: ignore-file\n'''\n",
        "x = 1\n# noqa\n",
        "x = 1\ny = 2  # amplint: ignore\n",
    ],
)
def test_does_not_silence(text: str) -> None:
    assert left(text, finding(1)) == [finding(1)]


@pytest.mark.parametrize("line", [1, 2, 3])
def test_any_line_of_the_anchor_will_do(line: int) -> None:
    lines = ["x = f(", "    1,", ")"]
    lines[line - 1] += "  # amplint: ignore[AMP101]"
    assert left("\n".join(lines), finding(1, last=3)) == []


@pytest.mark.parametrize("comment", ["# amplint: ignore-file", "# amplint: ignore-file[AMP101] measured, not trained"])
def test_a_whole_file(comment: str) -> None:
    assert left(f"x = 1\n\n{comment}\ny = 2\n", finding(1), finding(4)) == []


def test_a_file_comment_with_codes_leaves_the_others() -> None:
    other = finding(1, "AMP102", "log-sigmoid")
    assert left("# amplint: ignore-file[AMP101]\nx = 1\n", finding(2), other) == [other]


def test_an_unreadable_file_cannot_be_talked_away() -> None:
    unreadable = finding(1, "AMP000", "unreadable-file")
    assert left("x = (  # noqa\n", unreadable) == [unreadable]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_lines_are_counted_as_python_does(newline: str) -> None:
    text = newline.join(["a = 1", "b = '\x0c\x85\u2028'", "c = 3  # amplint: ignore[AMP101]", ""])
    assert left(text, finding(3)) == []


def mended(text: str, *findings: Finding, ran: frozenset[str] = ALL) -> str:
    """The text after the fixes of its AMP002 findings."""
    unused = [f for f in left(text, *findings, ran=ran) if f.code == "AMP002"]
    return apply_edits(text, [edit for f in unused if f.fix for edit in f.fix.edits])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1  # amplint: ignore[AMP101]\n", "x = 1\n"),
        ("x = 1  # amplint: ignore\n", "x = 1\n"),
        ("x = 1  # noqa: AMP101\n", "x = 1\n"),
        ("x = 1  # noqa: E501, AMP101\n", "x = 1  # noqa: E501\n"),
        ("x = 1  # noqa: AMP101,E501,AMP102 as before\n", "x = 1  # noqa: E501 as before\n"),
        ("x = 1  # amplint: ignore[AMP101] once broken\n", "x = 1\n"),
        ("x = 1  # amplint: ignore[AMP101]  # type: ignore\n", "x = 1  # type: ignore\n"),
        ("x = 1  # type: ignore  # amplint: ignore[AMP101]\n", "x = 1  # type: ignore\n"),
        ("# amplint: ignore-file[AMP101]\nx = 1\n", "x = 1\n"),
        ("# amplint: ignore[AMP101]  # type: ignore\nx = 1\n", "# type: ignore\nx = 1\n"),
        ("if x:\n    # amplint: ignore-file\n    y = 1\n", "if x:\n    y = 1\n"),
        ("x = 1  # amplint: ignore[AMP101]", "x = 1"),
        ("x = 1  # amplint: ignore[AMP2]\r\n", "x = 1\r\n"),
        ("x = 1  # amplint: ignore[log-softmax]\n", "x = 1\n"),
    ],
)
def test_unused_comments_are_removed(text: str, expected: str) -> None:
    assert mended(text) == expected


@pytest.mark.parametrize(
    "text", ["x = 1  # amplint: ignore[AMP101] once\n", "x = 1  # amplint: ignore[AMP101] once  # b\n"]
)
def test_an_unused_comment_is_marked_without_the_blanks_after_it(text: str) -> None:
    (found,) = left(text, ran=ALL)
    assert (found.start, found.end) == (Position(1, 8), Position(1, 38))


def test_the_comment_for_several_codes() -> None:
    assert ignore_comment(["AMP102", "AMP101"]) == "# amplint: ignore[AMP101, AMP102]"


@pytest.mark.parametrize(
    "text",
    [
        "x = 1  # noqa\n",
        "x = 1  # noqa: E501\n",
        "x = 1  # noqa: E501, F401\n",
        "x = 1  # amplint: ignore[XYZ999]\n",
        's = "# amplint: ignore[AMP101]"\n',
    ],
)
def test_comments_of_others_are_left_alone(text: str) -> None:
    assert left(text, ran=ALL) == []


def test_a_comment_at_work_is_kept_and_its_idle_code_dropped() -> None:
    text = "x = 1  # amplint: ignore[AMP102, AMP101, AMP104]\n"
    assert mended(text, finding(1)) == "x = 1  # amplint: ignore[AMP101]\n"


def test_nothing_is_said_of_rules_that_did_not_run() -> None:
    ran = frozenset({"AMP002", "AMP102"})
    assert left("x = 1  # amplint: ignore[AMP101]\n", ran=ran) == []
    assert left("x = 1  # amplint: ignore\n", ran=ran) == []
    assert [f.code for f in left("x = 1  # amplint: ignore[AMP102]\n", ran=ran)] == ["AMP002"]


def test_a_comment_without_codes_is_judged_by_the_default_rules() -> None:
    defaults = frozenset(rule.code for rule in all_rules() if rule.default)
    assert defaults < ALL
    assert [f.code for f in left("x = 1  # amplint: ignore\n", ran=defaults | {"AMP002"})] == ["AMP002"]
    assert left("x = 1  # amplint: ignore\n", ran=defaults - {"AMP101"} | {"AMP002"}) == []


@given(st.text())
def test_any_text_is_survived(text: str) -> None:
    for suppression in find_suppressions(Source(PATH, f"x = 1  # noqa: AMP101\n{text}\n# amplint: ignore")):
        assert 0 <= suppression.start < suppression.end


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\x00#")))
def test_a_reason_may_be_anything(reason: str) -> None:
    assert left(f"x = 1  # amplint: ignore[AMP101] {reason}\n", finding(1)) == []
