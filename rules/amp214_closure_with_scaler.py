"""AMP214: scaler.step with a closure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from amplint import scaling
from amplint.context import Context
from amplint.protocol import Kind, Path
from amplint.rule import Example, Finding, Rule, Severity
from amplint.scaling import Fault
from amplint.tree import Module


class ClosureWithScaler(Rule):
    """scaler.step() does not support closures.

    ## What it does
    Reports `scaler.step(optimizer, closure)` of an enabled scaler; a closure of None is fine.

    ## Why
    As a keyword a closure raises `RuntimeError: Closure use is not currently supported if GradScaler is enabled.`
    Given by position it is passed on silently: the optimizer calls it again after the gradients were unscaled and
    checked, and then steps on the fresh gradients, which are scaled and unchecked. L-BFGS does so up to 20 times a
    step.

    ## Example
    ```python
    scaler.step(optimizer, closure)
    ```
    Use instead:
    ```python
    scaler.scale(closure()).backward()
    scaler.step(optimizer)
    ```
    with an optimizer that needs one gradient per step, or train with L-BFGS in float32 or bfloat16, without a scaler.

    ## Fix
    None: an optimizer that needs a closure cannot work through a GradScaler.

    ## References
    - [GradScaler.step](https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler.step)
    """

    code = "AMP214"
    name = "closure-with-scaler"
    severity = Severity.ERROR
    summary = "scaler.step() does not support closures"
    triggers = ((b".step(",),)
    INVALID: ClassVar = (
        Example(
            """
            import torch

            def fit(net, x, scaler: torch.amp.GradScaler):
                optimizer = torch.optim.LBFGS(net.parameters())

                def closure():
                    optimizer.zero_grad()
                    loss = net(x).mean()
                    scaler.scale(loss).backward()
                    return loss

                scaler.scale(closure()).backward()
                scaler.step(optimizer, closure)  # expect
                scaler.update()
            """
        ),
        Example(
            """
            import torch

            class Solver:
                def __init__(self, optimizer):
                    self.optimizer = optimizer
                    self.scaler = torch.cuda.amp.GradScaler()

                def step(self, evaluate):
                    self.scaler.scale(evaluate()).backward()
                    self.scaler.step(self.optimizer, closure=lambda: evaluate())  # expect
                    self.scaler.update()
            """
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def fit(net, x, optimizer, scaler: torch.amp.GradScaler):
            scaler.scale(net(x).mean()).backward()
            scaler.step(optimizer, None)
            scaler.update()

        def wrapped(net, x, optimizer, scaler: torch.amp.GradScaler):
            scaler.scale(net(x).mean()).backward()
            scaler.step(optimizer=optimizer, closure=None)
            scaler.update()
        """,
        """
        import torch

        def refine(net, x):
            optimizer = torch.optim.LBFGS(net.parameters())

            def closure():
                optimizer.zero_grad()
                loss = net(x).mean()
                loss.backward()
                return loss

            optimizer.step(closure)

        def disabled(optimizer, closure):
            scaler = torch.amp.GradScaler("cuda", enabled=False)
            scaler.step(optimizer, closure)
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for fault in scaling.once(context, _steps_with_closure):
            call, closure = fault.event.node, fault.event.closure
            if closure is None or _may_be_none(context, fault.event.module, closure):
                continue
            if isinstance(call, ast.Call) and any(keyword.value is closure for keyword in call.keywords):
                message = "raises RuntimeError: Closure use is not currently supported if GradScaler is enabled."
            else:
                message = "the optimizer calls the closure again and steps on gradients that are scaled and unchecked"
            yield self.finding(context, call, message, related=fault.related(context))


def _may_be_none(context: Context, module: Module, closure: ast.expr) -> bool:
    """Whether the closure is None, or a parameter that is None by default: a wrapper that hands on what it is given."""
    sources = (source for _, source in context.project.sources(module, closure))
    return any(isinstance(source, ast.Constant) and source.value is None for source in (closure, *sources))


def _steps_with_closure(path: Path) -> Iterator[Fault]:
    for event in path.events:
        if event.kind is Kind.STEP and scaling.is_scaling(event) and event.closure is not None:
            yield Fault(path, event)
