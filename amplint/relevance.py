"""Which files have to do with torch: those that speak of it, and those that imports connect with such files.

Read off the bytes and over-approximated (files are told apart by the last part of their module's name): it only spares
parsing what no rule can speak of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path

_WORDS = (b"torch", b"autocast", b"GradScaler")
_FRAMEWORKS = (b"lightning", b"accelerate", b"fastai", b"deepspeed", b"mmengine", b"transformers", b"ignite", b"apex")
_HINTS = (b"scaler.", *_FRAMEWORKS)
_PHRASE = re.compile(
    rb"scaler\.(?:step|scale|unscale_|update)\b|\b(?:import|from)[ \t]+(?:" + b"|".join(_FRAMEWORKS) + rb")\b"
)
_IMPORT = re.compile(rb"\bimport[ \t]+([\w., \t]+)|\bfrom[ \t]+([\w.]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n#;]*)")
_NAME = re.compile(rb"\w+")


class Relevance:
    """Asked of one path after the other; the files around are read only once a file without those words comes up."""

    def __init__(self, files: Callable[[], Iterable[Path]], read: Callable[[Path], bytes]) -> None:
        """`read` may raise OSError; such a file is connected with none."""
        self._files = files
        self._read = read

    def concerns(self, path: Path, data: bytes) -> bool:
        """Whether the file at `path`, which holds `data`, has to do with torch."""
        return speaks_of_torch(data) or path in self._connected

    @cached_property
    def _connected(self) -> frozenset[Path]:
        """The files without those words that a file with them imports, directly or not, or that import one."""
        reached: set[bytes] = set()
        stems: set[bytes] = set()
        others: dict[Path, frozenset[bytes]] = {}
        for path in self._files():
            try:
                data = self._read(path)
            except OSError:
                continue
            if speaks_of_torch(data):
                reached |= _imported(data)
                stems.add(_stem(path))
            else:
                others[path] = _imported(data)
        connected = {path for path, names in others.items() if names & stems}
        pending = [path for path in others if _stem(path) in reached]
        while pending:
            connected.update(pending)
            reached = {name for path in pending for name in others[path]}
            pending = [path for path in others if path not in connected and _stem(path) in reached]
        return frozenset(connected)


def speaks_of_torch(data: bytes) -> bool:
    """Whether the bytes hold a word of torch or of a framework on it."""
    if any(word in data for word in _WORDS):
        return True
    return any(hint in data for hint in _HINTS) and _PHRASE.search(data) is not None


def facts(data: bytes) -> str:
    """All that connections between files are read off: equal facts, equal connections."""
    import hashlib

    names = b",".join(sorted(_imported(data)))
    return hashlib.sha256(b"%d,%s" % (speaks_of_torch(data), names)).hexdigest()[:16]


def _imported(data: bytes) -> frozenset[bytes]:
    """The names that import statements hold."""
    return frozenset(
        name for match in _IMPORT.finditer(data) for group in match.groups(b"") for name in _NAME.findall(group)
    )


def _stem(path: Path) -> bytes:
    """The last part of a module's dotted name."""
    return (path.parent.name if path.stem == "__init__" else path.stem).encode("utf-8", "surrogateescape")
