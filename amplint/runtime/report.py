"""Verdicts as a user reads them."""

from __future__ import annotations

from amplint.runtime.verdict import BadTensor, Place, Run


def text_of_run(run: Run) -> str:
    """A few lines on one run."""
    return "\n".join([summary(run), *details(run)])


def summary(run: Run) -> str:
    """One line: what failed, at which step; or how far it went."""
    if run.failure is not None:
        return f"{run.failure.message.splitlines()[0]} (step {run.failure.step})"
    if not run.steps:
        return "ran to its end without a training step"
    parts = [f"{run.steps} steps finite"]
    if run.last_loss is not None:
        parts.append(f"loss {run.last_loss:.4g}")
    if run.scale is not None:
        parts.append(f"scale {run.scale:g}")
    return ", ".join(parts)


def details(run: Run) -> list[str]:
    """Where a run failed, and where the first bad tensor came from."""
    lines = []
    if run.failure is not None and run.failure.place.file:
        lines.append(f"  at {where(run.failure.place)}")
    if run.bad_tensor is not None:
        lines.append("  first bad tensor: " + origin(run.bad_tensor))
        if run.bad_tensor.place.file:
            lines.append(f"  at {where(run.bad_tensor.place)}")
    return lines


def where(place: Place) -> str:
    """`file:line: code`"""
    return f"{place.file}:{place.line}: {place.code}"


def origin(bad: BadTensor) -> str:
    """The operation, its operands, and what came out."""
    operands = ", ".join(f"{dtype}{list(shape)}" for dtype, shape in zip(bad.dtypes, bad.shapes, strict=False))
    return f"step {bad.step}, {bad.phase}: {bad.operation}({operands}) gave {bad.value}"
