"""`amplint check`: report the faults in files and folders."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from amplint.commands.common import Failure, Run, complain, prepare, progress, run_options, write

if TYPE_CHECKING:
    from amplint.cache import Cache
    from amplint.diagnostic import Diagnostic, Judgement
    from amplint.reporters import Report

_TICK = 200
"""Milliseconds between two looks of the watch, which does no more than wake up for them."""
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
@click.option("--baseline", type=click.Path(path_type=Path), help="Report only what this file does not list.")
@click.option("--diff-base", metavar="REV", help="Report only on lines changed since a git revision.")
@click.option("--add-ignore", is_flag=True, help="Silence the findings by comments in the files.")
@click.option("--timing", is_flag=True, help="Say what each stage and rule cost; one process, no cache.")
@click.option("--no-cache", is_flag=True, help="Judge every file anew.")
@click.option("--cache-dir", type=click.Path(path_type=Path), help="Where to keep the cache [.amplint_cache].")
@click.option("--watch", is_flag=True, help="Check again whenever a file changes.")
@click.option("--explain-values", metavar="FILE:LINE", help="Show what the expressions on a line are taken for.")
@click.option("--show-files", is_flag=True, help="List the files that would be checked.")
def command(paths: tuple[Path, ...], **options: Any) -> None:
    """Report the faults in PATHS (files or folders, default: here; - for standard input).

    Exit status: 0 nothing at or above the threshold, 1 findings, 2 usage, configuration or a missing path.
    """
    if options["explain_values"]:
        _explain_values(options["explain_values"], paths, options)
        return
    if options["watch"]:
        _watch(paths, options)
    raise SystemExit(_check(paths, options))


def _explain_values(place: str, paths: tuple[Path, ...], options: dict[str, Any]) -> None:
    """Print operation, dtype, region and range of the expressions at FILE:LINE, for reports of wrong findings."""
    name, _, line = place.rpartition(":")
    if not name or not line.isdecimal():
        raise click.BadParameter(f"{place!r} is not FILE:LINE", param_hint="--explain-values")
    run = prepare(paths or (Path(name),), options)
    try:
        write(run.linter.explain_values(Path(name).absolute(), int(line)).rstrip("\n") + "\n")
    except LookupError as error:
        raise Failure(str(error)) from None


def _check(paths: tuple[Path, ...], options: dict[str, Any]) -> int:
    """One run; gives the exit status."""
    run = prepare(paths, options)
    if options["show_files"]:
        write("".join(f"{path}\n" for path in run.files))
        return 0
    run.linter.folder = _folder(run, options)
    cache = _cache(run, paths)
    if options["timing"]:
        run = replace(run, jobs=1)
    judgements = judge(run, verbose=options["verbose"], quiet=options["quiet"], cache=cache)
    diagnostics = _relevant(run, [d for judgement in judgements for d in judgement.diagnostics], options)
    if options["add_ignore"]:
        _add_ignores(run, diagnostics)
        return 0
    publish(run, diagnostics, sum(j.silenced for j in judgements), options)
    if options["timing"]:
        for stage, seconds in sorted(run.linter.seconds.items(), key=lambda item: -item[1]):
            complain(f"{seconds:8.3f} s  {stage}")
    return 1 if fails(run, diagnostics) and not options["exit_zero"] else 0


def _folder(run: Run, options: dict[str, Any]) -> Path | None:
    """Where the caches of the project that is checked go, if it has a place and none was refused."""
    from amplint.cache_folder import folder_of
    from amplint.config import common_folder
    from amplint.discovery import project_root

    if options["no_cache"] or options["timing"] or not run.files:
        return None
    root = project_root(common_folder(run.files))
    chosen: Path | None = options["cache_dir"]
    return folder_of(root or Path(), chosen) if root or chosen else None


def _cache(run: Run, paths: tuple[Path, ...]) -> Cache | None:
    """The cache of the findings, where one pays and has a place."""
    from amplint import cache, cache_folder
    from amplint.discovery import surroundings

    folder = run.linter.folder
    if folder is None or run.standard_input or len(run.files) < cache_folder.WORTHWHILE:
        return None
    settings = run.settings
    around = surroundings(paths or (Path(),), run.files, settings.excludes)
    files = sorted(settings.per_file_ignores.items())
    key = cache.key_of(sorted(settings.codes), settings.options, files, settings.root)
    return cache.Cache(folder, key, around, run.linter)


def _watch(paths: tuple[Path, ...], options: dict[str, Any]) -> NoReturn:
    """Check now and whenever a Python file, a notebook or a configuration changes, until interrupted."""
    try:
        from watchfiles import PythonFilter, watch
    except ImportError:
        raise Failure('--watch needs watchfiles: pip install "amplint[watch]"') from None

    watched = PythonFilter(extra_extensions=(".ipynb", ".toml"))
    looks = watch(*(paths or (Path(),)), watch_filter=watched, rust_timeout=_TICK, yield_on_timeout=True)
    next(looks, None)  # from here on it watches: a change during the first check is not lost
    _check(paths, options)
    for changes in looks:
        if changes:
            click.clear()
            _check(paths, options)
    raise SystemExit(0)


def judge(run: Run, *, verbose: bool, quiet: bool, cache: Cache | None = None) -> list[Judgement]:
    """The judgements of a run in the order of its files; notes and tracebacks go to standard error."""
    from amplint.workers import judge_all

    known = {path: j for path in run.files if (j := cache.known(path))} if cache else {}
    left = [path for path in run.files if path not in known]
    run.linter.records = cache is not None
    for number, judgement in progress(judge_all(run.linter, left, run.jobs), len(left)):
        if cache:
            cache.store(left[number], judgement)
        known[left[number]] = replace(judgement, rests_on=None)  # that may be much, and is not needed here
    if cache:
        cache.save()
    run.linter.keep()
    judgements = [known[path] for path in run.files]
    for path, judgement in zip(run.files, judgements, strict=True):
        if judgement.note and not quiet:
            complain(f"{path}: {judgement.note}")
        if verbose:
            for failure in judgement.failures:
                complain(failure)
    return judgements


def fails(run: Run, diagnostics: Iterable[Diagnostic]) -> bool:
    """Whether a finding reaches the threshold of the run."""
    return any(diagnostic.finding.severity >= run.settings.fail_on for diagnostic in diagnostics)


def _relevant(run: Run, diagnostics: list[Diagnostic], options: dict[str, Any]) -> list[Diagnostic]:
    """The findings that are new to the baseline and stand on changed lines, as far as that was asked for."""
    if revision := options["diff_base"]:
        from amplint.changed_lines import GitError, changed_since
        from amplint.config import common_folder

        try:
            changed = changed_since(revision, common_folder(run.files))
        except GitError as error:
            raise Failure(f"--diff-base: {error}") from None
        diagnostics = [diagnostic for diagnostic in diagnostics if changed.touch(diagnostic)]
    if path := options["baseline"]:
        from amplint.baseline import BaselineError, compare, load

        try:
            entries = load(path)
        except BaselineError as error:
            raise Failure(str(error)) from None
        diagnostics, gone = compare(entries, diagnostics, path.absolute().parent, set(run.files))
        if gone and not options["quiet"] and not options["diff_base"]:
            complain(f"{len(gone)} of the baseline are gone:")
            complain("\n".join(f"  {entry}" for entry in gone))
    return diagnostics


def _add_ignores(run: Run, diagnostics: list[Diagnostic]) -> None:
    """Write suppression comments for the findings into their files."""
    from itertools import groupby

    from amplint.add_ignore import ignore_edits
    from amplint.fix import FixError
    from amplint.fix import write as write_file

    added = 0
    for path, group in groupby(diagnostics, key=lambda diagnostic: diagnostic.finding.path):
        source = run.linter.source(path)
        if source is None:
            continue
        findings = [diagnostic.finding for diagnostic in group]
        edits, hopeless = ignore_edits(source, findings)
        try:
            if edits:
                write_file(source, source.edited(edits))
        except (FixError, OSError) as error:
            raise Failure(f"{path}: not written: {getattr(error, 'strerror', None) or error}") from None
        added += len(findings) - len(hopeless)
        for finding in hopeless:
            complain(f"{path}:{finding.start.line}: no line of {finding.code} can carry a comment")
    complain(f"Silenced {added} finding{'s' * (added != 1)}.")


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
