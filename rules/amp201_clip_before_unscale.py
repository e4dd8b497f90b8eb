"""AMP201: gradients clipped while they are still multiplied by the loss scale."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from amplint import edit
from amplint.context import Context
from amplint.hooks import scaled_hooks
from amplint.protocol import Event, Kind, Path, Symbol
from amplint.protocol.recognise import is_clip_name
from amplint.protocol.roles import last_name
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity
from amplint.tree import Module
from amplint.triggers import attribute

Handled: TypeAlias = dict[Symbol | None, set[Symbol | None]]

_LOOPS = (ast.For, ast.AsyncFor, ast.While)


class ClipBeforeUnscale(Rule):
    """Gradients are clipped while they are still multiplied by the loss scale.

    ## What it does
    Reports a clip of gradients (`clip_grad_norm_`, `clip_grad_value_`, a model's own `clip_grad_norm_`, timm's
    `dispatch_clip_grad`, `p.grad.clamp_(…)` by hand) that some path reaches after `scaler.scale(loss).backward()` and
    before `scaler.unscale_(optimizer)` for the optimizer of those parameters.

    ## Why
    `scaler.scale(loss)` multiplies all gradients by the scale, 65536 at first. A norm of 0.5 reads as 32768 then, so
    a limit of 1.0 shrinks every gradient, and `scaler.step` divides what is left by 65536 again. Plain SGD that goes
    from a loss of 23.0 to 0.00 in 200 steps ends at 22.98. Adam hides it in part, for it divides by the gradients'
    size. Clipping by value also hides an inf, so that the step is not skipped and the scale keeps growing.

    ## Example
    ```python
    scaler.scale(loss).backward()
    clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    ```
    Use instead:
    ```python
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    ```

    ## Fix
    Safe: `scaler.unscale_(optimizer)` is inserted before the clip, moved there if it stands after it, or given the
    right optimizer if it names another; under the test that guards the scaled backward pass, outside loops over
    parameters. `scaler.step` does not unscale a second time.

    ## References
    - [Gradient clipping](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping)
    - [GradScaler.unscale_](https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler.unscale_)
    """

    code = "AMP201"
    name = "clip-before-unscale"
    severity = Severity.ERROR
    summary = "gradients are clipped while still multiplied by the loss scale"
    triggers = (
        (b"clip_grad",),
        (b"clip_and_",),
        (b"adaptive_clip",),
        (b"gradient_clip",),
        (b"clip", attribute("grad")),
        (b"clamp", attribute("grad")),
        (b"mul_", attribute("grad")),
    )
    fixable = "safe"
    INVALID: ClassVar = (
        Example(
            """
            import torch
            from torch.nn.utils import clip_grad_norm_

            def fit(model, loader, criterion, optimizer):
                scaler = torch.amp.GradScaler("cuda")
                for x, y in loader:
                    with torch.autocast("cuda"):
                        loss = criterion(model(x), y)
                    optimizer.zero_grad()
                    scaler.scale(loss).backward()
                    # keep the norm in check
                    clip_grad_norm_(model.parameters(), 1.0)  # expect
                    scaler.step(optimizer)
                    scaler.update()
            """,
            """
            import torch
            from torch.nn.utils import clip_grad_norm_

            def fit(model, loader, criterion, optimizer):
                scaler = torch.amp.GradScaler("cuda")
                for x, y in loader:
                    with torch.autocast("cuda"):
                        loss = criterion(model(x), y)
                    optimizer.zero_grad()
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimizer)
                    # keep the norm in check
                    clip_grad_norm_(model.parameters(), 1.0)
                    scaler.step(optimizer)
                    scaler.update()
            """,
        ),
        Example(
            """
            import torch

            def step(model, batch, optimizer, scaler=None, limit=0.5):
                loss = model(batch)
                if scaler is not None:
                    scaler.scale(loss).backward()
                else:
                    loss.backward()
                for p in model.parameters():
                    p.grad.clamp_(-limit, limit)  # expect
                if scaler is not None:
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    optimizer.step()
            """,
            """
            import torch

            def step(model, batch, optimizer, scaler=None, limit=0.5):
                loss = model(batch)
                if scaler is not None:
                    scaler.scale(loss).backward()
                else:
                    loss.backward()
                if scaler is not None:
                    scaler.unscale_(optimizer)
                for p in model.parameters():
                    p.grad.clamp_(-limit, limit)
                if scaler is not None:
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    optimizer.step()
            """,
        ),
        Example(
            """
            import torch

            class Gan:
                def __init__(self, actor, critic):
                    self.actor, self.critic = actor, critic
                    self.actor_opt = torch.optim.Adam(actor.parameters())
                    self.critic_opt = torch.optim.Adam(critic.parameters())
                    self.scaler = torch.cuda.amp.GradScaler()

                def train_critic(self, loss):
                    self.scaler.scale(loss).backward()
                    self.scaler.unscale_(self.actor_opt)
                    torch.nn.utils.clip_grad_value_(self.critic.parameters(), 0.1)  # expect
                    self.scaler.step(self.critic_opt)
                    self.scaler.update()
            """,
            """
            import torch

            class Gan:
                def __init__(self, actor, critic):
                    self.actor, self.critic = actor, critic
                    self.actor_opt = torch.optim.Adam(actor.parameters())
                    self.critic_opt = torch.optim.Adam(critic.parameters())
                    self.scaler = torch.cuda.amp.GradScaler()

                def train_critic(self, loss):
                    self.scaler.scale(loss).backward()
                    self.scaler.unscale_(self.critic_opt)
                    torch.nn.utils.clip_grad_value_(self.critic.parameters(), 0.1)
                    self.scaler.step(self.critic_opt)
                    self.scaler.update()
            """,
        ),
        Example(
            """
            from torch import nn
            from torch.cuda.amp import GradScaler

            class Trainer:
                def __init__(self, net, opt, clip):
                    self.net, self.opt, self.clip = net, opt, clip
                    self.scaler = GradScaler()

                def limit(self):
                    if self.clip:
                        nn.utils.clip_grad_norm_(self.net.parameters(), self.clip)  # expect

                def step(self, loss):
                    self.scaler.scale(loss).backward()
                    self.limit()
                    self.scaler.step(self.opt)
                    self.scaler.update()
            """,
            """
            from torch import nn
            from torch.cuda.amp import GradScaler

            class Trainer:
                def __init__(self, net, opt, clip):
                    self.net, self.opt, self.clip = net, opt, clip
                    self.scaler = GradScaler()

                def limit(self):
                    if self.clip:
                        self.scaler.unscale_(self.opt)
                        nn.utils.clip_grad_norm_(self.net.parameters(), self.clip)

                def step(self, loss):
                    self.scaler.scale(loss).backward()
                    self.limit()
                    self.scaler.step(self.opt)
                    self.scaler.update()
            """,
        ),
        Example(
            """
            import torch

            def update(scaler, loss, optimizer, parameters):
                scaler.scale(loss).backward()
                torch.nn.utils.clip_grad_norm_(parameters, 5.0)  # expect
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
            """,
            """
            import torch

            def update(scaler, loss, optimizer, parameters):
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(parameters, 5.0)
                scaler.step(optimizer)
                scaler.update()
            """,
        ),
        Example(
            """
            import pytorch_lightning as pl
            import torch

            class Clip(pl.Callback):
                def on_after_backward(self, trainer, module):
                    torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)  # expect

            def main(module, data):
                pl.Trainer(precision=16, callbacks=[Clip()]).fit(module, data)
            """,
        ),
        Example(
            """
            import torch
            from fastai.learner import Callback, Learner

            class ClipHead(Callback):
                def after_backward(self):
                    torch.nn.utils.clip_grad_norm_(self.model[-1].parameters(), 0.1)  # expect

            def main(dls, model):
                Learner(dls, model, cbs=[ClipHead()]).to_fp16().fit_one_cycle(3)
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch
        from fastai.callback.all import Callback, GradientClip
        from fastai.learner import Learner

        class ClipHead(Callback):
            order = GradientClip.order + 1

            def before_step(self):
                torch.nn.utils.clip_grad_norm_(self.model[-1].parameters(), 0.1)

        def main(dls, model):
            Learner(dls, model, cbs=[GradientClip(1.0), ClipHead()]).to_fp16().fit_one_cycle(3)
        """,
        """
        import torch
        from composer import Algorithm, Event, Trainer

        class ClipHead(Algorithm):
            def match(self, event, state):
                return event == Event.AFTER_TRAIN_BATCH

            def apply(self, event, state, logger):
                torch.nn.utils.clip_grad_norm_(state.model.head.parameters(), 0.1)

        def main(model, data):
            Trainer(model=model, train_dataloader=data, precision="amp_fp16", algorithms=[ClipHead()]).fit()
        """,
        """
        import torch
        from ignite.engine import Events, create_supervised_trainer

        def main(model, optimizer, loss, data):
            scaler = torch.amp.GradScaler("cuda")
            trainer = create_supervised_trainer(model, optimizer, loss, "cuda", amp_mode="amp", scaler=scaler)

            @trainer.on(Events.ITERATION_COMPLETED(every=100))
            def report(engine):
                print(engine.state.output, scaler.get_scale())

            trainer.run(data, max_epochs=3)
        """,
        """
        import torch

        def fit(model, loader, optimizer, scaler):
            for batch in loader:
                scaler.scale(model(batch)).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
        """,
        """
        import torch

        def fit(model, loader, optimizer, amp):
            scaler = torch.amp.GradScaler("cuda", enabled=amp)
            for batch in loader:
                scaler.scale(model(batch)).backward()
                if amp:
                    scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
        """,
        """
        import torch

        def fit(model, loader, optimizer, scaler=None):
            for batch in loader:
                loss = model(batch)
                if scaler:
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    loss.backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
        """,
        """
        import torch

        scaler = torch.cuda.amp.GradScaler(enabled=False)

        def fit(model, loader, optimizer):
            for batch in loader:
                scaler.scale(model(batch)).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
        """,
        """
        import torch

        def clip(scaler, optimizer, model):
            scaler.unscale_(optimizer)
            return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

        def fit(model, loader, optimizer):
            scaler = torch.amp.GradScaler()
            for batch in loader:
                scaler.scale(model(batch)).backward()
                clip(scaler, optimizer, model)
                scaler.step(optimizer)
                scaler.update()
        """,
        """
        from sklearn.preprocessing import MinMaxScaler
        from torch.nn.utils import clip_grad_norm_

        def fit(model, frame, optimizer):
            scaler = MinMaxScaler()
            x = scaler.fit_transform(frame)
            model(x).backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        """,
        """
        import pytorch_lightning as pl
        import torch

        class Clip(pl.Callback):
            def on_before_optimizer_step(self, trainer, module, optimizer):
                torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)

        def main(module, data):
            pl.Trainer(precision=16, callbacks=[Clip()]).fit(module, data)
        """,
        """
        import pytorch_lightning as pl
        import torch

        class Clip(pl.Callback):
            def on_after_backward(self, trainer, module):
                torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)

        def main(module, data):
            pl.Trainer(precision="bf16-mixed", callbacks=[Clip()]).fit(module, data)
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        paths = context.protocol.paths(context.module)
        handled = _handled(paths)
        found: dict[ast.AST, tuple[Path, Event, Event]] = {}
        for path in sorted(paths, key=lambda path: not path.complete):
            for clip, backward in _scaled_clips(context, path, handled):
                if clip.module is context.module:
                    found.setdefault(clip.node, (path, backward, clip))
        for path, backward, clip in found.values():
            yield self._finding(context, path, backward, clip)
        for hook in scaled_hooks(context):
            message = f"{hook.framework} has not unscaled the gradients here yet; {hook.instead} clips them unscaled"
            calls = (node for node in ast.walk(hook.function) if isinstance(node, ast.Call))
            yield from (self.finding(context, call, message) for call in calls if is_clip_name(last_name(call.func)))

    def _finding(self, context: Context, path: Path, backward: Event, clip: Event) -> Finding:
        optimizer = _optimizer(context, path, backward, clip)
        between = path.events[path.events.index(backward) : path.events.index(clip)]
        other = next((e for e in between if e.kind is Kind.UNSCALE and e.scaler == backward.scaler), None)
        later = _later_unscale(path, backward, clip, optimizer)
        why = "no unscale_ stands between the scaled backward pass and this clip"
        if other is not None:
            why = "unscale_ names another optimizer than the one whose parameters are clipped"
        elif later is not None:
            why = "unscale_ comes after the clip"
        message = f"gradients are clipped while still multiplied by the loss scale (65536 at first): {why}"
        places = [event for event in (backward, other, clip, later) if event is not None]
        fix = _fix(context, path, backward, clip, optimizer, other, later)
        return self.finding(context, clip.node, message, fix=fix, related=context.protocol.related(path, *places))


@dataclass(slots=True)
class _Scaled:
    """What is known of the gradients that one scaler has scaled since its last update."""

    backward: Event
    unscaled: set[Symbol | None] = field(default_factory=set)
    """The optimizers whose gradients are true again: divided by the scale, or cleared."""
    done: set[Symbol | None] = field(default_factory=set)
    """The optimizers that were unscaled: a step does not do it again, though another backward pass came after."""
    untouched: bool = True
    """Nothing was unscaled since the last backward pass."""

    def after(self, backward: Event, *, shared: bool) -> _Scaled:
        """What is known once there was another pass; which optimizer's gradients it touched if they share a scaler?"""
        return _Scaled(backward, self.unscaled if shared else set(), self.done)

    def unscale(self, event: Event) -> None:
        """`unscale_`, or a step that unscales; a step after `unscale_` does not."""
        self.untouched = False
        if event.optimizer not in self.done:
            self.unscaled.add(event.optimizer)
            self.done.add(event.optimizer)


def _scaled_clips(context: Context, path: Path, handled: Handled) -> Iterator[tuple[Event, Event]]:
    """The clips of scaled gradients on a path, each with the backward pass that scaled them."""
    pending: dict[Symbol, _Scaled] = {}
    for event in path.events:
        if event.framework or event.inert:
            continue
        shared = len(handled.get(event.scaler, ())) > 1
        match event.kind:
            case Kind.BACKWARD if event.scaler is not None:
                pending[event.scaler] = pending.get(event.scaler, _Scaled(event)).after(event, shared=shared)
            case Kind.UNSCALE | Kind.STEP if event.scaler in pending:
                if event.kind is Kind.UNSCALE and event.optimizer in pending[event.scaler].done:
                    return  # it raises
                pending[event.scaler].unscale(event)
            case Kind.UPDATE if event.scaler in pending and shared:
                del pending[event.scaler]
            case Kind.UPDATE if event.scaler in pending:
                pending[event.scaler].done.clear()
            case Kind.ZERO:
                _clear(pending, event)
            case Kind.CLIP:
                for scaler, scaled in pending.items():
                    if _is_scaled(context, path, event, handled.get(scaler, set()), scaled):
                        yield event, scaled.backward


def _clear(pending: dict[Symbol, _Scaled], zero: Event) -> None:
    if zero.optimizer is None:
        pending.clear()
    for scaled in pending.values():
        scaled.unscaled.add(zero.optimizer)


def _is_scaled(context: Context, path: Path, clip: Event, handled: set[Symbol | None], scaled: _Scaled) -> bool:
    owners = context.protocol.owners(path, clip)
    if owners is None:
        return scaled.untouched and bool(handled)
    return bool(owners & handled) and not owners & scaled.unscaled


def _handled(paths: Iterable[Path]) -> Handled:
    """The optimizers that each scaler unscales or steps on any path."""
    found: Handled = {}
    for path in paths:
        for event in path.events:
            if event.kind in (Kind.STEP, Kind.UNSCALE) and not event.framework:
                found.setdefault(event.scaler, set()).add(event.optimizer)
    return found


def _optimizer(context: Context, path: Path, backward: Event, clip: Event) -> Event | None:
    """The event of the scaler that handles the optimizer of the clipped parameters."""
    owners = context.protocol.owners(path, clip)
    for event in path.after(clip):
        handles = event.kind in (Kind.STEP, Kind.UNSCALE) and event.scaler == backward.scaler
        if handles and (owners is None or event.optimizer in owners):
            return event
    return None


def _later_unscale(path: Path, backward: Event, clip: Event, handler: Event | None) -> Event | None:
    """An unscale_ of that optimizer after the clip and before the update."""
    for event in path.after(clip):
        if event.scaler == backward.scaler and event.kind in (Kind.UPDATE, Kind.BACKWARD, Kind.STEP):
            return None
        if event.kind is Kind.UNSCALE and handler is not None and event.optimizer == handler.optimizer:
            return event
    return None


def _fix(
    context: Context,
    path: Path,
    backward: Event,
    clip: Event,
    handler: Event | None,
    other: Event | None,
    later: Event | None,
) -> Fix | None:
    if handler is None or handler.optimizer is None or backward.scaler is None:
        return None
    module, protocol = context.module, context.protocol
    statement = _outside_loops(module, clip, backward)
    optimizer = protocol.written(handler.optimizer, module, statement)
    scaler = protocol.written(backward.scaler, module, statement)
    if optimizer is None or scaler is None:
        return None
    if other is not None:
        return _rename(module, path, backward, other, optimizer)
    if later is not None:
        return _move(module, clip, later)
    if _unscaled_elsewhere(context, clip, handler.optimizer):
        return None
    lines = [f"{scaler}.unscale_({optimizer})"]
    if _reached_unscaled(context, clip) and (test := protocol.guard(backward, clip)):
        lines = [f"if {test}:", f"    {lines[0]}"]
    elif _reached_unscaled(context, clip):
        lines = [f"if {scaler} is not None:", f"    {lines[0]}"]
    return Fix(f"Insert {scaler}.unscale_({optimizer})", Safety.SAFE, edit.insert_before(module, statement, lines))


def _rename(module: Module, path: Path, backward: Event, other: Event, optimizer: str) -> Fix | None:
    """Give unscale_ the right optimizer, if the one it names is not the scaler's at all on this path."""
    stepped = {e.optimizer for e in path.after(backward) if e.kind is Kind.STEP and e.scaler == backward.scaler}
    if other.module is not module or other.subject is None or other.optimizer in stepped:
        return None
    return Fix(f"Unscale {optimizer}", Safety.SAFE, (edit.replace(module, other.subject, optimizer),))


def _move(module: Module, clip: Event, later: Event) -> Fix | None:
    """Move unscale_ before the clip, if both stand in one block (the clip perhaps deeper)."""
    moved = module.statement(later.node) if later.module is module else None
    if not isinstance(moved, ast.Expr) or moved.value is not later.node:
        return None
    block = module.block(moved)
    around = [clip.node, *module.ancestors(clip.node)]
    target = next((s for s in block if any(s is node for node in around)), None)
    if target is None:
        return None
    return Fix("Unscale before the clip", Safety.SAFE, edit.move_before(module, [moved], target))


def _outside_loops(module: Module, clip: Event, backward: Event) -> ast.stmt:
    """The statement before which to unscale: that of the clip, or the loop over parameters that it stands in."""
    around_backward = {id(node) for node in backward.module.ancestors(backward.node)}
    statement = module.statement(clip.node)
    for node in module.ancestors(clip.node):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            break
        if isinstance(node, _LOOPS) and id(node) not in around_backward:
            statement = node
    return statement


def _unscaled_elsewhere(context: Context, clip: Event, optimizer: Symbol) -> bool:
    """Whether on another path the optimizer is unscaled when this clip is reached: a second time would raise."""
    for path in context.protocol.paths(context.module):
        unscaled = False
        for event in path.events:
            if event.optimizer == optimizer and event.kind is Kind.UNSCALE:
                unscaled = True
            elif event.kind is Kind.UPDATE:
                unscaled = False
            elif event.node is clip.node and unscaled:
                return True
    return False


def _reached_unscaled(context: Context, clip: Event) -> bool:
    """Whether some path comes to the clip without a scaled backward pass: there may be no scaler then."""
    for path in context.protocol.paths(context.module):
        last: Event | None = None
        for event in path.events:
            if event.kind is Kind.BACKWARD:
                last = event
            elif event.node is clip.node and last is not None and last.scaler is None:
                return True
    return False
