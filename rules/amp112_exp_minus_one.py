"""AMP112: exp(x) - 1 and log(1 + x), which lose their digits near 0."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from amplint import patterns
from amplint.context import Context
from amplint.rewrite import Rewrite, UnmovableError
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity
from amplint.triggers import call
from amplint.values import Dtype, Value

_WHOLE = ("floor", "ceil", "round", "trunc")
"""Operations that give whole numbers, which have no digits to lose."""


class ExpMinusOne(Rule):
    """exp(x) - 1 and log(1 + x) lose their digits near 0.

    ## What it does
    Reports `torch.exp(x) - 1`, `1 - torch.exp(x)` and `torch.log(1 + x)` where each is one expression.

    ## Why
    exp(x) is close to 1 for small x, and of 1 + x only the digits survive that the spacing around 1 leaves: 1.2e-7 in
    float32, 9.8e-4 in float16. Below that the results are exactly 0; above, only the leading digits are right.
    `torch.expm1` and `torch.log1p` are accurate everywhere. Both run in float32 under CUDA autocast, and take x as it
    is, while `1 + x` is rounded to float16 first.

    ## Example
    ```python
    phi = torch.exp(-h) - 1
    ```
    Use instead:
    ```python
    phi = torch.expm1(-h)
    ```

    ## Fix
    Safe: the same function, accurate near 0.

    ## References
    - [torch.expm1](https://pytorch.org/docs/stable/generated/torch.expm1.html)
    - [torch.log1p](https://pytorch.org/docs/stable/generated/torch.log1p.html)
    """

    code = "AMP112"
    name = "exp-minus-one"
    severity = Severity.INFO
    summary = "exp(x) - 1 and log(1 + x) lose their digits near 0; expm1 and log1p do not"
    triggers = ((call("exp"), b"1"), (call("log"), b"1"))
    fixable = "safe"
    INVALID: ClassVar = (
        Example(
            """
            import torch

            def step(h, x):
                return x * (torch.exp(-h) - 1)  # expect

            def alpha(density, delta):
                return 1 - torch.exp(-density * delta)  # expect

            def decay(rate, n):
                return n - (1.0 - (rate * n).exp()) ** 2  # expect
            """,
            """
            import torch

            def step(h, x):
                return x * torch.expm1(-h)

            def alpha(density, delta):
                return -torch.expm1(-density * delta)

            def decay(rate, n):
                return n - (-torch.expm1(rate * n)) ** 2
            """,
        ),
        Example(
            """
            from torch import log

            def compress(counts):
                return log(1 + counts)  # expect

            def again(counts):
                return (counts.abs() + 1).log()  # expect
            """,
            """
            from torch import log, log1p

            def compress(counts):
                return log1p(counts)

            def again(counts):
                return log1p(counts.abs())
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import math

        import numpy as np
        import torch

        def schedule(step):
            return 1 - math.exp(-step), np.exp(-step) - 1, math.log(1 + step), np.log(1 + np.abs(step))

        def spacing(positions):
            return torch.log(1 + torch.floor(positions / 8192)), torch.log(1 + positions.long())

        def better(x):
            return torch.expm1(x), torch.log1p(x)
        """,
        """
        import torch

        def shared(x):
            ratio = torch.exp(x)
            return (ratio - 1) - x, ratio

        def other(x):
            return torch.exp(x) - 2, 2 - torch.exp(x), torch.log(2 + x), torch.log(x + 1e-8), torch.log(1 - x)

        def averaged(x):
            return 1 - torch.exp(-x).mean()

        def softplus(x):
            return torch.log(1 + torch.exp(x))
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for difference in context.values.operations(context.module, "sub"):
            exponential = _exponential(difference)
            if exponential is not None and patterns.is_torch(context.values, exponential):
                message = "exp(x) - 1 keeps no digits of x below 1.2e-7 (9.8e-4 in float16); expm1 keeps all"
                yield self.finding(context, difference.node, message, fix=_expm1(context, difference, exponential))
        for log in context.values.operations(context.module, "log"):
            x = _plus_one(log)
            if x is not None and patterns.is_torch(context.values, log):
                message = "1 + x keeps no digits of x below 1.2e-7 (9.8e-4 in float16); log1p(x) keeps all"
                yield self.finding(context, log.node, message, fix=_log1p(context, log, x))


def _exponential(difference: Value) -> Value | None:
    """exp(x), where an expression reads exp(x) - 1 or 1 - exp(x)."""
    for one, other in (("other", "input"), ("input", "other")):
        constant, node = difference.argument(one), difference.argument(other)
        if not isinstance(constant, ast.Constant) or constant.value != 1 or not isinstance(node, ast.Call):
            continue
        values = difference.operand(other)
        return values[0] if len(values) == 1 and values[0].op == "exp" and values[0].node is node else None
    return None


def _plus_one(log: Value) -> ast.expr | None:
    """x, where an expression reads log(1 + x), x being no exponential that AMP105 reports."""
    if not isinstance(log.argument("input"), ast.BinOp | ast.Call):
        return None
    sums = log.operand("input")
    if len(sums) != 1 or sums[0].node is not log.argument("input") or sums[0].op != "add":
        return None
    plus = patterns.one_plus(sums[0])
    if not plus or any(value.op == "exp" and not patterns.is_tame(value, one_sided=True) for value in plus):
        return None
    if any(value.op in _WHOLE or value.dtypes <= {Dtype.INTEGER, Dtype.BOOL} for value in plus):
        return None
    is_first = patterns.is_number(sums[0], "input", 1)
    return sums[0].argument("other" if is_first else "input")


def _expm1(context: Context, difference: Value, exponential: Value) -> Fix | None:
    rewrite = Rewrite(context, difference.node)
    sign = "-" if patterns.is_number(difference, "input", 1) else ""
    try:
        text = rewrite.call("torch.expm1", rewrite.text(patterns.part(exponential)))
        rewrite.replace(difference.node, f"{sign}{text}")
        return rewrite.fix("Use expm1", Safety.SAFE)
    except UnmovableError:
        return None


def _log1p(context: Context, log: Value, x: ast.expr) -> Fix | None:
    rewrite = Rewrite(context, log.node)
    try:
        rewrite.replace(log.node, rewrite.call("torch.log1p", rewrite.text(x)))
        return rewrite.fix("Use log1p", Safety.SAFE)
    except UnmovableError:
        return None
