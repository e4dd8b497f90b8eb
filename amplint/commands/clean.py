"""`amplint clean`: remove the cache."""

from __future__ import annotations

from pathlib import Path

import click

from amplint.commands.common import complain


@click.command("clean", short_help="Remove the cache.")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
def command(paths: tuple[Path, ...]) -> None:
    """Remove the caches of the projects that PATHS (default: here) belong to. Nothing else is touched."""
    from amplint.cache_folder import FOLDER, clean
    from amplint.discovery import project_root

    for path in paths or (Path(),):
        folder = path.absolute()
        root = project_root(folder if folder.is_dir() else folder.parent) or folder
        if clean(root / FOLDER):
            complain(f"Removed {root / FOLDER}")
