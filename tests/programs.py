"""Little programs as tests need them: judged in memory, with the real project, analyses and rules."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

from amplint.context import Analyses, Context, Options
from amplint.fix import fix_source
from amplint.project import Project
from amplint.rule import Example, Finding, Rule
from amplint.source import Source

ROOT = Path("/program")
MAIN = "main.py"
MARK = re.compile(r"[ \t]*# expect$", re.MULTILINE)


def program(example: Example | str) -> dict[str, str]:
    """The files of an example by relative path, marks and all."""
    if isinstance(example, str):
        return {MAIN: textwrap.dedent(example)}
    return {name: textwrap.dedent(text) for name, text in {**example.files, MAIN: example.source}.items()}


def unmarked(files: Mapping[str, str]) -> dict[str, str]:
    return {name: MARK.sub("", text) for name, text in files.items()}


def marks(files: Mapping[str, str]) -> set[tuple[str, int]]:
    """The (file, line) pairs that end in `# expect`."""
    return {
        (name, number)
        for name, text in files.items()
        for number, line in enumerate(text.splitlines(), 1)
        if MARK.search(line)
    }


def judge(rule: Rule, files: Mapping[str, str], options: Options | None = None) -> list[Finding]:
    """The findings of one rule in all files of a program."""
    sources = {ROOT / name: Source(ROOT / name, text) for name, text in files.items()}
    project = Project(sources, sources.__getitem__)
    analyses = Analyses(project, options or Options())
    findings: list[Finding] = []
    for path in sources:
        module = project.whole(path)
        assert module is not None, f"{path.name} does not parse"
        findings += rule.check(Context(module, analyses))
    return sorted(findings, key=lambda finding: finding.sort_key)


def places(findings: list[Finding]) -> set[tuple[str, int]]:
    return {(finding.path.relative_to(ROOT).as_posix(), finding.start.line) for finding in findings}


def fixed(rule: Rule, files: Mapping[str, str], name: str = MAIN) -> str:
    """The text of one file after all fixes of one rule, safe and unsafe, to the fixpoint."""

    def find(source: Source) -> list[Finding]:
        return [f for f in judge(rule, {**files, name: source.text}) if f.path == ROOT / name]

    return fix_source(Source(ROOT / name, files[name]), find, unsafe=True).text
