"""What a rule is and what it yields: Rule, Finding, Fix, Edit, and their severities.

A rule is one file in `rules/`: a subclass of `Rule` whose docstring is the page that `amplint explain` shows,
with its `INVALID` and `VALID` examples beside it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeAlias

if TYPE_CHECKING:
    import ast
    from pathlib import Path

    from amplint.context import Context

Trigger: TypeAlias = "bytes | re.Pattern[bytes]"


class Severity(enum.IntEnum):
    """How bad a finding is; ordered, so that a threshold is a comparison."""

    INFO = 1
    WARNING = 2
    ERROR = 3

    def __str__(self) -> str:
        return self.name.lower()


class Safety(enum.Enum):
    """Whether a fix keeps the mathematics (`safe`) or changes numbers, training or control flow (`unsafe`)."""

    SAFE = "safe"
    UNSAFE = "unsafe"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a source: 1-based line, 1-based column in characters."""

    line: int
    column: int


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Replace the characters `start` to `end` (offsets into `Source.text`) by `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Fix:
    """Edits that belong together: applied all or not at all.

    `unsafe_instead` is what `--unsafe-fixes` applies in place of a safe fix: it mends the same more thoroughly.
    """

    message: str
    safety: Safety
    edits: tuple[Edit, ...]
    unsafe_instead: Fix | None = None


@dataclass(frozen=True, slots=True)
class Related:
    """Another place that explains a finding, such as a step of the path that leads to it."""

    path: Path
    start: Position
    message: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault at one place. `start` to `end` is the anchor's span; columns are 1-based."""

    path: Path
    start: Position
    end: Position
    code: str
    name: str
    severity: Severity
    message: str
    fix: Fix | None = None
    related: tuple[Related, ...] = ()

    @property
    def sort_key(self) -> tuple[str, Position, str]:
        return (str(self.path), self.start, self.code)


def offers(finding: Finding) -> tuple[Fix, ...]:
    """The fixes a user can choose from: the finding's own, and the unsafe one that could stand in its place."""
    own = finding.fix
    if own is None:
        return ()
    return (own,) if own.unsafe_instead is None else (own, own.unsafe_instead)


@dataclass(frozen=True, slots=True)
class Example:
    """A program a rule reports, and what its fix makes of it (None: the rule has no fix for it).

    A line that ends in `# expect` is an anchor; the marks are removed before the program is read.
    `files` are other files of the same little project, by relative path; the program itself is `main.py`.
    """

    source: str
    fixed: str | None = None
    files: dict[str, str] = field(default_factory=dict)


class Rule:
    """One entry of the catalogue.

    `triggers` is the byte stage: alternatives, each a tuple of byte strings and patterns (`amplint.triggers`)
    that must all occur in the file. A file that satisfies none of them is never parsed for this rule.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[Severity]
    summary: ClassVar[str]
    triggers: ClassVar[tuple[tuple[Trigger, ...], ...]]
    in_half: ClassVar[bool] = False
    """It speaks only of code that half precision may reach: a file without such code is only read for it."""
    default: ClassVar[bool] = True
    fixable: ClassVar[str] = ""
    INVALID: ClassVar[Iterable[Example]] = ()
    VALID: ClassVar[Iterable[Example | str]] = ()

    def check(self, context: Context) -> Iterator[Finding]:
        """The findings of this rule in `context.module`, in any order."""
        raise NotImplementedError

    def finding(
        self,
        context: Context,
        node: ast.AST,
        message: str,
        *,
        severity: Severity | None = None,
        fix: Fix | None = None,
        related: tuple[Related, ...] = (),
    ) -> Finding:
        """A finding of this rule anchored on `node`, a located node of `context.module`."""
        start, end = context.source.span(node)
        return Finding(
            path=context.source.path,
            start=context.source.position(start),
            end=context.source.position(end),
            code=self.code,
            name=self.name,
            severity=self.severity if severity is None else severity,
            message=message,
            fix=fix,
            related=related,
        )
