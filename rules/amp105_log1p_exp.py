"""AMP105: softplus written as log(1 + exp(x))."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from typing import ClassVar

from amplint import patterns
from amplint.context import Context
from amplint.flow import definitions
from amplint.rewrite import Rewrite, UnmovableError
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity
from amplint.triggers import call
from amplint.values import Value


class Log1pExp(Rule):
    """log(1 + exp(x)) overflows where softplus does not.

    ## What it does
    Reports `log(1 + exp(x))` and `log1p(exp(x))`, however they are spelled.

    ## Why
    `exp` is infinite above 88.72 in float32 and above 11.09 in float16, and so is the logarithm, although its true
    value is just about x; the gradient is NaN. (Under CUDA autocast `exp` and `log` run in float32; in a `.half()`
    model they do not.) `F.softplus` returns x itself for large x and is finite for every finite input.

    ## Example
    ```python
    loss = torch.log(1 + torch.exp(-margin)).mean()
    ```
    Use instead:
    ```python
    loss = F.softplus(-margin).mean()
    ```

    ## Fix
    Safe: the same function, stable. Forms whose exponential sees `-|x|` only cannot overflow and are not reported.

    ## References
    - [torch.nn.functional.softplus](https://pytorch.org/docs/stable/generated/torch.nn.functional.softplus.html)
    - Mächler, "Accurately computing log(1 - exp(-|a|))", 2012
    """

    code = "AMP105"
    name = "log1p-exp"
    severity = Severity.ERROR
    summary = "log(1 + exp(x)) overflows; softplus does not"
    triggers = ((call("log", "1p"),),)
    fixable = "safe"
    INVALID: ClassVar = (
        Example(
            """
            import torch
            import torch.nn.functional as F

            def ranking(good, bad, margin):
                gap = bad - good + margin
                return torch.log(1 + torch.exp(gap)).mean()  # expect

            def logistic(score, sign):
                return torch.log1p(torch.exp(-sign * score)).sum()  # expect
            """,
            """
            import torch
            import torch.nn.functional as F

            def ranking(good, bad, margin):
                gap = bad - good + margin
                return F.softplus(gap).mean()

            def logistic(score, sign):
                return F.softplus(-sign * score).sum()
            """,
        ),
        Example(
            """
            import torch
            from torch import nn

            class Mish(nn.Module):
                def forward(self, x):
                    grown = x.exp()
                    return x * (grown + 1).log().tanh()  # expect
            """,
            """
            import torch
            from torch import nn

            class Mish(nn.Module):
                def forward(self, x):
                    return x * nn.functional.softplus(x).tanh()
            """,
        ),
        Example(
            """
            import torch
            import torch.nn.functional as F

            def exponential(x):
                return torch.exp(x)

            def positive(raw, floor):
                grown = exponential(raw)
                return floor + torch.log1p(grown)  # expect
            """,
        ),
        Example(
            """
            import torch

            def softplus(x):
                z = torch.log(1 + torch.exp(x))  # expect
                return torch.where(z == float("inf"), x, z)

            def counted(x):
                z = (1 + x.exp()).log().to(x.dtype)  # expect
                return torch.where(x > 0, x, z)

            @torch.no_grad()
            def watched(x):
                return softplus(x).mean() + torch.log1p(torch.exp(x)).mean()  # expect

            def train(x):
                softplus(x).mean().backward()
            """,
            """
            import torch

            def softplus(x):
                z = torch.nn.functional.softplus(x)
                return torch.where(z == float("inf"), x, z)

            def counted(x):
                z = torch.nn.functional.softplus(x).to(x.dtype)
                return torch.where(x > 0, x, z)

            @torch.no_grad()
            def watched(x):
                return softplus(x).mean() + torch.nn.functional.softplus(x).mean()

            def train(x):
                softplus(x).mean().backward()
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def softplus(x):
            z = (1.0 + x.exp()).log().to(x.dtype)
            z = torch.where(z == float("inf"), x, z)
            return z - 0.08 * x

        class Swish(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return softplus(x)

            @staticmethod
            def backward(ctx, slope):
                (x,) = ctx.saved_tensors
                z = torch.log1p(torch.exp(x))
                return slope * torch.where(torch.isinf(z), x, z)

        class Gate(torch.nn.Module):
            def forward(self, x):
                if not self.training or torch.jit.is_scripting():
                    return softplus(x)
                return Swish.apply(x)

        def check(x):
            assert torch.allclose(Swish.apply(x), softplus(x))
        """,
        """
        import torch
        import torch.nn.functional as F

        def softplus(x):
            return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))

        def with_logits(x, y):
            return F.relu(x) - x * y + torch.log(1 + torch.exp(-torch.abs(x)))

        def library(x):
            return F.softplus(x)
        """,
        """
        import torch

        def rate(counts):
            return torch.log1p(counts)

        def scale(log_scale):
            return torch.log(2 + torch.exp(log_scale)) + torch.log1p(log_scale)

        def limited(x):
            return torch.log1p(torch.exp(x.clamp(-20, 20)))
        """,
        """
        import math

        import numpy as np
        import polars as pl
        import torch

        def column(x):
            return (1 + pl.col("x").exp()).log(), (x.exp() + 1).log()

        def reference(x):
            return np.log1p(np.exp(x)), math.log(1 + math.exp(1.0))
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for log in context.values.operations(context.module, "log", "log1p"):
            if not patterns.is_made_here(context.module, log.argument("input")):
                continue
            exponentials = _exponentials(log)
            if not patterns.every(exponentials, _may_overflow):
                continue
            if not patterns.is_torch(context.values, log) or _is_repaired(context, log):
                continue
            limit = patterns.exp_limit(exponentials[0])
            message = f"exp overflows above {limit} here, and log(1 + exp(x)) is inf; softplus is x there"
            fix = _fix(context, log, exponentials[0]) if len(exponentials) == 1 else None
            yield self.finding(context, log.node, message, fix=fix)


def _is_repaired(context: Context, log: Value) -> bool:
    """Whether infinities are replaced where no gradient flows: `torch.where(z == inf, x, z)`, with z the logarithm."""
    module, statement = log.module, log.module.statement(log.node)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return False
    made = statement.targets[0]
    for where in context.values.operations(module, "where"):
        test = where.argument("condition")
        reads = [node for node in ast.walk(test) if isinstance(node, ast.Name)] if test is not None else []
        of_log = [r for r in reads if any(reaching.node is made for reaching in definitions(module, r))]
        if of_log and test is not None and _tells_infinity(context, test):
            return not context.values.gradients(log)
    return False


def _tells_infinity(context: Context, test: ast.expr) -> bool:
    if isinstance(test, ast.Call):
        return any(value.op in ("isinf", "isfinite") for value in context.values.of(context.module, test))
    sides = (test.left, *test.comparators) if isinstance(test, ast.Compare) else ()
    return any(v.as_number() == math.inf for side in sides for v in context.values.of(context.module, side))


def _exponentials(log: Value) -> tuple[Value, ...]:
    """exp(x), where `log` is log(1 + exp(x)) or log1p(exp(x)); () if any alternative is something else."""
    grown = log.operand("input")
    if log.op == "log1p":
        return grown
    plus = [patterns.one_plus(value) for value in grown]
    return tuple(exponential for alternatives in plus for exponential in alternatives) if all(plus) else ()


def _may_overflow(value: Value) -> bool:
    return value.op == "exp" and not patterns.is_tame(value, one_sided=True)


def _fix(context: Context, log: Value, exponential: Value) -> Fix | None:
    rewrite = Rewrite(context, log.node)
    try:
        exponent = rewrite.text(patterns.part(exponential))
        rewrite.replace(log.node, rewrite.call("torch.nn.functional.softplus", exponent))
        return rewrite.fix("Use softplus", Safety.SAFE)
    except UnmovableError:
        return None
