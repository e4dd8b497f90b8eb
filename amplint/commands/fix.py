"""`amplint fix`: show the fixes as a diff, or apply them."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from amplint.commands.common import Run, complain, prepare, progress, run_options, write

if TYPE_CHECKING:
    from amplint.rule import Finding
    from amplint.source import Source

_PASSES = 5
"""A fix in one file can bring out a finding in another; so often are all files gone through at most."""


@dataclass(slots=True)
class Outcome:
    """What became of one file: its source before and after, what was mended and what is left."""

    path: Path
    original: Source | None = None
    current: Source | None = None
    fixed: list[Finding] = field(default_factory=list)
    remaining: tuple[Finding, ...] = ()
    error: str | None = None

    @property
    def change(self) -> tuple[Source, Source] | None:
        """The source before and after, if they differ."""
        if self.original is None or self.current is None or self.original.text == self.current.text:
            return None
        return self.original, self.current


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
        errors = [_save(*outcome.change) for outcome in outcomes if outcome.change]
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
    """Fix all files of a run in memory, until no fix brings out another."""
    from amplint.workers import judge_all

    outcomes = [Outcome(path) for path in run.files]
    for number in range(_PASSES):
        for index, judgement in progress(judge_all(run.linter, run.files, run.jobs), len(run.files)):
            outcomes[index].remaining = tuple(diagnostic.finding for diagnostic in judgement.diagnostics)
            if verbose and number == 0:
                complain("\n".join(judgement.failures))
        fixable = [outcome for outcome in outcomes if any(_applicable(f, unsafe) for f in outcome.remaining)]
        if not sum(
            _mend_file(run, outcome, unsafe=unsafe) for outcome in progress(fixable, len(fixable), verb="Fixing")
        ):
            break
    return outcomes


def _applicable(finding: Finding, unsafe: bool) -> bool:
    from amplint.rule import Safety

    return finding.fix is not None and (unsafe or finding.fix.safety is Safety.SAFE)


def _mend_file(run: Run, outcome: Outcome, *, unsafe: bool) -> bool:
    """Fix one file as it now stands. True if that changed it."""
    from amplint.fix import fix_source

    linter, path = run.linter, outcome.path
    checked = linter.check(path)
    if checked.source is None:
        return False

    def find(source: Source) -> Sequence[Finding]:
        if source is checked.source:
            return checked.findings
        linter.replace(path, source.to_bytes(source.text))
        return linter.check(path).findings

    result = fix_source(checked.source, find, unsafe=unsafe)
    linter.replace(path, result.source.to_bytes(result.source.text))
    outcome.original = outcome.original or checked.source
    outcome.current = result.source
    outcome.fixed += result.fixed
    outcome.remaining = result.remaining
    outcome.error = result.error
    return result.source.text != checked.source.text


def _save(before: Source, after: Source) -> bool:
    """Write a changed file. True, with the reason on standard error, if that failed."""
    from amplint.fix import FixError
    from amplint.fix import write as write_file

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
