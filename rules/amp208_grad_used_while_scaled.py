"""AMP208: gradients read or changed while they are still multiplied by the loss scale."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import ClassVar

from amplint import scaling
from amplint.context import Context
from amplint.edit import insert_before, move_before
from amplint.frameworks import is_float16
from amplint.gradient_use import sees_size
from amplint.hooks import scaled_hooks
from amplint.project import CallSite
from amplint.protocol import Event, Kind, Path, Symbol
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity
from amplint.scaling import Fault
from amplint.tree import Function, Module
from amplint.triggers import attribute

_LOOPS = (ast.For, ast.AsyncFor, ast.While)


class GradUsedWhileScaled(Rule):
    """.grad read or changed between the scaled backward() and unscale_().

    ## What it does
    Reports uses of the values of `.grad` (norms, statistics, logging, noise, decay, thresholds) on a path between
    `scaler.scale(loss).backward()` and `scaler.unscale_` or `scaler.step` of their optimizer; also in the hooks that
    Lightning (`on_after_backward`) and fastai (`after_backward`) call before they unscale.

    Fine, and not reported: tests for None, zero or finiteness; what does not depend on the size (`g / g.norm()`, the
    sign, a cosine); multiplying or dividing by a constant, which commutes with the scale; a hand-made all-reduce,
    which belongs before `unscale_`; reads after the step; gradients of detached copies inside a custom backward.

    ## Why
    The values are larger by the scale, 65536 at first, and the scale changes during training. A logged norm jumps
    with it, a threshold never holds, and what is added to a gradient (weight decay, noise) is divided by the scale
    later and has no effect.

    ## Example
    ```python
    scaler.scale(loss).backward()
    for p in model.parameters():
        p.grad.add_(p.data, alpha=decay)
    scaler.step(optimizer)
    ```
    Use instead:
    ```python
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for p in model.parameters():
        p.grad.add_(p.data, alpha=decay)
    scaler.step(optimizer)
    ```

    ## Fix
    Unsafe: `scaler.unscale_(optimizer)` before the use, outside the loop over the parameters.

    ## References
    - [Working with unscaled gradients](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#working-with-unscaled-gradients)
    """

    code = "AMP208"
    name = "grad-used-while-scaled"
    severity = Severity.WARNING
    summary = ".grad read or changed while it is scaled"
    triggers = ((attribute("grad"),), (b"grad", b"backward"), (b"grad", b"scaler"), (b"grad", b"Scaler"))
    fixable = "unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch

            def train(model, loader, optimizer, scaler: torch.amp.GradScaler, sigma):
                for x in loader:
                    optimizer.zero_grad()
                    scaler.scale(model(x).mean()).backward()
                    # annealed noise
                    for p in model.parameters():
                        if p.grad is not None:
                            p.grad += sigma * torch.randn_like(p.grad)  # expect
                    scaler.step(optimizer)
                    scaler.update()
            """,
            """
            import torch

            def train(model, loader, optimizer, scaler: torch.amp.GradScaler, sigma):
                for x in loader:
                    optimizer.zero_grad()
                    scaler.scale(model(x).mean()).backward()
                    scaler.unscale_(optimizer)
                    # annealed noise
                    for p in model.parameters():
                        if p.grad is not None:
                            p.grad += sigma * torch.randn_like(p.grad)
                    scaler.step(optimizer)
                    scaler.update()
            """,
        ),
        Example(
            """
            import torch
            from statistics_of import gradient_norm

            class Trainer:
                def __init__(self, model, log):
                    self.model, self.log = model, log
                    self.opt = torch.optim.SGD(model.parameters(), 0.1)
                    self.scaler = torch.cuda.amp.GradScaler()

                def step(self, x):
                    self.scaler.scale(self.model(x).mean()).backward()
                    norm = gradient_norm(self.model)  # expect
                    self.scaler.step(self.opt)
                    self.scaler.update()
                    self.opt.zero_grad()
                    self.log(norm)
            """,
            """
            import torch
            from statistics_of import gradient_norm

            class Trainer:
                def __init__(self, model, log):
                    self.model, self.log = model, log
                    self.opt = torch.optim.SGD(model.parameters(), 0.1)
                    self.scaler = torch.cuda.amp.GradScaler()

                def step(self, x):
                    self.scaler.scale(self.model(x).mean()).backward()
                    self.scaler.unscale_(self.opt)
                    norm = gradient_norm(self.model)
                    self.scaler.step(self.opt)
                    self.scaler.update()
                    self.opt.zero_grad()
                    self.log(norm)
            """,
            {
                "statistics_of.py": """
                def gradient_norm(model):
                    total = 0.0
                    for p in model.parameters():
                        if p.grad is not None:
                            total += p.grad.norm().item() ** 2
                    return total ** 0.5
                """,
            },
        ),
        Example(
            """
            import torch

            def train(args, model, loader, optimizer, board):
                scaler = torch.amp.GradScaler("cuda") if args.fp16 else None
                for i, x in enumerate(loader):
                    loss = model(x).mean()
                    if scaler is not None:
                        scaler.scale(loss).backward()
                    else:
                        loss.backward()
                    if i % 10 == 0:
                        board.add_histogram("head", model.head.weight.grad, i)  # expect
                    if scaler is not None:
                        scaler.step(optimizer)
                        scaler.update()
                    else:
                        optimizer.step()
                    optimizer.zero_grad()
            """,
            """
            import torch

            def train(args, model, loader, optimizer, board):
                scaler = torch.amp.GradScaler("cuda") if args.fp16 else None
                for i, x in enumerate(loader):
                    loss = model(x).mean()
                    if scaler is not None:
                        scaler.scale(loss).backward()
                    else:
                        loss.backward()
                    if i % 10 == 0:
                        if scaler is not None:
                            scaler.unscale_(optimizer)
                        board.add_histogram("head", model.head.weight.grad, i)
                    if scaler is not None:
                        scaler.step(optimizer)
                        scaler.update()
                    else:
                        optimizer.step()
                    optimizer.zero_grad()
            """,
        ),
        Example(
            """
            import torch

            def accumulate(model, loader, optimizer, every, log):
                scaler = torch.amp.GradScaler("cuda")
                for i, x in enumerate(loader):
                    scaler.scale(model(x).mean() / every).backward()
                    log(max(p.grad.abs().max().item() for p in model.parameters()))  # expect
                    if (i + 1) % every == 0:
                        scaler.step(optimizer)
                        scaler.update()
                        optimizer.zero_grad()
            """,
        ),
        Example(
            """
            import torch

            def logged_too_early(model, loader, optimizer, board):
                scaler = torch.amp.GradScaler("cuda")
                for i, x in enumerate(loader):
                    optimizer.zero_grad()
                    scaler.scale(model(x).mean()).backward()
                    if i % 100 == 0:
                        for name, p in model.named_parameters():
                            board.add_histogram(name, p.grad, i)  # expect
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    scaler.step(optimizer)
                    scaler.update()
            """,
            """
            import torch

            def logged_too_early(model, loader, optimizer, board):
                scaler = torch.amp.GradScaler("cuda")
                for i, x in enumerate(loader):
                    optimizer.zero_grad()
                    scaler.scale(model(x).mean()).backward()
                    scaler.unscale_(optimizer)
                    if i % 100 == 0:
                        for name, p in model.named_parameters():
                            board.add_histogram(name, p.grad, i)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    scaler.step(optimizer)
                    scaler.update()
            """,
        ),
        Example(
            """
            import lightning as L
            import torch

            class Classifier(L.LightningModule):
                def training_step(self, batch, index):
                    return self(batch).mean()

                def on_after_backward(self):
                    norms = [p.grad.norm() for p in self.parameters() if p.grad is not None]  # expect
                    self.log("grad_norm", torch.stack(norms).norm())

            def main(module, data):
                L.Trainer(precision="16-mixed", gradient_clip_val=1.0).fit(module, data)
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def unscaled_first(model, x, optimizer, board, scaler: torch.amp.GradScaler):
            scaler.scale(model(x).mean()).backward()
            scaler.unscale_(optimizer)
            for name, p in model.named_parameters():
                board.add_scalar(name, p.grad.norm())
            scaler.step(optimizer)
            scaler.update()

        def after_the_step(model, x, optimizer, board, scaler: torch.amp.GradScaler):
            scaler.scale(model(x).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            board.add_scalar("head", model.head.weight.grad.abs().max())
            optimizer.zero_grad()
        """,
        """
        import torch
        import torch.distributed as dist

        def harmless(model, x, optimizer, scaler: torch.amp.GradScaler):
            scaler.scale(model(x).mean()).backward()
            for name, p in model.named_parameters():
                if p.grad is None:
                    print(name, "has no gradient")
                    continue
                if not torch.isfinite(p.grad).all():
                    print(name)
                if torch.isnan(p.grad).any() or p.grad.isinf().any():
                    p.grad = None
                if p.grad.dtype != torch.float32 or p.grad.shape != p.shape:
                    raise TypeError(name)
            scaler.step(optimizer)
            scaler.update()

        def averaged(model, x, optimizer, scaler: torch.amp.GradScaler):
            scaler.scale(model(x).mean()).backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
            scaler.step(optimizer)
            scaler.update()

        def frozen(model, x, optimizer, keep, scaler: torch.amp.GradScaler):
            scaler.scale(model(x).mean()).backward()
            model.embedding.weight.grad[:keep] = 0
            model.embedding.weight.grad[keep:] *= 0.1
            model.head.weight.grad.zero_()
            scaler.step(optimizer)
            scaler.update()
        """,
        """
        import torch
        import torch.nn.functional as F

        def scale_invariant(model, x, optimizer, scaler: torch.amp.GradScaler, previous):
            scaler.scale(model(x).mean()).backward()
            for p, old in zip(model.parameters(), previous):
                g = p.grad
                direction = g / g.norm()
                agreement = F.cosine_similarity(p.grad.flatten(), old, dim=0)
                signs = p.grad.sign()
                print(direction, agreement, signs)
            scaler.step(optimizer)
            scaler.update()
        """,
        """
        import torch

        class Reversible(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, scale):
                ctx.save_for_backward(x)
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                with torch.enable_grad():
                    copy = x.detach().requires_grad_()
                    (copy ** 3).sum().backward()
                return grad * copy.grad, None

        def float32_branch(model, x, optimizer, scaler, amp, log):
            loss = model(x).mean()
            if amp:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                log(model.head.weight.grad.norm())
                optimizer.step()
        """,
        """
        import torch

        def without_scaler(model, x, optimizer, board):
            model(x).mean().backward()
            for name, p in model.named_parameters():
                board.add_histogram(name, p.grad)
            optimizer.step()

        def disabled(model, x, optimizer, board):
            scaler = torch.amp.GradScaler("cuda", enabled=False)
            scaler.scale(model(x).mean()).backward()
            for name, p in model.named_parameters():
                board.add_histogram(name, p.grad)
            scaler.step(optimizer)
        """,
        """
        import lightning as L
        import torch

        class Watched(L.LightningModule):
            def on_after_backward(self):
                for name, p in self.named_parameters():
                    if p.grad is None or not torch.isfinite(p.grad).all():
                        print(name)

            def on_before_optimizer_step(self, optimizer):
                self.log("grad_norm", torch.stack([p.grad.norm() for p in self.parameters()]).norm())

        def main(module, data):
            L.Trainer(precision="16-mixed", gradient_clip_val=1.0).fit(module, data)
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for fault in scaling.once(context, _uses_while_scaled(context)):
            backward = scaling.where(fault.causes[0], context.module)
            what = "changes" if fault.event.kind is Kind.WRITE else "reads"
            message = f"{what} gradients of {backward} that are still multiplied by the scale (65536 at first)"
            fix = _fix(context, fault)
            yield self.finding(context, fault.node, message, fix=fix, related=fault.related(context))
        for hook in scaled_hooks(context):
            for node in _uses_in(context, hook.function):
                message = f"{hook.framework} has not unscaled the gradients here yet; {hook.instead} sees them unscaled"
                yield self.finding(context, node, message)


def _uses_while_scaled(context: Context) -> Callable[[Path], Iterator[Fault]]:
    sized: dict[ast.AST, bool] = {}

    def is_sized(event: Event) -> bool:
        if event.node not in sized:
            sized[event.node] = isinstance(event.node, ast.expr) and sees_size(event.module, event.node)
        return sized[event.node]

    def find(path: Path) -> Iterator[Fault]:
        backward: Event | None = None
        settled: set[Symbol | None] = set()  # the optimizers whose gradients are unscaled, used up or cleared
        for event in path.events:
            if event.kind is Kind.BACKWARD:
                backward, settled = event, set()
            elif event.kind in (Kind.UNSCALE, Kind.STEP, Kind.ZERO):
                settled.add(event.optimizer)
            elif event.kind is Kind.UPDATE:
                backward = None
            elif event.kind in (Kind.READ, Kind.WRITE) and backward is not None and _is_scaled(context, backward):
                if None in settled or not is_sized(event) or _is_part_of_clip(path, event):
                    continue
                owners = context.protocol.owners(path, event)
                if (not settled) if owners is None else (owners - settled):
                    yield Fault(path, event, (backward,), scaling.call_into(event, backward))

    return find


def _uses_in(context: Context, hook: Function) -> Iterator[ast.expr]:
    """The uses of the size of gradients in a hook: `.grad`, and calls of functions that read one."""
    module = context.module
    for node in ast.walk(hook):
        if isinstance(node, ast.Attribute) and node.attr == "grad" and sees_size(module, node):
            yield node
        for callee in context.project.callees(module, node) if isinstance(node, ast.Call) else ():
            inner = (n for n in ast.walk(callee.function) if isinstance(n, ast.Attribute) and n.attr == "grad")
            if any(sees_size(callee.module, gradient) for gradient in inner):
                yield node  # type: ignore[misc]
                break


def _is_scaled(context: Context, backward: Event) -> bool:
    return backward.scaled and (not backward.framework or bool(is_float16(context, backward)))


def _is_part_of_clip(path: Path, use: Event) -> bool:
    """Whether the function clips by hand what it reads: that is AMP201's."""
    return any(
        event.kind is Kind.CLIP and not isinstance(event.node, ast.Call) and scaling.same_function(event, use)
        for event in path.after(use)
    )


def _fix(context: Context, fault: Fault) -> Fix | None:
    """unscale_ before the use, if the step follows; the one that comes too late moves up."""
    backward = fault.causes[0]
    steps, unscalings = _what_follows(context, fault)
    if backward.scaler is None or not steps:
        return None
    target = _outside_loops(context.module, fault)
    if unscalings:
        return _moved_up(context.module, unscalings, target)
    scaler = context.protocol.written(backward.scaler, context.module, target)
    optimizers = [context.protocol.written(step.optimizer, context.module, target) for step in steps if step.optimizer]
    if scaler is None or not all(optimizers):
        return None
    place = replace(fault.event, node=fault.node, module=fault.module)
    lines = [f"{scaler}.unscale_({optimizer})" for optimizer in optimizers]
    if guard := context.protocol.guard(backward, place):
        lines = [f"if {guard}:", *(f"    {line}" for line in lines)]
    return Fix("Unscale the gradients first", Safety.UNSAFE, insert_before(context.module, target, lines))


def _what_follows(context: Context, fault: Fault) -> tuple[list[Event], list[Event]]:
    """The scaler's steps of the optimizers concerned that follow on every path, and their unscalings on any.

    No steps where on some path another backward pass comes first: there the gradients go on accumulating.
    """
    steps: dict[Symbol | None, Event] = {}
    unscalings: dict[ast.AST, Event] = {}
    for path, event in scaling.events_of(context, fault.event.kind):
        last = next((e for e in reversed(path.before(event)) if e.kind is Kind.BACKWARD), None)
        if event.node is not fault.event.node or last is None or not last.scaled:
            continue
        owners = context.protocol.owners(path, event)
        is_stepped = False
        for later in path.after(event):
            if later.kind is Kind.BACKWARD:
                if not is_stepped:
                    return [], []
                break
            if not scaling.is_scaling(later) or (owners is not None and later.optimizer not in owners):
                continue
            if later.kind is Kind.UNSCALE:
                unscalings[later.node] = later
            elif later.kind is Kind.STEP:
                is_stepped = True
                steps.setdefault(later.optimizer, later)
    return list(steps.values()), list(unscalings.values())


def _outside_loops(module: Module, fault: Fault) -> ast.stmt:
    """The statement to unscale before: that of the use, or the outermost loop around it that has no backward pass."""
    backward = fault.causes[0]
    site: CallSite | None = scaling.call_into(backward, fault.event)
    pass_in_function = site.call if site else backward.node
    target = module.statement(fault.node)
    for ancestor in module.ancestors(fault.node):
        if scaling.is_within(module, pass_in_function, ancestor) or ancestor is module.function(fault.node):
            break
        if isinstance(ancestor, _LOOPS):
            target = ancestor
    return target


def _moved_up(module: Module, unscalings: list[Event], target: ast.stmt) -> Fix | None:
    statement = module.statement(unscalings[0].node) if unscalings[0].module is module else None
    if len(unscalings) > 1 or not isinstance(statement, ast.Expr):
        return None
    moved = scaling.guarded_alone(module, statement)
    block = module.block(moved)
    around = next((item for item in block if scaling.is_within(module, target, item)), None)
    if around is None or block.index(around) >= block.index(moved):
        return None
    return Fix("Unscale the gradients first", Safety.UNSAFE, move_before(module, [moved], around))
