"""A written list of present findings, so that only new ones are reported.

An entry is recognised by its rule, its file and the text of its line, so it survives when lines move.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amplint.diagnostic import Diagnostic
from amplint.fingerprint import fingerprints

_FORMAT = 1


class BaselineError(Exception):
    """A baseline file that cannot be read; the message names it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A known finding. `path` is relative to the baseline's folder; `line` helps the reader and identifies nothing."""

    fingerprint: str
    code: str
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.code} {self.text}"


def save(target: Path, diagnostics: Sequence[Diagnostic]) -> None:
    """Write the findings to `target`. Raises OSError."""
    folder = target.absolute().parent
    entries = [
        {
            "code": d.finding.code,
            "path": _relative(d.finding.path, folder),
            "line": d.start.line,
            "text": d.line.strip()[:200],
            "fingerprint": mark,
        }
        for d, mark in zip(diagnostics, _marks(diagnostics, folder), strict=True)
    ]
    text = json.dumps({"amplint-baseline": _FORMAT, "findings": entries}, indent=2, ensure_ascii=True)
    target.write_text(f"{text}\n", encoding="utf-8")


def load(path: Path) -> list[Entry]:
    """The entries of a baseline. Raises BaselineError."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise BaselineError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise BaselineError(f"{path}: not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("amplint-baseline") != _FORMAT:
        raise BaselineError(f"{path}: no amplint baseline of format {_FORMAT}")
    try:
        return [_entry(record) for record in document["findings"]]
    except (KeyError, TypeError) as error:
        raise BaselineError(f"{path}: broken entry: {error}") from None


def compare(
    entries: Sequence[Entry], diagnostics: Sequence[Diagnostic], folder: Path, checked: Collection[Path]
) -> tuple[list[Diagnostic], list[Entry]]:
    """The findings that are not among the entries, and the entries that are not among the findings.

    Of the latter only those whose file was checked, or is no longer there. `folder` is the baseline's.
    """
    known = {entry.fingerprint for entry in entries}
    marks = _marks(diagnostics, folder)
    new = [diagnostic for diagnostic, mark in zip(diagnostics, marks, strict=True) if mark not in known]
    met = set(marks)
    gone = [entry for entry in entries if entry.fingerprint not in met and _speaks_of(folder / entry.path, checked)]
    return new, gone


def _marks(diagnostics: Sequence[Diagnostic], folder: Path) -> list[str]:
    return fingerprints(diagnostics, lambda path: _relative(path, folder))


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def _speaks_of(path: Path, checked: Collection[Path]) -> bool:
    path = Path(os.path.abspath(path))
    return path in checked or not path.exists()


def _entry(record: dict[str, Any]) -> Entry:
    return Entry(**{key: record[key] for key in ("fingerprint", "code", "path", "line", "text")})
