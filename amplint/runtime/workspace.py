"""Temporary copies of a script's folder, so that runs and fixes never touch the user's own. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_BYTES = 512 << 20
MOST_FILES = 20_000
_LEFT_OUT = frozenset(
    (
        *(".git", ".hg", ".svn", "__pycache__", ".venv", "venv", ".tox", ".nox", "node_modules", "wandb", "mlruns"),
        *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".amplint_cache", ".ipynb_checkpoints", "lightning_logs"),
    )
)


class TooLargeError(Exception):
    """The folder is too large to copy; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of `root` at `folder`."""

    root: Path
    folder: Path

    def of(self, path: Path) -> Path:
        """Where a file of the root is in the copy."""
        return self.folder / path.resolve().relative_to(self.root)

    def original(self, path: str) -> str:
        """The user's file that a file of the copy stands for; other paths as they are."""
        with contextlib.suppress(ValueError):
            return str(self.root / Path(path).relative_to(self.folder))
        return path


def is_left_out(name: str) -> bool:
    """Whether a folder of that name (version control, caches, environments) is no part of the program."""
    return name in _LEFT_OUT


@contextlib.contextmanager
def copied(root: Path) -> Iterator[Copy]:
    """A copy of a folder that goes when the context ends.

    Links that lead out of the folder, devices and pipes, version control and caches are left out. Raises
    TooLargeError.
    """
    root = root.resolve()
    scratch = Path(tempfile.mkdtemp(prefix="amplint-copy-")).resolve()
    try:
        folder = scratch / (root.name or "root")
        _copy(root, folder)
        yield Copy(root, folder)
    finally:
        _remove(scratch)


def _copy(root: Path, target: Path) -> None:
    files = size = 0
    target.mkdir()
    for folder, folders, names in os.walk(root):  # does not follow links
        here = Path(folder)
        there = target / here.relative_to(root)
        folders[:] = [name for name in folders if not is_left_out(name)]
        for name in list(folders):
            if (here / name).is_symlink():
                folders.remove(name)
                _copy_link(here / name, there / name, root)
            else:
                (there / name).mkdir()
        for name in names:
            source = here / name
            if source.is_symlink():
                _copy_link(source, there / name, root)
            elif source.is_file():
                files += 1
                size += source.stat().st_size
                if files > MOST_FILES or size > MOST_BYTES:
                    limit = f"{MOST_FILES} files or {MOST_BYTES >> 20} MiB"
                    raise TooLargeError(f"{root} has more than {limit} to copy; name a smaller folder with --root")
                with contextlib.suppress(OSError):  # it vanished, or cannot be read
                    shutil.copy2(source, there / name, follow_symlinks=False)


def _copy_link(link: Path, target: Path, root: Path) -> None:
    """A link inside the folder, made relative to the copy; others are left out."""
    destination = link.resolve()
    if destination.is_relative_to(root) and destination.exists():
        target.symlink_to(os.path.relpath(destination, link.parent.resolve()))


def _remove(folder: Path) -> None:
    """Remove the copy whatever permissions the script left in it."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        for parent, folders, _ in os.walk(folder):
            for name in folders:
                with contextlib.suppress(OSError):
                    os.chmod(os.path.join(parent, name), 0o700, follow_symlinks=False)
        shutil.rmtree(folder, ignore_errors=True)
