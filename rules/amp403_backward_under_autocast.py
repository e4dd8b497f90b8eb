"""AMP403: backward() inside the autocast block."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from amplint.context import Context
from amplint.edit import move_after
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity
from amplint.tree import Module
from amplint.values import Region, RegionKind

_ENABLED = (RegionKind.FLOAT16, RegionKind.BFLOAT16, RegionKind.CPU)
_BACKWARD = ("backward", "manual_backward")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class BackwardUnderAutocast(Rule):
    """backward() stands inside the autocast block.

    ## What it does
    Reports `.backward()` in the body of an enabled `with autocast(...)`, or in a function that is decorated with it.

    ## Why
    Each backward operation runs in the dtype of its forward one, autocast or not, so the block does nothing for it.
    The AMP guide advises against it.

    ## Example
    ```python
    with torch.autocast("cuda"):
        loss = criterion(model(x), y)
        scaler.scale(loss).backward()
    ```
    Use instead:
    ```python
    with torch.autocast("cuda"):
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    ```

    ## Fix
    Unsafe: moves the call, and what follows it in the block, after the block. None under a decorator, or where the call
    stands deeper than the block's own level.

    ## References
    - [torch.autocast](https://docs.pytorch.org/docs/stable/amp.html#autocasting)
    """

    code = "AMP403"
    name = "backward-under-autocast"
    severity = Severity.INFO
    summary = "backward() inside the autocast block"
    triggers = ((b"backward(", b"autocast"), (b"backward(", b"amp"))
    fixable = "unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch

            def train(model, loader, opt, scaler):
                for x in loader:
                    with torch.autocast("cuda"):
                        loss = model(x)
                        # scaled
                        scaler.scale(loss).backward()  # expect
                    scaler.step(opt)
                    scaler.update()
            """,
            """
            import torch

            def train(model, loader, opt, scaler):
                for x in loader:
                    with torch.autocast("cuda"):
                        loss = model(x)
                    # scaled
                    scaler.scale(loss).backward()
                    scaler.step(opt)
                    scaler.update()
            """,
        ),
        Example(
            """
            import torch

            def train(model, loader, opt):
                for x in loader:
                    with torch.autocast("cuda", dtype=torch.bfloat16):
                        loss = model(x)
                        loss.backward()  # expect
                        opt.step()
                        opt.zero_grad()
            """,
            """
            import torch

            def train(model, loader, opt):
                for x in loader:
                    with torch.autocast("cuda", dtype=torch.bfloat16):
                        loss = model(x)
                    loss.backward()
                    opt.step()
                    opt.zero_grad()
            """,
        ),
        Example(
            """
            import torch

            @torch.autocast("cuda")
            def step(model, x, opt):
                model(x).backward()  # expect
                opt.step()
            """
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def train(model, loader, opt, scaler):
            for x in loader:
                with torch.autocast("cuda"):
                    loss = model(x)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
        """,
        """
        import torch

        def calibrate(head, x, opt):
            with torch.autocast("cuda", enabled=False):
                loss = head(x.float())
                loss.backward()
                opt.step()
        """,
        """
        import torch

        def train(model, x, scaler):
            with torch.autocast("cuda"):
                loss = model(x)

                def later():
                    scaler.scale(loss).backward()

            later()
        """,
        """
        import torch

        class Double(torch.autograd.Function):
            @staticmethod
            def backward(ctx, grad):
                with torch.enable_grad(), torch.autocast("cuda", enabled=False):
                    y = ctx.x * ctx.x
                    y.backward(grad)
                return ctx.x.grad
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        module = context.module
        for call in module.calls:
            if not isinstance(call.func, ast.Attribute) or call.func.attr not in _BACKWARD:
                continue
            if isinstance(call.func.value, ast.Call) and ast.unparse(call.func.value) == "super()":
                continue
            region = context.values.region(module, call)
            if region.kind not in _ENABLED or not (around := _block(module, call, region)):
                continue
            compiled = _is_compiled(module, call)
            message = "the backward pass stands under autocast: it runs in its forward dtypes anyway"
            if compiled:
                message = (
                    "the backward pass of compiled code stands under autocast: it is traced under it a second time"
                )
            severity = Severity.WARNING if compiled else None
            yield self.finding(context, call, message, severity=severity, fix=_fix(module, call, around))


def _block(module: Module, call: ast.Call, region: Region) -> ast.AST | None:
    """The `with` block or decorated function around the call, in its own function, that opens the region."""
    openers = {place.node for place in region.why if place.module is module}
    child: ast.AST = call
    for ancestor in module.ancestors(call):
        if isinstance(ancestor, ast.With | ast.AsyncWith) and child in ancestor.body:
            return ancestor
        if isinstance(ancestor, _FUNCTIONS):
            is_opener = any(node in openers for item in ancestor.decorator_list for node in ast.walk(item))
            return ancestor if is_opener else None
        if isinstance(ancestor, ast.Lambda | ast.ClassDef):
            return None
        child = ancestor
    return None


def _is_compiled(module: Module, call: ast.Call) -> bool:
    """Whether the function around the call is compiled: decorated with torch.compile, or passed to it."""
    function = module.function(call)
    if function is None:
        return False
    decorators = [d.func if isinstance(d, ast.Call) else d for d in function.decorator_list]
    if any(module.is_named(decorator, "torch.compile") for decorator in decorators):
        return True
    return any(
        module.is_named(other.func, "torch.compile")
        and any(isinstance(a, ast.Name) and a.id == function.name for a in other.args)
        for other in module.calls
    )


def _fix(module: Module, call: ast.Call, around: ast.AST) -> Fix | None:
    statement = module.statement(call)
    if not isinstance(around, ast.With) or statement not in around.body or statement is around.body[0]:
        return None
    moved = around.body[around.body.index(statement) :]
    if len(around.items) > 1:
        return None
    return Fix("Move the backward pass out of the block", Safety.UNSAFE, move_after(module, moved, around))
