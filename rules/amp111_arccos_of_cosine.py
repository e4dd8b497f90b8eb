"""AMP111: arccos or arcsin of a value that reaches 1, where its slope is infinite."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import ClassVar

from amplint import patterns
from amplint.context import Context
from amplint.rule import Example, Finding, Rule, Severity
from amplint.torch_ops import Kind
from amplint.triggers import call
from amplint.values import Dtype, Value, round_to


class ArccosOfCosine(Rule):
    """acos of a cosine that reaches 1 has an infinite gradient there.

    ## What it does
    Reports `acos` and `asin` of a value whose range reaches 1 or -1 in the dtype it has: a cosine similarity, a
    product of normalized vectors, a clamp to [-1, 1], the cosine `(trace - 1) / 2` of a rotation.

    ## Why
    The slope of acos at 1 is infinite, so two parallel vectors, or a prediction that is right, give an infinite
    gradient, and NaN further down. Rounding takes a cosine beyond 1 besides, where acos is NaN. A clamp strictly
    inside helps if the dtype keeps its bound: 1 - 1e-4 is 1 in float16 (the spacing below 1 is 0.00049), 1 - 1e-8 is
    1 in float32 (5.96e-8).

    ## Example
    ```python
    angle = torch.acos(F.cosine_similarity(a, b).clamp(-1, 1))
    ```
    Use instead:
    ```python
    angle = torch.acos(F.cosine_similarity(a.float(), b.float()).clamp(-1 + 1e-6, 1 - 1e-6))
    ```
    or, exact at all angles, `torch.atan2` of the norm of the cross product and the dot product.

    ## Fix
    None: the bound, or the other formula, is a choice.

    ## References
    - [The gradient of acos at 1](https://github.com/pytorch/pytorch/issues/8069)
    """

    code = "AMP111"
    name = "arccos-of-cosine"
    severity = Severity.WARNING
    summary = "acos and asin have an infinite gradient at 1 and are NaN beyond"
    triggers = ((call("acos"),), (call("asin"),), (call("arccos"),), (call("arcsin"),))
    INVALID: ClassVar = (
        Example(
            """
            import torch
            import torch.nn.functional as F

            def angle(a, b):
                return torch.acos(F.cosine_similarity(a, b, dim=-1))  # expect

            def arc(a, b):
                a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
                return (a * b).sum(-1).clamp(-1.0, 1.0).arccos()  # expect

            def pairs(a, b):
                a, b = a / a.norm(dim=1, keepdim=True), F.normalize(b, dim=1)
                return torch.acos(torch.einsum("nd,md->nm", a, b))  # expect

            def elevation(y, eps=1e-8):
                return torch.asin(y.clamp(-1 + eps, 1 - eps))  # expect
            """,
        ),
        Example(
            """
            import torch
            import torch.nn.functional as F

            def geodesic(r1, r2):
                r = torch.matmul(r1, r2.transpose(1, 2))
                trace = r[:, 0, 0] + r[:, 1, 1] + r[:, 2, 2]
                return torch.acos(0.5 * (trace - 1))  # expect

            def margin(x, weight):
                with torch.autocast("cuda"):
                    cosine = F.linear(F.normalize(x), F.normalize(weight))
                    return torch.arccos(cosine.clamp(-1 + 1e-4, 1 - 1e-4))  # expect
            """,
        ),
        Example(
            """
            import torch
            import torch.nn.functional as F

            def arc(cosine):
                return torch.acos(cosine.clamp(-1 + 1e-4, 1 - 1e-4))  # expect

            def margin(x, weight):
                with torch.autocast("cuda", dtype=torch.float16):
                    return arc(F.linear(F.normalize(x), F.normalize(weight)))
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch
        import torch.nn.functional as F

        def angle(a, b):
            return torch.acos(F.cosine_similarity(a, b, dim=-1).clamp(-1 + 1e-6, 1 - 1e-6))

        def shrunk(a, b):
            return torch.acos(0.99 * F.cosine_similarity(a, b))

        def stable(a, b):
            return torch.atan2(torch.linalg.vector_norm(torch.cross(a, b, dim=-1), dim=-1), (a * b).sum(-1))
        """,
        """
        import math

        import numpy as np
        import polars as pl
        import torch
        import torch.nn.functional as F

        def angle(column):
            return pl.col("w").clip(-1, 1).arccos(), column.clip(-1, 1).arccos()

        def slerp(a, b, t):
            omega = np.arccos(np.clip(np.dot(a, b), -1, 1))
            return np.sin((1 - t) * omega) * a + math.acos(0.3) * b

        def one_unit_vector(x, y):
            return torch.acos(torch.einsum("nd,md->nm", F.normalize(x), y))

        def any_angle(x):
            return torch.acos(x), torch.asin(x / 2)

        def half_turn():
            return torch.acos(torch.tensor(-1.0)) + torch.acos(torch.zeros(1)) * 2
        """,
        """
        import torch
        import torch.nn.functional as F

        def arc(cosine):
            return torch.acos(cosine.float().clamp(-1 + 1e-4, 1 - 1e-4))

        def margin(x, weight):
            with torch.autocast("cuda", dtype=torch.float16):
                return arc(F.linear(F.normalize(x), F.normalize(weight)))
        """,
        """
        import torch
        import torch.nn.functional as F

        @torch.no_grad()
        def degrees(a, b):
            return torch.rad2deg(torch.acos(F.cosine_similarity(a, b).clamp(-1, 1)))

        def bounded(x):
            return torch.acos(0.5 * torch.tanh(x)) + torch.asin(torch.sigmoid(x) * 0.9)
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for arc in context.values.operations(context.module, "acos", "asin"):
            given = arc.operand("input")
            if not any(patterns.every(seen.operand("input"), _reaches_one) for seen in _seen(context, arc)):
                continue
            if not patterns.is_torch(context.values, arc):
                continue
            clamped = all(peeled.steps for peeled in context.values.peel(given, {"clamp"}))
            if not context.values.gradients(arc) and (clamped or _is_constant(given)):
                continue
            beyond = "" if clamped else ", and rounding takes the value beyond 1, where it is NaN"
            message = f"the gradient of {arc.op} is infinite at 1, which this value reaches{beyond}"
            yield self.finding(context, arc.node, message)


def _seen(context: Context, arc: Value) -> tuple[Value, ...]:
    """The ways in which `arc` is reached, where they may differ: a bound close to 1 is 1 in some dtypes."""
    ranges = [value.interval for value in arc.operand("input")]
    close = any(0.999 <= range.upper < 1 or -1 < range.lower <= -0.999 for range in ranges)
    return context.values.seen(arc) if close else (arc,)


def _reaches_one(value: Value) -> bool:
    if _is_cosine_of_rotation(value):
        return True
    lower, upper = value.interval.lower, value.interval.upper
    if Dtype.UNKNOWN in value.dtypes:
        lower, upper = round_to(lower, Dtype.FLOAT32), round_to(upper, Dtype.FLOAT32)
    return (isfinite(upper) and upper >= 1) or (isfinite(lower) and lower <= -1)


def _is_cosine_of_rotation(value: Value) -> bool:
    """(trace - 1) / 2, the cosine of a rotation matrix's angle."""
    if (value.op == "div" and value.number("other") == 2) or (value.op == "mul" and value.number("other") == 0.5):
        doubled = value.operand("input")
    elif value.op == "mul" and value.number("input") == 0.5:
        doubled = value.operand("other")
    else:
        return False
    return patterns.every(doubled, lambda v: v.op == "sub" and v.number("other") == 1)


def _is_constant(values: tuple[Value, ...]) -> bool:
    """Whether all are made of constants: `torch.tensor(-1.0)`."""
    return all(
        v.operation is not None and v.operation.kind is Kind.CREATE for value in values for v in patterns.bare(value)
    )
