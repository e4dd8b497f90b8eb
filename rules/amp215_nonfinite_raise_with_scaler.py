"""AMP215: a clip that raises on the overflow which the scaler would absorb."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import ClassVar

from amplint import scaling
from amplint.context import Context
from amplint.edit import argument, remove_argument, replace, set_argument
from amplint.protocol import Event, Kind, Path
from amplint.rule import Edit, Example, Finding, Fix, Rule, Safety, Severity
from amplint.scaling import Fault

_FLAG = "error_if_nonfinite"
_POSITION = 3  # clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite)


class NonfiniteRaiseWithScaler(Rule):
    """error_if_nonfinite=True raises on the overflow that the GradScaler absorbs.

    ## What it does
    Reports `clip_grad_norm_(..., error_if_nonfinite=True)` on gradients that an enabled GradScaler scaled, and
    Fabric's `clip_gradients` under 16-mixed precision unless it is passed False (True is its default).

    ## Why
    A GradScaler looks for the largest scale by trying: it doubles the scale until gradients overflow, skips that
    step and halves it. The first two or three steps of a healthy run overflow, and one in some thousands later. With
    `error_if_nonfinite` each of them ends the run with `The total norm ... is non-finite, so it cannot be clipped.`

    ## Example
    ```python
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    ```
    Use instead:
    ```python
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), 1.0)
    ```
    To stop a run that has really diverged, test the loss, or count skipped steps in a row.

    ## Fix
    Unsafe: the argument goes; for Fabric it becomes False.

    ## References
    - [clip_grad_norm_](https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html)
    - [Fabric.clip_gradients](https://lightning.ai/docs/fabric/stable/api/fabric_methods.html#clip-gradients)
    """

    code = "AMP215"
    name = "nonfinite-raise-with-scaler"
    severity = Severity.WARNING
    summary = "error_if_nonfinite raises on overflows that the scaler absorbs"
    triggers = ((b"clip_grad",),)
    fixable = "unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch
            from torch.nn.utils import clip_grad_norm_

            def step(model, x, optimizer, scaler: torch.amp.GradScaler):
                scaler.scale(model(x).mean()).backward()
                scaler.unscale_(optimizer)
                norm = clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)  # expect
                scaler.step(optimizer)
                scaler.update()
                return norm
            """,
            """
            import torch
            from torch.nn.utils import clip_grad_norm_

            def step(model, x, optimizer, scaler: torch.amp.GradScaler):
                scaler.scale(model(x).mean()).backward()
                scaler.unscale_(optimizer)
                norm = clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                return norm
            """,
        ),
        Example(
            """
            import torch
            from torch.nn import utils

            class Trainer:
                def __init__(self, model, optimizer):
                    self.model, self.optimizer = model, optimizer
                    self.scaler = torch.cuda.amp.GradScaler()

                def clip(self):
                    self.scaler.unscale_(self.optimizer)
                    utils.clip_grad_norm_(  # expect
                        self.model.parameters(),
                        max_norm=2.0,
                        error_if_nonfinite=True,
                        foreach=True,
                    )

                def step(self, x):
                    self.scaler.scale(self.model(x).mean()).backward()
                    self.clip()
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
            """,
            """
            import torch
            from torch.nn import utils

            class Trainer:
                def __init__(self, model, optimizer):
                    self.model, self.optimizer = model, optimizer
                    self.scaler = torch.cuda.amp.GradScaler()

                def clip(self):
                    self.scaler.unscale_(self.optimizer)
                    utils.clip_grad_norm_(
                        self.model.parameters(),
                        max_norm=2.0,
                        foreach=True,
                    )

                def step(self, x):
                    self.scaler.scale(self.model(x).mean()).backward()
                    self.clip()
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
            """,
        ),
        Example(
            """
            from lightning.fabric import Fabric

            def main(model, optimizer, loader):
                fabric = Fabric(precision="16-mixed")
                model, optimizer = fabric.setup(model, optimizer)
                for x in loader:
                    fabric.backward(model(x).mean())
                    fabric.clip_gradients(model, optimizer, max_norm=1.0)  # expect
                    optimizer.step()
                    optimizer.zero_grad()
            """,
            """
            from lightning.fabric import Fabric

            def main(model, optimizer, loader):
                fabric = Fabric(precision="16-mixed")
                model, optimizer = fabric.setup(model, optimizer)
                for x in loader:
                    fabric.backward(model(x).mean())
                    fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False)
                    optimizer.step()
                    optimizer.zero_grad()
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch
        from torch.nn.utils import clip_grad_norm_

        def default(model, x, optimizer, scaler: torch.amp.GradScaler):
            scaler.scale(model(x).mean()).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=False)
            clip_grad_norm_(model.parameters(), 1.0, 2.0, False)
            scaler.step(optimizer)
            scaler.update()

        def unscaled(model, x, optimizer):
            model(x).mean().backward()
            clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            optimizer.step()

        def passed_on(model, x, optimizer, scaler: torch.amp.GradScaler, strict):
            scaler.scale(model(x).mean()).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=strict)
            scaler.step(optimizer)
            scaler.update()
        """,
        """
        import torch
        from torch.nn.utils import clip_grad_norm_

        def branched(model, x, optimizer, scaler=None):
            loss = model(x).mean()
            if scaler is None:
                loss.backward()
                clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()

        def disabled(model, x, optimizer):
            scaler = torch.amp.GradScaler("cuda", enabled=False)
            scaler.scale(model(x).mean()).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            scaler.step(optimizer)
        """,
        """
        from lightning.fabric import Fabric

        def in_bfloat16(model, optimizer, loader):
            fabric = Fabric(precision="bf16-mixed")
            model, optimizer = fabric.setup(model, optimizer)
            for x in loader:
                fabric.backward(model(x).mean())
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()

        def told_not_to(model, optimizer, loader):
            fabric = Fabric(precision="16-mixed")
            model, optimizer = fabric.setup(model, optimizer)
            for x in loader:
                fabric.backward(model(x).mean())
                fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False)
                optimizer.step()

        def by_value(model, optimizer, loader):
            fabric = Fabric(precision="16-mixed")
            model, optimizer = fabric.setup(model, optimizer)
            for x in loader:
                fabric.backward(model(x).mean())
                fabric.clip_gradients(model, optimizer, clip_val=0.5)
                optimizer.step()
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for fault in scaling.once(context, _raising_clips(context)):
            message = "raises on the first overflow, which the scaler would skip (two or three as each run starts)"
            fix = Fix("Let the scaler skip the step", Safety.UNSAFE, _edits(context, fault.event))
            yield self.finding(context, fault.event.node, message, fix=fix, related=fault.related(context))


def _raising_clips(context: Context) -> Callable[[Path], Iterator[Fault]]:
    def find(path: Path) -> Iterator[Fault]:
        backward: Event | None = None
        for event in path.events:
            if event.kind is Kind.BACKWARD:
                backward = event
            elif event.kind is Kind.CLIP and backward is not None and backward.scaled and _raises(context, event):
                yield Fault(path, event, (backward,))

    return find


def _raises(context: Context, clip: Event) -> bool:
    call = clip.node
    if not isinstance(call, ast.Call):
        return False
    if clip.framework == "fabric":
        flag = argument(call, _FLAG)
        if not scaling.in_float16(clip):
            return False
        return flag is None and not any(keyword.arg in ("clip_val", None) for keyword in call.keywords)
    flag = argument(call, _FLAG, _POSITION)
    values = context.values.of(clip.module, flag) if flag is not None else ()
    return bool(values) and all(value.op == "constant" and value.constant is True for value in values)


def _edits(context: Context, clip: Event) -> tuple[Edit, ...]:
    call = clip.node
    assert isinstance(call, ast.Call)
    if clip.framework == "fabric":
        return set_argument(context.module, call, _FLAG, "False")
    flag = argument(call, _FLAG, _POSITION)
    assert flag is not None
    if flag in call.args[:-1]:
        return (replace(context.module, flag, "False"),)
    return remove_argument(context.module, call, flag)
