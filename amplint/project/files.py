"""Which file an import loads, from paths alone."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path

_NEVER_LOCAL = frozenset({"torch", "torchvision", "torchaudio", "numpy"})


class Files:
    """The paths of a project, by the last part of the dotted name that imports them."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths = {os.path.abspath(path): path for path in paths}
        self._by_name: defaultdict[str, list[str]] = defaultdict(list)
        for path in self.paths:
            folder, name = os.path.split(path)
            stem, extension = os.path.splitext(name)
            if extension == ".py":
                self._by_name[os.path.basename(folder) if stem == "__init__" else stem].append(path)

    def imported(self, dotted: str, importer: Path) -> tuple[Path, ...]:
        """The file that `import dotted` in `importer` loads; leading dots are relative.

        The folders around the importer are tried as roots, nearest first; then any root that no package contains.
        """
        here = os.path.dirname(os.path.abspath(importer))
        parts = dotted.lstrip(".").split(".") if dotted.strip(".") else []
        if level := len(dotted) - len(dotted.lstrip(".")):
            return self._at(os.path.normpath(os.path.join(here, *[".."] * (level - 1))), parts)
        if parts[0] in _NEVER_LOCAL or (parts[0] in sys.stdlib_module_names and self._is_package(here)):
            return ()
        if not self._by_name.get(parts[-1]):
            return ()
        for root in _ancestors(here):
            if found := self._at(root, parts):
                return found
        return self._anywhere(parts, here)

    def loaded(self, imports: Iterable[str], importer: Path) -> frozenset[Path]:
        """The files that imports of these dotted names in `importer` seem to load."""
        return frozenset(path for dotted in imports for path in self.imported(dotted, importer))

    def _at(self, root: str, parts: list[str]) -> tuple[Path, ...]:
        base = os.path.join(root, *parts)
        for candidate in (f"{base}.py", os.path.join(base, "__init__.py")) if parts else (f"{base}/__init__.py",):
            if path := self.paths.get(candidate):
                return (path,)
        return ()

    def _anywhere(self, parts: list[str], here: str) -> tuple[Path, ...]:
        """The one file of that name under a root elsewhere (`src/`), or the one nearest to the importer."""
        if parts[0] in sys.stdlib_module_names:
            return ()
        near: defaultdict[int, list[str]] = defaultdict(list)
        for path in self._by_name[parts[-1]]:
            base = path.removesuffix("/__init__.py").removesuffix(".py")
            root = base.removesuffix("/" + "/".join(parts))
            if root != base and not self._is_package(root):
                near[len(os.path.commonpath([path, here]))].append(path)
        nearest = near[max(near)] if near else []
        return (self.paths[nearest[0]],) if len(nearest) == 1 else ()

    def _is_package(self, folder: str) -> bool:
        return os.path.join(folder, "__init__.py") in self.paths


def is_among(path: Path, loaded: Collection[Path]) -> bool:
    """Whether a file, or the package that it stands in, is among those that imports load."""
    return path in loaded or path.parent / "__init__.py" in loaded


def _ancestors(folder: str) -> Iterable[str]:
    while True:
        yield folder
        folder, previous = os.path.dirname(folder), folder
        if folder == previous:
            return
