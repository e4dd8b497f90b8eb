"""AMP207: one scaler, several optimizers, and an update between their steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from amplint import scaling
from amplint.context import Context
from amplint.edit import move_after, remove_statement
from amplint.protocol import Event, Kind, Path
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity
from amplint.scaling import Fault
from amplint.tree import Module


class UpdatePerOptimizer(Rule):
    """update() of a shared scaler while another optimizer still holds scaled gradients.

    ## What it does
    Reports `scaler.update()` while another optimizer that the same scaler serves has been given scaled gradients and
    is stepped only afterwards.

    ## Why
    `update()` may change the scale (it halves after an overflow, and doubles every 2000 good steps), and the gradients
    that wait were scaled with the old one: they are then divided by the wrong number. If the other optimizer is
    unscaled already, `update()` also forgets that, and its `step` divides by the scale once more: an update about
    65536 times too small, with no message. One `update()` after the last step of the iteration is right; an iteration
    that finishes backward, step and update for one optimizer before the other's backward is exact too.

    ## Example
    ```python
    scaler.step(optimizer_g)
    scaler.update()
    scaler.step(optimizer_d)
    scaler.update()
    ```
    Use instead:
    ```python
    scaler.step(optimizer_g)
    scaler.step(optimizer_d)
    scaler.update()
    ```

    ## Fix
    Unsafe: the early `update()` goes, so that only the last one is left.

    ## References
    - [Multiple optimizers](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#working-with-multiple-models-losses-and-optimizers)
    """

    code = "AMP207"
    name = "update-per-optimizer"
    severity = Severity.WARNING
    summary = "update() of a shared scaler while another optimizer is pending"
    triggers = ((b".update(", b".step("), (b".update(", b"scaler"), (b".update(", b"Scaler"))
    fixable = "unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch

            def optimize(encoder, decoder, opt_e, opt_d, scaler: torch.amp.GradScaler, loss):
                opt_e.zero_grad()
                opt_d.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(opt_e)
                scaler.update()  # expect
                scaler.step(opt_d)
                scaler.update()
            """,
            """
            import torch

            def optimize(encoder, decoder, opt_e, opt_d, scaler: torch.amp.GradScaler, loss):
                opt_e.zero_grad()
                opt_d.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(opt_e)
                scaler.step(opt_d)
                scaler.update()
            """,
        ),
        Example(
            """
            import torch
            from torch.nn.utils import clip_grad_norm_

            class Gan:
                def __init__(self, gen, disc):
                    self.gen, self.disc = gen, disc
                    self.opt_g = torch.optim.Adam(gen.parameters())
                    self.opt_d = torch.optim.Adam(disc.parameters())
                    self.scaler = torch.cuda.amp.GradScaler()

                def apply(self, model, optimizer):
                    clip_grad_norm_(model.parameters(), 1.0)
                    self.scaler.step(optimizer)

                def step(self, loss_g, loss_d):
                    self.scaler.scale(loss_d).backward()
                    self.scaler.scale(loss_g).backward()
                    self.scaler.unscale_(self.opt_d)
                    self.scaler.unscale_(self.opt_g)
                    self.apply(self.disc, self.opt_d)
                    self.scaler.update()  # expect
                    self.apply(self.gen, self.opt_g)
                    self.scaler.update()
                    self.opt_d.zero_grad()
                    self.opt_g.zero_grad()
            """,
            """
            import torch
            from torch.nn.utils import clip_grad_norm_

            class Gan:
                def __init__(self, gen, disc):
                    self.gen, self.disc = gen, disc
                    self.opt_g = torch.optim.Adam(gen.parameters())
                    self.opt_d = torch.optim.Adam(disc.parameters())
                    self.scaler = torch.cuda.amp.GradScaler()

                def apply(self, model, optimizer):
                    clip_grad_norm_(model.parameters(), 1.0)
                    self.scaler.step(optimizer)

                def step(self, loss_g, loss_d):
                    self.scaler.scale(loss_d).backward()
                    self.scaler.scale(loss_g).backward()
                    self.scaler.unscale_(self.opt_d)
                    self.scaler.unscale_(self.opt_g)
                    self.apply(self.disc, self.opt_d)
                    self.apply(self.gen, self.opt_g)
                    self.scaler.update()
                    self.opt_d.zero_grad()
                    self.opt_g.zero_grad()
            """,
        ),
        Example(
            """
            import torch

            def train(model, optimizers, loader):
                scaler = torch.amp.GradScaler("cuda")
                for x in loader:
                    scaler.scale(model(x).mean()).backward()
                    for optimizer in optimizers:
                        scaler.step(optimizer)
                        scaler.update()  # expect
                        optimizer.zero_grad()
            """,
            """
            import torch

            def train(model, optimizers, loader):
                scaler = torch.amp.GradScaler("cuda")
                for x in loader:
                    scaler.scale(model(x).mean()).backward()
                    for optimizer in optimizers:
                        scaler.step(optimizer)
                        optimizer.zero_grad()
                    scaler.update()
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def one_after_the_other(gen, disc, opt_g, opt_d, scaler: torch.amp.GradScaler, loader):
            for real, z in loader:
                opt_d.zero_grad()
                scaler.scale(disc(gen(z).detach()).mean() - disc(real).mean()).backward()
                scaler.unscale_(opt_d)
                torch.nn.utils.clip_grad_norm_(disc.parameters(), 1.0)
                scaler.step(opt_d)
                scaler.update()
                opt_g.zero_grad()
                scaler.scale(-disc(gen(z)).mean()).backward()
                scaler.step(opt_g)
                scaler.update()
        """,
        """
        import torch

        def one_update(opt_g, opt_d, scaler: torch.amp.GradScaler, loss_g, loss_d):
            scaler.scale(loss_d).backward()
            scaler.step(opt_d)
            scaler.scale(loss_g).backward()
            scaler.step(opt_g)
            scaler.update()

        def two_scalers(opt_g, opt_d, loss_g, loss_d, scaler_g: torch.amp.GradScaler, scaler_d: torch.amp.GradScaler):
            scaler_g.scale(loss_g).backward()
            scaler_d.scale(loss_d).backward()
            scaler_g.step(opt_g)
            scaler_g.update()
            scaler_d.step(opt_d)
            scaler_d.update()
        """,
        """
        import torch

        def floor(model, optimizer, scaler: torch.amp.GradScaler, loader):
            for i, x in enumerate(loader):
                scaler.scale(model(x).mean()).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                if i % 100 == 0 and scaler.get_scale() < 1.0:
                    scaler.update(1.0)
        """,
        """
        import torch

        def train(model, steps):
            scaler = torch.amp.GradScaler("cuda")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(steps):
                optimizer.zero_grad()
                model.run_backward(scaler.scale(model.loss()))
                scaler.step(optimizer)
                scaler.update()

        def compare(one, other):
            train(one, 3)
            train(other, 3)
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for fault in scaling.once(context, _early_updates):
            step, *unscaled = fault.causes
            place = scaling.where(step, context.module)
            if unscaled:
                message = f"makes the scaler forget unscale_(): {place} divides these gradients by the scale again"
            else:
                message = (
                    f"may change the scale before {place} divides gradients by it that were scaled with the old one"
                )
            severity = Severity.ERROR if unscaled else None
            fix = _fix(context, fault)
            related = fault.related(context)
            yield self.finding(context, fault.event.node, message, severity=severity, fix=fix, related=related)


def _early_updates(path: Path) -> Iterator[Fault]:
    """Updates between two optimizers' steps; the causes are the later step and, where it is, its earlier unscale_."""
    since: dict[object, list[Event]] = {}  # the steps and unscalings of each scaler since its last update
    updated: dict[object, tuple[Event, list[Event]]] = {}
    zeroed: dict[object, set[object]] = {}  # since then, by scaler: these gradients are scaled with the new scale
    for event in path.events:
        if event.kind is Kind.ZERO:
            for optimizers in zeroed.values():
                optimizers.add(event.optimizer)
        if not scaling.is_scaling(event) or event.framework:
            continue
        scaler = event.scaler
        if event.kind is Kind.BACKWARD:
            updated.pop(scaler, None)
        elif event.kind is Kind.UPDATE:
            done = since.pop(scaler, [])
            if event.subject is None and any(e.kind is Kind.STEP for e in done):
                updated[scaler], zeroed[scaler] = (event, done), set()
        elif event.kind in (Kind.STEP, Kind.UNSCALE) and event.optimizer is not None:
            since.setdefault(scaler, []).append(event)
            if event.kind is Kind.STEP and scaler in updated and event.optimizer not in zeroed[scaler]:
                update, done = updated[scaler]
                own = [e for e in done if e.optimizer == event.optimizer]
                if all(e.kind is Kind.UNSCALE for e in own):
                    yield Fault(path, update, (event, *own[:1]))


def _fix(context: Context, fault: Fault) -> Fix | None:
    update, step = fault.event, fault.causes[0]
    statement = context.module.statement(update.node)
    later = [e for e in fault.path.after(step) if e.kind is Kind.UPDATE and e.scaler == update.scaler]
    if not isinstance(statement, ast.Expr) or not later:
        return None
    if later[0].node is update.node:
        return _after_the_loop(context.module, fault, statement)
    return Fix("Update once, after the last step", Safety.UNSAFE, remove_statement(context.module, statement))


def _after_the_loop(module: Module, fault: Fault, statement: ast.Expr) -> Fix | None:
    """Out of the loop over the optimizers, if the update stands right in it, with the step."""
    loop = module.parent(statement)
    if not isinstance(loop, ast.For) or not scaling.is_within(module, fault.causes[0].node, *loop.body):
        return None
    return Fix("Update once, after the last step", Safety.UNSAFE, move_after(module, [statement], loop))
