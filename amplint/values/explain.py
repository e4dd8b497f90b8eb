"""What the analysis believes of a line, in words: how a user argues with a finding."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.values.interval import ALL, Interval
from amplint.values.value import Frame, RegionKind, Value

if TYPE_CHECKING:
    from amplint.context import Analyses
    from amplint.tree import Module

_MAX_FRAMES = 4


def explain(module: Module, line: int, analyses: Analyses) -> str:
    """The expressions that begin on a line: operation, dtype, region and why, interval; once for each way there."""
    values = analyses.values
    parts: list[str] = []
    for node in _expressions(module, line):
        for frame in values.frames(module, node)[-_MAX_FRAMES:]:
            for value in values.of(module, node, frame):
                parts.append(_line(module, node, value))
                parts += _why(value, frame)
    return "\n".join(dict.fromkeys(parts)) or f"no expression begins on line {line}"


def _expressions(module: Module, line: int) -> Iterator[ast.expr]:
    """Outermost first, in source order; plain names, constants and the functions called left out."""
    found = [
        node
        for node in module.nodes
        if isinstance(node, ast.Call | ast.BinOp | ast.UnaryOp | ast.Subscript | ast.Attribute | ast.Name)
        and node.lineno == line
        and not isinstance(getattr(node, "ctx", None), ast.Store)
        and not _is_called(module, node)
    ]
    return iter(sorted(found, key=lambda n: (n.col_offset, -(n.end_col_offset or 0))))


def _is_called(module: Module, node: ast.expr) -> bool:
    parent = module.parent(node)
    if isinstance(parent, ast.Attribute):
        return isinstance(node, ast.Name | ast.Attribute)
    return isinstance(parent, ast.Call) and parent.func is node


def _line(module: Module, node: ast.expr, value: Value) -> str:
    text = " ".join(module.source.segment(node).split())
    what = value.op if not value.dotted else f"{value.op} {value.dotted}"
    words = [f"{text}: {what}", " or ".join(sorted(d.value for d in value.dtypes))]
    if value.interval != ALL:
        words.append(f"in {_interval(value.interval)}")
    return ", ".join(words)


def _why(value: Value, frame: Frame) -> Iterator[str]:
    region = value.region
    if region.kind is not RegionKind.NONE:
        sure = "" if region.certain else "possibly "
        yield f"    under {sure}{region.kind.value}"
    for place in (*region.why, *frame.path):
        yield f"    {place.path}:{place.position.line}: {place.message}"


def _interval(interval: Interval) -> str:
    left, right = "(" if interval.lower_open else "[", ")" if interval.upper_open else "]"
    return f"{left}{interval.lower:g}, {interval.upper:g}{right}"
