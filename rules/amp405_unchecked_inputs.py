"""AMP405: a training loop whose batches are never tested for finiteness."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from amplint import losses, scaling
from amplint.context import Context
from amplint.edit import add_import, insert_before
from amplint.protocol import Kind
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity
from amplint.tree import Module


class UncheckedInputs(Rule):
    """A training loop under a GradScaler never tests its batches for finiteness. Off by default.

    ## What it does
    Reports the loop over batches around a scaled backward pass where no `isfinite`, `isnan` or `isinf` looks at what
    the loop gives.

    ## Why
    One NaN in the data makes the loss of its batch NaN, and nothing tells it from an overflow of the model. Float16
    makes it worse: values beyond 65504 that were finite in the file become inf at the cast.

    ## Example
    ```python
    for step, (x, y) in enumerate(loader):
        ...
    ```
    Use instead:
    ```python
    for step, (x, y) in enumerate(loader):
        if not torch.isfinite(x).all():
            raise FloatingPointError(f"step {step}: the input is not finite")
        ...
    ```

    ## Fix
    Unsafe: inserts the test of the loop's first tensor. It costs a pass over the batch, so the rule is off by default;
    data that was cleaned once needs none.

    ## References
    - [torch.isfinite](https://docs.pytorch.org/docs/stable/generated/torch.isfinite.html)
    """

    code = "AMP405"
    name = "unchecked-inputs"
    severity = Severity.INFO
    summary = "the batch is never tested for finiteness"
    triggers = ((b"backward(",), (b"backward (",), (b"scaler",), (b"Scaler",))
    default = False
    fixable = "unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch

            def train(model, loader, opt, scaler: torch.amp.GradScaler):
                for i, (x, y) in enumerate(loader):  # expect
                    loss = model(x, y)
                    scaler.scale(loss).backward()
                    scaler.step(opt)
                    scaler.update()
            """,
            """
            import torch

            def train(model, loader, opt, scaler: torch.amp.GradScaler):
                for i, (x, y) in enumerate(loader):
                    if not torch.isfinite(x).all():
                        raise FloatingPointError(f"step {i}: the input is not finite")
                    loss = model(x, y)
                    scaler.scale(loss).backward()
                    scaler.step(opt)
                    scaler.update()
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def train(model, loader, opt, scaler: torch.amp.GradScaler):
            for x, y in loader:
                x = x.cuda()
                assert not torch.isnan(x).any()
                loss = model(x, y)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
        """,
        """
        def full_precision(model, loader, opt):
            for x, y in loader:
                model(x, y).backward()
                opt.step()
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        module = context.module
        seen: set[ast.AST] = set()
        for _, event in scaling.events_of(context, Kind.BACKWARD):
            if not event.scaled or event.module is not module:
                continue
            loop = next((x for x in losses.enclosing_loops(module, event.node) if _batch(x)), None)
            if loop is None or loop in seen:
                continue
            seen.add(loop)
            assert isinstance(loop, ast.For)
            if not _is_tested(module, loop):
                message = "nothing tests the batch: a NaN in the data looks like an overflow of the model"
                yield self.finding(context, loop, message, fix=_fix(module, loop))


def _batch(loop: losses.Loop) -> list[str]:
    """The names that a loop over batches gives; [] for a loop over numbers."""
    if not isinstance(loop, ast.For):
        return []
    target, iterable = loop.target, loop.iter
    called = ast.unparse(iterable.func).rpartition(".")[2] if isinstance(iterable, ast.Call) else ""
    if called in ("range", "trange", "count"):
        return []
    if called == "enumerate" and isinstance(target, ast.Tuple) and len(target.elts) == 2:
        target = target.elts[1]
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]


def _is_tested(module: Module, loop: ast.For) -> bool:
    known = losses.followed(loop, _batch(loop))
    calls = (node for node in ast.walk(loop) if isinstance(node, ast.Call) and losses.is_check(node))
    return any(losses.mentions(call, known) for call in calls)


def _fix(module: Module, loop: ast.For) -> Fix:
    isfinite, imports = add_import(module, "torch.isfinite", loop.body[0])
    step = losses.step(module, loop.body[0])
    told = f"step {{{step.text}}}: the input" if step else "the input"
    text = "f" * bool(step) + f'"{told} is not finite"'
    lines = [f"if not {isfinite}({_batch(loop)[0]}).all():", f"    raise FloatingPointError({text})"]
    inserted = insert_before(module, loop.body[0], lines)
    edits = (*imports, *(step.edits if step else ()), *inserted)
    return Fix("Stop with the step when the batch is not finite", Safety.UNSAFE, edits)
