"""Output formats, one a module, each with `render(report) -> str`; loaded when they are asked for."""

from __future__ import annotations

import importlib
import os
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from amplint.diagnostic import Diagnostic
from amplint.rule import Safety

FORMATS = ("text", "json", "github", "sarif", "gitlab", "junit", "rdjson", "azure", "pylint", "markdown")
DOCUMENTATION = "https://amplint.readthedocs.io/en/stable/rules"


@dataclass(frozen=True, slots=True)
class Report:
    """What a run found. `base` is the folder that paths are shown relative to; `files` counts those checked."""

    diagnostics: tuple[Diagnostic, ...]
    files: int
    base: Path
    silenced: int = 0
    colour: bool = False
    quiet: bool = False
    statistics: bool = False

    def shown(self, path: Path) -> str:
        """The path relative to `base` with forward slashes, or whole if it lies outside."""
        return (path.relative_to(self.base) if path.is_relative_to(self.base) else path).as_posix()

    def message(self, diagnostic: Diagnostic) -> str:
        """The message; in a notebook preceded by the cell, for formats that have no place for it."""
        message = diagnostic.finding.message
        return (
            message if diagnostic.cell is None else f"cell {diagnostic.cell}, line {diagnostic.start.line}: {message}"
        )

    def fixable(self, safety: Safety) -> int:
        """How many findings have a fix of this safety."""
        return sum(d.finding.fix is not None and d.finding.fix.safety is safety for d in self.diagnostics)


def renderer(name: str) -> Callable[[Report], str]:
    """The `render` function of a format."""
    render: Callable[[Report], str] = importlib.import_module(f"amplint.reporters.{name}_format").render
    return render


def url(code: str) -> str:
    """The page of a rule."""
    return f"{DOCUMENTATION}/{code.lower()}/"


def printable(text: str) -> str:
    """The text with control, direction and unassigned characters escaped: it cannot steer a terminal or a log."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or unicodedata.category(c) == "Zs" else _escape(c) for c in text)


def wants_colour(terminal: bool) -> bool:
    """Whether to colour: NO_COLOR forbids it, FORCE_COLOR asks for it, else only on a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return terminal and os.environ.get("TERM") != "dumb"


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
