"""AMP204: optimizer.step() where the gradients come from a scaled loss."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from amplint import scaling
from amplint.context import Context
from amplint.edit import insert_after, remove_statement, replace
from amplint.protocol import Event, Kind, Path
from amplint.rule import Edit, Example, Finding, Fix, Rule, Safety, Severity
from amplint.scaling import Fault


class StepBypassesScaler(Rule):
    """optimizer.step() on scaled gradients, past the scaler.

    ## What it does
    Reports `optimizer.step()` on a path on which that optimizer's gradients come from
    `scaler.scale(loss).backward()`. A step that only runs when a finiteness test of the unscaled gradients holds is
    the scaler's own logic written by hand, and fine.

    ## Why
    Without `unscale_` the update is too large by the scale, 65536 at first (Adam hides that: its update does not
    depend on the size of gradients, but its epsilon and any weight decay or clipping do). After `unscale_` the sizes
    are right, but nothing skips the step when float16 overflowed, and one `inf` makes every weight NaN. Without either
    `unscale_` or `scaler.step`, `scaler.update()` raises `No inf checks were recorded prior to update.`
    Where `scaler.step(optimizer)` stands beside it, every batch is applied twice.

    ## Example
    ```python
    scaler.scale(loss).backward()
    optimizer.step()
    scaler.update()
    ```
    Use instead:
    ```python
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    ```

    ## Fix
    Safe: `scaler.step(optimizer)`, with a `scaler.update()` after it where there is none; the call is deleted where
    `scaler.step(optimizer)` is there already.

    ## References
    - [Automatic mixed precision examples](https://docs.pytorch.org/docs/stable/notes/amp_examples.html)
    - [GradScaler.step](https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler.step)
    """

    code = "AMP204"
    name = "step-bypasses-scaler"
    severity = Severity.ERROR
    summary = "optimizer.step() on scaled gradients"
    triggers = ((b".step(",),)
    fixable = "safe"
    INVALID: ClassVar = (
        Example(
            """
            import torch
            from torch.cuda.amp import GradScaler, autocast

            def fit(net, batches, opt):
                scaler = GradScaler()
                for x, y in batches:
                    opt.zero_grad()
                    with autocast():
                        loss = torch.nn.functional.smooth_l1_loss(net(x), y)
                    scaler.scale(loss).backward()
                    opt.step()  # expect
                    scaler.update()
            """,
            """
            import torch
            from torch.cuda.amp import GradScaler, autocast

            def fit(net, batches, opt):
                scaler = GradScaler()
                for x, y in batches:
                    opt.zero_grad()
                    with autocast():
                        loss = torch.nn.functional.smooth_l1_loss(net(x), y)
                    scaler.scale(loss).backward()
                    scaler.step(opt)
                    scaler.update()
            """,
        ),
        Example(
            """
            import torch

            class Runner:
                def __init__(self, model, lr):
                    self.model = model
                    self.optimizer = torch.optim.SGD(model.parameters(), lr)
                    self.grad_scaler = torch.amp.GradScaler("cuda")

                def backward(self, loss):
                    self.grad_scaler.scale(loss).backward()

                def advance(self):
                    self.grad_scaler.unscale_(self.optimizer)
                    torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.optimizer.step()  # expect
                    self.optimizer.zero_grad()

                def run(self, loader):
                    for x in loader:
                        with torch.autocast("cuda"):
                            loss = self.model(x).mean()
                        self.backward(loss)
                        self.advance()
            """,
            """
            import torch

            class Runner:
                def __init__(self, model, lr):
                    self.model = model
                    self.optimizer = torch.optim.SGD(model.parameters(), lr)
                    self.grad_scaler = torch.amp.GradScaler("cuda")

                def backward(self, loss):
                    self.grad_scaler.scale(loss).backward()

                def advance(self):
                    self.grad_scaler.unscale_(self.optimizer)
                    torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.grad_scaler.step(self.optimizer)
                    self.grad_scaler.update()
                    self.optimizer.zero_grad()

                def run(self, loader):
                    for x in loader:
                        with torch.autocast("cuda"):
                            loss = self.model(x).mean()
                        self.backward(loss)
                        self.advance()
            """,
        ),
        Example(
            """
            import torch

            def doubly(model, loader, optimizer, amp):
                scaler = torch.amp.GradScaler("cuda") if amp else None
                for x in loader:
                    optimizer.zero_grad()
                    with torch.autocast("cuda", enabled=amp):
                        loss = model(x).mean()
                    if scaler is not None:
                        scaler.scale(loss).backward()
                        scaler.step(optimizer)
                        scaler.update()
                    else:
                        loss.backward()
                    optimizer.step()  # expect
            """,
        ),
        Example(
            """
            import torch

            def twice(model, loader, optimizer, scaler: torch.amp.GradScaler):
                for x in loader:
                    optimizer.zero_grad()
                    scaler.scale(model(x).mean()).backward()
                    scaler.step(optimizer)
                    optimizer.step()  # expect
                    scaler.update()
            """,
            """
            import torch

            def twice(model, loader, optimizer, scaler: torch.amp.GradScaler):
                for x in loader:
                    optimizer.zero_grad()
                    scaler.scale(model(x).mean()).backward()
                    scaler.step(optimizer)
                    scaler.update()
            """,
        ),
        Example(
            """
            import torch

            def heads(body, head, loader):
                slow = torch.optim.SGD(body.parameters(), lr=1e-3)
                fast = torch.optim.SGD(head.parameters(), lr=1e-1)
                scaler = torch.amp.GradScaler("cuda")
                for x, y in loader:
                    slow.zero_grad(); fast.zero_grad()
                    with torch.autocast("cuda"):
                        loss = torch.nn.functional.cross_entropy(head(body(x)), y)
                    scaler.scale(loss).backward()
                    scaler.step(slow); fast.step()  # expect
                    scaler.update()
            """,
            """
            import torch

            def heads(body, head, loader):
                slow = torch.optim.SGD(body.parameters(), lr=1e-3)
                fast = torch.optim.SGD(head.parameters(), lr=1e-1)
                scaler = torch.amp.GradScaler("cuda")
                for x, y in loader:
                    slow.zero_grad(); fast.zero_grad()
                    with torch.autocast("cuda"):
                        loss = torch.nn.functional.cross_entropy(head(body(x)), y)
                    scaler.scale(loss).backward()
                    scaler.step(slow); scaler.step(fast)
                    scaler.update()
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def branched(model, loader, optimizer, args):
            scaler = torch.amp.GradScaler("cuda") if args.amp else None
            for x in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda", enabled=args.amp):
                    loss = model(x).mean()
                if args.amp:
                    scaler.scale(loss).backward()
                else:
                    loss.backward()
                if not args.amp:
                    optimizer.step()
                else:
                    scaler.step(optimizer)
                    scaler.update()

        def early_return(model, x, optimizer, scaler=None):
            loss = model(x).mean()
            if scaler is None:
                loss.backward()
                optimizer.step()
                return loss
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss
        """,
        """
        import torch

        def by_hand(model, x, optimizer, scaler: torch.amp.GradScaler):
            scaler.scale(model(x).mean()).backward()
            scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if torch.isfinite(norm):
                optimizer.step()
            scaler.update()

        def by_hand_early(model, loader, optimizer, scaler: torch.amp.GradScaler):
            for x in loader:
                scaler.scale(model(x).mean()).backward()
                scaler.unscale_(optimizer)
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                if norm.isnan() or norm.isinf():
                    scaler.update()
                    continue
                optimizer.step()
                scaler.update()
        """,
        """
        import torch

        class Solver:
            def __init__(self, net):
                self.net = net
                self.adam = torch.optim.Adam(net.parameters())
                self.lbfgs = torch.optim.LBFGS(net.parameters())
                self.scaler = torch.amp.GradScaler("cuda")

            def warm_up(self, x):
                self.adam.zero_grad()
                self.scaler.scale(self.net(x).mean()).backward()
                self.scaler.step(self.adam)
                self.scaler.update()

            def refine(self, x):
                def closure():
                    self.lbfgs.zero_grad()
                    loss = self.net(x).mean()
                    loss.backward()
                    return loss

                self.lbfgs.step(closure)
        """,
        """
        import torch

        def temperature(actor, opt, alpha, opt_alpha, obs, scaler: torch.amp.GradScaler):
            opt.zero_grad()
            with torch.autocast("cuda"):
                entropy, loss = actor(obs, alpha.detach())
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()

            opt_alpha.zero_grad()
            (alpha * (entropy.float().detach() - 1.0)).mean().backward()
            opt_alpha.step()

        def float32_critic(gen, disc, opt_g, opt_d, x, z, scaler: torch.amp.GradScaler):
            opt_g.zero_grad()
            opt_d.zero_grad()
            (disc(gen(z).detach()).mean() - disc(x).mean()).backward()
            with torch.autocast("cuda"):
                loss = -gen.score(z).mean()
            scaler.scale(loss).backward()
            scaler.step(opt_g)
            opt_d.step()
            scaler.update()

        def scheduled(model, x, optimizer, scheduler, ema, profiler, scaler: torch.amp.GradScaler):
            scaler.scale(model(x).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            ema.step(model.parameters())
            profiler.step()
        """,
        """
        import torch
        from sklearn.preprocessing import StandardScaler

        def tabular(frame, net, optimizer):
            scaler = StandardScaler()
            x = torch.as_tensor(scaler.fit_transform(frame))
            loss = net(x).mean()
            loss.backward()
            optimizer.step()
            return scaler

        def disabled(net, x, optimizer):
            scaler = torch.amp.GradScaler("cuda", enabled=False)
            scaler.scale(net(x).mean()).backward()
            optimizer.step()
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for fault in scaling.once(context, _bypassing_steps):
            backward = scaling.where(fault.causes[0], context.module)
            if any(cause.kind is Kind.STEP for cause in fault.causes):
                message = f"the scaler steps this optimizer too: the gradients of {backward} are applied twice"
            elif any(cause.kind is Kind.UNSCALE for cause in fault.causes):
                message = "nothing skips this step when float16 overflows; scaler.step() does"
            else:
                message = f"steps on the gradients of {backward}, which are scaled (by 65536 at first)"
            fix = _fix(context, fault)
            yield self.finding(context, fault.event.node, message, fix=fix, related=fault.related(context))


def _bypassing_steps(path: Path) -> Iterator[Fault]:
    backward: Event | None = None
    since: list[Event] = []
    plain: Event | None = None  # a backward pass without scaler that no step has used yet
    for event in path.events:
        if event.kind is Kind.BACKWARD:
            backward = event
            since = []
            plain = event if event.scaler is None else plain
        elif event.kind is Kind.STEP and event.scaler is None and not event.framework and _is_scaled(backward):
            assert backward is not None
            own = (e for e in since if e.kind in (Kind.UNSCALE, Kind.STEP) and e.optimizer == event.optimizer)
            is_of_plain_loss = plain is not None and _steps_another(event, since)
            if not is_of_plain_loss and not _is_cleared(event, since) and not _is_tested(event, since):
                yield Fault(path, event, (backward, *(e for e in own if scaling.is_scaling(e))))
        if event.kind is Kind.STEP and event.scaler is None:
            plain = None
        since.append(event)


def _is_scaled(backward: Event | None) -> bool:
    return backward is not None and backward.scaled and not backward.framework


def _steps_another(step: Event, since: list[Event]) -> bool:
    """Whether the scaler has stepped another optimizer: the scaled loss may be that one's alone."""
    return any(e.kind is Kind.STEP and scaling.is_scaling(e) and e.optimizer != step.optimizer for e in since)


def _is_cleared(step: Event, since: list[Event]) -> bool:
    """Whether the optimizer's gradients were cleared after the backward pass."""
    return any(e.kind is Kind.ZERO and (e.optimizer is None or e.optimizer == step.optimizer) for e in since)


def _is_tested(step: Event, since: list[Event]) -> bool:
    """Whether the step hangs on a test for finiteness that was made of unscaled gradients."""
    kinds = [e.kind for e in since if e.kind is not Kind.UNSCALE or e.optimizer in (None, step.optimizer)]
    if Kind.UNSCALE not in kinds:
        return False
    after = kinds[kinds.index(Kind.UNSCALE) + 1 :]
    return Kind.CHECK in after and Kind.BRANCH in after


def _fix(context: Context, fault: Fault) -> Fix | None:
    module, step = context.module, fault.event
    scaler_symbol = fault.causes[0].scaler
    statement = module.statement(step.node)
    if not isinstance(step.node, ast.Call) or not isinstance(step.node.func, ast.Attribute) or scaler_symbol is None:
        return None
    if step.node.args or step.node.keywords or not scaling.always(context, _bypassing_steps, step.node):
        return None
    is_alone = isinstance(statement, ast.Expr) and statement.value is step.node
    if _is_stepped_by_scaler(fault):
        if not is_alone:
            return None
        return Fix("Leave the step to the scaler", Safety.SAFE, remove_statement(module, statement))
    scaler = context.protocol.written(scaler_symbol, module, step.node)
    if scaler is None:
        return None
    optimizer = module.source.segment(step.node.func.value)
    edits: list[Edit] = [replace(module, step.node, f"{scaler}.step({optimizer})")]
    if not any(event.scaler == scaler_symbol for _, event in scaling.events_of(context, Kind.UPDATE)):
        if not is_alone:
            return None
        edits += insert_after(module, statement, [f"{scaler}.update()"])
    return Fix("Step through the scaler", Safety.SAFE, tuple(edits))


def _is_stepped_by_scaler(fault: Fault) -> bool:
    """Whether `scaler.step(optimizer)` stands beside the step: before it, or after it until the next backward pass."""
    if any(cause.kind is Kind.STEP for cause in fault.causes):
        return True
    for event in fault.path.after(fault.event):
        if event.kind is Kind.BACKWARD:
            return False
        if event.kind is Kind.STEP and scaling.is_scaling(event) and event.optimizer == fault.event.optimizer:
            return True
    return False
