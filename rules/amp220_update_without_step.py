"""AMP220: scaler.update on a path with no unscale_ or step before it."""

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

_LOOPS = (ast.For, ast.AsyncFor, ast.While)


class UpdateWithoutStep(Rule):
    """scaler.update() on a path where nothing was unscaled or stepped since the last one.

    ## What it does
    Reports `scaler.update()` that stands outside the guard of the `scaler.step(optimizer)` it belongs to, or in a
    branch that skips the batch before anything was unscaled or stepped.

    ## Why
    `update()` decides by the inf checks that `unscale_` or `step` recorded. Without any it raises
    `AssertionError: No inf checks were recorded prior to update.`

    ## Example
    ```python
    if (i + 1) % accumulate == 0:
        scaler.step(optimizer)
    scaler.update()
    ```
    Use instead:
    ```python
    if (i + 1) % accumulate == 0:
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Fix
    Safe: moves the call under the guard of the step, or removes it from the branch that skips the batch.

    ## References
    - [GradScaler.update](https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler.update)
    """

    code = "AMP220"
    name = "update-without-step"
    severity = Severity.ERROR
    summary = "update() on a path with no unscale_ or step"
    triggers = ((b".update(", b".step("),)
    fixable = "safe"
    INVALID: ClassVar = (
        Example(
            """
            import torch

            def train(model, loader, opt, accum):
                scaler = torch.amp.GradScaler("cuda")
                for i, x in enumerate(loader):
                    scaler.scale(model(x) / accum).backward()
                    if (i + 1) % accum == 0:
                        scaler.step(opt)
                        opt.zero_grad()
                    scaler.update()  # expect
            """,
            """
            import torch

            def train(model, loader, opt, accum):
                scaler = torch.amp.GradScaler("cuda")
                for i, x in enumerate(loader):
                    scaler.scale(model(x) / accum).backward()
                    if (i + 1) % accum == 0:
                        scaler.step(opt)
                        scaler.update()
                        opt.zero_grad()
            """,
        ),
        Example(
            """
            import torch

            def train(model, loader, opt, scaler: torch.amp.GradScaler):
                for x in loader:
                    loss = model(x)
                    if not torch.isfinite(loss):
                        print("skipped")
                        scaler.update()  # expect
                        continue
                    scaler.scale(loss).backward()
                    scaler.step(opt)
                    scaler.update()
            """,
            """
            import torch

            def train(model, loader, opt, scaler: torch.amp.GradScaler):
                for x in loader:
                    loss = model(x)
                    if not torch.isfinite(loss):
                        print("skipped")
                        continue
                    scaler.scale(loss).backward()
                    scaler.step(opt)
                    scaler.update()
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def forgiving(model, loader, opt, scaler: torch.amp.GradScaler):
            for x in loader:
                scaler.scale(model(x)).backward()
                try:
                    scaler.step(opt)
                except RuntimeError:
                    opt.zero_grad()
                scaler.update()
        """,
        """
        import torch

        def train(model, loader, opt, scaler: torch.amp.GradScaler, limit):
            for x in loader:
                loss = model(x)
                scaler.scale(loss).backward()
                scaler.unscale_(opt)
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                if norm < limit:
                    scaler.step(opt)
                scaler.update()
        """,
        """
        import torch

        def several(model, loader, optimizers, scaler: torch.amp.GradScaler):
            for x in loader:
                scaler.scale(model(x)).backward()
                for opt in optimizers:
                    scaler.step(opt)
                scaler.update()
        """,
        """
        import torch

        def reset(model, loader, opt, scaler: torch.amp.GradScaler, use_amp):
            scaler.update(2.0**12)
            for x in loader:
                loss = model(x)
                if use_amp:
                    scaler.scale(loss).backward()
                    scaler.step(opt)
                else:
                    loss.backward()
                    opt.step()
                if use_amp:
                    scaler.update()
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        steps = {event for _, event in scaling.events_of(context, Kind.STEP) if scaling.is_scaling(event)}

        def unfounded(path: Path) -> Iterator[Fault]:
            return _unfounded(path, steps)

        for fault in scaling.once(context, unfounded):
            if not scaling.is_scaling(fault.event):
                continue
            message = "no unscale_ or step on this path since the last update(): No inf checks were recorded"
            yield self.finding(context, fault.node, message, fix=_fix(context, fault), related=fault.related(context))


def _unfounded(path: Path, steps: set[Event]) -> Iterator[Fault]:
    founded: set[object] = set()
    rounds: set[ast.AST] = set()
    for event in path.events:
        if event.kind is Kind.ROUND:
            rounds.add(event.node)
        if not scaling.is_scaling(event) or event.framework:
            continue
        if event.kind in (Kind.UNSCALE, Kind.STEP):
            founded.add(event.scaler)
        elif event.kind is Kind.UPDATE and event.subject is None:
            step = _belonging(event, steps)
            if event.scaler not in founded and step and _is_certain(path, event, step, rounds):
                yield Fault(path, event, (step,) if step in path.events else ())
            founded.discard(event.scaler)


def _belonging(update: Event, steps: set[Event]) -> Event | None:
    """A step of the same scaler in the same function."""
    found = [step for step in steps if step.scaler == update.scaler and scaling.same_function(step, update)]
    return min(found, key=scaling.line, default=None)


def _is_certain(path: Path, update: Event, step: Event, rounds: set[ast.AST]) -> bool:
    """Whether the tests around the update and the step cannot be two ways to say the same.

    The step stands under a test that the update does not stand under, or has an update of its own; or the update
    stands in a branch that leaves. A loop of steps that was not entered, as if there were no optimizer, proves nothing.
    """
    module = update.module
    loops = [node for node in module.ancestors(step.node) if isinstance(node, _LOOPS)]
    if any(loop not in rounds for loop in loops if loop not in set(module.ancestors(update.node))):
        return False
    around_step, around_update = _guards(module, step.node), _guards(module, update.node)
    if around_update <= around_step:
        return around_update != around_step or _is_repeated(path, update)
    return _leaving_guard(module, update.node) is not None


def _is_repeated(path: Path, update: Event) -> bool:
    """Whether the step that follows an update is followed by another update."""
    later = [e for e in path.after(update) if e.scaler == update.scaler and e.kind in (Kind.STEP, Kind.UPDATE)]
    return [e.kind for e in later[:2]] == [Kind.STEP, Kind.UPDATE] and later[1].node is not update.node


def _guards(module: Module, node: ast.AST) -> set[tuple[ast.AST, bool]]:
    """The `if` statements around a node in its function, with the branch it stands in."""
    found: set[tuple[ast.AST, bool]] = set()
    child = node
    for ancestor in module.ancestors(node):
        if isinstance(ancestor, ast.FunctionDef | ast.AsyncFunctionDef):
            break
        if isinstance(ancestor, ast.If):
            found.add((ancestor, child in ancestor.body))
        child = ancestor
    return found


def _leaving_guard(module: Module, node: ast.AST) -> ast.If | None:
    """The `if` whose body the node stands in directly, if that body leaves the loop's turn or the function."""
    parent = module.parent(module.statement(node))
    if isinstance(parent, ast.If) and module.statement(node) in parent.body and scaling.leaves(parent.body):
        return parent
    return None


def _fix(context: Context, fault: Fault) -> Fix | None:
    module, update = context.module, fault.event
    statement = module.statement(update.node)
    if not isinstance(statement, ast.Expr) or statement.value is not update.node:
        return None
    if _leaving_guard(module, update.node):
        return Fix("Remove the update: nothing was stepped here", Safety.SAFE, remove_statement(module, statement))
    steps = {event for _, event in scaling.events_of(context, Kind.STEP) if scaling.is_scaling(event)}
    step = _belonging(update, steps)
    if step is None:
        return None
    target = module.statement(step.node)
    if not isinstance(module.parent(target), ast.If) or statement in module.block(target):
        return None
    return Fix("Update under the step's guard", Safety.SAFE, move_after(module, [statement], target))
