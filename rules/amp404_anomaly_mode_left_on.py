"""AMP404: anomaly detection left on in mixed-precision training."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from amplint import scaling
from amplint.context import Context
from amplint.edit import argument
from amplint.rule import Example, Finding, Rule, Severity
from amplint.tree import Module

_SWITCHES = ("torch.autograd.set_detect_anomaly", "torch.autograd.anomaly_mode.set_detect_anomaly")
_CONTEXTS = ("torch.autograd.detect_anomaly", "torch.autograd.anomaly_mode.detect_anomaly")
_MIXED_PRECISION = ("autocast", "GradScaler", "Accelerator", "Fabric", "initialize")


class AnomalyModeLeftOn(Rule):
    """Anomaly detection is switched on, unconditionally, in mixed-precision training.

    ## What it does
    Reports `torch.autograd.set_detect_anomaly(True)` and `detect_anomaly()` that no test decides on, in a file that
    trains with autocast or a GradScaler.

    ## Why
    It checks every gradient of every step and keeps a stack trace for every operation: training becomes several times
    slower. Under a GradScaler it is also wrong by design: the overflows that the scaler exists to absorb, in the first
    two or three steps of every run, raise `RuntimeError: Function ... returned nan values in its 0th output`.

    ## Example
    ```python
    torch.autograd.set_detect_anomaly(True)
    ```
    Use instead:
    ```python
    torch.autograd.set_detect_anomaly(args.debug)
    ```

    ## Fix
    None. Remove it, or put it under a debug flag. `amplint trace SCRIPT` finds the first non-finite tensor, forward or
    backward, without the warm-up overflows.

    ## References
    - [Anomaly detection](https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection)
    """

    code = "AMP404"
    name = "anomaly-mode-left-on"
    severity = Severity.INFO
    summary = "anomaly detection left on unconditionally in mixed-precision training"
    triggers = ((b"detect_anomaly",),)
    INVALID: ClassVar = (
        Example(
            """
            import torch

            torch.autograd.set_detect_anomaly(True)  # expect
            scaler = torch.amp.GradScaler("cuda")
            """
        ),
        Example(
            """
            import torch
            from torch import autograd
            from torch.amp import autocast

            def train(model, loader, scaler, opt):
                for x in loader:
                    with autocast("cuda"):
                        loss = model(x)
                    with autograd.detect_anomaly():  # expect
                        scaler.scale(loss).backward()
                    scaler.step(opt)
                    scaler.update()

            if __name__ == "__main__":
                autograd.set_detect_anomaly(mode=True, check_nan=True)  # expect
            """
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def main(args):
            torch.autograd.set_detect_anomaly(args.debug)
            scaler = torch.amp.GradScaler("cuda")
        """,
        """
        import torch

        def main(args):
            if args.detect_anomaly:
                torch.autograd.set_detect_anomaly(True)
            torch.autograd.set_detect_anomaly(False)
            scaler = torch.amp.GradScaler("cuda")
        """,
        """
        import torch

        torch.autograd.set_detect_anomaly(True)

        def full_precision(model, x):
            model(x).backward()
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        module = context.module
        if not _trains_in_mixed_precision(module):
            return
        for call in module.calls:
            if _switches_on(module, call) and not _is_conditional(module, call):
                message = "anomaly detection stays on: every step is slower, and the scaler's own overflows raise"
                yield self.finding(context, call, message)


def _switches_on(module: Module, call: ast.Call) -> bool:
    if module.is_named(call.func, *_CONTEXTS):
        return True
    if not module.is_named(call.func, *_SWITCHES):
        return False
    mode = argument(call, "mode", 0)
    return isinstance(mode, ast.Constant) and mode.value is True


def _is_conditional(module: Module, call: ast.Call) -> bool:
    """Whether a test decides on the call; `if __name__ == "__main__"` is none."""
    return any(
        (isinstance(ancestor, ast.If) and "__name__" not in ast.unparse(ancestor.test))
        or isinstance(ancestor, ast.IfExp | ast.BoolOp | ast.Try | ast.ExceptHandler)
        for ancestor in module.ancestors(call)
    )


def _trains_in_mixed_precision(module: Module) -> bool:
    for call in module.calls:
        name = scaling.called(call)
        is_amp = name != "initialize" or any(dotted.startswith("apex.amp") for dotted in module.names(call.func))
        if name in _MIXED_PRECISION and is_amp:
            return True
    return False
