"""AMP104: the logarithm of a sum of exponentials, without the shift that keeps it in range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from amplint import patterns
from amplint.context import Context
from amplint.edit import Precedence
from amplint.rewrite import Rewrite, UnmovableError
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity
from amplint.triggers import call
from amplint.values import Peeled, Value


class LogSumExp(Rule):
    """log(sum(exp(x))) overflows where logsumexp does not.

    ## What it does
    Reports the logarithm of a sum of exponentials, however it is spelled: function or method, through locals and
    helpers, as `log(exp(a) + exp(b))`, with an epsilon or a clamp in between.

    ## Why
    `exp` is infinite above 88.72 in float32 and above 11.09 in float16; the logarithm is then `inf` and its gradient
    NaN. (Under CUDA autocast `exp` runs in float32, in a `.half()` model in float16.) Where all terms are far below
    zero the sum is 0 and the logarithm `-inf`. `torch.logsumexp` subtracts the maximum first and is finite for every
    finite input. An epsilon mends neither the overflow nor the gradient.

    ## Example
    ```python
    log_z = torch.log(torch.exp(scores).sum(dim=1))
    ```
    Use instead:
    ```python
    log_z = torch.logsumexp(scores, dim=1)
    ```

    ## Fix
    Safe: the same function, stable. Unsafe where an epsilon or a clamp is dropped with it. None for a masked sum.
    Forms that subtract the maximum over the reduced dimension are fine and are not reported, nor are scores whose
    range is known to be small.

    ## References
    - [torch.logsumexp](https://pytorch.org/docs/stable/generated/torch.logsumexp.html)
    - Blanchard, Higham and Higham, "Accurately computing the log-sum-exp and softmax functions", 2021
    """

    code = "AMP104"
    name = "log-sum-exp"
    severity = Severity.ERROR
    summary = "log(sum(exp(x))) overflows; logsumexp does not"
    triggers = ((call("log", "2", "10"),),)
    fixable = "safe/unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch

            def partition(energy):
                return torch.log(torch.sum(torch.exp(energy), dim=1))  # expect
            """,
            """
            import torch

            def partition(energy):
                return torch.logsumexp(energy, dim=1)
            """,
        ),
        Example(
            """
            import torch as th

            def contrast(query, keys, temperature):
                scores = query @ keys.t() / temperature
                total = scores.exp().sum(-1, keepdim=True)
                return scores - total.log()  # expect

            def unlabelled(scores):
                # eps does not keep the sum from overflowing
                return th.log(th.exp(scores).sum(1) + 1e-8)  # expect
            """,
            """
            import torch as th

            def contrast(query, keys, temperature):
                scores = query @ keys.t() / temperature
                return scores - th.logsumexp(scores, dim=-1, keepdim=True)

            def unlabelled(scores):
                # eps does not keep the sum from overflowing
                return th.logsumexp(scores, dim=1)
            """,
        ),
        Example(
            """
            from torch import exp, log

            def union(a, b):
                return log(exp(a) + exp(b))  # expect

            def everything(x):
                return exp(x).sum().log()  # expect

            def rebound(x):
                x = exp(x)
                return x.sum(0).log(), x  # expect

            def in_place(x):
                return x.exp_().sum(0).log() + x  # expect
            """,
            """
            from torch import exp, log, logaddexp, logsumexp

            def union(a, b):
                return logaddexp(a, b)

            def everything(x):
                return logsumexp(x.flatten(), dim=0)

            def rebound(x):
                x = exp(x)
                return x.sum(0).log(), x

            def in_place(x):
                return x.exp_().sum(0).log() + x
            """,
        ),
        Example(
            """
            import torch
            from heads import exponentials

            class Loss(torch.nn.Module):
                def forward(self, logits, target):
                    weights = exponentials(logits)
                    return torch.log(weights.sum(dim=1)) - logits.gather(1, target)  # expect

            def masked(logits, mask):
                return torch.log((torch.exp(logits) * mask).sum(dim=1))  # expect
            """,
            None,
            {
                "heads.py": """
                import torch

                def exponentials(logits):
                    return torch.exp(logits)
                """,
            },
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def shifted(x):
            m = x.amax(dim=1, keepdim=True)
            return m + torch.log(torch.exp(x - m).sum(dim=1, keepdim=True))

        def with_indices(x):
            top, _ = torch.max(x, dim=-1, keepdim=True)
            return torch.log(torch.sum(torch.exp(x - top.detach()), -1)) + top.squeeze(-1)

        def with_logits(x, y):
            m = (-x).clamp(min=0)
            return x - x * y + m + ((-m).exp() + (-x - m).exp()).log()

        def by_its_largest(x):
            largest = x[0, x.argmax().item()]
            shift = largest.view(1, -1).expand(1, x.size(1))
            return largest + torch.log(torch.sum(torch.exp(x - shift)))

        def by_the_library(x):
            return torch.logsumexp(x, dim=1)
        """,
        """
        import torch

        def volume(scales):
            return torch.log(scales.sum(-1))

        def other(x):
            return torch.log(x.sum()) + torch.exp(x).sum()
        """,
        """
        import math

        import numpy as np
        import torch

        def reference(x):
            return np.log(np.exp(x).sum(1))

        def scalar(values):
            return math.log(sum(math.exp(v) for v in values))

        def cosines(a, b):
            near = torch.nn.functional.cosine_similarity(a, b, dim=-1)
            return torch.log(torch.exp(near / 0.1).sum(-1))
        """,
        """
        import torch

        def branch(x, stable):
            if stable:
                total = torch.exp(x - x.max()).sum()
            else:
                total = x.square().sum()
            return torch.log(total)

        def quotient(pos, neg):
            return -torch.log(torch.exp(pos) / (torch.exp(pos) + torch.exp(neg).sum(-1)))
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for log in context.values.operations(context.module, "log", "log2", "log10"):
            if not patterns.is_made_here(context.module, log.argument("input")):
                continue
            sums = context.values.peel(log.operand("input"), patterns.GUARDED)
            if not patterns.every((peeled.core for peeled in sums), _is_sum_of_exponentials):
                continue
            if not patterns.is_torch(context.values, log):
                continue
            limit = patterns.exp_limit(_terms(sums[0].core)[0])
            message = f"exp overflows above {limit} here, and the log of the sum is inf; logsumexp is finite"
            fix = _fix(context, log, sums[0]) if len(sums) == 1 and log.op == "log" else None
            yield self.finding(context, log.node, message, fix=fix)


def _is_sum_of_exponentials(value: Value) -> bool:
    return patterns.every(_terms(value), lambda term: _is_unshifted(term, value))


def _terms(value: Value) -> tuple[Value, ...]:
    """What `value` adds up: the operand of a sum, or both operands of an addition, if they are exponentials."""
    if value.op == "sum":
        operands = patterns.local_operand(value, "input")
        summed = tuple(inner for operand in operands for inner in patterns.bare(operand))
        return tuple(patterns.exponential_factor(term) or term for term in summed)
    return _addends(value) if value.op == "add" else ()


def _addends(value: Value) -> tuple[Value, ...]:
    left, right = (patterns.local_operand(value, name) for name in ("input", "other"))
    return (*left, *right) if left and right else ()


def _is_unshifted(term: Value, total: Value) -> bool:
    if term.op != "exp":
        return False
    dim = total.number("dim") if total.op == "sum" else None
    shifted = any(patterns.is_shifted(exponent, dim) for exponent in term.operand("input"))
    return not shifted and not patterns.is_tame(term)


def _fix(context: Context, log: Value, peeled: Peeled) -> Fix | None:
    if not patterns.is_only_guarded(peeled):
        return None
    safety = Safety.UNSAFE if peeled.steps else Safety.SAFE
    rewrite = Rewrite(context, log.node)
    try:
        rewrite.replace(log.node, _logsumexp(rewrite, peeled.core))
        return rewrite.fix("Use logsumexp", safety)
    except UnmovableError:
        return None


def _logsumexp(rewrite: Rewrite, total: Value) -> str:
    if total.op == "add":
        if len(total.operand("input")) != 1 or len(total.operand("other")) != 1:
            raise UnmovableError("one of several")
        left, right = (patterns.part(v) for side in ("input", "other") for v in total.operand(side))
        return rewrite.call("torch.logaddexp", rewrite.text(left), rewrite.text(right))
    term = total.operand("input")[0]
    if term.op != "exp" or total.argument("dtype") is not None:
        raise UnmovableError("a masked sum, or one in another dtype")
    exponent = patterns.part(term)
    dim = total.argument("dim")
    if dim is None:
        return rewrite.call("torch.logsumexp", f"{rewrite.text(exponent, Precedence.ATOM)}.flatten()", "dim=0")
    keepdim = rewrite.keyword("keepdim", total.argument("keepdim"))
    return rewrite.call("torch.logsumexp", rewrite.text(exponent), rewrite.keyword("dim", dim), keepdim)
