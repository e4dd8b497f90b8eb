"""The folder of caches, the files in it, and when a checked file counts as changed.

A cache is a file that is written whole or not at all. Git does not see the folder, and it is not found through a link.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from amplint import __version__

FOLDER = ".amplint_cache"
WORTHWHILE = 20
"""How many files it takes to make a cache pay."""
_MARKER = "CACHEDIR.TAG"
_SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55\n# A cache of amplint. It can be removed at any time.\n"
_GRAIN = 20_000_000
"""Nanoseconds within which two changes of a file can have the same time."""

Stamp = tuple[int, int]
"""When a file was changed last (nanoseconds) and its size; (0, -1) for one that is not there."""


def folder_of(root: Path, chosen: Path | None) -> Path | None:
    """Where the caches of a project go; None where a link stands in its place, which could lead anywhere."""
    folder = chosen if chosen is not None else root / FOLDER
    versioned = folder / __version__
    return None if chosen is None and (folder.is_symlink() or versioned.is_symlink()) else versioned


def clean(folder: Path) -> bool:
    """Remove a cache folder. False, and nothing is touched, if there is none or it is not amplint's."""
    import shutil

    if folder.is_symlink() or not (folder / _MARKER).is_file():
        return False
    shutil.rmtree(folder)
    return True


def write(file: Path, parts: Iterable[str]) -> None:
    """Write a file of the folder, which is made where it is missing; where that cannot be done, nothing is written."""
    with contextlib.suppress(OSError):
        _prepare(file.parent)
        _write_whole(file, parts)


def stamp_of(path: Path) -> Stamp:
    """The stamp of a file as it is now."""
    try:
        status = path.stat()
    except OSError:
        return 0, -1
    return status.st_mtime_ns, status.st_size


def settled(stamp: Stamp, begun: int) -> Stamp:
    """The stamp; for a file changed just as the run began, which may have changed again since, one that never holds."""
    return (0, 0) if begun - stamp[0] < _GRAIN else stamp


def digest(data: bytes) -> str:
    """What tells a file's content from any other."""
    import hashlib

    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _prepare(folder: Path) -> None:
    """Make the folder, marked as a cache and ignored by git."""
    top = folder.parent
    if (folder / ".").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in ((".gitignore", "*\n"), (_MARKER, _SIGNATURE)):
        if not (top / name).exists():
            _write_whole(top / name, [text])


def _write_whole(path: Path, parts: Iterable[str]) -> None:
    import tempfile

    handle, name = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(parts)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
