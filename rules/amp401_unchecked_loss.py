"""AMP401: a training step whose loss is never tested for finiteness."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from amplint import frameworks, losses, scaling
from amplint.context import Context
from amplint.edit import add_import, insert_before
from amplint.protocol import Event, Kind, Path, is_of_step
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity
from amplint.tree import Module


class UncheckedLoss(Rule):
    """A training step under a GradScaler whose loss is never tested for finiteness.

    ## What it does
    Reports the scaled backward pass of a loss that nothing tests: no `isfinite`, `isnan` or `isinf`, no comparison
    with a limit that stops the step, neither of the loss nor of the total gradient norm, before or after the backward
    pass, here or in a helper. Code that ends the run once the scale has collapsed is left alone.

    ## Why
    A GradScaler skips steps whose gradients are not finite, and says nothing. A loss that is NaN for good (a
    `log(softmax)` that met an exact 0, say) skips every step, halves the scale each time and trains nothing: of 200
    steps 166 were skipped, and the scale ended at 0. It is noticed an epoch later, when neither the batch nor the
    step can be told any more.

    ## Example
    ```python
    scaler.scale(loss).backward()
    ```
    Use instead:
    ```python
    if not torch.isfinite(loss):
        raise FloatingPointError(f"step {step}: loss is {loss.item()}")
    scaler.scale(loss).backward()
    ```

    ## Fix
    Unsafe, as it can end a run that went on before: inserts the test before the backward pass, with the loop's own
    counter, or with an `enumerate` that it adds. The test waits for the GPU once a step.

    ## References
    - [torch.isfinite](https://docs.pytorch.org/docs/stable/generated/torch.isfinite.html)
    """

    code = "AMP401"
    name = "unchecked-loss"
    severity = Severity.INFO
    summary = "a training step's loss is never tested for finiteness"
    triggers = ((b"backward(",), (b"backward (",))
    fixable = "unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch

            def train(model, loader, opt, scaler: torch.amp.GradScaler):
                for step, x in enumerate(loader):
                    assert torch.isfinite(x).all()
                    loss = model(x)
                    scaler.scale(loss).backward()  # expect
                    scaler.step(opt)
                    scaler.update()
            """,
            """
            import torch

            def train(model, loader, opt, scaler: torch.amp.GradScaler):
                for step, x in enumerate(loader):
                    assert torch.isfinite(x).all()
                    loss = model(x)
                    if not torch.isfinite(loss):
                        raise FloatingPointError(f"step {step}: loss is {loss.item()}")
                    scaler.scale(loss).backward()
                    scaler.step(opt)
                    scaler.update()
            """,
        ),
        Example(
            """
            import torch

            def train(model, loader, opt):
                scaler = torch.amp.GradScaler("cuda")
                for step, (x, y) in enumerate(loader):
                    opt.zero_grad()
                    with torch.autocast("cuda"):
                        loss = torch.nn.functional.mse_loss(model(x), y)
                    # the scale grows while all goes well
                    scaler.scale(loss).backward()  # expect
                    scaler.step(opt)
                    scaler.update()
            """,
            """
            import torch

            def train(model, loader, opt):
                scaler = torch.amp.GradScaler("cuda")
                for step, (x, y) in enumerate(loader):
                    opt.zero_grad()
                    with torch.autocast("cuda"):
                        loss = torch.nn.functional.mse_loss(model(x), y)
                    if not torch.isfinite(loss):
                        raise FloatingPointError(f"step {step}: loss is {loss.item()}")
                    # the scale grows while all goes well
                    scaler.scale(loss).backward()
                    scaler.step(opt)
                    scaler.update()
            """,
        ),
        Example(
            """
            import torch as th

            def train(model, loader, opt, scaler: th.amp.GradScaler, accum=4):
                best = None
                for x, y in loader:
                    with th.autocast("cuda"):
                        loss = model(x, y)
                    scaler.scale(loss / accum).backward()  # expect
                    scaler.step(opt)
                    scaler.update()
                    if best is None or loss < best:
                        best = loss.detach()
            """,
            """
            import torch as th

            def train(model, loader, opt, scaler: th.amp.GradScaler, accum=4):
                best = None
                for step, (x, y) in enumerate(loader):
                    with th.autocast("cuda"):
                        loss = model(x, y)
                    if not th.isfinite(loss):
                        raise FloatingPointError(f"step {step}: loss is {loss.item()}")
                    scaler.scale(loss / accum).backward()
                    scaler.step(opt)
                    scaler.update()
                    if best is None or loss < best:
                        best = loss.detach()
            """,
        ),
        Example(
            """
            import torch

            def train(model, loader, opt, schedule, scaler: torch.amp.GradScaler):
                for i, x in enumerate(loader):
                    scaler.scale(model(x)).backward()  # expect
                    scaler.step(opt)
                    before = scaler.get_scale()
                    scaler.update()
                    if scaler.get_scale() < before:
                        continue
                    schedule.step()
            """,
        ),
        Example(
            """
            import torch

            class Trainer:
                def __init__(self, model, opt):
                    self.model, self.opt, self.seen = model, opt, 0
                    self.scaler = torch.amp.GradScaler("cuda")

                def run(self, loader):
                    for x in loader:
                        total = self.model(x)
                        self.scaler.scale(total).backward()  # expect
                        self.scaler.step(self.opt)
                        self.scaler.update()
                        self.seen += 1
            """,
            """
            import torch

            class Trainer:
                def __init__(self, model, opt):
                    self.model, self.opt, self.seen = model, opt, 0
                    self.scaler = torch.amp.GradScaler("cuda")

                def run(self, loader):
                    for x in loader:
                        total = self.model(x)
                        if not torch.isfinite(total):
                            raise FloatingPointError(f"step {self.seen}: loss is {total.item()}")
                        self.scaler.scale(total).backward()
                        self.scaler.step(self.opt)
                        self.scaler.update()
                        self.seen += 1
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def train(model, loader, opt, scaler: torch.amp.GradScaler):
            for x in loader:
                assert torch.isfinite(x).all()
                loss = model(x)
                scaler.scale(loss).backward()
                total = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                if not torch.isfinite(total):
                    break
                scaler.step(opt)
                scaler.update()
        """,
        """
        import math
        import torch

        def train(model, loader, opt, scaler: torch.amp.GradScaler):
            for x in loader:
                loss = model(x)
                scaler.scale(loss).backward()
                value = loss.item()
                if not math.isfinite(value):
                    raise SystemExit(1)
                scaler.step(opt)
                scaler.update()
        """,
        """
        import torch

        def guard(value):
            assert torch.isfinite(value).all(), "diverged"

        def train(model, loader, opt, scaler: torch.amp.GradScaler):
            for x in loader:
                loss = model(x)
                guard(loss)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
        """,
        """
        import torch

        def train(model, loader, opt, scaler: torch.amp.GradScaler, limit=1e3):
            history = []
            for x in loader:
                loss = model(x)
                scaler.scale(loss).backward()
                scaler.unscale_(opt)
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                if norm.isnan() or norm.isinf():
                    print("not finite")
                scaler.step(opt)
                scaler.update()

        def watched(model, loader, opt, scaler: torch.amp.GradScaler, limit=1e3):
            history = []
            for x in loader:
                loss = model(x)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
                history.append(loss.item())
                if not history[-1] < limit:
                    break
        """,
        """
        import torch

        def too_small(scale):
            raise RuntimeError(f"the scale is {scale}")

        def train(model, loader, opt, scaler: torch.amp.GradScaler):
            for i, x in enumerate(loader):
                scaler.scale(model(x)).backward()
                scaler.step(opt)
                scaler.update()
                if i % 100 == 0:
                    scale = scaler.get_scale()
                    if scale < 1e-4:
                        too_small(scale)
        """,
        """
        def full_precision(model, loader, opt):
            for x in loader:
                loss = model(x)
                loss.backward()
                opt.step()
                opt.zero_grad()
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for backward, paths in _scaled_backwards(context).items():
            event = next(e for e in paths[0].events if e.node is backward)
            if event.subject is None:
                continue
            loss = losses.unscaled(context.module, event.subject)
            if any(_is_tested(path, event, loss) for path in paths):
                continue
            if _is_limited(context, event, loss, paths) or _watches_scale(context, event):
                continue
            message = "nothing tests this loss: a NaN makes the scaler skip every step in silence"
            yield self.finding(context, backward, message, fix=_fix(context.module, event, loss))


def _scaled_backwards(context: Context) -> dict[ast.AST, list[Path]]:
    """The scaled backward passes in the judged file, each with the paths that pass it."""
    found: dict[ast.AST, list[Path]] = {}
    for path, event in scaling.events_of(context, Kind.BACKWARD):
        is_own = not event.framework or frameworks.is_float16(context, event)
        if event.scaled and event.module is context.module and is_own:
            paths = found.setdefault(event.node, [])
            if path not in paths:
                paths.append(path)
    return found


def _is_tested(path: Path, backward: Event, loss: ast.expr) -> bool:
    """Whether the path passes a finiteness test: in a helper, or here of the loss or of gradients, not of the batch."""
    module = backward.module
    here = losses.function_or_module(module, backward.node)
    norms = [name for event in path.events if event.kind is Kind.CLIP for name in _result(event)]
    known = losses.followed(here, {*losses.names(module, loss), *norms})
    for event in path.events:
        if event.kind is Kind.CHECK:
            is_here = event.module is module and losses.function_or_module(module, event.node) is here
            if not is_here or losses.mentions(event.node, known) or is_of_step(event.node):
                return True
    return False


def _is_limited(context: Context, backward: Event, loss: ast.expr, paths: list[Path]) -> bool:
    """Whether a check by name, or a comparison that can stop the step, looks at the loss or at the gradient norm."""
    module = context.module
    here = losses.function_or_module(module, backward.node)
    known = losses.followed(here, losses.names(module, loss))
    if any(losses.is_check(call) and losses.mentions(call, known) for call in _calls(module, here)):
        return True
    if next(losses.limits(context, module, here, known), None):
        return True
    for path in paths:
        for event in path.events:
            if event.kind is Kind.CLIP and (norm := _result(event)):
                around = losses.function_or_module(event.module, event.node)
                if next(losses.limits(context, event.module, around, losses.followed(around, norm)), None):
                    return True
    return False


def _watches_scale(context: Context, backward: Event) -> bool:
    """Whether a scale that has collapsed, as it does under a loss that stays NaN, ends the run."""
    module = context.module
    here = losses.function_or_module(module, backward.node)
    scales = {
        ast.unparse(node)
        for node in ast.walk(here)
        if isinstance(node, ast.Attribute) and node.attr in ("get_scale", "_scale")
    }
    return bool(scales) and any(losses.limits(context, module, here, losses.followed(here, scales), ending=True))


def _calls(module: Module, function: ast.AST) -> Iterator[ast.Call]:
    return (call for call in module.calls if losses.function_or_module(module, call) is function)


def _result(event: Event) -> list[str]:
    """The names that the result of a call is assigned to."""
    parent = event.module.parent(event.node)
    return [ast.unparse(target) for target in parent.targets] if isinstance(parent, ast.Assign) else []


def _fix(module: Module, backward: Event, whole: ast.expr) -> Fix | None:
    loss = _leading_name(whole)
    if loss is None:
        return None
    step = losses.step(module, backward.node)
    isfinite, imports = add_import(module, "torch.isfinite", backward.node)
    told = f"step {{{step.text}}}: loss is" if step else "loss is"
    text = ast.unparse(loss)
    lines = [f"if not {isfinite}({text}):", f'    raise FloatingPointError(f"{told} {{{text}.item()}}")']
    inserted = insert_before(module, module.statement(backward.node), lines)
    return Fix(
        "Stop with the step and the value when the loss is not finite",
        Safety.UNSAFE,
        (*imports, *(step.edits if step else ()), *inserted),
    )


def _leading_name(loss: ast.expr) -> ast.expr | None:
    """`loss` of `loss`, `loss / n` or `loss * weight`."""
    while isinstance(loss, ast.BinOp) and isinstance(loss.op, ast.Div | ast.Mult):
        loss = loss.left
    is_dotted = isinstance(loss, ast.Attribute) and isinstance(loss.value, ast.Name)
    return loss if isinstance(loss, ast.Name) or is_dotted else None
