"""AMP210: a GradScaler enabled around bfloat16 autocast."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import ClassVar

from amplint import scaling
from amplint.context import Context
from amplint.edit import argument, set_argument
from amplint.loss_regions import forward_regions
from amplint.protocol import Event, Kind, Path, Symbol
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity
from amplint.scaling import Fault
from amplint.values import RegionKind

_BY_DTYPE = re.compile(r"float16|fp16|half|dtype|bf16|precision", re.IGNORECASE)
_ELSEWHERE = {RegionKind.NONE, RegionKind.DISABLED}


class ScalerWithBfloat16(Rule):
    """A GradScaler does nothing useful for bfloat16.

    ## What it does
    Reports the constructor of a GradScaler that is enabled and scales only losses that were computed under bfloat16
    autocast.

    ## Why
    bfloat16 has the exponents of float32, from 1e-38 to 3e38: gradients that float32 holds do not underflow in it,
    and there is nothing for a scale to rescue. The scaler still multiplies each loss, reads every gradient once more
    to unscale it, waits for the device once per step to look for `inf`, and all of clipping, logging and
    checkpointing must mind it.

    ## Example
    ```python
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    ```
    Use instead:
    ```python
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    ```

    ## Fix
    Unsafe: `enabled=False`, which turns every method of the scaler into a no-op (`step` calls the optimizer's).

    ## References
    - [Gradient scaling](https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling)
    - Kalamkar et al., "A study of BFLOAT16 for deep learning training", 2019
    """

    code = "AMP210"
    name = "scaler-with-bfloat16"
    severity = Severity.INFO
    summary = "a GradScaler around bfloat16 autocast"
    triggers = ((b"Scaler",), (b"scaler",))
    fixable = "unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch

            def train(model, loader, optimizer):
                scaler = torch.amp.GradScaler("cuda")  # expect
                for x in loader:
                    with torch.autocast("cuda", dtype=torch.bfloat16):
                        loss = model(x).mean()
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
            """,
            """
            import torch

            def train(model, loader, optimizer):
                scaler = torch.amp.GradScaler("cuda", enabled=False)
                for x in loader:
                    with torch.autocast("cuda", dtype=torch.bfloat16):
                        loss = model(x).mean()
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
            """,
        ),
        Example(
            """
            import torch
            from torch.cuda.amp import GradScaler

            class Trainer:
                def __init__(self, model, optimizer):
                    self.model, self.optimizer = model, optimizer
                    self.grad_scaler = GradScaler(  # expect
                        init_scale=2.0**10,
                        enabled=True,
                    )
                    self.context = torch.amp.autocast("cuda", torch.bfloat16)

                def step(self, x):
                    with self.context:
                        loss = self.model(x).mean()
                    self.grad_scaler.scale(loss).backward()
                    self.grad_scaler.step(self.optimizer)
                    self.grad_scaler.update()
            """,
            """
            import torch
            from torch.cuda.amp import GradScaler

            class Trainer:
                def __init__(self, model, optimizer):
                    self.model, self.optimizer = model, optimizer
                    self.grad_scaler = GradScaler(
                        init_scale=2.0**10,
                        enabled=False,
                    )
                    self.context = torch.amp.autocast("cuda", torch.bfloat16)

                def step(self, x):
                    with self.context:
                        loss = self.model(x).mean()
                    self.grad_scaler.scale(loss).backward()
                    self.grad_scaler.step(self.optimizer)
                    self.grad_scaler.update()
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def in_float16(model, loader, optimizer):
            scaler = torch.amp.GradScaler("cuda")
            for x in loader:
                with torch.autocast("cuda"):
                    loss = model(x).mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()

        def off(model, loader, optimizer):
            scaler = torch.amp.GradScaler("cuda", enabled=False)
            for x in loader:
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = model(x).mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        """,
        """
        import torch

        def by_name(model, loader, optimizer, dtype):
            amp_dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
            scaler = torch.amp.GradScaler("cuda", enabled=dtype == "fp16")
            for x in loader:
                with torch.autocast("cuda", dtype=amp_dtype):
                    loss = model(x).mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()

        def by_device(model, loader, optimizer):
            dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
            scaler = torch.amp.GradScaler("cuda") if dtype == torch.float16 else None
            for x in loader:
                with torch.autocast("cuda", dtype=dtype):
                    loss = model(x).mean()
                if scaler is None:
                    loss.backward()
                    optimizer.step()
                    continue
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        """,
        """
        import torch

        def both(student, teacher, loader, optimizer):
            scaler = torch.amp.GradScaler("cuda")
            for x in loader:
                with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
                    target = teacher(x)
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = (student(x) - target).square().mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for fault in scaling.once(context, _enabled_scalers):
            constructor = fault.event
            assert isinstance(constructor.node, ast.Call)
            backwards = _scaled_by(context, constructor.scaler)
            if not backwards or not all(_is_bfloat16(context, backward) for backward in backwards):
                continue
            message = "bfloat16 has float32's exponents: gradients do not underflow, and scaling only costs time"
            edits = set_argument(context.module, constructor.node, "enabled", "False")
            fix = Fix("Disable the scaler", Safety.UNSAFE, edits)
            related = context.protocol.related(fault.path, *backwards[:1]) if backwards[0] in fault.path.events else ()
            yield self.finding(context, constructor.node, message, fix=fix, related=related)


def _enabled_scalers(path: Path) -> Iterator[Fault]:
    """Constructors of scalers that are on, and not by a test of the precision."""
    for event in path.events:
        if event.kind is not Kind.SCALER or event.inert or not isinstance(event.node, ast.Call):
            continue
        enabled = argument(event.node, "enabled")
        around = [a.test for a in event.module.ancestors(event.node) if isinstance(a, ast.If | ast.IfExp)]
        tests = [*around, *([enabled] if enabled is not None else [])]
        is_off = isinstance(enabled, ast.Constant) and not enabled.value
        if not is_off and not any(_BY_DTYPE.search(ast.unparse(test)) for test in tests):
            yield Fault(path, event)


def _scaled_by(context: Context, scaler: Symbol | None) -> list[Event]:
    """The backward passes whose losses a scaler multiplies, each place once."""
    found: dict[ast.AST, Event] = {}
    for _, event in scaling.events_of(context, Kind.BACKWARD):
        if event.scaler == scaler:
            found.setdefault(event.node, event)
    return list(found.values())


def _is_bfloat16(context: Context, backward: Event) -> bool:
    """Whether the loss was computed under bfloat16 autocast, and nowhere under another."""
    loss = _unscaled(backward.subject)
    if loss is None:
        return False
    kinds = {region.kind for region in forward_regions(context, backward.module, loss, backward.calls)}
    return RegionKind.BFLOAT16 in kinds and kinds <= {RegionKind.BFLOAT16, *_ELSEWHERE}


def _unscaled(loss: ast.expr | None) -> ast.expr | None:
    """The loss within `scaler.scale(loss)`."""
    is_scaling = isinstance(loss, ast.Call) and isinstance(loss.func, ast.Attribute) and loss.func.attr == "scale"
    return loss.args[0] if is_scaling and loss.args else loss  # type: ignore[union-attr]
