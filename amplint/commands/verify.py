"""`amplint verify`: run training scripts as they are and fixed."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from amplint.commands.common import Failure, write

if TYPE_CHECKING:
    from amplint.runtime.process import Limits
    from amplint.runtime.verify import Outcome

DEVICES = ("auto", "cuda", "simulated")
_SCRIPT_ARGS = "amplint.script_args"


class WithScriptArguments(click.Command):
    """A command whose arguments after `--` are the script's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_SCRIPT_ARGS] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- SCRIPT ARGS...]"]


def limit_options(command: Any) -> Any:
    """The options of `verify` and `trace` that bound a run."""
    for decorate in (
        click.option("--memory", default=16.0, show_default=True, help="Memory limit of a run in GiB; 0 for none."),
        click.option("--timeout", default=120.0, show_default=True, help="Seconds after which a run is ended."),
        click.option("--steps", default=200, show_default=True, help="Optimizer steps after which a run is ended."),
        click.option(
            "--device",
            type=click.Choice(DEVICES),
            default="auto",
            show_default=True,
            help="auto: CUDA if there is one.",
        ),
        click.option("--root", type=click.Path(exists=True, file_okay=False, path_type=Path), help=_ROOT_HELP),
    ):
        command = decorate(command)
    return command


_ROOT_HELP = "The folder to copy and run in, for a script that needs more than its own folder."


@click.command("verify", cls=WithScriptArguments, short_help="Run training scripts and watch their loss.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@limit_options
@click.option("--safe-only", is_flag=True, help="Apply safe fixes only.")
@click.option("--no-trace", is_flag=True, help="Do not look for the first bad tensor of a script that fails.")
@click.option("-j", "--jobs", type=click.IntRange(1), default=None, help="Scripts run at once.")
@click.option(
    "--output-format", type=click.Choice(("text", "json", "markdown")), default="text", help="How to show the verdicts."
)
@click.pass_context
def command(ctx: click.Context, /, paths: tuple[Path, ...], **options: Any) -> None:
    """Run the training scripts in PATHS: as they are, and again with their fixes if there are any.

    This executes the scripts, each in a process of its own on a temporary copy of its folder, within limits of
    time, steps and memory. Without a GPU they run under simulated CUDA. Arguments after -- go to each script.
    Exit status: 0 all is well; 1 a fixed or clean script fails, or an unsafe.py does not; 2 wrong use.
    """
    require_torch("verify")
    from amplint.runtime import report
    from amplint.runtime.process import terminable
    from amplint.runtime.verify import Plan, Verifier, scripts_in

    scripts = scripts_in(paths)
    if not scripts:
        raise Failure("no training script there: none imports torch and has an `if __name__ == '__main__'`")
    jobs = options["jobs"] or min(4, os.cpu_count() or 1)
    plan = Plan(
        args=ctx.meta.get(_SCRIPT_ARGS, ()),
        device=options["device"],
        limits=replace(limits_of(options), threads=max(1, (os.cpu_count() or 1) // jobs)),
        unsafe_fixes=not options["safe_only"],
        trace=not options["no_trace"],
        root=options["root"],
    )
    progress = Progress()
    outcomes: list[Outcome] = []
    with terminable():
        for outcome in Verifier(plan, progress.steps).verify(scripts, jobs):
            outcomes.append(outcome)
            progress.done(len(outcomes), len(scripts))
    progress.clear()
    render = {"text": report.text, "json": report.as_json, "markdown": report.markdown}[options["output_format"]]
    write(render(outcomes))
    if not all(outcome.ok for outcome in outcomes):
        raise SystemExit(1)


def limits_of(options: dict[str, Any]) -> Limits:
    """The limits that the options ask for."""
    from amplint.runtime.process import Limits

    return Limits(steps=options["steps"], seconds=options["timeout"], memory=options["memory"])


def require_torch(command: str) -> None:
    """Raise a Failure that says how to install torch if it is not there."""
    if find_spec("torch") is None:
        raise Failure(f"`amplint {command}` runs scripts and needs torch: pip install 'amplint[verify]'")


class Progress:
    """One line on a waiting terminal's standard error."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def steps(self, label: str, steps: int) -> None:
        self._show(f"{label}: step {steps}")

    def done(self, number: int, of: int) -> None:
        self._show(f"{number} of {of} scripts")

    def clear(self) -> None:
        if self._shown:
            click.echo("\r\x1b[K", nl=False, err=True)

    def _show(self, line: str) -> None:
        if self._shown:
            click.echo(f"\r\x1b[K{line}", nl=False, err=True)
