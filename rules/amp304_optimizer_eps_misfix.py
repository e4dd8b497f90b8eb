"""AMP304: a large optimizer eps that is meant to cure a NaN loss, and cannot."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from amplint import optimizers
from amplint.context import Context
from amplint.rule import Example, Finding, Rule, Severity

_LARGE = 1e-5
_SCALERS = (
    "torch.amp.GradScaler",
    "torch.cuda.amp.GradScaler",
    "torch.amp.grad_scaler.GradScaler",
    "torch.cuda.amp.grad_scaler.GradScaler",
)


class OptimizerEpsMisfix(Rule):
    """A larger optimizer eps does not cure a NaN loss under autocast.

    ## What it does
    Reports an eps of 1e-5 or more given to Adam, AdamW, NAdam, Adamax, RMSprop or Adagrad beside a GradScaler, over
    float32 parameters.

    ## Why
    "Raise Adam's eps to 1e-4" is right for parameters in float16, where the default 1e-8 is zero. Under autocast the
    parameters and the optimizer's state are float32, and 1e-8 is in no danger. A NaN there arises in the forward or
    backward pass, before the optimizer is asked; a large eps only makes the steps smaller where gradients are small.

    ## Example
    ```python
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    ```
    Use instead:
    ```python
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    ```
    and find the operation that gives the first NaN: `amplint check`, `amplint trace`.

    ## Fix
    None: some recipes choose a large eps on purpose.

    ## References
    - [PyTorch issue 8860](https://github.com/pytorch/pytorch/issues/8860)
    """

    code = "AMP304"
    name = "optimizer-eps-misfix"
    severity = Severity.INFO
    summary = "a large optimizer eps does not cure a NaN loss under autocast"
    triggers = ((b"eps", b"GradScaler"),)
    INVALID: ClassVar = (
        Example(
            """
            import torch
            from torch import nn

            def train(loader):
                model = nn.Linear(8, 2).cuda()
                optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4)  # expect
                scaler = torch.amp.GradScaler("cuda")
                for x, y in loader:
                    optimizer.zero_grad()
                    with torch.autocast("cuda", dtype=torch.float16):
                        loss = nn.functional.cross_entropy(model(x), y)
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
            """
        ),
        Example(
            """
            from torch.cuda.amp import GradScaler
            from torch.optim import RMSprop

            EPS = 1e-3

            class Trainer:
                def __init__(self, model):
                    self.scaler = GradScaler()
                    self.optimizer = RMSprop(  # expect
                        model.parameters(),
                        lr=1e-3,
                        eps=EPS,  # stop the NaN
                    )

                def step(self, loss):
                    self.scaler.scale(loss).backward()
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
            """
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def train(model, loss):
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-7)
            other = torch.optim.AdamW(model.parameters())
            scaler = torch.amp.GradScaler("cuda")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.step(other)
            scaler.update()
        """,
        """
        import torch

        def train(model, loss, args):
            model = torch.nn.Linear(8, 2).half()
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4)
            tuned = torch.optim.Adam(model.parameters(), lr=1e-3, eps=args.eps)
            scaler = torch.amp.GradScaler("cuda")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return tuned
        """,
        """
        import torch

        def float32(model, loss):
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4)
            loss.backward()
            optimizer.step()

        def off(model, loss):
            scaler = torch.amp.GradScaler("cuda", enabled=False)
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        scalers = [call for call in context.module.calls if _is_enabled_scaler(context, call)]
        for optimizer in optimizers.optimizers(context) if scalers else ():
            if optimizer.eps is None or optimizer.eps < _LARGE or optimizer.eps_node is None:
                continue
            is_beside = any(_owner(context, call) is _owner(context, optimizer.call) for call in scalers)
            if not is_beside or optimizers.is_half(context, optimizer.call):
                continue
            yield self.finding(
                context,
                optimizer.call,
                f"eps={optimizer.eps:g} does not cure a NaN loss: under autocast parameters and optimizer state are "
                "float32, where 1e-8 is kept; the NaN arises in the forward or backward pass",
            )


def _is_enabled_scaler(context: Context, call: ast.Call) -> bool:
    is_off = any(
        keyword.arg == "enabled" and isinstance(keyword.value, ast.Constant) and not keyword.value.value
        for keyword in call.keywords
    )
    return not is_off and context.module.is_named(call.func, *_SCALERS)


def _owner(context: Context, node: ast.AST) -> ast.AST:
    """The class, or else the outermost function, or else the file, in which a node stands."""
    around = [a for a in context.module.ancestors(node) if isinstance(a, ast.ClassDef | ast.FunctionDef)]
    return next((a for a in around if isinstance(a, ast.ClassDef)), around[-1] if around else context.module.tree)
