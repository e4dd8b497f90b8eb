"""AMP205: a loss that is not scaled goes backward into an optimizer that the scaler steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from amplint import scaling
from amplint.context import Context
from amplint.edit import replace
from amplint.protocol import Event, Kind, Path
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity
from amplint.scaling import Fault


class UnscaledBackward(Rule):
    """A plain backward() into gradients that scaler.step() will divide by the scale.

    ## What it does
    Reports `loss.backward()` where `scaler.step(optimizer)` steps the optimizer of that loss afterwards: no loss was
    scaled, or a second one was forgotten beside a scaled first.

    ## Why
    `scaler.step` divides all gradients of the optimizer by the scale. Those of an unscaled loss come out 65536 times
    too small at first and smaller as the scale grows, so that loss is not trained on; and in float16 its small
    gradients underflow to zero on the way, which is what scaling is there to prevent.

    ## Example
    ```python
    scaler.scale(main_loss).backward(retain_graph=True)
    auxiliary_loss.backward()
    scaler.step(optimizer)
    ```
    Use instead:
    ```python
    scaler.scale(main_loss).backward(retain_graph=True)
    scaler.scale(auxiliary_loss).backward()
    scaler.step(optimizer)
    ```

    ## Fix
    Safe: `scaler.scale(loss).backward()`.

    ## References
    - [Multiple losses](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#working-with-multiple-models-losses-and-optimizers)
    - [Gradient scaling](https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling)
    """

    code = "AMP205"
    name = "unscaled-backward"
    severity = Severity.ERROR
    summary = "an unscaled backward() into gradients that scaler.step() unscales"
    triggers = ((b"backward(",), (b"backward (",))
    fixable = "safe"
    INVALID: ClassVar = (
        Example(
            """
            import torch

            def step(model, x, y, optimizer, scaler: torch.amp.GradScaler):
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    out = model(x)
                    loss = torch.nn.functional.cross_entropy(out.logits, y)
                    aux = out.balance.mean()
                scaler.scale(loss).backward(retain_graph=True)
                (0.01 * aux).backward()  # expect
                scaler.step(optimizer)
                scaler.update()
            """,
            """
            import torch

            def step(model, x, y, optimizer, scaler: torch.amp.GradScaler):
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    out = model(x)
                    loss = torch.nn.functional.cross_entropy(out.logits, y)
                    aux = out.balance.mean()
                scaler.scale(loss).backward(retain_graph=True)
                scaler.scale(0.01 * aux).backward()
                scaler.step(optimizer)
                scaler.update()
            """,
        ),
        Example(
            """
            import torch
            from torch.cuda import amp

            class Restorer:
                def __init__(self, net, lr):
                    self.net = net
                    self.opt = torch.optim.Adam(net.parameters(), lr)
                    self.grad_scaler = amp.GradScaler()

                def optimize(self, low, high):
                    self.opt.zero_grad()
                    with amp.autocast():
                        loss = torch.nn.functional.l1_loss(self.net(low), high)
                    loss.backward()  # expect
                    self.grad_scaler.step(self.opt)
                    self.grad_scaler.update()
            """,
            """
            import torch
            from torch.cuda import amp

            class Restorer:
                def __init__(self, net, lr):
                    self.net = net
                    self.opt = torch.optim.Adam(net.parameters(), lr)
                    self.grad_scaler = amp.GradScaler()

                def optimize(self, low, high):
                    self.opt.zero_grad()
                    with amp.autocast():
                        loss = torch.nn.functional.l1_loss(self.net(low), high)
                    self.grad_scaler.scale(loss).backward()
                    self.grad_scaler.step(self.opt)
                    self.grad_scaler.update()
            """,
        ),
        Example(
            """
            import torch
            from losses import total

            def train(model, loader, optimizer, accum):
                scaler = torch.amp.GradScaler("cuda")
                for i, batch in enumerate(loader):
                    with torch.autocast("cuda"):
                        losses = model(batch)
                    torch.autograd.backward(total(losses))  # expect
                    if (i + 1) % accum == 0:
                        scaler.unscale_(optimizer)
                        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                        scaler.step(optimizer)
                        scaler.update()
                        optimizer.zero_grad()
            """,
            """
            import torch
            from losses import total

            def train(model, loader, optimizer, accum):
                scaler = torch.amp.GradScaler("cuda")
                for i, batch in enumerate(loader):
                    with torch.autocast("cuda"):
                        losses = model(batch)
                    torch.autograd.backward(scaler.scale(total(losses)))
                    if (i + 1) % accum == 0:
                        scaler.unscale_(optimizer)
                        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                        scaler.step(optimizer)
                        scaler.update()
                        optimizer.zero_grad()
            """,
            {
                "losses.py": """
                def total(losses):
                    return sum(losses.values())
                """,
            },
        ),
        Example(
            """
            import torch

            def train(model, loader, optimizer, warmup):
                scaler = torch.amp.GradScaler("cuda")
                for i, x in enumerate(loader):
                    optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        loss = model(x).mean()
                    if i < warmup:
                        loss.backward()  # expect
                    else:
                        scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
            """,
            """
            import torch

            def train(model, loader, optimizer, warmup):
                scaler = torch.amp.GradScaler("cuda")
                for i, x in enumerate(loader):
                    optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        loss = model(x).mean()
                    if i < warmup:
                        scaler.scale(loss).backward()
                    else:
                        scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def branched(model, loader, optimizer, fp16):
            scaler = torch.amp.GradScaler("cuda") if fp16 else None
            for x in loader:
                loss = model(x).mean()
                if scaler:
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    loss.backward()
                    optimizer.step()

        def inert_when_off(model, loader, optimizer, use_amp):
            scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
            for x in loader:
                loss = model(x).mean()
                if use_amp:
                    scaler.scale(loss).backward()
                else:
                    loss.backward()
                scaler.step(optimizer)
                scaler.update()
        """,
        """
        import torch

        def spelled(scaler: torch.amp.GradScaler, optimizer, losses, aux):
            scaled = scaler.scale(losses["main"])
            scaled.backward(retain_graph=True)
            for loss in scaler.scale(list(losses.values())):
                loss.backward(retain_graph=True)
            torch.autograd.backward([scaler.scale(aux)])
            total = scaler.scale(sum(losses.values())) + scaler.scale(aux)
            total.backward()
            scaler.step(optimizer)
            scaler.update()

        def through_helper(scaler, loss, optimizer):
            def backward(value):
                scaler.scale(value).backward()

            backward(loss)
            scaler.step(optimizer)
            scaler.update()
        """,
        """
        import torch

        def critic_and_temperature(net, opt, alpha, opt_alpha, batches):
            scaler = torch.amp.GradScaler("cuda")
            for x in batches:
                opt.zero_grad()
                loss, entropy = net(x)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
                opt_alpha.zero_grad()
                (alpha * entropy.detach()).mean().backward()
                opt_alpha.step()
        """,
        """
        import torch

        def smoke_test(model, x, optimizer):
            model(x).sum().backward()
            scaler = torch.amp.GradScaler("cuda")
            for _ in range(10):
                scaler.scale(model(x).mean()).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        """,
        """
        import torch

        def dry_run(model, loader, optimizer):
            for x in loader:
                model(x).mean().backward()
                optimizer.zero_grad()

        def train(model, loader, optimizer):
            dry_run(model, loader, optimizer)
            scaler = torch.amp.GradScaler("cuda")
            for x in loader:
                scaler.scale(model(x).mean()).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for fault in scaling.once(context, _unscaled_backwards):
            place = scaling.where(fault.causes[0], context.module)
            message = f"this loss is not scaled, but {place} divides its gradients by the scale (65536 at first)"
            fix = _fix(context, fault)
            yield self.finding(context, fault.event.node, message, fix=fix, related=fault.related(context))


def _unscaled_backwards(path: Path) -> Iterator[Fault]:
    pending: dict[Event, set[object]] = {}  # the optimizers that no longer hold the gradients of each pass
    for event in path.events:
        if event.kind is Kind.BACKWARD:
            if event.scaler is None and not event.framework and not scaling.is_scaled_by_hand(event):
                pending[event] = set()
        elif event.kind is Kind.SCALER:
            pending.clear()
        elif event.kind is Kind.ZERO:
            if event.optimizer is None:
                pending.clear()
            for done in pending.values():
                done.add(event.optimizer)
        elif event.kind is Kind.STEP and event.scaler is None:
            pending.clear()  # it is the one those gradients were for
        elif event.kind is Kind.STEP and scaling.is_scaling(event) and not event.framework:
            if not _is_claimed_later(path, event):
                yield from (Fault(path, b, (event,)) for b, done in pending.items() if event.optimizer not in done)
            for done in pending.values():
                done.add(event.optimizer)


def _is_claimed_later(path: Path, step: Event) -> bool:
    """Whether another optimizer is stepped without a scaler before the next backward pass: the loss may be its own."""
    for event in path.after(step):
        if event.kind is Kind.BACKWARD:
            return False
        if event.kind is Kind.STEP and event.scaler is None and event.optimizer != step.optimizer:
            return True
    return False


def _fix(context: Context, fault: Fault) -> Fix | None:
    backward, step = fault.event, fault.causes[0]
    call = backward.node
    if backward.subject is None or step.scaler is None or not isinstance(call, ast.Call):
        return None
    if _is_stepped_plainly(context, backward):
        return None
    scaler = context.protocol.written(step.scaler, context.module, call)
    if scaler is None:
        return None
    scaled = f"{scaler}.scale({context.module.source.segment(backward.subject)})"
    edit = replace(context.module, backward.subject, scaled, parentheses=True)
    return Fix("Scale the loss", Safety.SAFE, (edit,))


def _is_stepped_plainly(context: Context, backward: Event) -> bool:
    """Whether on some path the gradients go into an optimizer that no scaler steps."""
    for path, event in scaling.events_of(context, Kind.BACKWARD):
        if event.node is backward.node:
            following = (e for e in path.after(event) if e.kind in (Kind.STEP, Kind.BACKWARD))
            follower = next(following, None)
            if follower is not None and follower.kind is Kind.STEP and not scaling.is_scaling(follower):
                return True
    return False
