"""`amplint check`: report the faults in files and folders."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from amplint.commands.common import Failure, Run, complain, prepare, progress, run_options, write

if TYPE_CHECKING:
    from amplint.diagnostic import Diagnostic, Judgement
    from amplint.reporters import Report

FORMATS = ("text", "json", "github", "sarif", "gitlab", "junit", "rdjson", "azure", "pylint", "markdown")


@click.command("check", short_help="Report the faults in files and folders.")
@run_options
@click.option("--output-format", type=click.Choice(FORMATS), help="[text; github under GitHub Actions]")
@click.option(
    "--output-file",
    multiple=True,
    metavar="[FORMAT=]PATH",
    help="Write the report there; with FORMAT= besides the one that is printed. May be repeated.",
)
@click.option("--statistics", is_flag=True, help="Count the findings of each rule instead of listing them.")
@click.option("--exit-zero", is_flag=True, help="Exit with 0 whatever is found.")
@click.option("--show-files", is_flag=True, help="List the files that would be checked.")
def command(paths: tuple[Path, ...], **options: Any) -> None:
    """Report the faults in PATHS (files or folders, default: here; - for standard input).

    Exit status: 0 nothing at or above the threshold, 1 findings, 2 usage, configuration or a missing path.
    """
    run = prepare(paths, options)
    if options["show_files"]:
        write("".join(f"{path}\n" for path in run.files))
        return
    judgements = judge(run, verbose=options["verbose"], quiet=options["quiet"])
    diagnostics = [diagnostic for judgement in judgements for diagnostic in judgement.diagnostics]
    publish(run, diagnostics, sum(j.silenced for j in judgements), options)
    if not options["exit_zero"] and fails(run, diagnostics):
        raise SystemExit(1)


def judge(run: Run, *, verbose: bool, quiet: bool) -> list[Judgement]:
    """The judgements of a run in the order of its files; notes and tracebacks go to standard error."""
    judgements = []
    for path in progress(run.files):
        judgement = run.linter.judge(path)
        judgements.append(judgement)
        if judgement.note and not quiet:
            complain(f"{path}: {judgement.note}")
        if verbose:
            for failure in judgement.failures:
                complain(failure)
    return judgements


def fails(run: Run, diagnostics: Iterable[Diagnostic]) -> bool:
    """Whether a finding reaches the threshold of the run."""
    return any(diagnostic.finding.severity >= run.settings.fail_on for diagnostic in diagnostics)


def publish(run: Run, diagnostics: list[Diagnostic], silenced: int, options: dict[str, Any]) -> None:
    """Print the report, or write it to files, in the formats asked for."""
    main = options["output_format"] or ("github" if os.environ.get("GITHUB_ACTIONS") == "true" else "text")
    targets = [_target(value, main) for value in options["output_file"]]
    if not any(additional is False for _, _, additional in targets):
        write(_render(main, _report(run, diagnostics, silenced, options, printed=True)))
    for name, path, _ in targets:
        text = _render(name, _report(run, diagnostics, silenced, options, printed=False))
        try:
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise Failure(f"{path}: {error.strerror or error}") from None


def _target(value: str, main: str) -> tuple[str, Path, bool]:
    """(format, path, whether it comes besides the printed report) of an --output-file."""
    name, separator, path = value.partition("=")
    if separator and name in FORMATS:
        return name, Path(path), True
    return main, Path(value), False


def _render(name: str, report: Report) -> str:
    from amplint.reporters import renderer

    return renderer(name)(report)


def _report(
    run: Run, diagnostics: list[Diagnostic], silenced: int, options: dict[str, Any], *, printed: bool
) -> Report:
    import sys

    from amplint.reporters import Report, wants_colour

    return Report(
        diagnostics=tuple(diagnostics),
        files=len(run.files),
        base=Path.cwd(),
        silenced=silenced,
        colour=printed and wants_colour(sys.stdout.isatty()),
        quiet=options["quiet"],
        statistics=options["statistics"],
    )
