"""`amplint config`: the effective settings and where each came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from amplint.commands.common import Failure, write


@click.command("config", short_help="Show the effective settings and where each came from.")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--config", "file", type=click.Path(path_type=Path), help="The configuration file.")
@click.option("--isolated", is_flag=True, help="Ignore all configuration files.")
@click.option("--schema", is_flag=True, help="Print the JSON schema of the configuration instead.")
def command(paths: tuple[Path, ...], file: Path | None, isolated: bool, schema: bool) -> None:
    """Show the settings for a run over PATHS (default: here)."""
    import json

    from amplint import config
    from amplint.registry import RegistryError

    if schema:
        write(json.dumps(config.schema(), indent=2) + "\n")
        return
    try:
        settings = config.load(paths or (Path(),), config=file, isolated=isolated)
        codes = sorted(settings.codes)
    except (config.ConfigError, RegistryError, ValueError) as error:
        raise Failure(str(error)) from None
    for key in config.KEYS:
        value = _shown(key, getattr(settings, key.replace("-", "_")))
        write(f"{key} = {value}  # {settings.origins.get(key, 'default')}\n")
    write(f"# {len(codes)} rules run: {', '.join(codes)}\n")


def _shown(key: str, value: Any) -> str:
    """The value as TOML writes it."""
    import json

    if key == "torch-version":
        value = ".".join(map(str, value))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in value.items()) + "}"
    if isinstance(value, bool | float | tuple):
        return json.dumps(value)
    return json.dumps(str(value))
