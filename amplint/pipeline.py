"""The stages in order: byte triggers, parse, project, rules, suppressions, report.

A file goes only as far as it must. `Linter.judge` gives plain data for one path, whatever happens in it.
"""

from __future__ import annotations

import os
import stat
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from amplint import index
from amplint.budget import OutOfTimeError, limited
from amplint.context import Analyses, Context, Options
from amplint.diagnostic import Judgement, place, unplaced
from amplint.index import Summary
from amplint.own_rules import OWN_RULES, AnalysisIncomplete, OwnRule, UnreadableFile
from amplint.registry import all_rules
from amplint.relevance import Relevance, speaks_of_torch
from amplint.rule import Finding, Position, Rule
from amplint.source import SkippedSourceError, Source, UnreadableSourceError
from amplint.suppress import suppress
from amplint.triggers import Triggers

if TYPE_CHECKING:
    from amplint.project.asked import Question
    from amplint.summaries import Summaries

START = Position(1, 1)
_SCALING = ("backward", "unscale_", "clip_grad")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is looked for: the codes, those left out of single files, and the settings that rules read."""

    codes: frozenset[str]
    options: Options = field(default_factory=Options)
    ignored_in: Callable[[Path], Collection[str]] = lambda path: ()
    seconds: float = 30.0
    """The processor time that parsing, and then the rules, may spend on one file."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The findings in one text, suppressions applied, with the source they are placed in."""

    source: Source | None
    findings: tuple[Finding, ...] = ()
    silenced: int = 0
    failures: tuple[str, ...] = ()
    note: str | None = None
    cut_short: bool = False
    """Whether time ran out: another time there may be more to find."""


class Linter:
    """Judges files of one project.

    `files` gives the absolute paths that are linked with each other; it is called when a file has to be parsed.
    `contents` stand in for what is on the disk.
    """

    def __init__(
        self,
        files: Callable[[], Iterable[Path]],
        plan: Plan,
        contents: dict[Path, bytes] | None = None,
    ) -> None:
        self.plan = plan
        self.records = False
        """Whether judgements say what they rest on, for a cache."""
        self.folder: Path | None = None
        """Where what the files tell by themselves is kept, if it is."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Processor time by stage: reading and byte triggers, parsing, and each rule with the analyses it asked for."""
        self._asked: list[Question] = []
        self._told: set[Question] = set()
        self._staged = 0
        self._files = files
        self.contents = dict(contents or {})
        self._relevance = Relevance(files, self._bytes)
        self._analyses: Analyses | None = None

    def judge(self, path: Path) -> Judgement:
        """What is said of the file at an absolute path."""
        self._asked = []
        checked = self.check(path)
        source = checked.source
        return Judgement(
            diagnostics=tuple(place(source, f) if source else unplaced(f) for f in checked.findings),
            silenced=checked.silenced,
            failures=checked.failures,
            note=checked.note,
            cut_short=checked.cut_short,
            rests_on=tuple(self._answered()) if self.records else None,
            staged=self._newly_staged() if self.records else (),
        )

    def died(self, path: Path, cause: str) -> Judgement:
        """What is said of a file at which the process that judged it died."""
        finding = _incomplete(path, f"not judged: the process died ({cause})")
        return Judgement((unplaced(finding),) if finding.code in self.plan.codes else ())

    def check(self, path: Path) -> Checked:
        """The findings in the file at an absolute path, sorted. Never raises for what is in the file."""
        try:
            return self._check(path)
        except OSError as error:
            return Checked(None, self._unreadable(path, f"cannot be read: {error.strerror or error}"))
        except SkippedSourceError as error:
            return Checked(None, note=str(error))
        except UnreadableSourceError as error:
            return Checked(None, self._unreadable(path, str(error), Position(error.line, 1)))
        except Exception as error:
            finding = _incomplete(path, f"not judged: {_describe(error)}")
            return Checked(None, (finding,), failures=(_traceback(path, "not judged"),))

    def _check(self, path: Path) -> Checked:
        with self._timed("bytes"):
            data = self._bytes(path)
            rules = self._candidates(path, data)
        if not rules:
            return Checked(None)
        analyses = self._linked()
        with analyses.project.recording() as recording:
            checked = self._judge(path, analyses, rules)
        if self.records:
            self._asked += recording.asked.questions()
        return checked

    def _judge(self, path: Path, analyses: Analyses, rules: list[Rule]) -> Checked:
        """The findings of these rules, without the range rules where half precision does not reach: if only they could
        speak of the file, no more is asked than whether it can be read.

        Half precision is followed through all files by the first that asks, so ahead of that file's own time."""
        if not all(isinstance(rule, OwnRule) for rule in rules) and not self._is_reached(path, analyses):
            rules = [rule for rule in rules if not rule.in_half]
        with self._timed("tree"):
            source = self._source(path)
            try:
                with limited(self.plan.seconds):
                    if not rules and not source.unreadable and _is_python(source):
                        return Checked(source)
                    module = analyses.project.whole(path)
            except OutOfTimeError:
                analyses.abandon()
                finding = _incomplete(path, f"not judged: not parsed in {self.plan.seconds:g} s")
                return Checked(source, (finding,), cut_short=True)
        if module is None:
            return self._explain_unparsable(path, source)
        return self._judge_module(Context(module, analyses), rules)

    def source(self, path: Path) -> Source | None:
        """The text of a file as it stands; None if it cannot be read."""
        try:
            return self._source(path)
        except (OSError, UnreadableSourceError):
            return None

    def text(self, path: Path) -> str:
        """The program of a file; empty if it cannot be read."""
        source = self.source(path)
        return "" if source is None else source.text

    def digest(self, path: Path) -> str:
        """What tells a file's content from any other; empty if it cannot be read."""
        from amplint.cache_folder import digest

        try:
            return digest(self._bytes(path))
        except OSError:
            return ""

    def links(self, path: Path) -> Iterable[str]:
        """The dotted names that a file's imports may load a file for."""
        if self.folder is None or path in self.contents:
            return index.imported_names(self.text(path))
        return self._summaries.of(path)[index.LINKS]

    def keep(self) -> None:
        """Keep what was found out about single files for the next run, and let go of it in this one."""
        if "_summaries" in vars(self):
            self._summaries.save()
            del self._summaries

    def explain_values(self, path: Path, line: int) -> str:
        """What the value analysis makes of the expressions that begin on a line. Raises LookupError."""
        from amplint.values.explain import explain

        analyses = self._linked()
        module = analyses.project.module(path)
        if module is None:
            raise LookupError(f"{path} cannot be read or parsed")
        return explain(module, line, analyses)

    def replace(self, path: Path, data: bytes) -> None:
        """Let `data` stand in for the file's bytes from now on."""
        if self.contents.get(path) == data:
            return
        self.contents[path] = data
        if self._analyses is not None:
            project = self._analyses.project
            project.forget(path)
            self._analyses = Analyses(project, self.plan.options)

    def _answered(self) -> Iterator[tuple[Question, tuple[str, ...] | None]]:
        """The questions that the present judgement rests on, with the answers that were not told before."""
        for question in self._asked:
            new = question not in self._told
            self._told.add(question)
            yield question, self._answer(question) if new else None

    def _newly_staged(self) -> tuple[tuple[Question, tuple[str, ...]], ...]:
        """`staged`, when it has not been told yet."""
        if self._analyses is None or len(self._analyses.project.staged) == self._staged:
            return ()
        self._staged = len(self._analyses.project.staged)
        return self.staged()

    def staged(self) -> tuple[tuple[Question, tuple[str, ...]], ...]:
        """What half precision in the project, followed once for all files, rests on: the questions with answers."""
        return tuple((question, self._answer(question)) for question in self._linked().project.staged)

    def half_in(self, path: Path) -> tuple[str, ...]:
        """All that half precision of the project comes to in one file, in a word."""
        return self._linked().values.half_in(path)

    def _answer(self, question: Question) -> tuple[str, ...]:
        if question[0] == "half":
            return self.half_in(Path(question[1]))
        return () if question[0] == "concerns" else self._linked().project.answer(question)

    # -- stages ------------------------------------------------------------------------------------------------

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        begun = time.process_time()
        try:
            yield
        finally:
            self.seconds[stage] += time.process_time() - begun

    def _bytes(self, path: Path) -> bytes:
        return self.contents[path] if path in self.contents else read_bytes(path)

    def _candidates(self, path: Path, data: bytes) -> list[Rule]:
        if self.records and not speaks_of_torch(data):
            self._asked.append(("concerns", str(path)))
        triggers = self._triggers if self._relevance.concerns(path, data) else self._own_triggers
        left_out = self.plan.ignored_in(path)
        return [rule for rule in triggers.candidates(data) if rule.code not in left_out]

    def _source(self, path: Path) -> Source:
        return read_source(path, self._bytes(path))

    def _linked(self) -> Analyses:
        if self._analyses is None:
            from amplint.project import Project

            self._analyses = Analyses(Project(self._files(), self._source, self._summary_of_each), self.plan.options)
        else:
            self._analyses.trim()
        return self._analyses

    def _summary_of_each(self, paths: Iterable[Path]) -> Iterator[Summary]:
        """What the files tell by themselves, each read as it is asked for; what is new is kept once all are."""
        for path in paths:
            if self.folder is None or path in self.contents:
                yield index.summary(self.text(path))
            else:
                yield self._summaries.of(path)
        self.keep()

    @cached_property
    def _rules(self) -> tuple[Rule, ...]:
        return tuple(rule for rule in all_rules() if rule.code in self.plan.codes)

    @cached_property
    def _triggers(self) -> Triggers:
        return Triggers(self._rules)

    @cached_property
    def _own_triggers(self) -> Triggers:
        return Triggers(rule() for rule in OWN_RULES if rule.code in self.plan.codes)

    @cached_property
    def _summaries(self) -> Summaries:
        from amplint.summaries import Summaries

        assert self.folder is not None
        return Summaries(self.folder, self._bytes, self._program)

    def _program(self, path: Path, data: bytes) -> str:
        try:
            return read_source(path, data).text
        except UnreadableSourceError:
            return ""

    def _is_reached(self, path: Path, analyses: Analyses) -> bool:
        with self._timed("regions"):
            return analyses.values.reaches(path)

    def _judge_module(self, context: Context, rules: list[Rule]) -> Checked:
        source, path = context.source, context.source.path
        findings, failures, cut_short = self._apply(rules, context)
        findings += [_incomplete(path, f"this cell is no Python: {why}", at) for at, why in source.unreadable]
        ran = self.plan.codes - set(self.plan.ignored_in(path))
        distinct = dict.fromkeys(f for f in findings if f.code in ran)
        suppressed = suppress(source, list(distinct), ran)
        ordered = sorted(suppressed.findings, key=lambda finding: finding.sort_key)
        return Checked(source, tuple(ordered), suppressed.silenced, tuple(failures), cut_short=cut_short)

    def _apply(self, rules: list[Rule], context: Context) -> tuple[list[Finding], list[str], bool]:
        """The findings of the rules, the tracebacks of those that failed, and whether time ran out, which is said."""
        path = context.source.path
        findings: list[Finding] = []
        failures: list[str] = []
        done: list[Rule] = []
        cut_short = False
        try:
            with limited(self.plan.seconds):
                for rule in rules:
                    try:
                        with self._timed(rule.code):
                            findings += rule.check(context)
                    except Exception as error:
                        failures.append(_traceback(path, rule.code))
                        findings.append(_incomplete(path, f"{rule.code} {rule.name} failed: {_describe(error)}"))
                    done.append(rule)
                findings += _given_up(context)
        except OutOfTimeError:
            cut_short = True
            self._linked().abandon()
            missing = ", ".join(rule.code for rule in rules if rule not in done)
            findings.append(_incomplete(path, f"stopped after {self.plan.seconds:g} s, without {missing}"))
        return findings, failures, cut_short

    # -- what cannot be judged ---------------------------------------------------------------------------------

    def _explain_unparsable(self, path: Path, source: Source) -> Checked:
        from amplint.tree import parse

        try:
            parse(source)
        except SyntaxError as error:
            line = min(max(error.lineno or 1, 1), len(source.line_starts))
            column = min(max(error.offset or 1, 1), len(source.line(line)) + 1)
            return Checked(source, self._unreadable(path, f"cannot be parsed: {error.msg}", Position(line, column)))
        except (ValueError, RecursionError, MemoryError) as error:
            return Checked(source, self._unreadable(path, f"cannot be parsed: {_describe(error)}"))
        return Checked(source)

    def _unreadable(self, path: Path, message: str, at: Position = START) -> tuple[Finding, ...]:
        rule = UnreadableFile
        if rule.code not in self.plan.codes or rule.code in self.plan.ignored_in(path):
            return ()
        return (Finding(path, at, at, rule.code, rule.name, rule.severity, message),)


def read_bytes(path: Path) -> bytes:
    """The bytes of a regular file. Raises OSError; never opens a pipe or a device."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(f"{path} is no regular file")
    return path.read_bytes()


def read_source(path: Path, data: bytes) -> Source:
    """The program in a file's bytes. Raises UnreadableSourceError."""
    if path.suffix == ".ipynb":
        from amplint.notebook import Notebook

        return Notebook.from_bytes(path, data)
    return Source.from_bytes(path, data)


def _is_python(source: Source) -> bool:
    """Whether the running Python reads a text: a third of the work of `tree.parse`."""
    import ast

    try:
        ast.parse(source.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _given_up(context: Context) -> Iterator[Finding]:
    """What is said of functions that an analysis hit a bound in."""
    source, module = context.source, context.module
    for node, reason in context.limits:
        if hasattr(node, "lineno") and not any(word in source.segment(node) for word in _SCALING):
            continue  # it was looked into for a name alone: another kind of scaler
        at = source.position(source.span(node)[0]) if hasattr(node, "lineno") else START
        yield _incomplete(source.path, f"gradient scaling in {module.qualname(node)} was not followed: {reason}", at)


def _incomplete(path: Path, message: str, at: Position = START) -> Finding:
    rule = AnalysisIncomplete
    return Finding(path, at, at, rule.code, rule.name, rule.severity, message)


def _traceback(path: Path, what: str) -> str:
    return f"{path}: {what}\n{traceback.format_exc()}"


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
