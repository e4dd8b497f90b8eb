"""Which files are checked: what the user names, less what ignore files and excludes leave out.

Only regular files are ever opened; folders that are symbolic links are not entered, so loops are harmless.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

SUFFIXES = (".py", ".ipynb")
DEFAULT_EXCLUDE = (
    *(".amplint_cache", ".bzr", ".direnv", ".eggs", ".git", ".hg", ".ipynb_checkpoints", ".mypy_cache", ".nox"),
    *(".pytest_cache", ".ruff_cache", ".svn", ".tox", ".venv", ".vscode", "__pycache__", "__pypackages__", "_build"),
    *("build", "dist", "node_modules", "site-packages", "venv"),
)
ROOT_MARKERS = ("pyproject.toml", ".git", "setup.py", "setup.cfg", ".hg")
SURROUNDINGS_LIMIT = 5_000
"""How many files around the checked ones are linked with them at most."""


class MissingPathError(Exception):
    """A path named by the user that is not there."""


@dataclass(frozen=True)
class Excludes:
    """Patterns in the language of `.gitignore`, relative to `root`."""

    patterns: tuple[str, ...]
    root: Path

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(p for p in self.patterns if not set(p) & set("*?[]!/\\#"))

    @cached_property
    def _spec(self) -> GitIgnoreSpec | None:
        return _spec(p for p in self.patterns if p not in self._names)

    def match(self, path: Path, *, folder: bool) -> bool:
        """Whether this entry is left out, its parents aside."""
        if path.name in self._names:
            return True
        if self._spec is None or not path.is_relative_to(self.root):
            return False
        relative = path.relative_to(self.root).as_posix()
        return bool(self._spec.check_file(f"{relative}/" if folder else relative).include)

    def match_any(self, path: Path) -> bool:
        """Whether the file or one of its folders below `root` is left out."""
        inside = path.relative_to(self.root).parents if path.is_relative_to(self.root) else path.parents
        folders = [self.root / parent for parent in inside if parent.name]
        return self.match(path, folder=False) or any(self.match(folder, folder=True) for folder in folders)


def discover(
    paths: Iterable[Path], excludes: Excludes, *, force_exclude: bool = False, respect_gitignore: bool = True
) -> list[Path]:
    """The absolute paths of the files to check, sorted, each once.

    A file that is named itself is taken whatever its suffix, and unless `force_exclude`, though it be excluded.
    Raises MissingPathError for a path that is not there.
    """
    found: dict[Path, None] = {}
    for given in paths:
        path = Path(os.path.abspath(given))
        try:
            mode = path.stat().st_mode
        except OSError as error:
            raise MissingPathError(f"{given}: {error.strerror or error}") from None
        if force_exclude and excludes.match_any(path):
            continue
        if stat.S_ISDIR(mode):
            found.update(dict.fromkeys(walk(path, excludes, respect_gitignore=respect_gitignore)))
        elif stat.S_ISREG(mode):
            found[path] = None
    return sorted(_without_doubles(found))


def surroundings(paths: Iterable[Path], checked: Iterable[Path], excludes: Excludes) -> list[Path]:
    """The files that are linked with the checked ones, themselves included: those of the same project root.

    The root is the nearest folder above a path that holds a pyproject.toml, a repository or the like. Without one,
    there are only the other files of its folder. None is read here. `checked` are the files that `paths` stand for.
    """
    found = dict.fromkeys(checked)
    limit = len(found) + SURROUNDINGS_LIMIT
    given = dict.fromkeys(map(_absolute, paths))
    for folder in dict.fromkeys(path if path.is_dir() else path.parent for path in given):
        found.update(dict.fromkeys(_modules_in(folder)))
        root = project_root(folder)
        if root is None or root in given:  # what stands in a folder that is checked is among the checked
            continue
        for path in walk(root, excludes):
            if len(found) >= limit:
                break
            found[path] = None
    return list(found)


def project_root(folder: Path) -> Path | None:
    """The nearest folder, from `folder` upward, that marks a project; the home folder and `/` are none."""
    for candidate in (folder, *folder.parents):
        if candidate == candidate.parent or candidate == Path.home():
            return None
        if any((candidate / marker).exists() for marker in ROOT_MARKERS):
            return candidate
    return None


def walk(top: Path, excludes: Excludes, *, respect_gitignore: bool = True) -> Iterator[Path]:
    """The Python files and notebooks under an absolute folder that neither ignore files nor excludes leave out."""
    ignores = _ignores_above(top) if respect_gitignore else ()
    if _ignored(top, True, ignores):
        ignores = ()  # whoever names an ignored folder means it
    pending = [(top, ignores)]
    while pending:
        folder, ignores = pending.pop()
        try:
            with os.scandir(folder) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError:
            continue
        if respect_gitignore and any(entry.name == ".gitignore" for entry in entries):
            ignores = (*ignores, *_read_ignore(folder / ".gitignore", folder))
        inner = []
        for entry in entries:
            path = folder / entry.name
            is_folder = _is_folder(entry)
            if not is_folder and not (entry.name.endswith(SUFFIXES) and _is_file(entry)):
                continue
            if excludes.match(path, folder=is_folder) or _ignored(path, is_folder, ignores):
                continue
            if is_folder:
                inner.append((path, ignores))
            else:
                yield path
        pending += reversed(inner)


_Ignore = tuple[Path, "GitIgnoreSpec"]


def _ignored(path: Path, folder: bool, ignores: tuple[_Ignore, ...]) -> bool:
    """What the innermost ignore file that speaks of `path` says."""
    for base, spec in reversed(ignores):
        relative = path.relative_to(base).as_posix()
        verdict = spec.check_file(f"{relative}/" if folder else relative).include
        if verdict is not None:
            return verdict
    return False


def _ignores_above(top: Path) -> tuple[_Ignore, ...]:
    """The ignore files of the repository that `top` lies in, outermost first; `top`'s own is read by the walk."""
    chain = [top, *top.parents]
    root = next((i for i, folder in enumerate(chain) if (folder / ".git").exists()), None)
    if root is None:
        return ()
    ignores: list[_Ignore] = list(_read_ignore(chain[root] / ".git" / "info" / "exclude", chain[root]))
    for folder in reversed(chain[1 : root + 1]):
        ignores += _read_ignore(folder / ".gitignore", folder)
    return tuple(ignores)


def _read_ignore(path: Path, base: Path) -> list[_Ignore]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return []
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    spec = _spec(lines)
    return [] if spec is None else [(base, spec)]


def _spec(lines: Iterable[str]) -> GitIgnoreSpec | None:
    patterns = [line for line in lines if line.strip() and not line.startswith("#")]
    if not patterns:
        return None
    from amplint.globs import ignore_spec

    try:
        return ignore_spec(patterns)
    except ValueError:
        return ignore_spec(pattern for pattern in patterns if _valid(pattern))


def _valid(pattern: str) -> bool:
    from amplint.globs import ignore_spec

    try:
        ignore_spec([pattern])
    except ValueError:
        return False
    return True


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Whether it is, or is a link to, a regular file."""
    try:
        return entry.is_file()
    except OSError:
        return False


def _modules_in(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as scan:
            yield from sorted(folder / e.name for e in scan if e.name.endswith(SUFFIXES) and _is_file(e))
    except OSError:
        return


def _without_doubles(paths: Iterable[Path]) -> Iterator[Path]:
    """Drop links whose target is among the paths, or that share one with an earlier path."""
    ordered = sorted(paths, key=lambda path: (path.is_symlink(), path))
    seen: set[Path] = set()
    for path in ordered:
        if path.is_symlink():
            target = path.resolve()
            if target in seen:
                continue
            seen.add(target)
        else:
            seen.add(path)
        yield path


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))
