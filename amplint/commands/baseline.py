"""`amplint baseline`: write down the present findings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from amplint.commands.check import judge
from amplint.commands.common import Failure, complain, prepare, run_options

DEFAULT = "amplint-baseline.json"


@click.command("baseline", short_help="Write down the present findings, to report only new ones.")
@run_options
@click.option("--output", type=click.Path(path_type=Path), default=DEFAULT, show_default=True, help="Where to.")
def command(paths: tuple[Path, ...], output: Path, **options: Any) -> None:
    """Write the findings in PATHS to a file that `amplint check --baseline` reads."""
    from amplint.baseline import save

    run = prepare(paths, options)
    diagnostics = [d for j in judge(run, verbose=options["verbose"], quiet=options["quiet"]) for d in j.diagnostics]
    try:
        save(output, diagnostics)
    except OSError as error:
        raise Failure(f"{output}: {error.strerror or error}") from None
    if not options["quiet"]:
        complain(f"Wrote {len(diagnostics)} finding{'s' * (len(diagnostics) != 1)} to {output}.")
