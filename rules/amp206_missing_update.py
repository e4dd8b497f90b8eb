"""AMP206: scaler.step without scaler.update after it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from amplint import scaling
from amplint.context import Context
from amplint.edit import insert_after, move_after, remove_statement
from amplint.protocol import Event, Kind, Path
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity
from amplint.scaling import Fault
from amplint.tree import Module


class MissingUpdate(Rule):
    """scaler.step() whose scaler is not updated before the next step.

    ## What it does
    Reports `scaler.step(optimizer)` in a loop where no `scaler.update()` follows it before the same optimizer is
    stepped again or its new gradients are unscaled, and `scaler.update()` placed before the step it belongs to.

    ## Why
    `update()` lowers the scale after an overflow, raises it after 2000 good steps, and clears what the scaler
    remembers of each optimizer. Without it the second step raises `RuntimeError: step() has already been called
    since the last update().`, and so does `unscale_` before that step. An `update()` before `step()` closes an
    iteration that has no inf checks yet and raises `No inf checks were recorded prior to update.`; after `unscale_`
    it forgets that the gradients are unscaled, so that the step divides them by the scale again.

    ## Example
    ```python
    for loss in losses:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
    scaler.update()
    ```
    Use instead:
    ```python
    for loss in losses:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Fix
    Safe: `scaler.update()` is inserted after the step, or the misplaced one is moved there. None where the gradients
    are unscaled before an update.

    ## References
    - [GradScaler.update](https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler.update)
    - [Typical mixed precision training](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#typical-mixed-precision-training)
    """

    code = "AMP206"
    name = "missing-update"
    severity = Severity.ERROR
    summary = "scaler.step() with no scaler.update() before the next"
    triggers = ((b".step(",),)
    fixable = "safe"
    INVALID: ClassVar = (
        Example(
            """
            import torch

            def train(model, loader, optimizer):
                scaler = torch.amp.GradScaler("cuda")
                for x, y in loader:
                    optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        loss = torch.nn.functional.mse_loss(model(x), y)
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)  # expect
            """,
            """
            import torch

            def train(model, loader, optimizer):
                scaler = torch.amp.GradScaler("cuda")
                for x, y in loader:
                    optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        loss = torch.nn.functional.mse_loss(model(x), y)
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
            """,
        ),
        Example(
            """
            import torch

            class Learner:
                def __init__(self, net, optimizer, amp=True):
                    self.net, self.optimizer = net, optimizer
                    self.scaler = torch.amp.GradScaler("cuda", enabled=amp)

                def improve(self, batches, terms):
                    for batch in batches:
                        for term in terms:
                            self.optimizer.zero_grad()
                            self.scaler.scale(term(self.net, batch)).backward()
                            self.scaler.step(self.optimizer)  # expect
                        self.scaler.update()
            """,
            """
            import torch

            class Learner:
                def __init__(self, net, optimizer, amp=True):
                    self.net, self.optimizer = net, optimizer
                    self.scaler = torch.amp.GradScaler("cuda", enabled=amp)

                def improve(self, batches, terms):
                    for batch in batches:
                        for term in terms:
                            self.optimizer.zero_grad()
                            self.scaler.scale(term(self.net, batch)).backward()
                            self.scaler.step(self.optimizer)
                            self.scaler.update()
            """,
        ),
        Example(
            """
            import torch
            from torch.cuda.amp import GradScaler

            def reversed_order(model, loader, optimizer, grad_scaler: GradScaler):
                for x in loader:
                    optimizer.zero_grad()
                    grad_scaler.scale(model(x).mean()).backward()
                    grad_scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    grad_scaler.update()
                    grad_scaler.step(optimizer)  # expect
            """,
            """
            import torch
            from torch.cuda.amp import GradScaler

            def reversed_order(model, loader, optimizer, grad_scaler: GradScaler):
                for x in loader:
                    optimizer.zero_grad()
                    grad_scaler.scale(model(x).mean()).backward()
                    grad_scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    grad_scaler.step(optimizer)
                    grad_scaler.update()
            """,
        ),
        Example(
            """
            import torch

            def optional(model, loader, optimizer, scaler=None):
                for x in loader:
                    loss = model(x).mean()
                    if scaler is not None:
                        scaler.scale(loss).backward()
                    else:
                        loss.backward()
                    if scaler is not None:
                        scaler.step(optimizer)  # expect
                    else:
                        optimizer.step()
                    optimizer.zero_grad()

            def main(model, loader, optimizer, fp16):
                optional(model, loader, optimizer, torch.amp.GradScaler("cuda") if fp16 else None)
            """,
            """
            import torch

            def optional(model, loader, optimizer, scaler=None):
                for x in loader:
                    loss = model(x).mean()
                    if scaler is not None:
                        scaler.scale(loss).backward()
                    else:
                        loss.backward()
                    if scaler is not None:
                        scaler.step(optimizer)
                        scaler.update()
                    else:
                        optimizer.step()
                    optimizer.zero_grad()

            def main(model, loader, optimizer, fp16):
                optional(model, loader, optimizer, torch.amp.GradScaler("cuda") if fp16 else None)
            """,
        ),
        Example(
            """
            import torch

            class Trainer:
                def __init__(self, model, optimizer):
                    self.model, self.optimizer = model, optimizer
                    self.scaler = torch.amp.GradScaler("cuda")

                def step(self, x):
                    self.optimizer.zero_grad()
                    self.scaler.scale(self.model(x).mean()).backward()
                    self.scaler.step(self.optimizer)  # expect

                def epoch(self, loader):
                    for x in loader:
                        self.step(x)
                    self.scaler.update()

            def now_and_then(model, loader, optimizer, scaler: torch.amp.GradScaler):
                for i, x in enumerate(loader):
                    optimizer.zero_grad()
                    scaler.scale(model(x).mean()).backward()
                    scaler.step(optimizer)  # expect
                    if i % 50 == 0:
                        print(scaler.get_scale())
                        scaler.update()
            """,
            """
            import torch

            class Trainer:
                def __init__(self, model, optimizer):
                    self.model, self.optimizer = model, optimizer
                    self.scaler = torch.amp.GradScaler("cuda")

                def step(self, x):
                    self.optimizer.zero_grad()
                    self.scaler.scale(self.model(x).mean()).backward()
                    self.scaler.step(self.optimizer)
                    self.scaler.update()

                def epoch(self, loader):
                    for x in loader:
                        self.step(x)

            def now_and_then(model, loader, optimizer, scaler: torch.amp.GradScaler):
                for i, x in enumerate(loader):
                    optimizer.zero_grad()
                    scaler.scale(model(x).mean()).backward()
                    scaler.step(optimizer)
                    scaler.update()
                    if i % 50 == 0:
                        print(scaler.get_scale())
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def later_in_the_iteration(model, loader, optimizer, scheduler, scaler: torch.amp.GradScaler):
            for x in loader:
                scaler.scale(model(x).mean()).backward()
                scaler.step(optimizer)
                optimizer.zero_grad()
                scheduler.step()
                scaler.update()

        def once(model, x, optimizer):
            scaler = torch.amp.GradScaler("cuda")
            scaler.scale(model(x).mean()).backward()
            scaler.step(optimizer)
        """,
        """
        import torch

        def pair(gen, disc, opt_g, opt_d, loader):
            scaler = torch.amp.GradScaler("cuda")
            for x in loader:
                opt_d.zero_grad()
                scaler.scale(disc(gen(x).detach()).mean()).backward()
                scaler.step(opt_d)
                opt_g.zero_grad()
                scaler.scale(-disc(gen(x)).mean()).backward()
                scaler.step(opt_g)
                scaler.update()

        def any_number(model, optimizers, loader):
            scaler = torch.amp.GradScaler("cuda")
            for x in loader:
                scaler.scale(model(x).mean()).backward()
                for optimizer in optimizers:
                    scaler.step(optimizer)
                scaler.update()
        """,
        """
        import torch

        class Engine:
            def __init__(self, net, optimizer):
                self.net, self.optimizer = net, optimizer
                self.scaler = torch.amp.GradScaler("cuda")

            def _apply(self):
                self.scaler.step(self.optimizer)

            def _finish(self):
                self.scaler.update()
                self.optimizer.zero_grad()

            def fit(self, loader):
                for x in loader:
                    self.scaler.scale(self.net(x).mean()).backward()
                    self._apply()
                    self._finish()
        """,
        """
        import torch

        def guarded(args, model, loader, optimizer):
            scaler = torch.amp.GradScaler("cuda") if args.amp else None
            for i, x in enumerate(loader):
                loss = model(x).mean()
                scaler.scale(loss).backward() if args.amp else loss.backward()
                if (i + 1) % args.accum:
                    continue
                if args.amp:
                    scaler.step(optimizer)
                else:
                    optimizer.step()
                optimizer.zero_grad()
                if args.amp:
                    scaler.update()
        """,
        """
        import torch

        def test_step_twice(model, x, optimizer, raises):
            scaler = torch.amp.GradScaler("cuda")
            scaler.scale(model(x).mean()).backward()
            with raises(RuntimeError):
                scaler.step(optimizer)
                scaler.step(optimizer)

        def sometimes_both(model, loader, optimizer, scaler: torch.amp.GradScaler, every):
            for i, x in enumerate(loader):
                scaler.scale(model(x).mean()).backward()
                if i % every == 0:
                    scaler.step(optimizer)
                    optimizer.zero_grad()
                if i % every == 0:
                    scaler.update()
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for fault in scaling.once(context, _steps_without_update):
            cause = fault.causes[0]
            if cause.kind is Kind.UPDATE:
                place = scaling.where(cause, context.module)
                message = f"update() at {place} comes before this step: it has no inf checks of this iteration yet"
            elif cause.kind is Kind.UNSCALE:
                message = "no update() before unscale_() is called for this optimizer again: it raises RuntimeError"
            else:
                message = "no update() before this optimizer steps again: that step raises RuntimeError"
            fix = _fix(context, fault) if cause.kind is not Kind.UNSCALE else None
            yield self.finding(context, fault.event.node, message, fix=fix, related=fault.related(context))


def _steps_without_update(path: Path) -> Iterator[Fault]:
    stepped: dict[tuple[object, object], Event] = {}
    waiting: set[object] = set()  # scalers with scaled gradients and no step since their last update
    early: dict[object, Event] = {}
    again: dict[tuple[object, object], Event] = {}  # new gradients unscaled after a step without update
    for event in path.events:
        if not scaling.is_scaling(event) or event.framework:
            continue
        scaler = event.scaler
        if event.kind is Kind.BACKWARD:
            waiting.add(scaler)
            early.pop(scaler, None)
        elif event.kind is Kind.STEP and event.optimizer is not None:
            if previous := stepped.get((scaler, event.optimizer)):
                yield Fault(path, previous, (event,))
            if scaler in early:
                yield Fault(path, event, (early.pop(scaler),))
            stepped[scaler, event.optimizer] = event
            again.pop((scaler, event.optimizer), None)
            waiting.discard(scaler)
        elif event.kind is Kind.UNSCALE and (scaler, event.optimizer) in stepped and scaler in waiting:
            again[scaler, event.optimizer] = event
        elif event.kind in (Kind.UPDATE, Kind.SCALER):
            for key in [key for key in again if key[0] == scaler]:
                yield Fault(path, stepped[key], (again.pop(key),))
            stepped = {key: step for key, step in stepped.items() if key[0] != scaler}
            if event.kind is Kind.UPDATE and scaler in waiting and event.subject is None:
                early[scaler] = event
            waiting.discard(scaler)


def _fix(context: Context, fault: Fault) -> Fix | None:
    module, step = context.module, fault.event
    statement = module.statement(step.node)
    if step.scaler is None or not _is_alone(statement, step):
        return None
    updates = {event.node: event for _, event in scaling.events_of(context, Kind.UPDATE) if event.scaler == step.scaler}
    if not updates:
        scaler = context.protocol.written(step.scaler, module, step.node)
        if scaler is None:
            return None
        return Fix(
            "Update the scaler after the step", Safety.SAFE, insert_after(module, statement, [f"{scaler}.update()"])
        )
    if len(updates) > 1:
        return None
    (update,) = updates.values()
    moved = module.statement(update.node) if update.module is module else None
    if moved is None or not _is_alone(moved, update):
        return None
    if not scaling.same_function(update, step):
        return _moved_to_other_function(context, step, statement, moved)
    is_early = fault.causes[0].kind is Kind.UPDATE and module.parent(moved) is module.parent(statement)
    if not is_early and not _follows_loop_of(module, statement, moved) and not _is_sometimes(module, statement, moved):
        return None
    return Fix("Update the scaler after the step", Safety.SAFE, move_after(module, [moved], statement))


def _moved_to_other_function(context: Context, step: Event, statement: ast.stmt, moved: ast.stmt) -> Fix | None:
    assert step.scaler is not None
    scaler = context.protocol.written(step.scaler, context.module, step.node)
    if scaler is None:
        return None
    inserted = insert_after(context.module, statement, [f"{scaler}.update()"])
    edits = (*inserted, *remove_statement(context.module, scaling.guarded_alone(context.module, moved)))
    return Fix("Update the scaler after the step", Safety.SAFE, edits)


def _is_alone(statement: ast.stmt, event: Event) -> bool:
    return isinstance(statement, ast.Expr) and statement.value is event.node


def _is_sometimes(module: Module, step: ast.stmt, update: ast.stmt) -> bool:
    """Whether the update stands below the step under a test of its own, with other statements."""
    branch = module.parent(update)
    if not isinstance(branch, ast.If) or len(branch.body) == 1 or update not in branch.body:
        return False
    block = module.block(step)
    return branch in block[block.index(step) :]


def _follows_loop_of(module: Module, step: ast.stmt, update: ast.stmt) -> bool:
    """Whether the update stands after a loop, in its block, that the step stands in."""
    block = module.block(update)
    loops = [item for item in block[: block.index(update)] if isinstance(item, ast.For | ast.AsyncFor | ast.While)]
    return any(scaling.is_within(module, step, loop) for loop in loops)
