"""In which precision the forward pass of a loss ran: the autocast regions of what it was computed from."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from amplint.context import Context
from amplint.project import CallSite
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


def forward_regions(
    context: Context, module: Module, loss: ast.expr, calls: Iterable[CallSite] = ()
) -> tuple[Region, ...]:
    """The regions under which a loss, and what gradients flow back to from it, was computed.

    `calls`: those that lead into the function that `loss` stands in, outermost first; it may be in a region by them.
    """
    values = context.values
    entered = _entered(context, calls)
    pending = list(values.of(module, loss))
    visited: set[Value] = set()
    regions: dict[RegionKind, Region] = {}
    while pending and len(visited) < _MAX_VALUES:
        value = pending.pop()
        if value in visited or not values.gradients(value):
            continue
        visited.add(value)
        if value.op not in _NO_COMPUTATION:
            region = value.region
            if region.kind is RegionKind.NONE and value.frame.call is None and entered is not None:
                region = entered
            known = regions.get(region.kind)
            regions[region.kind] = region if known is None or region.certain else known
        for argument in (*value.arguments.values(), *value.elements):
            pending += values.of_argument(argument)
    return tuple(regions.values())


def _entered(context: Context, calls: Iterable[CallSite]) -> Region | None:
    """The region that the innermost of these calls stands in, of those that stand in one."""
    regions = (context.values.region(site.module, site.call) for site in reversed(tuple(calls)))
    return next((region for region in regions if region.kind is not RegionKind.NONE), None)
