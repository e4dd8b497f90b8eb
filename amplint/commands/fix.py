"""`amplint fix`: show the fixes as a diff, or apply them."""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from amplint.commands.common import Run, complain, prepare, progress, run_options, write

if TYPE_CHECKING:
    from amplint.fix import Mending
    from amplint.rule import Finding
    from amplint.source import Source


@dataclass(slots=True)
class Outcome:
    """What becomes of one file. `remaining` are the findings in its present source."""

    path: Path
    remaining: tuple[Finding, ...] = ()
    mending: Mending | None = None
    """None while there is nothing to fix in it."""

    @property
    def fixed(self) -> tuple[Finding, ...]:
        return self.mending.fixed if self.mending else ()

    @property
    def error(self) -> str | None:
        return self.mending.error if self.mending else None

    @property
    def change(self) -> tuple[Source, Source] | None:
        """The source before and after, if they differ."""
        if self.mending is None or self.mending.source.text == self.mending.original.text:
            return None
        return self.mending.original, self.mending.source


@click.command("fix", short_help="Show the fixes as a diff, or apply them.")
@run_options
@click.option("--apply", is_flag=True, help="Write the fixed files. Without it nothing is written.")
@click.option("--unsafe-fixes", is_flag=True, help="Apply those, too, that change numbers, training or control flow.")
@click.option("--exit-zero", is_flag=True, help="Exit with 0 whatever remains.")
def command(paths: tuple[Path, ...], **options: Any) -> None:
    """Show what would be changed in PATHS (files or folders, default: here), or change it with --apply.

    The source given on standard input (-) is written to standard output, as a diff without --apply.
    Exit status: 0 nothing at or above the threshold remains, 1 something does, 2 usage, configuration, a missing
    path, or a file that could not be written.
    """
    run = prepare(paths, options)
    outcomes = mend(run, unsafe=options["unsafe_fixes"], verbose=options["verbose"])
    failed = False
    if not options["apply"]:
        write("".join(_diff(*outcome.change) for outcome in outcomes if outcome.change))
    elif run.standard_input:
        sys.stdout.buffer.writelines(run.linter.contents.values())
    else:
        named = _folders(paths)
        errors = [_save(*outcome.change, named) for outcome in outcomes if outcome.change]
        failed = any(errors)
    for outcome in outcomes:
        if outcome.error:
            complain(f"{outcome.path}: {outcome.error}")
    if not options["quiet"]:
        complain(_summary(outcomes, applied=options["apply"], unsafe=options["unsafe_fixes"]))
    if failed:
        raise SystemExit(2)
    left = [f for outcome in outcomes for f in _left(outcome, applied=options["apply"])]
    if not options["exit_zero"] and any(finding.severity >= run.settings.fail_on for finding in left):
        raise SystemExit(1)


def mend(run: Run, *, unsafe: bool, verbose: bool = False) -> list[Outcome]:
    """Fix all files of a run in memory, to the common fixpoint.

    A fix in one file can bring out a finding in another, so when the changed files are done, all are looked at again.
    """
    from amplint.fix import MAX_ROUNDS

    outcomes = [Outcome(path) for path in run.files]
    pending = outcomes
    for _ in range(MAX_ROUNDS):
        _judge(run, pending, verbose=verbose and pending is outcomes)
        moved = [outcome for outcome in pending if _advance(run, outcome, unsafe=unsafe)]
        if not moved and pending is outcomes:
            break
        pending = outcomes if len(moved) in (0, len(outcomes)) else moved
    return outcomes


def _judge(run: Run, outcomes: list[Outcome], *, verbose: bool) -> None:
    from amplint.workers import judge_all

    paths = [outcome.path for outcome in outcomes]
    for index, judgement in progress(judge_all(run.linter, paths, run.jobs), len(paths)):
        outcomes[index].remaining = tuple(diagnostic.finding for diagnostic in judgement.diagnostics)
        if verbose:
            complain("\n".join(judgement.failures))


def _advance(run: Run, outcome: Outcome, *, unsafe: bool) -> bool:
    """Apply a round of fixes to one file. True if that changed it."""
    from amplint.fix import Mending

    if not any(finding.fix for finding in outcome.remaining):
        return False
    if outcome.mending is None:
        source = run.linter.source(outcome.path)
        if source is None:
            return False
        outcome.mending = Mending(source, unsafe=unsafe)
    before = outcome.mending.source
    outcome.mending.advance(outcome.remaining)
    now = outcome.mending.source
    if now is before:
        return False
    run.linter.replace(outcome.path, now.to_bytes(now.text))
    return True


def _folders(paths: tuple[Path, ...]) -> list[Path]:
    """The folders that the paths name or that hold the named files, links resolved."""
    return [(path if path.is_dir() else path.parent).resolve() for path in paths or (Path(),)]


def _save(before: Source, after: Source, within: list[Path]) -> bool:
    """Write a changed file. True, with the reason on standard error, if that failed.

    A link may lead anywhere, so that one to a file outside of the folders `within` is left alone.
    """
    from amplint.fix import FixError
    from amplint.fix import write as write_file

    target = before.path.resolve()
    if not any(target.is_relative_to(folder) for folder in within):
        complain(f"{before.path}: not written: it links to {target}, outside of what is checked; name that file itself")
        return True
    try:
        write_file(before, after)
    except (FixError, OSError) as error:
        complain(f"{before.path}: not written: {getattr(error, 'strerror', None) or error}")
        return True
    return False


def _left(outcome: Outcome, *, applied: bool) -> tuple[Finding, ...]:
    """The findings that the file on the disk still has."""
    return outcome.remaining if applied else (*outcome.fixed, *outcome.remaining)


def _diff(before: Source, after: Source) -> str:
    from amplint.reporters import wants_colour

    name = _shown(before.path)
    lines = difflib.unified_diff(_lines(before), _lines(after), name, name)
    text = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return _coloured(text) if wants_colour(sys.stdout.isatty()) else text


def _lines(source: Source) -> list[str]:
    """The lines of the file as it is on the disk, newlines included."""
    text = source.to_bytes(source.text).decode(source.encoding)
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _coloured(diff: str) -> str:
    styles = {"---": "1", "+++": "1", "@@ ": "36", "-": "31", "+": "32"}
    painted = []
    for line in diff.split("\n"):
        style = styles.get(line[:3]) or styles.get(line[:1])
        painted.append(f"\x1b[{style}m{line}\x1b[0m" if style else line)
    return "\n".join(painted)


def _shown(path: Path) -> str:
    from amplint.reporters import printable

    here = Path.cwd()
    return printable((path.relative_to(here) if path.is_relative_to(here) else path).as_posix())


def _summary(outcomes: list[Outcome], *, applied: bool, unsafe: bool) -> str:
    from amplint.rule import Safety

    fixed = sum(len(outcome.fixed) for outcome in outcomes)
    remaining = [finding for outcome in outcomes for finding in outcome.remaining]
    files = sum(outcome.change is not None for outcome in outcomes)
    verb = "Fixed" if applied else "Would fix"
    line = f"{verb} {fixed} finding{'s' * (fixed != 1)} in {files} file{'s' * (files != 1)}; {len(remaining)} remain."
    more = sum(f.fix is not None and f.fix.safety is Safety.UNSAFE for f in remaining)
    return f"{line} {more} more can be fixed with --unsafe-fixes." if more and not unsafe else line
