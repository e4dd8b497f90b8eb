"""The command line. Each command is a module of `amplint.commands`, imported when it is called."""

from __future__ import annotations

import importlib

import click

from amplint import __version__

_COMMANDS = {
    "check": "Report the faults in files and folders.",
    "fix": "Show the fixes as a diff, or apply them.",
    "explain": "Show the page of a rule.",
    "rules": "List the rules.",
    "verify": "Run training scripts and watch their loss.",
    "trace": "Find where the first non-finite value of a script is born.",
    "baseline": "Write down the present findings, to report only new ones.",
    "config": "Show the effective settings and where each came from.",
    "server": "Serve an editor over the language server protocol.",
    "clean": "Remove the cache.",
}


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is called, not to list it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in _COMMANDS if _exists(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS or not _exists(cmd_name):
            return None
        command: click.Command = importlib.import_module(f"amplint.commands.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name]) for name in self.list_commands(ctx)])


def _exists(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(f"amplint.commands.{name}") is not None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="amplint")
def cli() -> None:
    """Find the lines that turn a mixed-precision PyTorch loss into NaN, fix them, and prove it by running."""
