"""Which files of a project a few of them are linked with, directly or not, by imports in either direction.

What no import connects cannot be followed, so it need not be looked at: a script in a folder of many is judged as if
it stood alone. Read off the texts; a package counts as one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from amplint import index
from amplint.project.files import Files

FEW = 20
"""For so many checked files or more, all files of the project count as linked: sorting them out would not pay."""


def linked(checked: Iterable[Path], around: Iterable[Path], text: Callable[[Path], str]) -> list[Path]:
    """The files of `around` that imports connect with a checked one, those included. `text` gives a file's program."""
    paths = [Path(os.path.abspath(path)) for path in around]
    files = Files(paths)
    packages = {path.parent for path in paths if path.name == "__init__.py"}
    neighbours: dict[Path, set[Path]] = {_node(path, packages): set() for path in paths}
    for path in paths:
        here = _node(path, packages)
        for dotted in index.imported_names(text(path)):
            for found in files.imported(dotted, path):
                there = _node(found, packages)
                if there != here:
                    neighbours[here].add(there)
                    neighbours[there].add(here)
    reached: set[Path] = set()
    pending = [_node(Path(os.path.abspath(path)), packages) for path in checked]
    while pending:
        node = pending.pop()
        if node not in reached:
            reached.add(node)
            pending += neighbours.get(node, ())
    return [path for path in paths if _node(path, packages) in reached]


def _node(path: Path, packages: set[Path]) -> Path:
    """What stands for a file: the outermost package around it, or the file."""
    node = path
    for folder in path.parents:
        if folder not in packages:
            return node
        node = folder
    return node
