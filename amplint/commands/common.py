"""What `check` and `fix` share: their options, and how a run is prepared from them."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from amplint.config import Settings
    from amplint.pipeline import Linter

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
SEVERITIES = ("error", "warning", "info")
STDIN = Path("-")


class Failure(click.ClickException):
    """Something the user has to put right: a path, an option, a configuration. Exit status 2."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Run:
    """A prepared run: its settings, the absolute paths of the files to judge, and the judge."""

    settings: Settings
    files: list[Path]
    linter: Linter
    standard_input: bool
    jobs: int | None


def run_options(command: F) -> F:
    """The arguments and options that say what is judged and by which rules."""
    for decorate in reversed(_RUN_OPTIONS):
        command = decorate(command)
    return command


def _codes(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Several options and comma-separated lists as one tuple."""
    return tuple(code.strip() for value in values for code in value.split(",") if code.strip())


def _torch_version(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    from amplint.config import torch_version

    try:
        return torch_version(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


_PATH = click.Path(path_type=Path)
_RUN_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.argument("paths", nargs=-1, type=click.Path(path_type=Path, allow_dash=True)),
    click.option("--stdin-filename", type=_PATH, help="The name of the file given on standard input (-)."),
    click.option(
        "--select", multiple=True, callback=_codes, metavar="CODES", help="Rules to run: code, prefix, name or ALL."
    ),
    click.option("--ignore", multiple=True, callback=_codes, metavar="CODES", help="Rules not to run."),
    click.option("--extend-select", multiple=True, callback=_codes, metavar="CODES", help="Rules to run besides."),
    click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave out, in place of the usual excludes."),
    click.option("--extend-exclude", multiple=True, metavar="PATTERN", help="Leave out besides."),
    click.option("--force-exclude", is_flag=True, default=None, help="Exclude files even if they are named."),
    click.option("--no-respect-gitignore", is_flag=True, help="Check what .gitignore leaves out, too."),
    click.option("--fail-on", type=click.Choice(SEVERITIES), help="Exit with 1 from this severity on [warning]."),
    click.option(
        "--target-torch", callback=_torch_version, metavar="VERSION", help="Suggest only what this torch has."
    ),
    click.option("--config", type=_PATH, help="The configuration file."),
    click.option("--isolated", is_flag=True, help="Ignore all configuration files."),
    click.option("-j", "--jobs", type=click.IntRange(min=1), help="Processes to judge with [one for each processor]."),
    click.option("-q", "--quiet", is_flag=True, help="Print the findings alone."),
    click.option("-v", "--verbose", is_flag=True, help="Print tracebacks and what was skipped."),
)


def settings_of(paths: Iterable[Path], options: dict[str, Any]) -> Settings:
    """The settings of a run: the configuration file's with the command line's over them."""
    from amplint.config import ConfigError, load, override
    from amplint.registry import RegistryError
    from amplint.rule import Severity

    if options["isolated"] and options["config"]:
        raise Failure("--isolated and --config exclude each other")
    fail_on = options["fail_on"]
    try:
        settings = override(
            load(paths, config=options["config"], isolated=options["isolated"]),
            **{key: options[key] for key in ("select", "ignore", "extend_select", "exclude", "extend_exclude")},
            force_exclude=options["force_exclude"],
            respect_gitignore=False if options["no_respect_gitignore"] else None,
            fail_on=Severity[fail_on.upper()] if fail_on else None,
            torch_version=options["target_torch"],
        )
        _ = settings.codes
    except (ConfigError, RegistryError, ValueError) as error:
        raise Failure(str(error)) from None
    return settings


def prepare(paths: tuple[Path, ...], options: dict[str, Any]) -> Run:
    """Settings, files and linter for the given paths (default: the current folder), `-` being standard input."""
    from amplint.discovery import MissingPathError, discover, surroundings
    from amplint.linked import FEW, linked
    from amplint.pipeline import Linter, Plan

    paths = paths or (Path(),)
    standard_input = STDIN in paths
    name: Path | None = options["stdin_filename"]
    if standard_input and len(paths) > 1:
        raise Failure("- cannot be combined with other paths")
    if name and not standard_input:
        raise Failure("--stdin-filename needs - as the path")
    around = (name or Path(),) if standard_input else paths
    settings = settings_of(around, options)
    contents: dict[Path, bytes] = {}
    if standard_input:
        path = Path(name or "stdin.py").absolute()
        files = [] if settings.force_exclude and settings.excludes.match_any(path) else [path]
        contents = {path: sys.stdin.buffer.read()}
    else:
        try:
            files = discover(
                paths,
                settings.excludes,
                force_exclude=settings.force_exclude,
                respect_gitignore=settings.respect_gitignore,
            )
        except MissingPathError as error:
            raise Failure(str(error)) from None
    if not files and not options["quiet"]:
        complain("No Python files or notebooks to check.")
    gc.set_threshold(100_000, 50, 1_000)  # trees and memories live long: looking through them often frees nothing
    plan = Plan(settings.codes, settings.options, settings.ignored_in)

    def project() -> list[Path]:
        found = surroundings(files if standard_input else around, files, settings.excludes)
        return linked(files, found, linter.links) if len(files) < FEW else found

    linter = Linter(project, plan, contents)
    return Run(settings, files, linter, standard_input, options["jobs"])


def progress(items: Iterable[T], total: int, *, verb: str = "Checking") -> Iterator[T]:
    """The items, with a line on a waiting terminal's standard error after the first second."""
    if not sys.stderr.isatty():
        yield from items
        return
    begun, shown = time.monotonic(), False
    for number, item in enumerate(items):
        if time.monotonic() - begun > 1:
            shown = True
            sys.stderr.write(f"\r\x1b[K{verb} {number} of {total}")
            sys.stderr.flush()
        yield item
    if shown:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def write(text: str) -> None:
    """Print to standard output; what its encoding lacks is escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=False)


def complain(text: str) -> None:
    """Print a line to standard error."""
    from amplint.reporters import printable

    for line in text.splitlines():
        click.echo(printable(line), err=True)
