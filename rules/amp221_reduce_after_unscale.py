"""AMP221: gradients all-reduced by hand after unscale_."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from amplint import scaling
from amplint.context import Context
from amplint.protocol import Event, Kind, Path
from amplint.rule import Example, Finding, Rule, Severity
from amplint.scaling import Fault


class ReduceAfterUnscale(Rule):
    """Gradients are all-reduced by hand after unscale_.

    ## What it does
    Reports a hand-made reduction of gradients over processes between `scaler.unscale_(optimizer)` and the step.

    ## Why
    `unscale_` is where a rank looks for inf, and what it finds decides whether `scaler.step` steps. Reduced afterwards,
    one rank's inf reaches the gradients of all, while only that rank knows of it: the others step, with inf, and the
    replicas and their scales part for good.

    ## Example
    ```python
    scaler.unscale_(optimizer)
    for p in model.parameters():
        dist.all_reduce(p.grad)
    ```
    Use instead:
    ```python
    for p in model.parameters():
        dist.all_reduce(p.grad)
    scaler.unscale_(optimizer)
    ```

    ## Fix
    None: the reduction moves before `unscale_` with all that belongs to it, which is for the author to tell.
    DistributedDataParallel reduces during the backward pass and needs none.

    ## References
    - [GradScaler.unscale_](https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler.unscale_)
    """

    code = "AMP221"
    name = "reduce-after-unscale"
    severity = Severity.ERROR
    summary = "gradients all-reduced by hand after unscale_"
    triggers = ((b"reduce", b"unscale_"), (b"reduce", b".step("))
    INVALID: ClassVar = (
        Example(
            """
            import torch
            import torch.distributed as dist

            def train(model, loader, opt, scaler: torch.amp.GradScaler):
                for x in loader:
                    scaler.scale(model(x)).backward()
                    scaler.unscale_(opt)
                    for p in model.parameters():
                        dist.all_reduce(p.grad)  # expect
                    scaler.step(opt)
                    scaler.update()
            """
        ),
        Example(
            """
            import torch
            import torch.distributed as dist

            def sync(model):
                for p in model.parameters():
                    if p.grad is not None:
                        dist.all_reduce(p.grad.data, op=dist.ReduceOp.SUM)  # expect

            def train(model, loader, opt, scaler: torch.amp.GradScaler):
                for x in loader:
                    scaler.scale(model(x)).backward()
                    scaler.unscale_(opt)
                    sync(model)
                    scaler.step(opt)
                    scaler.update()
            """
        ),
    )
    VALID: ClassVar = (
        """
        import torch
        import torch.distributed as dist

        def train(model, loader, opt, scaler: torch.amp.GradScaler):
            for x in loader:
                scaler.scale(model(x)).backward()
                for p in model.parameters():
                    dist.all_reduce(p.grad)
                scaler.unscale_(opt)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(opt)
                scaler.update()
        """,
        """
        import torch
        import torch.distributed as dist

        def train(model, loader, opt, scaler: torch.amp.GradScaler):
            for x in loader:
                loss = model(x)
                scaler.scale(loss).backward()
                scaler.unscale_(opt)
                scaler.step(opt)
                scaler.update()
                dist.all_reduce(loss.detach())
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for fault in scaling.once(context, _reduced_after_unscale):
            message = "reduced after unscale_: one rank's inf reaches the others, whose inf checks are already done"
            yield self.finding(context, fault.node, message, related=fault.related(context))


def _reduced_after_unscale(path: Path) -> Iterator[Fault]:
    unscaled: dict[object, Event] = {}
    for event in path.events:
        if event.kind is Kind.UNSCALE and scaling.is_scaling(event) and not event.framework:
            unscaled[event.optimizer] = event
        elif event.kind is Kind.STEP:
            unscaled.pop(event.optimizer, None)
        elif event.kind in (Kind.UPDATE, Kind.BACKWARD):
            unscaled.clear()
        elif event.kind is Kind.REDUCE and unscaled:
            yield Fault(path, event, (next(iter(unscaled.values())),))
