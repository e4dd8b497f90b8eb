"""AMP102: the logarithm of a sigmoid."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from amplint import logarithms, patterns
from amplint.context import Context
from amplint.edit import Precedence
from amplint.logarithms import Activation, Factor, Loss
from amplint.rewrite import Rewrite, UnmovableError
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity
from amplint.triggers import call
from amplint.values import Value

_LOGS = ("log", "log2", "log10", "log1p")


class LogSigmoid(Rule):
    """log(sigmoid(x)) is -inf where logsigmoid(x) is finite.

    ## What it does
    Reports the logarithm of `sigmoid(x)` or of `1 - sigmoid(x)`, and `log1p(-sigmoid(x))`, however they are spelled:
    function, method, operator or `nn.Sigmoid`, through locals, attributes and helpers, with an epsilon, a clamp, a
    slice or a cast in between. The logarithm of a difference of two sigmoids is another function and is not reported.

    ## Why
    Under CUDA autocast sigmoid stays in float16, where it is exactly 0 below -17.34 and exactly 1 above 8.32; in
    float32 below -103.97 and above 16.64. There the logarithm is `-inf`, its gradient NaN, and in a binary cross
    entropy 0 * -inf is NaN. The gradient of log(sigmoid(x)) fails from -11.09 on in float16, from -88.72 on in float32.
    `F.logsigmoid` is finite, with the right gradient, for every finite input. An epsilon or a clamp only hides the
    fault: beyond it there is no gradient, and 1e-8 is 0 in float16.

    ## Example
    ```python
    loss = -torch.log(torch.sigmoid(pos - neg) + 1e-8).mean()
    ```
    Use instead:
    ```python
    loss = -F.logsigmoid(pos - neg).mean()
    ```

    ## Fix
    `F.logsigmoid(x)`, or `F.logsigmoid(-x)` for 1 - sigmoid. A hand-written binary cross entropy becomes
    `F.binary_cross_entropy_with_logits`. Safe as long as nothing is dropped; unsafe where an epsilon or a clamp goes.

    ## References
    - [torch.nn.functional.logsigmoid](https://pytorch.org/docs/stable/generated/torch.nn.functional.logsigmoid.html)
    - [PyTorch issue 40497](https://github.com/pytorch/pytorch/issues/40497), NaN from a focal loss
    """

    code = "AMP102"
    name = "log-sigmoid"
    severity = Severity.ERROR
    summary = "log(sigmoid(x)) is -inf where logsigmoid(x) is finite"
    triggers = ((b"torch", call("log", "1p", "2", "10")),)
    fixable = "safe/unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch
            import torch.nn.functional as F

            def ranking(better, worse):
                return -torch.log(torch.sigmoid(better - worse)).mean()  # expect

            def unsure(x):
                return torch.log(1 - torch.sigmoid(-x)) + (1 - x.sigmoid()).log()  # expect
            """,
            """
            import torch
            import torch.nn.functional as F

            def ranking(better, worse):
                return -F.logsigmoid(better - worse).mean()

            def unsure(x):
                return F.logsigmoid(x) + F.logsigmoid(-x)
            """,
        ),
        Example(
            """
            import torch as th

            def skip_gram(center, context, noise):
                near = th.sigmoid((center * context).sum(-1))
                far = th.sigmoid((center[:, None] * noise).sum(-1))
                # words that do not occur together
                away = th.log1p(-far).sum(-1)  # expect
                return -(th.log(near + 1e-9) + away).mean()  # expect

            def gate(x, keep):
                p = x.sigmoid().clamp(min=1e-6)
                return p[keep].float().log()  # expect

            def cost(x, focal):
                p = th.sigmoid(x) if focal else th.softmax(x, -1)
                p = p[:, 0]
                return p.log() if focal else p  # expect
            """,
            """
            import torch as th

            def skip_gram(center, context, noise):
                # words that do not occur together
                away = th.nn.functional.logsigmoid(-(center[:, None] * noise).sum(-1)).sum(-1)
                return -(th.nn.functional.logsigmoid((center * context).sum(-1)) + away).mean()

            def gate(x, keep):
                return th.nn.functional.logsigmoid(x)[keep].float()

            def cost(x, focal):
                p = th.sigmoid(x) if focal else th.softmax(x, -1)
                p = p[:, 0]
                return p.log() if focal else p
            """,
        ),
        Example(
            """
            import torch
            import torch.nn.functional as F

            def loss(logits, y):
                p = torch.sigmoid(logits)
                return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()  # expect

            def summed(logits, y, eps=1e-8):
                p = torch.sigmoid(logits)
                hit = y * torch.log(p + eps)  # expect
                return torch.sum(-hit - (1 - y) * torch.log(1 - p + eps))  # expect
            """,
            """
            import torch
            import torch.nn.functional as F

            def loss(logits, y):
                return F.binary_cross_entropy_with_logits(logits, y)

            def summed(logits, y, eps=1e-8):
                return F.binary_cross_entropy_with_logits(logits, y, reduction="sum")
            """,
        ),
        Example(
            """
            import torch
            from torch import nn
            from critics import Critic

            def realness(images, critic: Critic):
                return torch.log(critic(images)).mean()  # expect

            class Halting(nn.Module):
                def __init__(self, dim):
                    super().__init__()
                    self.stop = nn.Sequential(nn.Linear(dim, 1), nn.Sigmoid())

                def forward(self, x):
                    self.p = self.stop(x)
                    return x * self.p

                def cost(self):
                    return -torch.log2(1 - self.p).mean()  # expect
            """,
            None,
            {
                "critics.py": """
                from torch import nn

                class Critic(nn.Module):
                    def __init__(self):
                        super().__init__()
                        self.score = nn.Conv2d(3, 1, 4)
                        self.squash = nn.Sigmoid()

                    def forward(self, images):
                        return self.squash(self.score(images).mean((1, 2, 3)))
                """,
            },
        ),
    )
    VALID: ClassVar = (
        """
        import torch
        import torch.nn.functional as F

        def stable(x, y):
            return F.logsigmoid(x).mean() + F.binary_cross_entropy_with_logits(x, y)

        def of_other_things(x):
            return torch.log(x) + torch.sigmoid(x) + torch.log(1 - x) + torch.log1p(x.sigmoid())
        """,
        """
        import torch

        def discretised_logistic(x, mean, scale):
            inner = (x - mean) / scale
            return torch.log((torch.sigmoid(inner + 0.5) - torch.sigmoid(inner - 0.5)).clamp(min=1e-12))

        def mixture(a, b):
            return torch.log(0.5 * torch.sigmoid(a) + 0.5 * torch.sigmoid(b))

        def masked(x, mask):
            return torch.log(torch.sigmoid(x) * mask + 1.0)
        """,
        """
        import torch

        def loss(x, from_logits):
            if from_logits:
                p = torch.sigmoid(x)
                return (p - 0.5).abs().mean()
            else:
                p = x
            return torch.log(p).mean()

        def focal(x, focal_loss):
            p = torch.sigmoid(x) if focal_loss else x.tanh()
            p = p[:, 0]
            if not focal_loss:
                return p.log()
            return p

        def rebound(x, steps):
            p = torch.sigmoid(x)
            for _ in range(steps):
                p = p @ p
            return torch.log(p.sum())
        """,
        """
        import math

        import numpy as np
        from scipy.special import expit

        def reference(x):
            return np.log(expit(x))

        def scalar(x):
            return math.log(1 / (1 + math.exp(-x)))

        class Logger:
            def log(self, name, value):
                print(name, value)

            def report(self, x):
                self.log("gate", x.sigmoid())
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for log in context.values.operations(context.module, *_LOGS):
            activations = logarithms.under(log)
            if not patterns.every((a.core for a in activations), lambda core: core.op == "sigmoid"):
                continue
            if log.op == "log1p" and not all(a.is_complement for a in activations):
                continue
            fix = _fix(context, log, activations[0]) if len(activations) == 1 else None
            yield self.finding(context, log.node, _message(activations[0]), fix=fix)


def _message(activation: Activation) -> str:
    if activation.is_complement:
        reaches, instead = "1 - sigmoid(x) is exactly 0 above 8.32 in float16 (16.64 in float32)", "logsigmoid(-x)"
    else:
        reaches, instead = "sigmoid(x) is exactly 0 below -17.34 in float16 (-88.72 in float32)", "logsigmoid(x)"
    if activation.is_guarded:
        return f"{reaches}, and the guard against log(0) stops the gradient; {instead} needs none"
    return f"{reaches}, and its log -inf; {instead} is finite"


# -- fixes -----------------------------------------------------------------------------------------------------


def _fix(context: Context, log: Value, activation: Activation) -> Fix | None:
    for loss in logarithms.losses_around(context, log):
        if (entropy := _binary_cross_entropy(context, loss)) is not None:
            try:
                return _with_logits(context, loss, entropy)
            except UnmovableError:
                break
    if log.op not in ("log", "log1p") or log.in_place:
        return None
    rewrite = Rewrite(context, log.node)
    try:
        rewrite.replace(log.node, logarithms.text_of(rewrite, activation, _logsigmoid(rewrite, activation)))
        return rewrite.fix("Use logsigmoid", Safety.UNSAFE if activation.is_guarded else Safety.SAFE)
    except UnmovableError:
        return None


def _logsigmoid(rewrite: Rewrite, activation: Activation) -> str:
    logits = patterns.part(activation.core)
    if not activation.is_complement:
        return rewrite.call("torch.nn.functional.logsigmoid", rewrite.text(logits))
    if isinstance(logits, ast.UnaryOp) and isinstance(logits.op, ast.USub):
        return rewrite.call("torch.nn.functional.logsigmoid", rewrite.text(logits.operand))
    return rewrite.call("torch.nn.functional.logsigmoid", f"-{rewrite.text(logits, Precedence.UNARY)}")


@dataclass(frozen=True, slots=True)
class _Entropy:
    """The parts of y * log(p) + (1 - y) * log(1 - p)."""

    logits: Value
    target: Factor
    guarded: bool


def _binary_cross_entropy(context: Context, loss: Loss) -> _Entropy | None:
    """The parts of a loss that is a binary cross entropy on sigmoids."""
    if len(loss.terms) != 2 or loss.dim is not None or any(term.sign > 0 for term in loss.terms):
        return None
    sides: dict[bool, tuple[Activation, Factor]] = {}
    for term in loss.terms:
        parts = logarithms.factors_apart(term, *_LOGS)
        if parts is None or len(parts[1]) != 1:
            return None
        activations = logarithms.under(parts[0].value)
        if len(activations) != 1 or activations[0].core.op != "sigmoid" or not activations[0].is_plain:
            return None
        sides[activations[0].is_complement] = activations[0], parts[1][0]
    if len(sides) != 2:
        return None
    (positive, target), (negative, rest) = sides[False], sides[True]
    values = context.values
    same_logits = values.same_all(positive.core.operand("input"), negative.core.operand("input"))
    left = patterns.one_minus(rest.value)
    if not same_logits or len(left) != 1 or not values.same(left[0], target.value):
        return None
    return _Entropy(positive.core, target, positive.is_guarded or negative.is_guarded)


def _with_logits(context: Context, loss: Loss, entropy: _Entropy) -> Fix:
    rewrite = Rewrite(context, loss.node)
    logits, target = rewrite.text(patterns.part(entropy.logits)), rewrite.text(entropy.target.written)
    reduction = "" if loss.reduction == "mean" else f'reduction="{loss.reduction}"'
    called = rewrite.call("torch.nn.functional.binary_cross_entropy_with_logits", logits, target, reduction)
    rewrite.replace(loss.node, called)
    safety = Safety.UNSAFE if entropy.guarded else Safety.SAFE
    return rewrite.fix("Use binary_cross_entropy_with_logits", safety)
