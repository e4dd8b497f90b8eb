"""AMP202: an optimizer is stepped through a scaler with nothing that limits its gradients."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from amplint import edit
from amplint.context import Context
from amplint.protocol import Event, Kind, Path
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity

_CLIP = "torch.nn.utils.clip_grad_norm_"


class NoGradientClipping(Rule):
    """Nothing limits the gradients between the scaled backward pass and the step.

    ## What it does
    Reports `scaler.step(optimizer)` where no path from the scaled backward pass clips gradients of that optimizer:
    not by norm or value, not in a helper, a hook, or the optimizer's own step. A clip under a condition counts; one
    after the step, of the weights, or with a limit of None does not.

    ## Why
    One batch with a gradient a thousand times the usual size undoes hours of training, and with Adam its square stays
    in the second moment for a thousand steps more. The scaler skips steps with an inf or NaN only. In float16 large
    gradients are more likely than in float32: sums over long sequences and small denominators are rounded coarsely.
    Of public training scripts with a scaler a quarter do not clip.

    ## Example
    ```python
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    ```
    Use instead:
    ```python
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    scaler.step(optimizer)
    scaler.update()
    ```

    ## Fix
    Unsafe, for it changes the training: `unscale_`, if nothing has unscaled yet, and `clip_grad_norm_` are inserted
    before the step. The limit is `max-norm` of the settings, 1.0 by default.

    ## References
    - [Gradient clipping](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping)
    - Pascanu, Mikolov, Bengio: [On the difficulty of training recurrent neural networks](https://arxiv.org/abs/1211.5063)
    """

    code = "AMP202"
    name = "no-gradient-clipping"
    severity = Severity.WARNING
    summary = "nothing limits the gradients before scaler.step"
    triggers = ((b".step(",),)
    fixable = "unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch

            def fit(model, loader, criterion):
                optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
                scaler = torch.amp.GradScaler("cuda")
                for x, y in loader:
                    optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        loss = criterion(model(x), y)
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)  # expect
                    scaler.update()
            """,
            """
            import torch

            def fit(model, loader, criterion):
                optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
                scaler = torch.amp.GradScaler("cuda")
                for x, y in loader:
                    optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        loss = criterion(model(x), y)
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
                    scaler.step(optimizer)
                    scaler.update()
            """,
        ),
        Example(
            """
            import torch as th
            from torch.nn.utils import get_total_norm

            class Loop:
                def __init__(self, net, amp):
                    self.net = net
                    self.opt = th.optim.SGD(net.parameters(), lr=0.1)
                    self.scaler = th.amp.GradScaler("cuda", enabled=amp)

                def iteration(self, loss, log):
                    self.scaler.scale(loss).backward()
                    self.scaler.unscale_(self.opt)
                    log(get_total_norm([p.grad for p in self.net.parameters()]))
                    # skipped where a gradient is inf
                    self.scaler.step(self.opt)  # expect
                    self.scaler.update()
            """,
            """
            import torch as th
            from torch.nn.utils import get_total_norm

            class Loop:
                def __init__(self, net, amp):
                    self.net = net
                    self.opt = th.optim.SGD(net.parameters(), lr=0.1)
                    self.scaler = th.amp.GradScaler("cuda", enabled=amp)

                def iteration(self, loss, log):
                    self.scaler.scale(loss).backward()
                    self.scaler.unscale_(self.opt)
                    log(get_total_norm([p.grad for p in self.net.parameters()]))
                    th.nn.utils.clip_grad_norm_(self.net.parameters(), max_norm=1.0)
                    # skipped where a gradient is inf
                    self.scaler.step(self.opt)
                    self.scaler.update()
            """,
        ),
        Example(
            """
            from torch.cuda.amp import GradScaler
            from torch.nn.utils import clip_grad_norm_

            def limit(parameters, bound=None):
                if bound is not None:
                    clip_grad_norm_(parameters, bound)

            def train(batches, left, right, left_optimizer, right_opt):
                scaler = GradScaler()
                for batch in batches:
                    scaler.scale(left(batch)).backward()
                    scaler.unscale_(left_optimizer)
                    clip_grad_norm_(left.parameters(), 1.0)
                    scaler.step(left_optimizer)

                    scaler.scale(right(batch)).backward()
                    limit(right.parameters(), None)
                    scaler.step(right_opt)  # expect
                    scaler.update()
            """,
            """
            from torch.cuda.amp import GradScaler
            from torch.nn.utils import clip_grad_norm_

            def limit(parameters, bound=None):
                if bound is not None:
                    clip_grad_norm_(parameters, bound)

            def train(batches, left, right, left_optimizer, right_opt):
                scaler = GradScaler()
                for batch in batches:
                    scaler.scale(left(batch)).backward()
                    scaler.unscale_(left_optimizer)
                    clip_grad_norm_(left.parameters(), 1.0)
                    scaler.step(left_optimizer)

                    scaler.scale(right(batch)).backward()
                    limit(right.parameters(), None)
                    scaler.unscale_(right_opt)
                    clip_grad_norm_([p for group in right_opt.param_groups for p in group["params"]], max_norm=1.0)
                    scaler.step(right_opt)
                    scaler.update()
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def fit(model, loader, optimizer, limit=None):
            scaler = torch.amp.GradScaler("cuda")
            for batch in loader:
                scaler.scale(model(batch)).backward()
                if limit:
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
                scaler.step(optimizer)
                scaler.update()
        """,
        """
        import torch
        from timm.optim import Lamb

        def fit(model, loader):
            optimizer = Lamb(model.parameters(), lr=1e-3)
            scaler = torch.amp.GradScaler("cuda")
            for batch in loader:
                scaler.scale(model(batch)).backward()
                scaler.step(optimizer)
                scaler.update()
        """,
        """
        import torch

        def fit(model, loader, optimizer, bound):
            for p in model.parameters():
                p.register_hook(lambda gradient: gradient.clamp(-bound, bound))
            scaler = torch.amp.GradScaler("cuda")
            for batch in loader:
                scaler.scale(model(batch)).backward()
                scaler.step(optimizer)
                scaler.update()
        """,
        """
        import torch

        class Scaled:
            def __init__(self):
                self.scaler = torch.amp.GradScaler("cuda")

            def __call__(self, loss, optimizer, parameters, clip=None):
                self.scaler.scale(loss).backward()
                if clip is not None:
                    self.scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(parameters, clip)
                self.scaler.step(optimizer)
                self.scaler.update()

        def fit(model, loader, optimizer, args):
            backward = Scaled()
            for batch in loader:
                backward(model(batch), optimizer, model.parameters(), clip=args.clip)
        """,
        """
        def fit(model, loader, optimizer):
            for batch in loader:
                model(batch).backward()
                optimizer.step()
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        steps: dict[ast.AST, tuple[Path, Event, Event] | None] = {}
        for path in context.protocol.paths(context.module):
            for step, backward in _steps(context, path):
                clipped = _is_clipped(context, path, step)
                if clipped or steps.get(step.node, ()) is None:
                    steps[step.node] = None
                else:
                    steps.setdefault(step.node, (path, backward, step))
        for found in steps.values():
            if found is not None:
                yield self._finding(context, *found)

    def _finding(self, context: Context, path: Path, backward: Event, step: Event) -> Finding:
        message = (
            "nothing limits the gradients between the scaled backward pass and this step: one bad batch can undo it"
        )
        related = context.protocol.related(path, backward, step)
        return self.finding(context, step.node, message, fix=_fix(context, path, step), related=related)


def _steps(context: Context, path: Path) -> Iterator[tuple[Event, Event]]:
    """The steps through a scaler in the judged file, each with the last scaled backward pass before it."""
    backward: dict[object, Event] = {}
    for event in path.events:
        if event.framework or event.inert or event.scaler is None:
            continue
        if event.kind is Kind.BACKWARD:
            backward[event.scaler] = event
        elif event.kind is Kind.STEP and event.module is context.module and event.scaler in backward:
            yield event, backward[event.scaler]


def _is_clipped(context: Context, path: Path, step: Event) -> bool:
    """Whether gradients of the stepped optimizer are limited on this path, since its last step or update."""
    optimizer = step.optimizer
    if optimizer is not None and context.protocol.optimizer_clips(optimizer):
        return True
    before = path.before(step)
    if any(event.kind is Kind.HOOK and _concerns(context, path, event, step) for event in before):
        return True
    for event in reversed(before):
        if event.kind is Kind.UPDATE and event.scaler == step.scaler:
            return False
        if event.kind is Kind.STEP and event.optimizer == optimizer:
            return False
        if event.kind is Kind.CLIP and _concerns(context, path, event, step):
            return True
    return False


def _concerns(context: Context, path: Path, limit: Event, step: Event) -> bool:
    """Whether a clip or hook may concern parameters of the stepped optimizer."""
    owners = context.protocol.owners(path, limit)
    return owners is None or step.optimizer in owners


def _fix(context: Context, path: Path, step: Event) -> Fix | None:
    module, call = context.module, step.node
    statement = module.statement(call)
    if not isinstance(statement, ast.Expr | ast.Assign) or not isinstance(call, ast.Call):
        return None
    if step.optimizer is None or step.subject is None or not isinstance(call.func, ast.Attribute):
        return None
    scaler, optimizer = (module.source.segment(part) for part in (call.func.value, step.subject))
    parameters = context.protocol.written_parameters(step.optimizer, optimizer, module, call)
    clip, imports = edit.add_import(module, _CLIP, call)
    lines = [f"{clip}({parameters}, max_norm={context.options.max_norm})"]
    unscaled = [_is_unscaled(p, e) for p in context.protocol.paths(module) for e in p.events if e.node is call]
    if any(unscaled) and not all(unscaled):
        return None
    if not any(unscaled):
        lines.insert(0, f"{scaler}.unscale_({optimizer})")
    edits = (*imports, *edit.insert_before(module, statement, lines))
    return Fix(f"Clip the gradient norm to {context.options.max_norm}", Safety.UNSAFE, edits)


def _is_unscaled(path: Path, step: Event) -> bool:
    for event in reversed(path.before(step)):
        if event.kind is Kind.UPDATE and event.scaler == step.scaler:
            return False
        if event.kind is Kind.UNSCALE and event.optimizer == step.optimizer:
            return True
    return False
