"""AMP203: unscale_ twice for one optimizer before the scaler is updated."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from amplint import scaling
from amplint.context import Context
from amplint.edit import insert_before, move_after, move_before, remove_statement
from amplint.protocol import Event, Kind, Path
from amplint.rule import Edit, Example, Finding, Fix, Rule, Safety, Severity
from amplint.scaling import Fault
from amplint.tree import Module


class DoubleUnscale(Rule):
    """unscale_ twice for one optimizer before update() raises.

    ## What it does
    Reports the second `scaler.unscale_(optimizer)` (or `accelerator.clip_grad_norm_`, which unscales) for one
    optimizer on a path without `scaler.update()` in between: twice in a row, after the step (which unscales), on each
    micro-step of an accumulation loop that updates every n-th time only, or in the next iteration after an exit that
    left `update()` out.

    ## Why
    The scaler remembers per optimizer whether its gradients are unscaled, and only `update()` makes it forget.
    Asked again it raises `RuntimeError: unscale_() has already been called on this optimizer since the last
    update().` Dividing twice by a scale of 65536 would leave gradients near zero. While gradients accumulate they
    must stay scaled until the last micro-step: what comes after `unscale_` would be added with another weight.

    ## Example
    ```python
    scaler.scale(loss / accumulate).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), 1.0)
    if (step + 1) % accumulate == 0:
        scaler.step(optimizer)
        scaler.update()
    ```
    Use instead:
    ```python
    scaler.scale(loss / accumulate).backward()
    if (step + 1) % accumulate == 0:
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Fix
    Safe: the second call goes; or it moves, with the clip, under the guard of the step; or the early exit gets a
    `scaler.update()`, which also lowers the scale after an overflow. None where another scaled backward pass lies
    between the two calls (SAM and other two-pass optimizers): there the second pass needs a scaler of its own.

    ## References
    - [Gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)
    - [GradScaler.unscale_](https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler.unscale_)
    """

    code = "AMP203"
    name = "double-unscale"
    severity = Severity.ERROR
    summary = "unscale_ twice for one optimizer before update() raises"
    triggers = ((b"unscale_",), (b"clip_grad_norm_", b"ccelerator"))
    fixable = "safe"
    INVALID: ClassVar = (
        Example(
            """
            import torch
            from torch.nn.utils import clip_grad_norm_, get_total_norm

            def fit(model, loader, optimizer, board):
                scaler = torch.amp.GradScaler("cuda")
                for step, (x, y) in enumerate(loader):
                    optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        loss = torch.nn.functional.l1_loss(model(x), y)
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimizer)
                    board.add_scalar("norm", get_total_norm([p.grad for p in model.parameters()]), step)
                    scaler.unscale_(optimizer)  # expect
                    clip_grad_norm_(model.parameters(), 2.0)
                    scaler.step(optimizer)
                    scaler.update()
            """,
            """
            import torch
            from torch.nn.utils import clip_grad_norm_, get_total_norm

            def fit(model, loader, optimizer, board):
                scaler = torch.amp.GradScaler("cuda")
                for step, (x, y) in enumerate(loader):
                    optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        loss = torch.nn.functional.l1_loss(model(x), y)
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimizer)
                    board.add_scalar("norm", get_total_norm([p.grad for p in model.parameters()]), step)
                    clip_grad_norm_(model.parameters(), 2.0)
                    scaler.step(optimizer)
                    scaler.update()
            """,
        ),
        Example(
            """
            import torch
            from torch.cuda.amp import GradScaler, autocast

            def epoch(args, net, batches, opt, scaler: GradScaler):
                for i, batch in enumerate(batches):
                    with autocast():
                        loss = net(**batch).loss / args.accum
                    scaler.scale(loss).backward()
                    # keep the norm in check
                    scaler.unscale_(opt)  # expect
                    torch.nn.utils.clip_grad_norm_(net.parameters(), args.max_norm)

                    if (i + 1) % args.accum == 0:
                        scaler.step(opt)
                        scaler.update()
                        opt.zero_grad()
            """,
            """
            import torch
            from torch.cuda.amp import GradScaler, autocast

            def epoch(args, net, batches, opt, scaler: GradScaler):
                for i, batch in enumerate(batches):
                    with autocast():
                        loss = net(**batch).loss / args.accum
                    scaler.scale(loss).backward()

                    if (i + 1) % args.accum == 0:
                        # keep the norm in check
                        scaler.unscale_(opt)
                        torch.nn.utils.clip_grad_norm_(net.parameters(), args.max_norm)
                        scaler.step(opt)
                        scaler.update()
                        opt.zero_grad()
            """,
        ),
        Example(
            """
            import torch

            def train(cfg, model, loader, optimizer):
                scaler = torch.amp.GradScaler("cuda", enabled=cfg.amp)
                for i, x in enumerate(loader):
                    with torch.autocast("cuda", enabled=cfg.amp):
                        loss = model(x).mean() / cfg.accum
                    scaler.scale(loss).backward()
                    if cfg.clip:
                        scaler.unscale_(optimizer)  # expect
                        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
                    if (i + 1) % cfg.accum != 0:
                        continue
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
            """,
            """
            import torch

            def train(cfg, model, loader, optimizer):
                scaler = torch.amp.GradScaler("cuda", enabled=cfg.amp)
                for i, x in enumerate(loader):
                    with torch.autocast("cuda", enabled=cfg.amp):
                        loss = model(x).mean() / cfg.accum
                    scaler.scale(loss).backward()
                    if (i + 1) % cfg.accum != 0:
                        continue
                    if cfg.clip:
                        scaler.unscale_(optimizer)
                        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
            """,
        ),
        Example(
            """
            import math

            import torch

            class Trainer:
                def __init__(self, model, optimizer):
                    self.model, self.optimizer = model, optimizer
                    self.scaler = torch.amp.GradScaler("cuda")

                def train(self, batches):
                    for batch in batches:
                        self.optimizer.zero_grad()
                        with torch.autocast("cuda", torch.float16):
                            loss = self.model(batch)
                        self.scaler.scale(loss).backward()
                        self.scaler.unscale_(self.optimizer)  # expect
                        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                        if not math.isfinite(norm):
                            print("skipped")
                            continue
                        self.scaler.step(self.optimizer)
                        self.scaler.update()
            """,
            """
            import math

            import torch

            class Trainer:
                def __init__(self, model, optimizer):
                    self.model, self.optimizer = model, optimizer
                    self.scaler = torch.amp.GradScaler("cuda")

                def train(self, batches):
                    for batch in batches:
                        self.optimizer.zero_grad()
                        with torch.autocast("cuda", torch.float16):
                            loss = self.model(batch)
                        self.scaler.scale(loss).backward()
                        self.scaler.unscale_(self.optimizer)
                        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                        if not math.isfinite(norm):
                            print("skipped")
                            self.scaler.update()
                            continue
                        self.scaler.step(self.optimizer)
                        self.scaler.update()
            """,
        ),
        Example(
            """
            import torch

            def sharpness_aware(model, optimizer, scaler: torch.amp.GradScaler, x, y):
                def loss_of():
                    with torch.autocast("cuda"):
                        return torch.nn.functional.cross_entropy(model(x), y)

                scaler.scale(loss_of()).backward()
                scaler.unscale_(optimizer)
                optimizer.ascend()
                optimizer.zero_grad()
                scaler.scale(loss_of()).backward()
                scaler.unscale_(optimizer)  # expect
                optimizer.descend()
                scaler.step(optimizer)
                scaler.update()
            """,
        ),
        Example(
            """
            import torch

            def late(model, loader, optimizer, scaler: torch.amp.GradScaler):
                for x in loader:
                    optimizer.zero_grad()
                    scaler.scale(model(x).mean()).backward()
                    scaler.step(optimizer)
                    scaler.unscale_(optimizer)  # expect
                    print(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]))
                    scaler.update()
            """,
            """
            import torch

            def late(model, loader, optimizer, scaler: torch.amp.GradScaler):
                for x in loader:
                    optimizer.zero_grad()
                    scaler.scale(model(x).mean()).backward()
                    scaler.step(optimizer)
                    print(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]))
                    scaler.update()
            """,
        ),
        Example(
            """
            import torch
            from gradients import clipped

            def train(model, loader, optimizer, use_amp):
                scaler = torch.amp.GradScaler("cuda") if use_amp else None
                for x in loader:
                    with torch.autocast("cuda", enabled=use_amp):
                        loss = model(x).mean()
                    if use_amp:
                        scaler.scale(loss).backward()
                        scaler.unscale_(optimizer)
                    else:
                        loss.backward()
                    clipped(model, optimizer, scaler)
                    if scaler is None:
                        optimizer.step()
                    else:
                        scaler.step(optimizer)
                        scaler.update()
            """,
            None,
            {
                "gradients.py": """
                import torch

                def clipped(model, optimizer, scaler=None):
                    if scaler is not None:
                        scaler.unscale_(optimizer)  # expect
                    return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                """,
            },
        ),
        Example(
            """
            from accelerate import Accelerator

            def main(model, optimizer, loader):
                accelerator = Accelerator(mixed_precision="fp16")
                model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
                for batch in loader:
                    loss = model(**batch).loss
                    accelerator.backward(loss)
                    norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    print(norm)
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)  # expect
                    optimizer.step()
                    optimizer.zero_grad()
            """,
            """
            from accelerate import Accelerator

            def main(model, optimizer, loader):
                accelerator = Accelerator(mixed_precision="fp16")
                model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
                for batch in loader:
                    loss = model(**batch).loss
                    accelerator.backward(loss)
                    norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    print(norm)
                    optimizer.step()
                    optimizer.zero_grad()
            """,
        ),
        Example(
            """
            import torch

            def strict(model, loader, optimizer, scaler: torch.amp.GradScaler):
                for x in loader:
                    optimizer.zero_grad()
                    scaler.scale(model(x).mean()).backward()
                    try:
                        scaler.unscale_(optimizer)  # expect
                        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
                        scaler.step(optimizer)
                    except RuntimeError as error:
                        print(error)
                        continue
                    scaler.update()
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def accumulated(args, model, loader, optimizer, scaler: torch.amp.GradScaler):
            for i, x in enumerate(loader):
                last = (i + 1) % args.accum == 0 or i + 1 == len(loader)
                scaler.scale(model(x).mean() / args.accum).backward()
                if not last:
                    continue
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

        def separately_guarded(args, model, loader, optimizer, scaler: torch.amp.GradScaler):
            for i, x in enumerate(loader):
                scaler.scale(model(x).mean() / args.accum).backward()
                if (i + 1) % args.accum == 0 and args.max_norm:
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
                if (i + 1) % args.accum == 0:
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
        """,
        """
        import torch

        def adversarial(gen, disc, opt_g, opt_d, scaler: torch.amp.GradScaler, batches):
            for real, noise in batches:
                fake = gen(noise)
                opt_d.zero_grad()
                scaler.scale(disc(fake.detach()).mean() - disc(real).mean()).backward()
                scaler.unscale_(opt_d)
                torch.nn.utils.clip_grad_norm_(disc.parameters(), 1.0)
                scaler.step(opt_d)
                opt_g.zero_grad()
                scaler.scale(-disc(fake).mean()).backward()
                scaler.unscale_(opt_g)
                torch.nn.utils.clip_grad_norm_(gen.parameters(), 1.0)
                scaler.step(opt_g)
                scaler.update()

        def several(optimizers, model, scaler: torch.amp.GradScaler, loss):
            scaler.scale(loss).backward()
            for optimizer in optimizers.values():
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers.values():
                scaler.step(optimizer)
            scaler.update()
        """,
        """
        import torch

        class NativeScaler:
            def __init__(self):
                self._scaler = torch.amp.GradScaler("cuda")

            def __call__(self, loss, optimizer, clip_grad=None, parameters=None, update_grad=True):
                self._scaler.scale(loss).backward()
                if not update_grad:
                    return None
                if clip_grad is not None:
                    self._scaler.unscale_(optimizer)
                    norm = torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
                else:
                    self._scaler.unscale_(optimizer)
                    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
                self._scaler.step(optimizer)
                self._scaler.update()
                return norm

        def train(model, loader, optimizer, accum):
            scale = NativeScaler()
            for i, x in enumerate(loader):
                scale(model(x).mean(), optimizer, 1.0, model.parameters(), update_grad=(i + 1) % accum == 0)
        """,
        """
        import torch

        def skipping(model, loader, optimizer):
            scaler = torch.amp.GradScaler("cuda")
            for x in loader:
                scaler.scale(model(x).mean()).backward()
                scaler.unscale_(optimizer)
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                if norm.isnan():
                    raise FloatingPointError("not a number")
                if norm > 100:
                    optimizer.zero_grad()
                    scaler.update()
                    continue
                scaler.step(optimizer)
                scaler.update()

        def stopping(model, loader, optimizer):
            scaler = torch.amp.GradScaler("cuda")
            for x in loader:
                scaler.scale(model(x).mean()).backward()
                scaler.unscale_(optimizer)
                if torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) > 100:
                    break
                scaler.step(optimizer)
                scaler.update()
        """,
        """
        import torch

        def pretrain(model, loader, optimizer):
            scaler = torch.amp.GradScaler("cuda", enabled=False)
            for x in loader:
                scaler.scale(model(x).mean()).backward()
                scaler.unscale_(optimizer)
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()

        def distilled(teacher, student, loader, opt_t, opt_s):
            for_teacher, for_student = torch.amp.GradScaler("cuda"), torch.amp.GradScaler("cuda")
            for x in loader:
                for_teacher.scale(teacher(x).mean()).backward()
                for_teacher.unscale_(opt_t)
                for_student.scale(student(x).mean()).backward()
                for_student.unscale_(opt_s)
                for_teacher.step(opt_t)
                for_student.step(opt_s)
                for_teacher.update()
                for_student.update()
        """,
        """
        from accelerate import Accelerator

        def by_deepspeed(model, optimizer, loader, args):
            accelerator = Accelerator(mixed_precision=args.mixed_precision)
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
            for batch in loader:
                accelerator.backward(model(**batch).loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                if accelerator.state.deepspeed_plugin is None:
                    optimizer.step()
                    optimizer.zero_grad()

        def main(model, optimizer, loader):
            accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=4)
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
            for batch in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(model(**batch).loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
        """,
        """
        import torch

        def never_updated(model, loader, optimizer, scaler: torch.amp.GradScaler):
            for x in loader:
                scaler.scale(model(x).mean()).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)

        def retried(model, loader, optimizer, scaler: torch.amp.GradScaler):
            for x in loader:
                try:
                    scaler.scale(model(x).mean()).backward()
                except RuntimeError:
                    optimizer.zero_grad()
                    continue
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
        """,
        """
        import torch

        def out_of_memory(model, loader, optimizer, scaler: torch.amp.GradScaler):
            for x in loader:
                try:
                    optimizer.zero_grad()
                    scaler.scale(model(x).mean()).backward()
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    scaler.step(optimizer)
                    scaler.update()
                except torch.OutOfMemoryError:
                    optimizer.zero_grad()
                    torch.cuda.empty_cache()
        """,
        """
        import torch

        def strict(model, loader, optimizer, scaler: torch.amp.GradScaler):
            for x in loader:
                optimizer.zero_grad()
                scaler.scale(model(x).mean()).backward()
                try:
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
                    scaler.step(optimizer)
                except RuntimeError as error:
                    print(error)
                scaler.update()
        """,
        """
        import torch

        def bypassed(model, loader, optimizer, scaler: torch.amp.GradScaler):
            for x in loader:
                optimizer.zero_grad()
                scaler.scale(model(x).mean()).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()

        def fresh_each_time(build, loader):
            for x in loader:
                model = build()
                optimizer = torch.optim.SGD(model.parameters(), 0.1)
                scaler = torch.amp.GradScaler("cuda")
                scaler.scale(model(x).mean()).backward()
                scaler.unscale_(optimizer)
                print(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        """,
        """
        import torch

        class Clip:
            def after_backward(self, runner):
                runner.scaler.unscale_(runner.optimizer)
                torch.nn.utils.clip_grad_norm_(runner.model.parameters(), 1.0)

        class Step:
            def after_backward(self, runner):
                runner.scaler.step(runner.optimizer)
                runner.scaler.update()

        class Runner:
            def __init__(self, model, optimizer):
                self.model, self.optimizer = model, optimizer
                self.scaler = torch.amp.GradScaler("cuda")
                self.hooks = [Clip(), Step()]

            def fit(self, loader):
                for x in loader:
                    self.optimizer.zero_grad()
                    self.scaler.scale(self.model(x).mean()).backward()
                    for hook in self.hooks:
                        hook.after_backward(self)
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for fault in scaling.once(context, _second_unscales):
            first, second = fault.causes[0], fault.event
            if first.kind is Kind.STEP:
                place = scaling.where(first, context.module)
                message = f"step() at {place} has unscaled these gradients: unscale_() after it raises RuntimeError"
            elif first.node is second.node:
                message = "unscale_() runs again before update(): the second call raises RuntimeError"
            else:
                place = scaling.where(first, context.module)
                message = f"unscale_() was called at {place} and no update() since: this call raises RuntimeError"
            yield self.finding(context, second.node, message, fix=_fix(context, fault), related=fault.related(context))


def _second_unscales(path: Path) -> Iterator[Fault]:
    unscaled: dict[tuple[object, object], Event] = {}
    for event in path.events:
        if event.kind is Kind.STEP and event.scaler is None:  # a framework's optimizer updates too; else it is AMP204's
            unscaled = {
                key: first for key, first in unscaled.items() if not first.framework and key[1] != event.optimizer
            }
        if not scaling.is_scaling(event) or (event.framework and scaling.in_float16(event) is False):
            continue
        key = (event.scaler, event.optimizer)
        if event.kind is Kind.UNSCALE and (event.optimizer is not None or event.framework):
            first = unscaled.get(key)
            if first is not None and not (event.framework and first.node is event.node):  # on micro-steps: AMP216
                yield Fault(path, event, (first, *_new_rounds(path, first, event)))
            unscaled[key] = event
        elif event.kind is Kind.STEP:
            unscaled[key] = event
        elif event.kind is Kind.BACKWARD:  # what is missing is the update after the step: AMP206
            unscaled = {key: first for key, first in unscaled.items() if first.kind is not Kind.STEP}
        elif event.kind in (Kind.UPDATE, Kind.SCALER):
            unscaled = {other: first for other, first in unscaled.items() if other[0] != event.scaler}


def _new_rounds(path: Path, first: Event, second: Event) -> list[Event]:
    """The last begin of a loop's turn between two events."""
    events = path.events[path.events.index(first) : path.events.index(second)]
    return [event for event in events if event.kind is Kind.ROUND][-1:]


def _fix(context: Context, fault: Fault) -> Fix | None:
    first, second = fault.causes[0], fault.event
    statement = second.module.statement(second.node)
    if first.node is not second.node:
        return _removal(context, fault, statement)
    return _move_under_guard(context, second, statement) or _update_on_exit(context, fault)


def _removal(context: Context, fault: Fault, statement: ast.stmt) -> Fix | None:
    first, second = fault.causes[0], fault.event
    is_alone = isinstance(statement, ast.Expr) and statement.value is second.node
    has_new_gradients = any(event.kind is Kind.BACKWARD for event in fault.between(first, second))
    if not is_alone or has_new_gradients or not scaling.same_function(first, second):
        return None
    if not scaling.always(context, _second_unscales, second.node):
        return None
    whole = scaling.guarded_alone(context.module, statement)
    return Fix("Remove the second unscale_", Safety.SAFE, remove_statement(context.module, whole))


def _move_under_guard(context: Context, unscale: Event, statement: ast.stmt) -> Fix | None:
    """Put the call, and the clip that follows it, under the `if` that the step stands in, or after its opposite."""
    module = context.module
    steps = {
        step.node
        for _, step in scaling.events_of(context, Kind.STEP)
        if step.module is module and step.scaler == unscale.scaler and step.optimizer == unscale.optimizer
    }
    clips = {clip.node for _, clip in scaling.events_of(context, Kind.CLIP) if clip.module is module}
    start = _whole(module, statement, clips)
    block = module.block(start)
    following = block[block.index(start) + 1 :]
    for index, guard in enumerate(following):
        if not isinstance(guard, ast.If):
            continue
        clipping = [item for item in following[:index] if any(scaling.is_within(module, clip, item) for clip in clips)]
        moved = [start, *clipping]
        if _reads_result(module, guard.test, moved):
            continue
        holds_step = any(scaling.is_within(module, step, *guard.body) for step in steps)
        if holds_step and not _is_read_elsewhere(module, moved, guard):
            return _moved(move_before(module, moved, guard.body[0]))
        if scaling.leaves(guard.body) and not guard.orelse and not holds_step:
            rest = following[index + 1 :]
            later = any(scaling.is_within(module, step, *rest) for step in steps)
            return _moved(move_after(module, moved, guard)) if later else None
    return None


def _whole(module: Module, statement: ast.stmt, clips: set[ast.AST]) -> ast.stmt:
    """The `if` around the call, if it holds nothing else but clips; else the statement of the call."""
    parent = module.parent(statement)
    if not isinstance(parent, ast.If) or parent.orelse or statement not in parent.body:
        return statement
    others = [item for item in parent.body if item is not statement]
    clipping = all(any(scaling.is_within(module, clip, item) for clip in clips) for item in others)
    return parent if clipping else statement


def _moved(edits: tuple[Edit, ...]) -> Fix:
    return Fix("Unscale where the optimizer steps", Safety.SAFE, edits)


def _update_on_exit(context: Context, fault: Fault) -> Fix | None:
    """`scaler.update()` before the `continue` or `return` that left it out."""
    first, second = fault.causes[0], fault.event
    assert first.scaler is not None
    for event in reversed(fault.between(first, second)):
        suite = scaling.taken_suite(event) if event.kind is Kind.BRANCH and event.module is context.module else None
        if suite is None or not isinstance(suite[-1], ast.Continue | ast.Return):
            continue
        scaler = context.protocol.written(first.scaler, context.module, suite[-1])
        if scaler is None:
            return None
        guard = context.protocol.guard(first, event)
        lines = [f"if {guard}:", f"    {scaler}.update()"] if guard else [f"{scaler}.update()"]
        edits = insert_before(context.module, suite[-1], lines)
        return Fix("Update the scaler on this exit too", Safety.SAFE, edits)
    return None


def _reads_result(module: Module, test: ast.expr, statements: list[ast.stmt]) -> bool:
    """Whether a test looks at what the statements assign (the norm that a clip returns)."""
    names = _assigned(statements)
    return any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(test))


def _is_read_elsewhere(module: Module, statements: list[ast.stmt], guard: ast.If) -> bool:
    """Whether what the statements assign is read outside the guarded suite they are to move into."""
    names = _assigned(statements)
    function = module.function(guard) or module.tree
    return any(
        isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Load)
        and node.id in names
        and not scaling.is_within(module, node, *statements, *guard.body)
        for node in ast.walk(function)
    )


def _assigned(statements: list[ast.stmt]) -> set[str]:
    return {
        node.id
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
