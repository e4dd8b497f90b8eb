"""AMP106: softmax written by hand, without the shift that keeps it in range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from amplint import patterns
from amplint.context import Context
from amplint.rewrite import Rewrite, UnmovableError
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity
from amplint.triggers import call
from amplint.values import Peeled, Value, Values


class ManualSoftmax(Rule):
    """exp(x) / exp(x).sum() overflows where softmax does not.

    ## What it does
    Reports exponentials divided by their own sum, if nothing was subtracted from the exponent first.

    ## Why
    `exp` is infinite above 88.72 in float32 and above 11.09 in float16, and inf / inf is NaN. Where all exponents are
    far below zero, the sum is 0 and 0 / 0 is NaN as well; an epsilon in the denominator mends that half only.
    `torch.softmax` subtracts the maximum first; it is also one kernel instead of three.

    ## Example
    ```python
    weights = torch.exp(scores)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    ```
    Use instead:
    ```python
    weights = torch.softmax(scores, dim=-1)
    ```

    ## Fix
    Safe where the sum keeps its dimension, so that both are equal. Unsafe where an epsilon is dropped. None for
    masked exponentials, nor where it is not known over which dimension the sum goes. Exponents that cannot be large,
    such as those of a Gaussian window, are not reported.

    ## References
    - [torch.softmax](https://pytorch.org/docs/stable/generated/torch.nn.functional.softmax.html)
    """

    code = "AMP106"
    name = "manual-softmax"
    severity = Severity.WARNING
    summary = "exp(x) / exp(x).sum() overflows; softmax does not"
    triggers = ((call("exp"), b"sum"),)
    fixable = "safe/unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch

            def attend(scores, values):
                weights = torch.exp(scores) / torch.sum(torch.exp(scores), dim=-1, keepdim=True)  # expect
                return weights @ values

            def route(logits):
                grown = logits.exp()
                return grown / grown.sum(1, keepdim=True)  # expect
            """,
            """
            import torch

            def attend(scores, values):
                weights = torch.softmax(scores, dim=-1)
                return weights @ values

            def route(logits):
                return torch.softmax(logits, dim=1)
            """,
        ),
        Example(
            """
            import torch as th

            class Gate(th.nn.Module):
                def forward(self, x):
                    e = th.exp(self.score(x))
                    # the epsilon helps against an empty sum only
                    e = e / (e.sum(dim=1).unsqueeze(1) + 1e-9)  # expect
                    return e * x
            """,
            """
            import torch as th

            class Gate(th.nn.Module):
                def forward(self, x):
                    # the epsilon helps against an empty sum only
                    e = th.softmax(self.score(x), dim=1)
                    return e * x
            """,
        ),
        Example(
            """
            import torch

            def masked(scores, mask):
                grown = torch.exp(scores) * mask
                return grown.div(grown.sum(-1, keepdim=True) + 1e-6)  # expect

            def importance(scores):
                return torch.exp(scores) / torch.exp(scores).sum()  # expect
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def shifted(scores):
            grown = torch.exp(scores - scores.max(dim=-1, keepdim=True)[0])
            return grown / grown.sum(dim=-1, keepdim=True)

        def masked(scores, mask):
            top = scores.masked_fill(~mask, -1e4).amax(-1, keepdim=True)
            grown = (scores - top).exp() * mask
            return grown / grown.sum(-1, keepdim=True).clamp(min=1e-6)
        """,
        """
        import torch

        def window(size, sigma):
            x = torch.arange(size) - size // 2
            g = torch.exp(-(x**2) / (2 * sigma**2))
            return g / g.sum()

        def kernel(distance, width):
            weight = torch.exp(-width * distance.pow(2))
            return weight / weight.sum(-1, keepdim=True)
        """,
        """
        import numpy as np
        import torch

        def probabilities(logits):
            e = np.exp(logits)
            return e / e.sum()

        def share(x, other):
            return torch.exp(x) / torch.exp(other).sum(-1, keepdim=True)

        def average(values, age):
            w = torch.exp(age)
            return (w * values).sum() / w.sum()
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for division in context.values.operations(context.module, "div"):
            if not all(patterns.is_made_here(context.module, division.argument(name)) for name in ("input", "other")):
                continue
            numerators = division.operand("input")
            exponentials = [e for value in numerators if (e := patterns.exponential_factor(value)) is not None]
            if not exponentials or len(exponentials) < len(numerators) or not all(map(_is_unshifted, exponentials)):
                continue
            sums = context.values.peel(division.operand("other"), patterns.GUARDED)
            if not sums or not all(_sums_one(context.values, peeled.core, numerators) for peeled in sums):
                continue
            if not patterns.is_torch(context.values, division):
                continue
            limit = patterns.exp_limit(exponentials[0])
            message = f"exp overflows above {limit} here, and inf / inf is NaN; softmax stays finite"
            fix = _fix(context, division, numerators[0], sums[0]) if len(numerators) == len(sums) == 1 else None
            yield self.finding(context, division.node, message, fix=fix)


def _is_unshifted(exponential: Value) -> bool:
    exponents = exponential.operand("input")
    return not patterns.is_tame(exponential) and not any(
        patterns.is_shifted(exponent) or patterns.is_never_positive(exponent) for exponent in exponents
    )


def _sums_one(values: Values, total: Value, numerators: tuple[Value, ...]) -> bool:
    """Whether `total` is the sum of one of the numerators."""
    summed = total.operand("input") if total.op == "sum" else ()
    return patterns.every(summed, lambda value: any(values.same(value, numerator) for numerator in numerators))


def _fix(context: Context, division: Value, exponential: Value, peeled: Peeled) -> Fix | None:
    if exponential.op != "exp" or _dim(peeled) is None:
        return None
    rewrite = Rewrite(context, division.node)
    safety = Safety.UNSAFE if peeled.took("eps") or peeled.took("clamp") else Safety.SAFE
    try:
        exponent = rewrite.text(patterns.part(exponential))
        dim = rewrite.keyword("dim", peeled.core.argument("dim"))
        rewrite.replace(division.node, rewrite.call("torch.softmax", exponent, dim))
        return rewrite.fix("Use softmax", safety)
    except UnmovableError:
        return None


def _dim(peeled: Peeled) -> float | None:
    """The one dimension that the sum goes over, if the division is along it: kept, put back, or the first."""
    total = peeled.core
    dim = total.number("dim")
    if dim is None or total.argument("dtype") is not None or peeled.took("cast"):
        return None
    arranged = [step.value for step in peeled.steps if step.kind in ("index", "shape")]
    keepdim = [value.constant for value in total.operand("keepdim")]
    if not arranged:
        return dim if keepdim == [True] or (dim == 0 and not keepdim) else None
    is_put_back = len(arranged) == 1 and arranged[0].op == "unsqueeze" and arranged[0].number("dim") == dim
    return dim if is_put_back and not keepdim else None
