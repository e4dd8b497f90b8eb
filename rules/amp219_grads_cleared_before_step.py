"""AMP219: zero_grad between the backward pass and scaler.step."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from amplint import scaling
from amplint.context import Context
from amplint.edit import move_after
from amplint.protocol import Event, Kind, Path
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity
from amplint.scaling import Fault


class GradsClearedBeforeStep(Rule):
    """zero_grad clears the gradients that scaler.step is about to use.

    ## What it does
    Reports `zero_grad()` of an optimizer, or of the model it trains, between a scaled backward pass and the
    `scaler.step(optimizer)` that belongs to it.

    ## Why
    `zero_grad` sets the gradients to None. The scaler then finds nothing to check for inf, and the step raises
    `No inf checks were recorded for this optimizer.` With `set_to_none=False` nothing raises and nothing is learned.

    ## Example
    ```python
    scaler.scale(loss).backward()
    optimizer.zero_grad()
    scaler.step(optimizer)
    scaler.update()
    ```
    Use instead:
    ```python
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    ```

    ## Fix
    Unsafe: moves the call after the step (after `update()`, where that follows in the same block).

    ## References
    - [GradScaler.step](https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler.step)
    """

    code = "AMP219"
    name = "grads-cleared-before-step"
    severity = Severity.ERROR
    summary = "zero_grad between the backward pass and scaler.step()"
    triggers = ((b"zero_grad", b".step("),)
    fixable = "unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch

            def train(model, loader, opt, scaler: torch.amp.GradScaler):
                for x in loader:
                    scaler.scale(model(x)).backward()
                    opt.zero_grad()  # expect
                    scaler.step(opt)
                    scaler.update()
            """,
            """
            import torch

            def train(model, loader, opt, scaler: torch.amp.GradScaler):
                for x in loader:
                    scaler.scale(model(x)).backward()
                    scaler.step(opt)
                    scaler.update()
                    opt.zero_grad()
            """,
        ),
        Example(
            """
            import torch

            def train(model, loader, accum=4):
                opt = torch.optim.SGD(model.parameters(), lr=0.1)
                scaler = torch.amp.GradScaler("cuda")
                for i, x in enumerate(loader):
                    scaler.scale(model(x) / accum).backward()
                    if (i + 1) % accum == 0:
                        # a clean start
                        model.zero_grad(set_to_none=True)  # expect
                        scaler.unscale_(opt)
                        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                        scaler.step(opt)
                        scaler.update()
            """,
            """
            import torch

            def train(model, loader, accum=4):
                opt = torch.optim.SGD(model.parameters(), lr=0.1)
                scaler = torch.amp.GradScaler("cuda")
                for i, x in enumerate(loader):
                    scaler.scale(model(x) / accum).backward()
                    if (i + 1) % accum == 0:
                        scaler.unscale_(opt)
                        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                        scaler.step(opt)
                        scaler.update()
                        # a clean start
                        model.zero_grad(set_to_none=True)
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def retried(model, batches, opt, scaler: torch.amp.GradScaler):
            for x in batches:
                scaler.scale(model(x)).backward()
                try:
                    scaler.step(opt)
                except RuntimeError:
                    opt.zero_grad()
                    scaler.scale(model(x[: len(x) // 2])).backward()
                    scaler.step(opt)
                scaler.update()
        """,
        """
        import torch

        def train(model, loader, opt, scaler: torch.amp.GradScaler):
            for x in loader:
                opt.zero_grad()
                scaler.scale(model(x)).backward()
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()
        """,
        """
        import torch

        def gan(gen, disc, opt_g, opt_d, loader, scaler: torch.amp.GradScaler):
            for x in loader:
                scaler.scale(disc(gen(x))).backward()
                opt_d.zero_grad()
                scaler.step(opt_g)
                scaler.scale(disc(x)).backward()
                scaler.step(opt_d)
                scaler.update()
        """,
        """
        import torch

        def again(model, loader, opt, scaler: torch.amp.GradScaler):
            for x in loader:
                scaler.scale(model(x)).backward()
                opt.zero_grad()
                scaler.scale(model(2 * x)).backward()
                scaler.step(opt)
                scaler.update()
        """,
        """
        import torch

        def single_gradients(model, x, optimizer, scaler: torch.amp.GradScaler):
            scaler.scale(model(x).mean()).backward()
            model.embedding.weight.grad.zero_()
            for p in model.parameters():
                if torch.isnan(p.grad).any():
                    p.grad = None
            scaler.step(optimizer)
            scaler.update()
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        def cleared(path: Path) -> Iterator[Fault]:
            return _cleared_before_step(context, path)

        for fault in scaling.once(context, cleared):
            message = "clears the gradients before scaler.step(): No inf checks were recorded for this optimizer"
            fix = _fix(context, fault)
            yield self.finding(context, fault.node, message, fix=fix, related=fault.related(context))


def _cleared_before_step(context: Context, path: Path) -> Iterator[Fault]:
    for index, step in enumerate(path.events):
        if step.kind is not Kind.STEP or not scaling.is_scaling(step) or step.framework:
            continue
        cleared: Event | None = None
        for event in reversed(path.events[:index]):
            if event.kind in (Kind.STEP, Kind.UPDATE) and not event.framework:
                break
            if event.kind is Kind.ZERO and cleared is None and _clears(context, path, event, step):
                cleared = event
            elif event.kind is Kind.BACKWARD:
                if cleared is not None and event.scaled:
                    yield Fault(path, cleared, (event, step))
                break


def _clears(context: Context, path: Path, zero: Event, step: Event) -> bool:
    """Whether a zero_grad concerns the optimizer that is stepped."""
    if _is_of_one_parameter(zero):
        return False
    if zero.optimizer is not None:
        return zero.optimizer == step.optimizer
    owners = context.protocol.owners(path, zero)
    if owners is not None:
        return step.optimizer in owners
    stepped = {event.optimizer for event in path.events if event.kind is Kind.STEP}
    cleared = {event.value for event in path.events if event.kind is Kind.ZERO}
    return len(stepped) == 1 and len(cleared) == 1


def _is_of_one_parameter(zero: Event) -> bool:
    """Whether a single `.grad` is cleared, not one after the other in a loop without a test."""
    is_gradient = isinstance(zero.subject, ast.Attribute) and zero.subject.attr == "grad"
    return is_gradient and not isinstance(zero.module.parent(zero.module.statement(zero.node)), ast.For)


def _fix(context: Context, fault: Fault) -> Fix | None:
    module, step = context.module, fault.causes[1]
    statement = module.statement(fault.node)
    if step.module is not module or not isinstance(statement, ast.Expr) or fault.node is not fault.event.node:
        return None
    target = module.statement(step.node)
    block = module.block(statement)
    if target not in block:
        return None
    updates = {
        module.statement(event.node)
        for event in fault.path.after(step)
        if event.kind is Kind.UPDATE and event.module is module
    }
    target = next((later for later in block[block.index(target) :] if later in updates), target)
    return Fix("Clear the gradients after the step", Safety.UNSAFE, move_after(module, [statement], target))
