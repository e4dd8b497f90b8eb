"""AMP218: torch.autograd.grad of a scaled loss, used without dividing by the scale."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import ClassVar

from amplint import scaling
from amplint.context import Context
from amplint.protocol import Kind, Path
from amplint.rule import Example, Finding, Rule, Severity
from amplint.scaling import Fault
from amplint.tree import Module

_UNSCALING = re.compile(r"get_scale\(|_scale\b|inv_scale|unscale")


class GradPenaltyScaled(Rule):
    """The gradient of a scaled loss goes into a penalty without being divided by the scale.

    ## What it does
    Reports `torch.autograd.grad` of `scaler.scale(...)` whose result nothing divides by `scaler.get_scale()`.

    ## Why
    `unscale_` works on the gradients of an optimizer's parameters; those that `autograd.grad` returns stay multiplied
    by the scale, 65536 at first. A penalty such as `(norm - 1) ** 2` is then about 4e9 and has nothing to do with the
    gradient any more, and the weight that was tuned for it changes whenever the scale does.

    ## Example
    ```python
    grads = torch.autograd.grad(scaler.scale(loss), params, create_graph=True)
    penalty = sum(g.pow(2).sum() for g in grads)
    ```
    Use instead:
    ```python
    grads = torch.autograd.grad(scaler.scale(loss), params, create_graph=True)
    inv_scale = 1.0 / scaler.get_scale()
    penalty = sum((g * inv_scale).pow(2).sum() for g in grads)
    ```

    ## Fix
    None: whether to divide, or to leave the scaling out and compute in float32, is for the author to tell.

    ## References
    - [Gradient penalty](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-penalty)
    """

    code = "AMP218"
    name = "grad-penalty-scaled"
    severity = Severity.WARNING
    summary = "autograd.grad of a scaled loss used without dividing by the scale"
    triggers = ((b".grad(", b"scale"), (b"import grad", b"scale"), (b", grad", b"scale"))
    INVALID: ClassVar = (
        Example(
            """
            import torch

            def train(model, loader, opt, scaler: torch.amp.GradScaler):
                for x in loader:
                    loss = model(x)
                    grads = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)  # expect
                    loss = loss + sum(g.pow(2).sum() for g in grads).sqrt()
                    scaler.scale(loss).backward()
                    scaler.step(opt)
                    scaler.update()
            """
        ),
        Example(
            """
            import torch
            from torch.autograd import grad

            def penalty(score, images, scaler):
                scaled = scaler.scale(score.sum())
                (g,) = grad(outputs=scaled, inputs=images, create_graph=True)  # expect
                return (g.norm(2, dim=1) - 1).pow(2).mean()

            def train(critic, loader, opt, scaler: torch.amp.GradScaler):
                for x in loader:
                    score = critic(x)
                    scaler.scale(score.mean() + penalty(score, x, scaler)).backward()
                    scaler.step(opt)
                    scaler.update()
            """
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def train(model, loader, opt, scaler: torch.amp.GradScaler):
            for x in loader:
                loss = model(x)
                scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
                inv = 1.0 / scaler.get_scale()
                loss = loss + sum((g * inv).pow(2).sum() for g in scaled).sqrt()
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
        """,
        """
        import torch

        def train(critic, loader, opt, scaler: torch.amp.GradScaler):
            for x in loader:
                score = critic(x)
                (g,) = torch.autograd.grad(score.sum(), x, create_graph=True)
                scaler.scale(score.mean() + g.pow(2).sum()).backward()
                scaler.step(opt)
                scaler.update()
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for fault in scaling.once(context, _scaled_gradients):
            if not _divides(context.module, fault.node):
                message = (
                    "these gradients are still multiplied by the scale (65536 at first): unscale_ does not see them"
                )
                yield self.finding(context, fault.node, message, related=fault.related(context))


def _scaled_gradients(path: Path) -> Iterator[Fault]:
    for event in path.events:
        if event.kind is Kind.DIFFERENTIATE and scaling.is_scaling(event):
            yield Fault(path, event)


def _divides(module: Module, node: ast.AST) -> bool:
    """Whether something after the call, in its function, has to do with the scale's value."""
    function = module.function(node) or module.tree
    end = module.source.span(function)[1] if isinstance(function, ast.stmt) else len(module.source.text)
    return bool(_UNSCALING.search(module.source.text[module.source.span(node)[1] : end]))
