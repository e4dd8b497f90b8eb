"""AMP406: a loss that is NaN is replaced by a number."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from amplint import losses, scaling
from amplint.context import Context
from amplint.rule import Example, Finding, Rule, Severity
from amplint.tree import Module

_MESSAGE = "this hides the fault: the loss looks finite, its gradient is NaN all the same (0 * inf = NaN)"
_REPLACED = "a constant in place of the loss hides the fault: the step trains nothing, and the next one meets it again"
_NUMPY = ("numpy", "jax", "tensorflow", "cupy", "math")


class NanMasked(Rule):
    """`nan_to_num` on a loss, or a constant in place of a loss that is NaN.

    ## What it does
    Reports `nan_to_num`, `where(isnan(loss), …)` and `masked_fill(isnan(loss), …)` on a loss that gradients flow
    from, and guards such as `if torch.isnan(loss): loss = torch.tensor(0.0)`.

    ## Why
    The number that is printed becomes finite, the gradient does not: the derivative of the operation that made the
    NaN is multiplied by zero, and 0 * inf is NaN. It reaches the parameters, or the GradScaler skips every such step
    in silence. The fault stays where it is, and nothing points to it any more.

    ## Example
    ```python
    loss = torch.nan_to_num(loss)
    ```
    Use instead the operation that does not make the NaN (`log_softmax`, `binary_cross_entropy_with_logits`, an eps that
    float16 keeps), and stop where the loss is not finite:
    ```python
    if not torch.isfinite(loss):
        raise FloatingPointError(f"step {step}: loss is {loss.item()}")
    ```

    ## Fix
    None: the cause must be found first. `amplint trace SCRIPT` names the step, the operation and the line.

    ## References
    - [torch.nan_to_num](https://docs.pytorch.org/docs/stable/generated/torch.nan_to_num.html)
    """

    code = "AMP406"
    name = "nan-masked"
    severity = Severity.WARNING
    summary = "nan_to_num on a loss, or a NaN loss replaced by a constant, hides the fault"
    triggers = (
        (b"nan_to_num", b"torch"),
        (b"isnan", b"loss", b"torch"),
        (b"isfinite", b"loss", b"torch"),
        (b"isnan", b"backward("),
    )
    INVALID: ClassVar = (
        Example(
            """
            import torch

            def train(model, loader, opt, criterion):
                for x, y in loader:
                    value = criterion(model(x), y)
                    value = torch.nan_to_num(value, nan=0.0).mean()  # expect
                    value.backward()
                    opt.step()
            """
        ),
        Example(
            """
            import torch

            def objective(pred, target):
                loss = torch.log(pred) * target
                loss = torch.where(torch.isnan(loss), torch.zeros_like(loss), loss)  # expect
                return -loss.sum()

            def other(pred, target):
                loss = (torch.log(pred) * target).sum()
                return loss.nan_to_num(0.0)  # expect
            """
        ),
        Example(
            """
            import torch

            def train(model, loader, opt, scaler):
                for x in loader:
                    loss = model(x)
                    if torch.isnan(loss):  # expect
                        loss = torch.tensor(0.0, requires_grad=True)
                    scaler.scale(loss).backward()
                    scaler.step(opt)
                    scaler.update()
            """
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def train(model, loader, opt, criterion, log):
            for x, y in loader:
                loss = criterion(model(torch.nan_to_num(x)), y)
                loss.backward()
                opt.step()
                log(torch.nan_to_num(loss.detach()).item())
        """,
        """
        import torch

        def train(model, loader, opt, scaler):
            for x in loader:
                loss = model(x)
                if not torch.isfinite(loss):
                    continue
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
        """,
        """
        import numpy as np
        import torch

        def report(losses, path):
            loss = np.nan_to_num(np.asarray(losses))
            torch.save(loss, path)
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        module = context.module
        parts = {part for _, loss in losses.backward_losses(module) for part in losses.parts(module, loss)}
        for call in module.calls:
            if _masks(module, call) and _is_loss(module, call, parts):
                yield self.finding(context, call, _MESSAGE)
            elif _tests_loss(call, parts) and losses.replaced_by_constant(module, call):
                yield self.finding(context, call, _REPLACED)


def _masks(module: Module, call: ast.Call) -> bool:
    """Whether a call replaces what is not finite in its operand."""
    name = scaling.called(call)
    if any(dotted.split(".")[0] in _NUMPY for dotted in module.names(call.func)):
        return False
    if name in ("nan_to_num", "nan_to_num_"):
        return True
    if name not in ("where", "masked_fill", "masked_fill_"):
        return False
    return any(isinstance(n, ast.Call) and losses.is_check(n) for argument in call.args for n in ast.walk(argument))


def _is_loss(module: Module, call: ast.Call, parts: set[ast.expr]) -> bool:
    """Whether the operand is a loss that gradients flow from."""
    if call in parts:
        return True
    parent = module.parent(call)
    if not isinstance(parent, ast.Assign | ast.Return | ast.Expr | ast.BinOp | ast.Attribute):
        return False
    operand = _operand(module, call)
    return operand is not None and losses.is_called_loss(operand)


def _operand(module: Module, call: ast.Call) -> ast.expr | None:
    func = call.func
    if scaling.called(call) == "where":
        return next((argument for argument in call.args[1:] if losses.is_called_loss(argument)), None)
    if isinstance(func, ast.Attribute) and not module.names(func):
        return func.value
    return call.args[0] if call.args else None


def _tests_loss(call: ast.Call, parts: set[ast.expr]) -> bool:
    if not losses.is_check(call):
        return False
    func = call.func
    tested = call.args[0] if call.args else func.value if isinstance(func, ast.Attribute) else None
    if tested is None:
        return False
    written = {ast.unparse(part) for part in parts if isinstance(part, ast.Name | ast.Attribute)}
    return losses.is_called_loss(tested) or ast.unparse(tested) in written
