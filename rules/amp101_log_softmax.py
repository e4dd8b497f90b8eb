"""AMP101: the logarithm of a softmax."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from amplint import logarithms, patterns
from amplint.context import Context
from amplint.logarithms import Activation, Factor, Loss
from amplint.rewrite import Rewrite, UnmovableError
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity
from amplint.triggers import call
from amplint.values import Value

_LOGS = ("log", "log2", "log10")
_BASES = {"log2": "2", "log10": "10"}
_NLL = "torch.nn.functional.nll_loss"
_CROSS_ENTROPY = "torch.nn.functional.cross_entropy"


class LogSoftmax(Rule):
    """log(softmax(x)) is -inf where log_softmax(x) is finite.

    ## What it does
    Reports the logarithm of a softmax, however it is spelled: function, method, `nn.Softmax` or the last layer of an
    `nn.Sequential`, through locals, attributes and helpers, with an epsilon, a clamp, a slice, `gather` or a cast in
    between. A variable counts only if it is a softmax on every path. The logarithm of a mean or a mixture of softmaxes,
    or of a masked one, is another function and is not reported.

    ## Why
    A softmax is exactly 0 for a class whose logit lies 103.97 below the largest (17.34 in a float16 model). Its
    logarithm is `-inf` there, the loss `inf`, and the gradient NaN; the gradient fails from 88.72 (11.09) on already.
    `log_softmax` is finite, with the right gradient, for every finite input. An epsilon or a clamp only hides the
    fault: beyond it there is no gradient, so the model never learns about the classes that it has ruled out.

    ## Example
    ```python
    loss = F.nll_loss(torch.log(F.softmax(logits, dim=1)), labels)
    ```
    Use instead:
    ```python
    loss = F.cross_entropy(logits, labels)
    ```

    ## Fix
    `log_softmax` in the place of the logarithm: safe; unsafe where an epsilon or a clamp goes. `nll_loss` of it becomes
    `cross_entropy`: safe for dimension 1, which is the one that the loss takes classes from, unsafe for another. A
    cross entropy against label distributions, written as a sum of products, becomes `cross_entropy` too: unsafe, since
    that holds for matrices of float labels only.

    ## References
    - [torch.nn.functional.log_softmax](https://pytorch.org/docs/stable/generated/torch.nn.functional.log_softmax.html)
    - [apex issue 379](https://github.com/NVIDIA/apex/issues/379), NaN loss after switching to mixed precision
    """

    code = "AMP101"
    name = "log-softmax"
    severity = Severity.ERROR
    summary = "log(softmax(x)) is -inf where log_softmax(x) is finite"
    triggers = ((b"torch", call("log", "2", "10")),)
    fixable = "safe/unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch
            import torch.nn.functional as F

            def entropy(logits):
                p = F.softmax(logits, dim=-1)
                log_p = torch.log(p)  # expect
                return -(p * log_p).sum(-1)

            def bits(logits):
                return logits.softmax(-1).log2()  # expect
            """,
            """
            import math

            import torch
            import torch.nn.functional as F

            def entropy(logits):
                p = F.softmax(logits, dim=-1)
                log_p = F.log_softmax(logits, dim=-1)
                return -(p * log_p).sum(-1)

            def bits(logits):
                return logits.log_softmax(-1) / math.log(2)
            """,
        ),
        Example(
            """
            import torch as th
            from torch import nn

            class Policy(nn.Module):
                def __init__(self, dim, actions):
                    super().__init__()
                    self.head = nn.Linear(dim, actions)
                    self.softmax = nn.Softmax(dim=1)

                def log_prob(self, state, action):
                    pi = self.softmax(self.head(state))
                    taken = pi.gather(1, action)
                    return th.log(taken + 1e-10).squeeze(1)  # expect

                def of_last(self, state):
                    logits = self.head(state)
                    return th.log(th.clamp(th.softmax(logits, 1)[:, -1].float(), min=1e-6))  # expect
            """,
            """
            import torch as th
            from torch import nn

            class Policy(nn.Module):
                def __init__(self, dim, actions):
                    super().__init__()
                    self.head = nn.Linear(dim, actions)
                    self.softmax = nn.Softmax(dim=1)

                def log_prob(self, state, action):
                    return nn.functional.log_softmax(self.head(state), dim=1).gather(1, action).squeeze(1)

                def of_last(self, state):
                    logits = self.head(state)
                    return th.log_softmax(logits, 1)[:, -1].float()
            """,
        ),
        Example(
            """
            import torch
            import torch.nn.functional as F

            def loss(scores, labels, weight):
                probs = F.softmax(scores, dim=1)
                return F.nll_loss(torch.log(probs), labels, weight=weight)  # expect

            def last(scores, labels):
                return F.nll_loss(scores.softmax(-1).log(), labels)  # expect

            def soft(scores, labels):
                probs = torch.softmax(scores, dim=1)
                return -torch.sum(labels * torch.log(probs + 1e-8), dim=1).mean()  # expect
            """,
            """
            import torch
            import torch.nn.functional as F

            def loss(scores, labels, weight):
                return F.cross_entropy(scores, labels, weight=weight)

            def last(scores, labels):
                return F.cross_entropy(scores, labels)

            def soft(scores, labels):
                return F.cross_entropy(scores, labels)
            """,
        ),
        Example(
            """
            import torch
            from heads import Head, probabilities

            def tempered(scores, temperature):
                if temperature is None:
                    p = torch.softmax(scores, dim=-1)
                else:
                    p = (scores / temperature).softmax(dim=-1)
                return p.log()  # expect

            def masked(scores, mask):
                return torch.log(probabilities(scores, mask)[:, 1:])  # expect

            class Entropy:
                def __init__(self, dim):
                    self.head = Head(dim)

                def __call__(self, x):
                    return -self.head(x).clamp_min(1e-9).log().mean()  # expect
            """,
            None,
            {
                "heads.py": """
                import torch
                from torch import nn

                def probabilities(scores, mask=None):
                    if mask is not None:
                        scores = scores.masked_fill(~mask, float("-inf"))
                    return torch.softmax(scores, dim=-1)

                class Head(nn.Module):
                    def __init__(self, dim):
                        super().__init__()
                        self.layers = nn.Sequential(nn.Linear(dim, dim), nn.Softmax(dim=-1))

                    def forward(self, x):
                        return self.layers(x)
                """,
            },
        ),
        Example(
            """
            import torch

            @torch.no_grad()
            def unguarded(logits):
                p = torch.softmax(logits, dim=-1)
                return torch.exp(-torch.sum(p * torch.log(p), dim=-1))  # expect

            def trained(logits):
                p = torch.softmax(logits, dim=-1)
                return -torch.sum(p * torch.log(p + 1e-10), dim=-1).mean()  # expect

            @torch.no_grad()
            def lost(logits):
                p = torch.softmax(logits.half(), dim=-1)
                return -torch.sum(p * torch.log(p + 1e-10), dim=-1).mean()  # expect

            @torch.no_grad()
            def held_out(logits, labels):
                p = torch.softmax(logits, dim=-1)
                return -torch.sum(labels * torch.log(p + 1e-10))  # expect
            """,
            """
            import torch

            @torch.no_grad()
            def unguarded(logits):
                p = torch.softmax(logits, dim=-1)
                return torch.exp(-torch.sum(p * torch.log_softmax(logits, dim=-1), dim=-1))

            def trained(logits):
                p = torch.softmax(logits, dim=-1)
                return -torch.sum(p * torch.log_softmax(logits, dim=-1), dim=-1).mean()

            @torch.no_grad()
            def lost(logits):
                p = torch.softmax(logits.half(), dim=-1)
                return -torch.sum(p * torch.log_softmax(logits.half(), dim=-1), dim=-1).mean()

            @torch.no_grad()
            def held_out(logits, labels):
                return torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
            """,
        ),
        Example(
            """
            import torch
            from torch import nn

            class Head(nn.Module):
                def __init__(self, width, classes):
                    super().__init__()
                    self.net = nn.Sequential(nn.Linear(width, width))
                    self.net.add_module("out", nn.Linear(width, classes))
                    self.net.add_module("softmax", nn.Softmax(dim=1))

                def forward(self, x):
                    return torch.log(self.net(x))  # expect

            def built(x):
                net = nn.Sequential()
                net.append(nn.Linear(3, 3)).append(nn.ReLU())
                net.append(nn.Softmax(dim=1))
                return torch.log(net(x))  # expect
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch
        from torch import nn

        class Rates(nn.Module):
            def __init__(self, width, smooth):
                super().__init__()
                self.net = nn.Sequential(nn.Linear(width, width), nn.Softmax(dim=1))
                self.net.append(nn.Linear(width, 1))
                self.net.append(nn.Softplus())
                self.mixed = nn.Sequential()
                self.mixed.add_module("mix", nn.Linear(width, width))
                self.either = nn.Sequential(nn.Linear(width, width), nn.Softmax(dim=1))
                if smooth:
                    self.either.append(nn.Conv1d(1, 1, 3))

            def forward(self, x):
                return torch.log(self.net(x)) + torch.log(self.mixed(x.softmax(1))) + torch.log(self.either(x))
        """,
        """
        import torch

        class Attention(torch.nn.Module):
            def forward(self, scores):
                weights = scores.softmax(dim=-1)
                self.report(weights)
                return weights

            def report(self, weights):
                with torch.no_grad(), torch.autocast("cuda", enabled=False):
                    weights = weights.float()
                    print(-((weights + 1.0e-20).log() * weights).sum(dim=-1).mean())

        @torch.no_grad()
        def perplexity(logits):
            p = torch.softmax(logits, dim=-1)
            return torch.exp(-torch.sum(p * torch.log(p.clamp_min(1e-10)), dim=-1))
        """,
        """
        import torch
        import torch.nn.functional as F

        def stable(logits, labels):
            return F.log_softmax(logits, dim=1).mean() + F.cross_entropy(logits, labels)

        def of_other_things(x):
            return torch.log(x) + torch.softmax(x, 0) + torch.softmax(torch.log(x), 0)
        """,
        """
        import torch

        def marginal_entropy(logits):
            q = logits.softmax(-1).mean(0)
            return -(q * torch.log(q + 1e-8)).sum()

        def smoothed(logits, share=0.01):
            p = torch.softmax(logits, dim=-1)
            return torch.log((1 - share) * p + share / p.size(-1))

        def masked(logits, mask):
            p = torch.softmax(logits, dim=-1) * mask
            return torch.log(p / p.sum(-1, keepdim=True))
        """,
        """
        import torch

        def either(x, is_logits):
            if is_logits:
                p = torch.softmax(x, dim=-1)
                return p.amax()
            else:
                p = x
            return p.log()

        def walk(logits, transition, steps):
            p = logits.softmax(-1)
            for _ in range(steps):
                p = p @ transition
            return torch.log(p)

        def chosen(x, hard):
            p = x if hard else torch.softmax(x, -1)
            if hard:
                return torch.log(p)
            return p
        """,
        """
        import numpy as np
        import torch
        from scipy.special import softmax

        def reference(x):
            return np.log(softmax(x))

        class Module:
            def step(self, logits):
                p = torch.softmax(logits, dim=-1)
                self.log("confidence", p.amax(-1).mean())
                return np.log(p.cpu().numpy())
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for log in context.values.operations(context.module, *_LOGS):
            activations = logarithms.under(log)
            if not (activations and all(map(_is_softmax, activations))):
                continue
            if logarithms.is_watched_entropy(log, activations):
                continue
            fix = _fix(context, log, activations[0]) if len(activations) == 1 else None
            yield self.finding(context, log.node, _message(activations[0]), fix=fix)


def _is_softmax(activation: Activation) -> bool:
    core = activation.core
    soft = core.op == "gumbel_softmax" and all(v.constant is False for v in core.operand("hard"))
    return (core.op == "softmax" or soft) and not activation.is_complement


def _message(activation: Activation) -> str:
    reaches = "the softmax is exactly 0 for a logit 103.97 below the largest (17.34 in pure float16)"
    if activation.is_guarded:
        return f"{reaches}, and the guard against log(0) stops the gradient; log_softmax needs none"
    return f"{reaches}, and its log -inf; log_softmax is finite"


# -- fixes -----------------------------------------------------------------------------------------------------


def _fix(context: Context, log: Value, activation: Activation) -> Fix | None:
    if log.in_place or activation.core.op != "softmax":
        return None
    fixes: list[Fix] = []
    for attempt in (_as_cross_entropy, _as_soft_cross_entropy, _as_log_softmax):
        with contextlib.suppress(UnmovableError):
            if fix := attempt(context, log, activation):
                fixes.append(fix)
    best = next((fix for fix in fixes if fix.safety is Safety.SAFE), None)
    if best is None or best is fixes[0]:
        return fixes[0] if fixes else None
    return replace(best, unsafe_instead=fixes[0])


def _as_log_softmax(context: Context, log: Value, activation: Activation) -> Fix:
    rewrite = Rewrite(context, log.node)
    text = logarithms.text_of(rewrite, activation, logarithms.log_softmax(rewrite, activation.core))
    if log.op in _BASES:
        text = f"{text} / {rewrite.call('math.log', _BASES[log.op])}"
    rewrite.replace(log.node, text)
    return rewrite.fix("Use log_softmax", Safety.UNSAFE if activation.is_guarded else Safety.SAFE)


def _as_cross_entropy(context: Context, log: Value, activation: Activation) -> Fix | None:
    """`nll_loss(log(softmax(x, 1)), y)` as `cross_entropy(x, y)`."""
    loss = context.module.parent(log.node)
    if not isinstance(loss, ast.Call) or not context.module.is_named(loss.func, _NLL) or loss.args[:1] != [log.node]:
        return None
    if log.op != "log" or not activation.is_plain or activation.core.argument("dtype") is not None:
        return None
    rewrite = Rewrite(context, log.node)
    rewrite.replace(log.node, rewrite.text(patterns.part(activation.core)))
    rewrite.rename_called(loss, _CROSS_ENTROPY)
    proven = activation.core.number("dim") == 1 and not activation.is_guarded
    return rewrite.fix("Use cross_entropy", Safety.SAFE if proven else Safety.UNSAFE)


def _as_soft_cross_entropy(context: Context, log: Value, activation: Activation) -> Fix | None:
    """`-(y * log(softmax(x, 1))).sum(1).mean()` as `cross_entropy(x, y)`."""
    if log.op != "log" or not activation.is_plain or activation.core.argument("dtype") is not None:
        return None
    dim = activation.core.number("dim")
    for loss in logarithms.losses_around(context, log):
        target = _target(context, loss, log)
        if target is None or dim not in (1, -1) or loss.dim not in (dim, None) or not _is_reduced(loss):
            continue
        rewrite = Rewrite(context, loss.node)
        logits, labels = rewrite.text(patterns.part(activation.core)), rewrite.text(target.written)
        reduction = "" if loss.reduction == "mean" else f'reduction="{loss.reduction}"'
        rewrite.replace(loss.node, rewrite.call(_CROSS_ENTROPY, logits, labels, reduction))
        return rewrite.fix("Use cross_entropy", Safety.UNSAFE)
    return None


def _is_reduced(loss: Loss) -> bool:
    """Whether the classes are summed over: by themselves, or together with everything else."""
    return loss.dim is not None or loss.reduction == "sum"


def _target(context: Context, loss: Loss, log: Value) -> Factor | None:
    """The labels, where a loss is one product of labels and this logarithm."""
    if len(loss.terms) != 1 or loss.terms[0].sign > 0:
        return None
    parts = logarithms.factors_apart(loss.terms[0], *_LOGS)
    if parts is None or parts[0].value.node is not log.node or len(parts[1]) != 1:
        return None
    target = parts[1][0]
    is_same = any(value.op == "softmax" for value in context.values.of(context.module, target.written))
    return None if is_same else target
