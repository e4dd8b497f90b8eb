"""Checks and fixes every Python file under some folders: no crash, no hang, fixes that parse and end.

    python tests/at_scale.py FOLDER ... [--limit FILES] [--seconds BOUND]

For each file: amplint and `compile()` agree on what is a syntax error, every finding has a place in the file, the fixes
(safe and unsafe) give a text that parses, a second run changes nothing, and no file takes longer than the bound.
The exit status is 1 if anything of that fails; the last line says how many files, findings, fixes and seconds.
"""

from __future__ import annotations

import argparse
import ast
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from amplint.discovery import Excludes, walk
from amplint.fix import fix_source
from amplint.pipeline import Linter, Plan, read_source
from amplint.registry import all_rules
from amplint.rule import Finding
from amplint.source import Source, UnreadableSourceError

NOT_JUDGED = ("AMP000", "AMP001")


@dataclass
class Tally:
    """What a run has seen so far. `faults` are lines that say what failed where."""

    files: int = 0
    findings: int = 0
    fixes: int = 0
    slowest: float = 0.0
    faults: list[str] = field(default_factory=list)


def try_folder(folder: Path, tally: Tally, limit: int, bound: float) -> None:
    """Try every file under an absolute folder, `limit` in all; installed packages only if they are named."""
    excludes = Excludes(("site-packages",), folder)
    files = [path for path in walk(folder, excludes, respect_gitignore=False) if path.suffix == ".py"]
    plan = Plan(frozenset(rule.code for rule in all_rules()))
    linter = Linter(lambda: files, plan)
    for path in files:
        if tally.files >= limit:
            return
        tally.files += 1
        begun = time.process_time()
        tally.faults += [f"{path}: {fault}" for fault in _faults(linter, path, tally)]
        taken = time.process_time() - begun
        tally.slowest = max(tally.slowest, taken)
        if taken > bound:
            tally.faults.append(f"{path}: took {taken:.1f} s")


def _faults(linter: Linter, path: Path, tally: Tally) -> Iterator[str]:
    checked = linter.check(path)
    tally.findings += len(checked.findings)
    yield from checked.failures
    data = path.read_bytes()
    codes = {finding.code for finding in checked.findings}
    if checked.source is None or "AMP000" in codes:
        if "AMP000" in codes and _compiles(path, data):
            yield "compile() reads it, amplint does not"
        return
    for finding in checked.findings:
        if not 1 <= finding.start.line <= len(checked.source.line_starts):
            yield f"{finding.code} at line {finding.start.line}, which is not there"
    if any(finding.fix for finding in checked.findings):
        yield from _faults_of_fix(linter, path, checked.source, tally)


def _faults_of_fix(linter: Linter, path: Path, source: Source, tally: Tally) -> Iterator[str]:
    def find(current: Source) -> tuple[Finding, ...]:
        linter.replace(path, current.to_bytes(current.text))
        return linter.check(path).findings

    result = fix_source(source, find, unsafe=True)
    tally.fixes += len(result.fixed)
    if result.error:
        yield result.error
    elif not _parses(result.text) and _parses(source.text):
        yield "the fixed file does not parse"
    elif fix_source(result.source, find, unsafe=True).text != result.text:
        yield "a second fix changes more"
    linter.contents.pop(path, None)


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _compiles(path: Path, data: bytes) -> bool:
    try:
        text = read_source(path, data).text
        compile(text, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, UnreadableSourceError):
        return False
    return True


def run(folders: list[Path], limit: int, bound: float) -> Tally:
    tally = Tally()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for folder in folders:
            try_folder(folder.resolve(), tally, limit, bound)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--limit", type=int, default=sys.maxsize, help="how many files at most")
    parser.add_argument("--seconds", type=float, default=30.0, help="the bound for one file, CPU")
    arguments = parser.parse_args()
    begun = time.monotonic()
    tally = run(arguments.folders, arguments.limit, arguments.seconds)
    print(*tally.faults, sep="\n")
    print(
        f"{tally.files} files, {tally.findings} findings, {tally.fixes} fixes, {len(tally.faults)} faults, "
        f"slowest {tally.slowest:.1f} s, {time.monotonic() - begun:.0f} s"
    )
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
