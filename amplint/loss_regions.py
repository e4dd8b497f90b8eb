"""In which precision the forward pass of a loss ran: the autocast regions of what it was computed from."""

from __future__ import annotations

import ast

from amplint.context import Context
from amplint.tree import Module
from amplint.values import Region, RegionKind, Value

_MAX_VALUES = 300
"""So many values a loss is traced back through."""

_NO_COMPUTATION = frozenset(
    [
        "constant",
        "parameter",
        "tuple",
        "comprehension",
        "dict",
        "instance",
        "module",
        "sequential",
        "modules",
        "function",
        "class",
        "method",
        "partial",
        "super",
        "external",
        "python",
        "autocast",
    ]
)


def forward_regions(context: Context, module: Module, loss: ast.expr) -> tuple[Region, ...]:
    """The regions under which a loss, and what gradients flow back to from it, was computed."""
    values = context.values
    pending = [seen for value in values.of(module, loss) for seen in values.seen(value)]
    visited: set[Value] = set()
    regions: dict[RegionKind, Region] = {}
    while pending and len(visited) < _MAX_VALUES:
        value = pending.pop()
        if value in visited or not values.gradients(value):
            continue
        visited.add(value)
        if value.op not in _NO_COMPUTATION:
            region = value.region
            known = regions.get(region.kind)
            regions[region.kind] = region if known is None or region.certain else known
        for argument in (*value.arguments.values(), *value.elements):
            pending += values.of_argument(argument)
    return tuple(regions.values())
