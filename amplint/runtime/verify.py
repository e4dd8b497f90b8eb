"""Runs scripts as they are and fixed, and says which went well. Imports no torch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from amplint.runtime import linter
from amplint.runtime.process import Limits, run_script
from amplint.runtime.verdict import BadTensor, Failure, FailureKind, Place, Run
from amplint.runtime.workspace import Copy, TooLargeError, copied, is_left_out

UNSAFE = "unsafe.py"
"""A fixture of this name is there to fail, and to be mended by its fixes."""

_TRACE_TIMES = 4.0
"""A traced run is given so many times as long."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How scripts are run."""

    args: tuple[str, ...] = ()
    device: str = "auto"
    limits: Limits = field(default_factory=Limits)
    unsafe_fixes: bool = True
    trace: bool = True
    root: Path | None = None
    """The folder that is copied and in which scripts run; by default each script's own."""


@dataclass(slots=True)
class Outcome:
    """What became of one script."""

    script: Path
    codes: tuple[str, ...] = ()
    """The rules with findings in it."""
    before: Run | None = None
    after: Run | None = None
    """None if no fix changed anything."""
    explanation: linter.FindingAt | None = None
    """The finding on the line where the first bad value was born."""
    problem: str = ""
    """Why it counts as a failure; empty if it does not."""

    @property
    def ok(self) -> bool:
        return not self.problem


@dataclass(slots=True)
class Verifier:
    """Verifies scripts, several at a time."""

    plan: Plan
    on_progress: Callable[[str, int], None] = lambda label, steps: None
    cancelled: threading.Event = field(default_factory=threading.Event)

    def verify(self, scripts: Iterable[Path], jobs: int = 1) -> Iterator[Outcome]:
        """The outcomes in the order of the scripts; those of one folder run one after the other."""
        folders = [list(group) for _, group in groupby(scripts, key=lambda script: script.parent)]
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            try:
                for outcomes in pool.map(self._folder, folders):
                    yield from outcomes
            except BaseException:
                self.cancelled.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _folder(self, scripts: list[Path]) -> list[Outcome]:
        done: dict[str, Run] = {}
        return [self._script(script, done) for script in sorted(scripts, key=lambda s: s.name != UNSAFE)]

    def _script(self, script: Path, done: dict[str, Run]) -> Outcome:
        """`done` holds the runs of the folder's programs by their text: a `safe.py` need not run twice."""
        outcome = Outcome(script)
        try:
            text = _text(script)
            if text in done:
                outcome.before = done[text]
            else:
                self._before_and_after(outcome, done)
            outcome.problem = problem_of(outcome)
        except (OSError, TooLargeError, linter.LinterError) as error:
            outcome.problem = str(error)
        return outcome

    def _before_and_after(self, outcome: Outcome, done: dict[str, Run]) -> None:
        script = outcome.script
        root = (self.plan.root or script.parent).resolve()
        with ExitStack() as stack:
            original = stack.enter_context(copied(root))
            fixed = stack.enter_context(copied(root))
            linter.fix(fixed.folder, unsafe=self.plan.unsafe_fixes)
            findings = linter.findings_in(original.folder)
            here = str(original.of(script))
            outcome.codes = tuple(sorted({finding.code for finding in findings if finding.file == here}))
            differ = _differ(original, fixed)
            outcome.before = self.run(script, original, "as it is")
            if self.plan.trace and outcome.before.failed:
                self._trace(outcome, original, findings)
            if differ:
                text = _text(fixed.of(script))
                outcome.after = done[text] = self.run(script, fixed, "fixed")

    def run(self, script: Path, copy: Copy, label: str, trace: bool = False) -> Run:
        plan = self.plan
        limits = replace(plan.limits, seconds=plan.limits.seconds * (_TRACE_TIMES if trace else 1))
        run = run_script(
            copy.of(script),
            plan.args,
            folder=copy.folder if plan.root else copy.of(script).parent,
            device=plan.device,
            limits=limits,
            trace=trace,
            on_progress=lambda steps: self.on_progress(f"{script} {label}", steps),
            cancelled=self.cancelled,
        )
        return _in_originals(run, copy)

    def _trace(self, outcome: Outcome, copy: Copy, findings: list[linter.FindingAt]) -> None:
        """Run it once more, traced, where that can say more than the failure does."""
        run = outcome.before
        assert run is not None
        assert run.failure is not None
        place = run.failure.place
        if _is_traceable(run.failure):
            traced = self.run(outcome.script, copy, "traced", trace=True)
            run.bad_tensor = traced.bad_tensor
            place = traced.bad_tensor.place if traced.bad_tensor else place
        outcome.explanation = explanation(place, findings, copy)


def _is_traceable(failure: Failure) -> bool:
    """Whether a first bad tensor may explain it; of exceptions, those that the script itself raises."""
    if failure.kind is FailureKind.EXCEPTION:
        return failure.place.code.startswith(("raise", "assert", "sys.exit", "exit"))
    return failure.kind not in (FailureKind.HUNG, FailureKind.DIED)


def trace(script: Path, plan: Plan, on_progress: Callable[[str, int], None]) -> tuple[Run, linter.FindingAt | None]:
    """A traced run of a script as it is, and the finding that stands where it went wrong.

    Raises OSError, TooLargeError, LinterError.
    """
    verifier = Verifier(plan, on_progress)
    with copied((plan.root or script.parent).resolve()) as copy:
        run = verifier.run(script, copy, "traced", trace=True)
        if run.failure is None:
            return run, None
        place = run.bad_tensor.place if run.bad_tensor else run.failure.place
        return run, explanation(place, linter.findings_in(copy.folder), copy)


def explanation(place: Place, findings: list[linter.FindingAt], copy: Copy) -> linter.FindingAt | None:
    """The finding that stands on a line, if there is one; or else one that the line has part in."""
    here = [finding for finding in findings if copy.original(finding.file) == place.file]
    for finding in here:
        if finding.first_line <= place.line <= finding.last_line:
            return finding
    for finding in findings:
        if any((copy.original(file), line) == (place.file, place.line) for file, line in finding.related):
            return finding
    return None


def problem_of(outcome: Outcome) -> str:
    """Why an outcome counts as a failure: a script that still fails, or a fixture that does not."""
    before, after = outcome.before, outcome.after
    assert before is not None
    if outcome.script.name == UNSAFE:
        if not before.failed:
            return "should fail, and does not"
        if after is None:
            return "" if outcome.codes else "has no finding"
    last = after or before
    if last.failed:
        return "fails after its fixes" if after else "fails"
    if after and not last.steps:
        return "takes no step after its fixes"
    return ""


def scripts_in(paths: Iterable[Path]) -> list[Path]:
    """The training scripts: each file given, and those in the folders that import torch and can be run."""
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            found.update(dict.fromkeys(p for p in sorted(path.rglob("*.py")) if _is_script(p, path)))
        else:
            found[path] = None
    return list(found)


def _is_script(path: Path, folder: Path) -> bool:
    if any(map(is_left_out, path.relative_to(folder).parts)) or not path.is_file():
        return False
    content = path.read_bytes()
    return b"torch" in content and b"__main__" in content


def _text(script: Path) -> str:
    return script.read_text("utf-8", "replace")


def _differ(one: Copy, other: Copy) -> bool:
    return any(
        path.read_bytes() != (other.folder / path.relative_to(one.folder)).read_bytes()
        for path in one.folder.rglob("*.py")
        if path.is_file()
    )


def _in_originals(run: Run, copy: Copy) -> Run:
    """The run with the places of the copy told as the user knows them."""
    if run.failure is not None:
        run.failure = replace(run.failure, place=_original(run.failure.place, copy))
    if isinstance(run.bad_tensor, BadTensor):
        run.bad_tensor = replace(run.bad_tensor, place=_original(run.bad_tensor.place, copy))
    return run


def _original(place: Place, copy: Copy) -> Place:
    return replace(place, file=copy.original(place.file))
