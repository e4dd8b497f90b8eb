"""`amplint trace`: where the first non-finite value of a script is born."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from amplint.commands.common import write
from amplint.commands.verify import Progress, limit_options, limits_of, require_torch


@click.command(
    "trace",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Find where the first non-finite value of a script is born.",
)
@limit_options
@click.option("--output-format", type=click.Choice(("text", "json")), default="text", help="How to show the verdict.")
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(script: Path, args: tuple[str, ...], **options: Any) -> None:
    """Run SCRIPT with ARGS until something goes wrong, and show the operation that made the first inf or NaN.

    This executes the script, in a process of its own on a temporary copy of its folder. Options of amplint come
    before SCRIPT. Exit status: 0 the run went well, 1 it failed, 2 wrong use.
    """
    require_torch("trace")
    from amplint.runtime import report
    from amplint.runtime.process import terminable
    from amplint.runtime.verify import Plan, trace

    progress = Progress()
    plan = Plan(args=args, device=options["device"], limits=limits_of(options), root=options["root"])
    with terminable():
        run, explanation = trace(script, plan, progress.steps)
    progress.clear()
    if options["output_format"] == "json":
        explained = explanation and asdict(explanation)
        write(json.dumps({**run.to_json(), "explanation": explained}, indent=2) + "\n")
    else:
        lines = [report.text_of_run(run)]
        if explanation is not None:
            lines.append(f"  {explanation.code} {explanation.name}: {explanation.message}")
        write("\n".join([*lines, "", report.device_note(run)]) + "\n")
    if run.failed:
        raise SystemExit(1)
