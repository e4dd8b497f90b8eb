"""The lines that changed since a git revision."""

from __future__ import annotations

import codecs
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from amplint.diagnostic import Diagnostic

_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+(\d+)(?:,(\d+))? @@")
_SAFE = ("-c", "core.fsmonitor=false", "-c", "core.quotePath=true")
"""Settings of the checked repository that would run a program are put out of force."""


class GitError(Exception):
    """Git could not tell; the message is git's own."""


@dataclass(frozen=True, slots=True)
class ChangedLines:
    """The changed lines of each file, and the files that are new altogether; absolute paths."""

    lines: dict[Path, list[range]] = field(default_factory=dict)
    new: frozenset[Path] = frozenset()

    def touch(self, diagnostic: Diagnostic) -> bool:
        """Whether a finding's anchor has a changed line; in a notebook, whether the file changed at all."""
        path = diagnostic.finding.path.resolve()
        if path in self.new:
            return True
        if diagnostic.cell is not None:
            return path in self.lines
        first, last = diagnostic.start.line, diagnostic.end.line
        return any(lines.start <= last and first < lines.stop for lines in self.lines.get(path, ()))


def changed_since(revision: str, folder: Path) -> ChangedLines:
    """What differs between a revision and the working tree of the repository around `folder`. Raises GitError."""
    if revision.startswith("-"):
        raise GitError(f"{revision!r} is no revision")
    root = Path(_git(folder, "rev-parse", "--show-toplevel").strip()).resolve()
    listing = ("diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--unified=0", "--no-prefix")
    diff = _git(root, *listing, revision, "--")
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    new = frozenset(root / name for name in untracked.split("\0") if name)
    return ChangedLines(_lines(diff.split("\n"), root), new)


def _lines(diff: Iterable[str], root: Path) -> dict[Path, list[range]]:
    changed: defaultdict[Path, list[range]] = defaultdict(list)
    path, left = root, 0
    for line in diff:
        if left and line[:1] in ("+", "-", "\\"):
            left -= line[:1] != "\\"
        elif match := _HUNK.match(line):
            start, count = int(match[1]), int(match[2] or 1)
            changed[path].append(range(start, start + count))
            left = count + _removed(line)
        elif line.startswith("+++ "):
            path = root / _unquoted(line[4:].rstrip("\t"))
    return dict(changed)


def _removed(hunk: str) -> int:
    old = hunk.split(" ", 2)[1]
    return int(old.partition(",")[2] or 1)


def _unquoted(name: str) -> str:
    """A path as git prints it: in double quotes with C escapes if it holds anything unusual."""
    if not (name.startswith('"') and name.endswith('"')):
        return name
    data = codecs.escape_decode(name[1:-1].encode())[0]
    return data.decode("utf-8", "surrogateescape") if isinstance(data, bytes) else data


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *_SAFE, *arguments], cwd=folder, capture_output=True, check=False, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        raise GitError(f"git cannot be run: {error.strerror or error}") from None
    if done.returncode:
        raise GitError(done.stderr.decode("utf-8", "replace").strip())
    return done.stdout.decode("utf-8", "surrogateescape")
