"""What the files of a project tell by themselves, kept between runs: the next one reads those that changed.

A summary holds for the content of its file: one that has only another time (a fresh checkout) is as it was. All runs in
a project share them, whatever they check and by which settings.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from amplint import index
from amplint.cache_folder import WORTHWHILE, Stamp, digest, settled, stamp_of, write
from amplint.index import Summary

_OWN = ["amplint's summaries, format 1", digest(Path(index.__file__).read_bytes())]
"""Another version may read a text otherwise."""
_KINDS = (*index.NAMES, index.IMPORTS, index.LINKS)

_Entry = tuple[Stamp, str, Sequence[str]]
"""The stamp and digest of a file, and its names of each kind, in one line each."""


class Summaries:
    """The summaries of one project. The file is read when the first is asked for."""

    def __init__(self, folder: Path, read: Callable[[Path], bytes], text: Callable[[Path, bytes], str]) -> None:
        """`read` gives a file's bytes, or raises OSError; `text` the program in them, empty if there is none."""
        self._file = folder / "summaries.jsonl"
        self._read = read
        self._text = text
        self._entries: dict[str, _Entry] | None = None
        self._begun = time.time_ns()
        self._is_new = False

    def of(self, path: Path) -> Summary:
        """What a file tells as it is now."""
        _, _, lines = self._entry(path)
        return {kind: line.split(" ") if line else () for kind, line in zip(_KINDS, lines, strict=True)}

    def save(self) -> None:
        """Keep what is new, with what was known before of files that are still there."""
        if self._is_new and self._entries is not None and len(self._entries) >= WORTHWHILE:
            write(self._file, self._written(self._entries))
        self._is_new = False

    def _written(self, entries: Mapping[str, _Entry]) -> Iterator[str]:
        """The lines of the file: what wrote them, and one for each entry."""
        yield _line(_OWN)
        for path, (stamp, content, names) in entries.items():
            if os.path.exists(path):
                yield _line([path, settled(stamp, self._begun), content, names])

    def _entry(self, path: Path) -> _Entry:
        if self._entries is None:
            self._entries = self._load()
        known = self._entries.get(str(path))
        stamp = stamp_of(path)
        if known is not None and known[0] == stamp:
            return known
        self._is_new = True
        try:
            data = self._read(path)
        except OSError:
            data = b""
        content = digest(data)
        lines = known[2] if known is not None and known[1] == content else self._lines(self._text(path, data))
        entry = self._entries[str(path)] = (stamp, content, lines)
        return entry

    def _lines(self, text: str) -> tuple[str, ...]:
        summary = index.summary(text, with_links=True)
        return tuple(" ".join(summary[kind]) for kind in _KINDS)

    def _load(self) -> dict[str, _Entry]:
        try:
            with self._file.open(encoding="utf-8") as file:
                if json.loads(next(file)) != _OWN:
                    return {}
                return dict(_read(json.loads(line)) for line in file)
        except (OSError, StopIteration, ValueError, TypeError, RecursionError):
            return {}


def _line(data: object) -> str:
    return json.dumps(data, separators=(",", ":")) + "\n"


def _read(data: Sequence[Any]) -> tuple[str, _Entry]:
    """An entry as it was written. Raises ValueError or TypeError for what amplint never wrote."""
    path, (changed, size), content, names = data
    if len(names) != len(_KINDS) or not all(isinstance(line, str) for line in (path, content, *names)):
        raise ValueError("no lines of names")
    return path, ((changed, size), content, names)
