"""Checks and fixes every Python file under some folders: no crash, no hang, fixes that parse and end.

    python tests/at_scale.py FOLDER ... [--limit FILES] [--seconds BOUND]

The files of a folder are linked with each other, and fixed (safely and unsafely) in the rounds of `amplint fix`, in
memory alone. For each: what `compile()` reads, amplint reads, every finding has a place in the file, the fixes give a
text that parses, a second run over the fixed files changes nothing, and no judgement takes longer than the bound.
Following half precision through the project, which the first file to ask waits for, is timed apart.
The exit status is 1 if anything of that fails; the last line says how many files, findings, fixes and seconds.
"""

from __future__ import annotations

import argparse
import ast
import gc
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from amplint.commands.common import Run
from amplint.commands.fix import mend
from amplint.config import Settings
from amplint.discovery import Excludes, walk
from amplint.pipeline import Checked, Linter, Plan, read_bytes, read_source
from amplint.registry import all_rules
from amplint.source import UnreadableSourceError
from amplint.tree import parse


@dataclass
class Tally:
    """What a run has seen so far. `faults` are lines that say what failed where."""

    files: int = 0
    findings: int = 0
    fixes: int = 0
    following: float = 0.0
    """The longest time it took to follow half precision through a project."""
    slowest: float = 0.0
    slowest_file: Path | None = None
    faults: list[str] = field(default_factory=list)

    def blame(self, path: Path, fault: str) -> None:
        """Note a fault once, and print it at once: a run may take long."""
        line = f"{path}: {fault}"
        if line not in self.faults:
            self.faults.append(line)
            print(line, flush=True)


class Watched(Linter):
    """A linter that times its judgements and looks at what they say. Seconds are of processor time."""

    def __init__(
        self, files: Callable[[], list[Path]], tally: Tally, bound: float, contents: dict[Path, bytes] | None = None
    ) -> None:
        super().__init__(files, Plan(frozenset(rule.code for rule in all_rules())), contents)
        self.tally = tally
        self.bound = bound
        self.found: dict[Path, int] = {}
        """How many findings each file had at first."""

    def check(self, path: Path) -> Checked:
        begun, followed = time.process_time(), self.seconds["regions"]
        checked = super().check(path)
        following = self.seconds["regions"] - followed
        taken = time.process_time() - begun - following
        self.tally.following = max(self.tally.following, following)
        if taken > self.tally.slowest:
            self.tally.slowest, self.tally.slowest_file = taken, path
        if taken > self.bound:
            self.tally.blame(path, f"took {taken:.1f} s")
        for fault in self._faults(path, checked):
            self.tally.blame(path, fault)
        self.found.setdefault(path, len(checked.findings))
        return checked

    def _faults(self, path: Path, checked: Checked) -> Iterator[str]:
        yield from checked.failures
        lines = len(checked.source.line_starts) if checked.source else sys.maxsize
        for finding in checked.findings:
            if not 1 <= finding.start.line <= lines:
                yield f"{finding.code} at line {finding.start.line}, which is not there"


def try_folder(folder: Path, tally: Tally, limit: int, bound: float) -> None:
    """Try every file under an absolute folder, `limit` in all; installed packages only if they are named."""
    excludes = Excludes(("site-packages",), folder)
    files = [path for path in walk(folder, excludes, respect_gitignore=False) if path.suffix == ".py"]
    tried = files[: limit - tally.files]
    tally.files += len(tried)
    for path in tried:
        if not _reads(path) and _compiles(path):
            tally.blame(path, "compile() reads it, amplint does not")
    linter = Watched(lambda: files, tally, bound)
    outcomes = mend(_run(tried, linter), unsafe=True)
    tally.findings += sum(linter.found.values())
    for outcome in outcomes:
        tally.fixes += len(outcome.fixed)
        if outcome.error:
            tally.blame(outcome.path, outcome.error)
        if outcome.change:
            before, after = outcome.change
            if not _parses(after.text) and _parses(before.text):
                tally.blame(outcome.path, "the fixed file does not parse")
    again = Watched(lambda: files, tally, bound, linter.contents)
    for outcome in mend(_run(list(linter.contents), again), unsafe=True):
        if outcome.change:
            tally.blame(outcome.path, "a second run changes more")


def _run(files: list[Path], linter: Linter) -> Run:
    return Run(Settings(), files, linter, standard_input=False, jobs=1)


def _reads(path: Path) -> bool:
    """Whether amplint reads a file, be it one that no rule asks for."""
    try:
        parse(read_source(path, read_bytes(path)))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError, UnreadableSourceError):
        return False
    return True


def _compiles(path: Path) -> bool:
    try:
        compile(read_bytes(path), str(path), "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
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
    parser.add_argument("--seconds", type=float, default=30.0, help="the bound for one judgement of a file, CPU")
    arguments = parser.parse_args()
    gc.set_threshold(100_000, 50, 1_000)  # as `amplint fix` does
    begun = time.monotonic()
    tally = run(arguments.folders, arguments.limit, arguments.seconds)
    print(
        f"{tally.files} files, {tally.findings} findings, {tally.fixes} fixes, {len(tally.faults)} faults, "
        f"slowest {tally.slowest:.1f} s ({tally.slowest_file}), following {tally.following:.1f} s, "
        f"{time.monotonic() - begun:.0f} s"
    )
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
