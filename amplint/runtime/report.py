"""Verdicts as a user reads them: text, JSON, Markdown. Imports no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from amplint.runtime.verdict import BadTensor, Ending, Place, Run

if TYPE_CHECKING:
    from amplint.runtime.verify import Outcome

SIMULATED = (
    "Run under simulated CUDA: CPU tensors under CUDA's own cast policy, float16 storage for each operation."
    " Not covered: CUDA graphs, Triton and custom CUDA operations, torch.compile (scripts run uncompiled),"
    " several devices, distributed training, cuDNN's own rounding."
)
REAL = "Run on CUDA: {name}."
_HEADER = ("script", "device", "before", "after", "")


def text(outcomes: Sequence[Outcome]) -> str:
    """A table, then what is known of each failure."""
    rows = [_HEADER, *map(_row, outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for outcome in outcomes:
        found = _explained(outcome)
        if found:
            lines += ["", _shown(outcome.script), *found]
    return "\n".join([*lines, "", *_closing(outcomes)]) + "\n"


def markdown(outcomes: Sequence[Outcome]) -> str:
    """The table for a summary page or a comment."""
    rows = [_HEADER, tuple("---" for _ in _HEADER), *map(_row, outcomes)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([*lines, "", *_closing(outcomes)]) + "\n"


def as_json(outcomes: Sequence[Outcome]) -> str:
    """One object a script."""
    records = [
        {
            "script": str(outcome.script),
            "codes": list(outcome.codes),
            "ok": outcome.ok,
            "problem": outcome.problem,
            "before": outcome.before and outcome.before.to_json(),
            "after": outcome.after and outcome.after.to_json(),
            "explanation": outcome.explanation and asdict(outcome.explanation),
        }
        for outcome in outcomes
    ]
    return json.dumps(records, indent=2) + "\n"


def text_of_run(run: Run) -> str:
    """A few lines on one run."""
    return "\n".join([summary(run), *details(run)])


def summary(run: Run) -> str:
    """One line: what failed, at which step; or how far it went."""
    if run.failure is not None:
        lines = run.failure.message.splitlines() or [run.failure.kind.value]
        return f"{lines[0]} ({run.failure.when})"
    if not run.steps:
        return "ran without a training step"
    parts = [f"{run.steps} steps finite"]
    if run.last_loss is not None:
        parts.append(f"loss {run.last_loss:.4g}")
    if run.scale is not None:
        parts.append(f"scale {run.scale:g}")
    if run.ending is Ending.TIME:
        parts.append("time limit")
    return ", ".join(parts)


def details(run: Run) -> list[str]:
    """Where a run failed, and where the first bad tensor came from."""
    lines = []
    if run.failure is not None and run.failure.place.file:
        lines.append(f"  at {where(run.failure.place)}")
    if run.bad_tensor is not None:
        lines.append("  " + origin(run.bad_tensor))
        if run.bad_tensor.place.file:
            lines.append(f"  at {where(run.bad_tensor.place)}")
    return lines


def where(place: Place) -> str:
    """`file:line: code`"""
    return f"{_shown(place.file)}:{place.line}: {place.code}"


def origin(bad: BadTensor) -> str:
    """The operation, its operands, and what came out."""
    operands = ", ".join(f"{dtype}{list(shape)}" for dtype, shape in zip(bad.dtypes, bad.shapes, strict=False))
    return f"first {bad.value} of step {bad.step}, {bad.phase}: {bad.operation}({operands})"


def _row(outcome: Outcome) -> tuple[str, ...]:
    before, after = outcome.before, outcome.after
    return (
        _shown(outcome.script),
        before.device if before else "",
        _short(before) if before else "",
        _short(after) if after else "",
        outcome.problem or "ok",
    )


def _short(run: Run) -> str:
    """What failed, at which step and line; or how far it went."""
    if run.failure is None:
        return summary(run)
    place = run.bad_tensor.place if run.bad_tensor else run.failure.place
    line = f", line {place.line}" if place.line else ""
    return f"{run.failure.kind.value}, {run.failure.when}{line}"


def _explained(outcome: Outcome) -> list[str]:
    lines = []
    for label, run in (("before", outcome.before), ("after", outcome.after)):
        if run is not None and run.failed:
            lines += [f"  {label}: {summary(run)}", *(f"  {line}" for line in details(run))]
    if outcome.explanation is not None:
        finding = outcome.explanation
        lines.append(f"  {finding.code} {finding.name}: {finding.message}")
    return lines


def _closing(outcomes: Sequence[Outcome]) -> list[str]:
    bad = sum(not outcome.ok for outcome in outcomes)
    many = f"{len(outcomes)} script{'s' * (len(outcomes) != 1)}"
    lines = [f"{many}, {bad} not ok." if bad else f"{many}, all ok."]
    runs = [run for outcome in outcomes for run in (outcome.before, outcome.after) if run is not None]
    return lines + sorted({device_note(run) for run in runs if run.device})


def device_note(run: Run) -> str:
    """On what it ran, and what that does not cover."""
    return SIMULATED if run.device == "simulated" else REAL.format(name=run.device_name)


def _shown(path: str | Path) -> str:
    """Relative to here, if it lies here."""
    here = os.getcwd() + os.sep
    return str(path).removeprefix(here)
