"""What `verify` and `trace` ask of the linter, which runs as a process of its own. Imports no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from amplint.runtime.process import NEUTRAL


class LinterError(Exception):
    """The linter failed; the message is what it said."""


@dataclass(frozen=True, slots=True)
class FindingAt:
    """A finding, as far as a run needs to know it."""

    file: str
    first_line: int
    last_line: int
    code: str
    name: str
    message: str
    related: tuple[tuple[str, int], ...] = ()
    """File and line of the other places that the fault is made of."""


def findings_in(folder: Path) -> list[FindingAt]:
    """All findings in a folder."""
    report = json.loads(_amplint("check", "--output-format", "json", str(folder)))
    return [
        FindingAt(
            record["filename"],
            record["location"]["row"],
            record["end_location"]["row"],
            record["code"],
            record["name"],
            record["message"],
            tuple((place["filename"], place["location"]["row"]) for place in record["related"]),
        )
        for record in report
    ]


def fix(folder: Path, *, unsafe: bool) -> None:
    """Apply the fixes to a folder."""
    _amplint("fix", "--apply", "--quiet", *(["--unsafe-fixes"] if unsafe else []), str(folder))


def _amplint(*arguments: str) -> str:
    command = [sys.executable, "-m", "amplint", *arguments]
    done = subprocess.run(
        command, cwd=NEUTRAL, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", check=False
    )
    if done.returncode not in (0, 1):
        raise LinterError(done.stderr.strip() or f"{' '.join(command)} exited with {done.returncode}")
    return done.stdout
