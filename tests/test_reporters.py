"""Output formats, each read back by its own schema or parser."""

from __future__ import annotations

import json
import re
import unicodedata
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplint.diagnostic import Diagnostic, place
from amplint.reporters import FORMATS, Report, printable, renderer, wants_colour
from amplint.rule import Edit, Finding, Fix, Position, Related, Safety, Severity
from amplint.source import Source

BASE = Path("/program")
TEXT = "import torch\n\n\ndef loss(x):\n\treturn torch.log(torch.exp(x).sum(-1))\n"
SCHEMAS = Path(__file__).parent / "schemas"
NASTY = "a\x1b[31m,:%\n]b\u202e\udce9.py"


def diagnostic(
    *,
    name: str = "train.py",
    text: str = TEXT,
    wrong: str = "torch.log(torch.exp(x).sum(-1))",
    severity: Severity = Severity.ERROR,
    message: str = "exp overflows above 11.09 in float16",
    fixed: bool = True,
    related: tuple[Related, ...] = (),
) -> Diagnostic:
    source = Source(BASE / name, text)
    start = text.index(wrong)
    end = start + len(wrong)
    fix = Fix("use torch.logsumexp", Safety.SAFE, (Edit(start, end, "torch.logsumexp(x, -1)"),)) if fixed else None
    first, last = source.position(start), source.position(end)
    finding = Finding(source.path, first, last, "AMP104", "log-sum-exp", severity, message, fix, related)
    return place(source, finding)


def in_cell(cell: int) -> Diagnostic:
    found = diagnostic(name="train.ipynb")
    return Diagnostic(found.finding, found.start, found.end, cell, found.line, found.edits)


def report(*diagnostics: Diagnostic, **settings: Any) -> Report:
    return Report(diagnostics=diagnostics, files=3, base=BASE, **settings)


VARIETY = (
    diagnostic(),
    diagnostic(severity=Severity.WARNING, fixed=False, message="100% of\r\nthe, time: [see] <|>"),
    diagnostic(name=f"deep/{NASTY}", severity=Severity.INFO),
    diagnostic(related=(Related(BASE / "main.py", Position(3, 5), "autocast is switched on here"),)),
    in_cell(4),
)


def rendered(name: str, *diagnostics: Diagnostic, **settings: Any) -> str:
    return renderer(name)(report(*diagnostics, **settings))


@pytest.mark.parametrize("name", FORMATS)
def test_no_format_lets_a_name_or_message_steer_the_reader(name: str) -> None:
    text = rendered(name, *VARIETY)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
    text.encode("utf-8")


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_can_say_nothing(name: str) -> None:
    assert "AMP" not in rendered(name)


# -- text ----------------------------------------------------------------------------------------------------------


def test_text() -> None:
    assert rendered("text", VARIETY[3]) == (
        "train.py:5:9: AMP104 log-sum-exp error\n"
        "  exp overflows above 11.09 in float16\n"
        "  |\n"
        "5 |     return torch.log(torch.exp(x).sum(-1))\n"
        "  |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "  = main.py:3:5: autocast is switched on here\n"
        "  = help: use torch.logsumexp (safe fix)\n"
        "\n"
        "Found 1 error in 1 of 3 files.\n"
        "1 fixable with `amplint fix --apply`.\n"
    )


def test_text_underlines_wide_characters_and_only_the_first_line() -> None:
    wide = rendered("text", diagnostic(text="x = '標準' + torch.log(a)\n", wrong="torch.log(a)"), quiet=True)
    assert "\n  |              ^^^^^^^^^^^^\n" in wide
    spread = rendered("text", diagnostic(text="y = log(\n    x\n)\n", wrong="log(\n    x\n)"), quiet=True)
    assert "\n1 | y = log(\n  |     ^^^^\n" in spread


@pytest.mark.parametrize("before", [0, 50, 5_000, 30_000])
def test_text_cuts_long_lines_around_the_span(before: int) -> None:
    line = "x" * before + " = torch.log(a)" + " + b" * 5_000
    text = rendered("text", diagnostic(text=line, wrong="torch.log(a)"), quiet=True)
    frame, underline = text.splitlines()[3:5]
    assert len(frame) < 130
    start, end = underline.index("^"), underline.rindex("^") + 1
    assert frame[start:end] == "torch.log(a)"


def test_text_names_the_cell() -> None:
    assert rendered("text", in_cell(4)).startswith("train.ipynb:cell 4:5:9: ")


def test_text_statistics() -> None:
    warning = diagnostic(severity=Severity.WARNING)
    assert rendered("text", warning, warning, statistics=True, quiet=True) == "2  AMP104  [*] log-sum-exp\n"


def test_text_summary_counts() -> None:
    last = rendered("text", *VARIETY, silenced=2).splitlines()[-2:]
    assert last[0] == "Found 3 errors, 1 warning and 1 info in 3 of 3 files (2 suppressed)."
    assert rendered("text") == "No findings in 3 files.\n"


def test_text_colours_only_when_told() -> None:
    assert "\x1b[" in rendered("text", VARIETY[0], colour=True)
    assert "\x1b[" not in rendered("text", VARIETY[0])


@pytest.mark.parametrize(
    ("environment", "terminal", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_colour_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], terminal: bool, expected: bool
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert wants_colour(terminal) is expected


@given(st.text())
def test_printable_is_printable(text: str) -> None:
    shown = printable(text)
    assert all(character.isprintable() or unicodedata.category(character) == "Zs" for character in shown)
    shown.encode("utf-8")


# -- json ----------------------------------------------------------------------------------------------------------


def test_json() -> None:
    assert json.loads(rendered("json", VARIETY[0])) == [
        {
            "cell": None,
            "code": "AMP104",
            "name": "log-sum-exp",
            "severity": "error",
            "message": "exp overflows above 11.09 in float16",
            "filename": "/program/train.py",
            "location": {"row": 5, "column": 9},
            "end_location": {"row": 5, "column": 40},
            "fix": {
                "applicability": "safe",
                "message": "use torch.logsumexp",
                "edits": [
                    {
                        "content": "torch.logsumexp(x, -1)",
                        "location": {"row": 5, "column": 9},
                        "end_location": {"row": 5, "column": 40},
                        "cell": None,
                    }
                ],
            },
            "related": [],
            "url": json.loads(rendered("json", VARIETY[0]))[0]["url"],
        }
    ]
    assert rendered("json") == "[]\n"


# -- CI ------------------------------------------------------------------------------------------------------------


def parsed_command(line: str) -> tuple[str, dict[str, str], str]:
    """A workflow command as GitHub's runner reads it."""
    match = re.fullmatch(r"::(\w+) ([^:]*)::(.*)", line)
    assert match, line
    pairs = dict(pair.split("=", 1) for pair in match[2].split(","))

    def decoded(text: str, *codes: tuple[str, str]) -> str:
        for code, character in (*codes, ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
            text = text.replace(code, character)
        return text

    properties = {key: decoded(value, ("%3A", ":"), ("%2C", ",")) for key, value in pairs.items()}
    return match[1], properties, decoded(match[3])


def test_github() -> None:
    commands = [parsed_command(line) for line in rendered("github", *VARIETY).splitlines()]
    assert [command for command, _, _ in commands] == ["error", "warning", "notice", "error", "error"]
    _, properties, message = commands[0]
    assert properties == {
        "title": "amplint (AMP104 log-sum-exp)",
        "file": "train.py",
        "line": "5",
        "col": "9",
        "endLine": "5",
        "endColumn": "40",
    }
    assert message == "exp overflows above 11.09 in float16\nhelp: use torch.logsumexp (safe fix)"
    assert commands[1][2] == "100% of\r\nthe, time: [see] <|>"
    assert commands[2][1]["file"] == "deep/a\\x1b[31m,:%\n]b\\u202e\\udce9.py"
    assert "line" not in commands[4][1]
    assert commands[4][2].startswith("cell 4, line 5: ")


def test_sarif() -> None:
    document = json.loads(rendered("sarif", *VARIETY))
    schema = json.loads((SCHEMAS / "sarif-2.1.0.json").read_text())
    jsonschema.Draft4Validator(schema).validate(document)
    (run,) = document["runs"]
    results = run["results"]
    assert [result["level"] for result in results] == ["error", "warning", "note", "error", "error"]
    assert len({result["partialFingerprints"]["amplint/v1"] for result in results[:2]}) == 2
    rules = run["tool"]["driver"]["rules"]
    assert all(rules[result["ruleIndex"]]["id"] == result["ruleId"] for result in results)
    location = results[0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"] == {"uri": "train.py", "uriBaseId": "SRCROOT"}
    assert location["region"] == {"startLine": 5, "startColumn": 9, "endLine": 5, "endColumn": 40}
    (change,) = results[0]["fixes"][0]["artifactChanges"]
    assert change["replacements"][0]["insertedContent"] == {"text": "torch.logsumexp(x, -1)"}
    assert results[3]["relatedLocations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "main.py"
    jsonschema.Draft4Validator(schema).validate(json.loads(rendered("sarif")))


def test_gitlab() -> None:
    issues = json.loads(rendered("gitlab", *VARIETY))
    issue = {
        "type": "object",
        "required": ["description", "check_name", "fingerprint", "severity", "location"],
        "properties": {
            "description": {"type": "string"},
            "check_name": {"type": "string"},
            "fingerprint": {"type": "string", "minLength": 1},
            "severity": {"enum": ["info", "minor", "major", "critical", "blocker"]},
            "location": {
                "type": "object",
                "required": ["path", "lines"],
                "properties": {
                    "path": {"type": "string", "pattern": "^[^/.]"},
                    "lines": {"type": "object", "required": ["begin"], "properties": {"begin": {"type": "integer"}}},
                },
            },
        },
    }
    jsonschema.validate(issues, {"type": "array", "items": issue})
    assert len({issue["fingerprint"] for issue in issues}) == len(issues)
    assert [issue["severity"] for issue in issues] == ["major", "minor", "info", "major", "major"]


def test_junit() -> None:
    root = ElementTree.fromstring(rendered("junit", *VARIETY))
    assert root.tag == "testsuites"
    assert root.get("failures") == root.get("tests") == "5"
    suites = root.findall("testsuite")
    assert sum(int(suite.get("failures", "0")) for suite in suites) == 5
    case = suites[0].find("testcase")
    assert case is not None
    assert case.attrib == {"name": "AMP104 log-sum-exp", "classname": "train.py", "file": "train.py", "line": "5"}
    failure = case.find("failure")
    assert failure is not None
    assert failure.text == "line 5, column 9: exp overflows above 11.09 in float16"
    clean = ElementTree.fromstring(rendered("junit"))
    assert (clean.get("tests"), clean.get("failures")) == ("1", "0")


def test_rdjson() -> None:
    place = {"type": "object", "required": ["line"], "properties": {"line": {"type": "integer"}}}
    span = {"type": "object", "required": ["start"], "properties": {"start": place, "end": place}}
    found = {
        "type": "object",
        "additionalProperties": False,
        "required": ["message", "location"],
        "properties": {
            "message": {"type": "string"},
            "location": {"type": "object", "required": ["path"], "properties": {"range": span}},
            "severity": {"enum": ["UNKNOWN_SEVERITY", "ERROR", "WARNING", "INFO"]},
            "code": {"type": "object", "required": ["value"]},
            "suggestions": {"type": "array", "items": {"type": "object", "required": ["range", "text"]}},
        },
    }
    schema = {
        "type": "object",
        "required": ["diagnostics"],
        "properties": {"source": {"type": "object"}, "diagnostics": {"type": "array", "items": found}},
    }
    document = json.loads(rendered("rdjson", *VARIETY))
    jsonschema.validate(document, schema)
    assert document["diagnostics"][0]["suggestions"][0]["text"] == "torch.logsumexp(x, -1)"
    assert "suggestions" not in document["diagnostics"][4]


def test_azure() -> None:
    lines = rendered("azure", *VARIETY).splitlines()
    pattern = re.compile(
        r"##vso\[task\.logissue type=(error|warning);sourcepath=([^;\]]+);linenumber=(\d+);columnnumber=(\d+);"
        r"code=(\w+);\](.+)"
    )
    matches = [pattern.fullmatch(line) for line in lines]
    assert all(matches)
    assert [match[1] for match in matches if match] == ["error", "warning", "warning", "error", "error"]
    assert matches[0]
    assert matches[0].groups()[1:5] == ("train.py", "5", "9", "AMP104")


def test_pylint() -> None:
    lines = rendered("pylint", *VARIETY).splitlines()
    matches = [re.fullmatch(r"(.+?):(\d+): \[(\w+) ([\w-]+)\] (.+)", line) for line in lines]
    assert all(matches)
    assert matches[0]
    assert matches[0].groups() == (
        "train.py",
        "5",
        "AMP104",
        "log-sum-exp",
        "exp overflows above 11.09 in float16",
    )


def test_markdown() -> None:
    lines = rendered("markdown", *VARIETY).splitlines()
    assert lines[0] == "### amplint"
    assert lines[2] == "3 error, 1 warning, 1 info"
    rows = lines[6:]
    assert len(rows) == 5
    for row in rows:
        assert len(re.findall(r"(?<!\\)\|", row)) == 5
    assert r"\<\|\>" in rows[1]
