"""What an expression can be: its canonical operation, its dtype under the regions it runs in, its interval.

A rule asks, in this order:

    for value in context.values.operations(context.module, "log"):      # every spelling of log in this file
        peeled = context.values.peel(value.operand("input"), {"index", "cast", "eps", "clamp"})
        if all(p.core.op == "softmax" for p in peeled): ...
        context.values.half(value)                                      # Certainty that its result is float16
        for seen in context.values.seen(value):                         # once for each known way to reach it
            seen.dtypes, seen.interval, seen.region, seen.frame.path
"""

from amplint.values.dtype import Dtype, Dtypes
from amplint.values.engine import Values
from amplint.values.gradients import is_stopped
from amplint.values.interval import FLOAT16_MAX, Interval, round_to
from amplint.values.value import Argument, Certainty, Frame, Peeled, Place, Region, RegionKind, Step, Value

__all__ = [
    "FLOAT16_MAX",
    "Argument",
    "Certainty",
    "Dtype",
    "Dtypes",
    "Frame",
    "Interval",
    "Peeled",
    "Place",
    "Region",
    "RegionKind",
    "Step",
    "Value",
    "Values",
    "is_stopped",
    "round_to",
]
