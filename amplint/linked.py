"""Which files of a project a few of them are linked with: those that import them, and all that any of these import.

Only these can call into the checked files, or be called from there, directly or not. A script in a folder of many is
judged as if it stood alone, with the library that all of them import. Read off the texts; a package counts as one.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

FEW = 20
"""For so many checked files or more, all files of the project count as linked: sorting them out would not pay."""


def linked(checked: Iterable[Path], around: Iterable[Path], links: Callable[[Path], Iterable[str]]) -> list[Path]:
    """The files of `around` that imports lead to the checked ones and from there, with the checked ones themselves.

    `links` gives the dotted names that a file's imports may load a file for.
    """
    from amplint.project.files import Files

    paths = [Path(os.path.abspath(path)) for path in around]
    files = Files(paths)
    packages = {path.parent for path in paths if path.name == "__init__.py"}
    imported: defaultdict[Path, set[Path]] = defaultdict(set)
    importing: defaultdict[Path, set[Path]] = defaultdict(set)
    for path in paths:
        here = _node(path, packages)
        for dotted in links(path):
            for found in files.imported(dotted, path):
                there = _node(found, packages)
                imported[here].add(there)
                importing[there].add(here)
    start = {_node(Path(os.path.abspath(path)), packages) for path in checked}
    reached = _closure(_closure(start, importing), imported)
    return [path for path in paths if _node(path, packages) in reached]


def _closure(start: set[Path], following: Mapping[Path, set[Path]]) -> set[Path]:
    """What can be reached in any number of steps, none included."""
    reached: set[Path] = set()
    pending = list(start)
    while pending:
        node = pending.pop()
        if node not in reached:
            reached.add(node)
            pending += following.get(node, ())
    return reached


def _node(path: Path, packages: set[Path]) -> Path:
    """What stands for a file: the outermost package around it, or the file."""
    node = path
    for folder in path.parents:
        if folder not in packages:
            return node
        node = folder
    return node
