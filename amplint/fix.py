"""Applying fixes: order, overlap, re-reading to a fixpoint, and writing the file so that it is never half there."""

from __future__ import annotations

import ast
import contextlib
import errno
import os
import re
import signal
import tempfile
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from amplint.rule import Edit, Finding, Position, Safety
from amplint.source import Source
from amplint.tree import Module, parse

MAX_ROUNDS = 100
_HELD = ("SIGTERM", "SIGINT", "SIGHUP")


class FixError(Exception):
    """The file is left as it was; the message says why."""


@dataclass(frozen=True, slots=True)
class FixResult:
    """What became of a source: `source` is the fixed one, `fixed` the findings mended, `remaining` those left in it.

    `error`: why nothing was changed although there were fixes.
    """

    source: Source
    fixed: tuple[Finding, ...]
    remaining: tuple[Finding, ...]
    error: str | None = None

    @property
    def text(self) -> str:
        return self.source.text

    @property
    def fixable_unsafely(self) -> int:
        """How many of the remaining findings `--unsafe-fixes` would fix."""
        return sum(f.fix is not None and f.fix.safety is Safety.UNSAFE for f in self.remaining)


class Mending:
    """A source on its way to the fixpoint, round by round.

    A round applies fixes that do not touch each other; the others wait for the next, when the text has been read
    anew. If a round gives a text that is no Python, or the rounds do not end, `source` is the original again and
    `error` says why.
    """

    def __init__(self, source: Source, *, unsafe: bool) -> None:
        self.original = self.source = source
        self.fixed: tuple[Finding, ...] = ()
        self.error: str | None = None
        self._unsafe = unsafe
        self._seen = {source.text}

    def advance(self, findings: Sequence[Finding]) -> bool:
        """Apply fixes of the findings in the present source. False if there is nothing more to apply."""
        if self.error:
            return False
        chosen = _compatible(self.source, findings, unsafe=self._unsafe)
        if not chosen:
            return False
        edits = dict.fromkeys(edit for finding in chosen for edit in _edits(finding, self._unsafe))
        codes = ", ".join(sorted({finding.code for finding in chosen}))
        try:
            mended = self.source.edited(edits)
            parse(mended)
        except ValueError as error:
            return self._give_up(f"the fix of {codes} cannot be made: {error}")
        except SyntaxError as error:
            return self._give_up(f"the fix of {codes} would not parse (line {error.lineno}: {error.msg})")
        if mended.text in self._seen or len(self._seen) > MAX_ROUNDS:
            return self._give_up(f"the fixes of {codes} undo each other")
        self._seen.add(mended.text)
        self.source = mended
        self.fixed += tuple(chosen)
        return True

    def _give_up(self, why: str) -> bool:
        self.source, self.fixed, self.error = self.original, (), why
        return False


def fix_source(source: Source, find: Callable[[Source], Sequence[Finding]], *, unsafe: bool) -> FixResult:
    """Apply the fixes of the findings that `find` sees, again and again, until none is left to apply."""
    mending = Mending(source, unsafe=unsafe)
    before = findings = tuple(find(source))
    while mending.advance(findings):
        findings = tuple(find(mending.source))
    return FixResult(mending.source, mending.fixed, before if mending.error else findings, mending.error)


def write(original: Source, fixed: Source) -> None:
    """Put `fixed` in the place of `original` on the disk, whole or not at all, with the mode it had.

    The target of a symbolic link is written, the link stays. Raises FixError if the file is no longer what `original`
    was read from, OSError if it cannot be written; either way it is as it was, with nothing beside it.
    """
    target = Path(os.path.realpath(original.path))
    status = target.stat()
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "it is read-only", str(original.path))
    data = fixed.to_bytes(fixed.text)
    with _signals_held():
        handle, name = tempfile.mkstemp(prefix=".amplint-", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(handle)
            _copy_ownership(status, name)
            if target.read_bytes() != original.to_bytes(original.text):
                raise FixError("the file has changed since it was read")
            os.replace(name, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Put off Ctrl-C and termination until the block is done, so that nothing is left half done."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    held = {getattr(signal, name) for name in _HELD if hasattr(signal, name)}
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _copy_ownership(status: os.stat_result, path: str) -> None:
    if hasattr(os, "chown"):
        with contextlib.suppress(OSError):  # only root may give files away
            os.chown(path, status.st_uid, status.st_gid)
    os.chmod(path, status.st_mode & 0o7777)


def _edits(finding: Finding, unsafe: bool) -> tuple[Edit, ...]:
    """The edits that mend a finding; () if its fix is not to be applied."""
    fix = finding.fix
    if fix is None or (fix.safety is Safety.UNSAFE and not unsafe):
        return ()
    return fix.unsafe_instead.edits if unsafe and fix.unsafe_instead else fix.edits


def _compatible(source: Source, findings: Sequence[Finding], *, unsafe: bool) -> list[Finding]:
    """The findings whose fixes can be applied together, in the order of the text, outer ones first."""
    edits_of = {finding: edits for finding in findings if (edits := _edits(finding, unsafe))}
    if not edits_of:
        return []
    module = parse(source)
    strings = _format_strings(module)
    chosen: list[Finding] = []
    taken: list[Edit] = []
    restructured: set[ast.AST] = set()
    for finding, edits in sorted(edits_of.items(), key=_by_place):
        new = [edit for edit in edits if not _is_in(edit, taken)]
        place = _restructures(module, edits)
        if any(_touches(edit, taken) for edit in new) or (new and place in restructured):
            continue
        if any(_breaks_string(edit, strings) for edit in edits):
            continue
        chosen.append(finding)
        for edit in new:
            insort(taken, edit)
        if place is not None:
            restructured.add(place)
    return chosen


def _by_place(mended: tuple[Finding, tuple[Edit, ...]]) -> tuple[int, int, tuple[str, Position, str]]:
    finding, edits = mended
    return min(edits).start, -max(edit.end for edit in edits), finding.sort_key


def _is_in(edit: Edit, taken: list[Edit]) -> bool:
    """Whether the very same edit is taken. Two brackets opened at one place are two: each is closed elsewhere."""
    index = bisect_left(taken, edit)
    return not edit.text.endswith("(") and index < len(taken) and taken[index] == edit


def _touches(edit: Edit, taken: list[Edit]) -> bool:
    """Whether an edit overlaps one of `taken` (sorted, apart), or one is an insertion at the other's edge."""
    index = bisect_left(taken, edit)
    for other in taken[max(0, index - 1) : index + 1]:
        if edit.start == edit.end or other.start == other.end:
            if edit.start <= other.end and other.start <= edit.end:
                return True
        elif edit.start < other.end and other.start < edit.end:
            return True
    return False


def _restructures(module: Module, edits: Sequence[Edit]) -> ast.AST | None:
    """The outermost function in which `edits` insert or remove whole statements; None if they replace expressions.

    Two such fixes in one function may each do what is needed once (`scaler.unscale_(optimizer)`), so they take turns.
    """
    text = module.source.text
    for edit in edits:
        is_import = edit.text.lstrip().startswith(("import ", "from "))
        changes_lines = _newlines(edit.text) != _newlines(text[edit.start : edit.end]) or ";" in edit.text
        if changes_lines and not is_import:
            return _outermost_function(module, edit.start)
    return None


def _newlines(text: str) -> int:
    return len(re.findall(r"\r\n|\r|\n", text))


def _outermost_function(module: Module, offset: int) -> ast.AST:
    for function in module.functions:
        start, end = module.source.span(function)
        if start <= offset <= end + 1 and module.function(function) is None:
            return function
    return module.tree


def _format_strings(module: Module) -> list[tuple[int, int]]:
    return [module.source.span(node) for node in ast.walk(module.tree) if isinstance(node, ast.JoinedStr)]


def _breaks_string(edit: Edit, strings: list[tuple[int, int]]) -> bool:
    """Whether an edit puts into an f-string what it could not hold before Python 3.12."""
    return any(character in edit.text for character in "\"'\\\n#") and any(
        start < edit.start and edit.end < end for start, end in strings
    )
