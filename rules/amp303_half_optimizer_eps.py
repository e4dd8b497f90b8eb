"""AMP303: an optimizer over half parameters whose eps float16 rounds to zero."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from amplint import edit, half, optimizers
from amplint.context import Context
from amplint.optimizers import Optimizer
from amplint.rule import Edit, Example, Finding, Fix, Rule, Safety, Severity

_LARGEST_LOST = 2.0**-25
_KEPT = "1e-4"


class HalfOptimizerEps(Rule):
    """Adam over float16 parameters divides 0 by 0.

    ## What it does
    Reports Adam, AdamW, NAdam, Adamax, RMSprop and Adagrad over the parameters of a module that was cast to float16,
    with an eps that float16 rounds to zero. The default does. Not reported: `fused=True`, SGD, Adadelta, and float32
    parameters trained under autocast, where the state is float32 as well.

    ## Why
    The state has the dtype of the parameters. float16 keeps no positive number at or below 2**-25 = 2.98e-08, so the
    denominator `sqrt(v) + 1e-8` is 0 for every parameter whose gradient was 0 so far, and the first step makes it NaN.

    ## Example
    ```python
    model = Net().cuda().half()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    ```
    Use instead:
    ```python
    model = Net().cuda()  # train it under torch.autocast with a GradScaler
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    ```

    ## Fix
    Unsafe: `eps=1e-4`, which float16 keeps. Float32 parameters under autocast are the better cure.

    ## References
    - [Adam in half precision gives NaN](https://discuss.pytorch.org/t/adam-half-precision-nans/1765)
    """

    code = "AMP303"
    name = "half-optimizer-eps"
    severity = Severity.ERROR
    summary = "an optimizer over float16 parameters has an eps that float16 rounds to zero"
    triggers = ((b"Adam",), (b"RMSprop",), (b"Adagrad",))
    fixable = "unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch
            from torch import nn, optim

            def train(loader):
                model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).cuda()
                model.half()
                optimizer = optim.Adam(model.parameters(), lr=1e-3)  # expect
                for x, y in loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x.half()).float(), y).backward()
                    optimizer.step()
            """,
            """
            import torch
            from torch import nn, optim

            def train(loader):
                model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).cuda()
                model.half()
                optimizer = optim.Adam(model.parameters(), lr=1e-3, eps=1e-4)
                for x, y in loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x.half()).float(), y).backward()
                    optimizer.step()
            """,
        ),
        Example(
            """
            import torch
            from net import Net

            class Trainer:
                def __init__(self, lr, eps=1e-9):
                    self.net = Net().to("cuda", dtype=torch.float16)
                    weights = [p for p in self.net.parameters() if p.requires_grad]
                    self.optimizer = torch.optim.AdamW(  # expect
                        weights,
                        lr=lr,
                        eps=eps,
                    )
                    self.second = torch.optim.RMSprop([{"params": self.net.parameters()}], lr)  # expect
            """,
            """
            import torch
            from net import Net

            class Trainer:
                def __init__(self, lr, eps=1e-9):
                    self.net = Net().to("cuda", dtype=torch.float16)
                    weights = [p for p in self.net.parameters() if p.requires_grad]
                    self.optimizer = torch.optim.AdamW(
                        weights,
                        lr=lr,
                        eps=1e-4,
                    )
                    self.second = torch.optim.RMSprop([{"params": self.net.parameters()}], lr, eps=1e-4)
            """,
            {
                "net.py": """
                from torch import nn

                class Net(nn.Module):
                    def __init__(self):
                        super().__init__()
                        self.fc = nn.Linear(8, 2)

                    def forward(self, x):
                        return self.fc(x)
                """,
            },
        ),
    )
    VALID: ClassVar = (
        """
        import torch
        from torch import nn

        def train(loader):
            model = nn.Linear(8, 2).cuda()
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-15)
            with torch.autocast("cuda", dtype=torch.float16):
                return model(next(loader)), optimizer
        """,
        """
        import torch
        from torch import nn

        def half_models(lr):
            a = nn.Linear(8, 2).half()
            b = nn.Linear(8, 2).bfloat16()
            c = nn.Linear(8, 2).half().float()
            return (
                torch.optim.Adam(a.parameters(), lr=lr, eps=1e-4),
                torch.optim.Adam(a.parameters(), lr=lr, fused=True),
                torch.optim.SGD(a.parameters(), lr=lr),
                torch.optim.Adadelta(a.parameters(), lr=lr),
                torch.optim.AdamW(b.parameters(), lr=lr),
                torch.optim.AdamW(c.parameters(), lr=lr),
            )
        """,
        """
        import torch
        from apex import amp
        from torch import nn

        class Trainer:
            def __init__(self):
                self.net = nn.Linear(8, 2)
                self.optimizer = self.optimizer_of(1e-3)
                self.net, self.optimizer = amp.initialize(self.net, self.optimizer, opt_level="O2")

            def optimizer_of(self, lr):
                return torch.optim.Adam(self.net.parameters(), lr=lr)
        """,
        """
        import torch
        from torch import nn

        def head_only(lr):
            body = nn.Linear(8, 8).half()
            head = nn.Linear(8, 2)
            optimizer = torch.optim.Adam(head.parameters(), lr=lr)
            return body, head, optimizer

        def unknown(model, lr):
            return torch.optim.Adam(model.parameters(), lr=lr)
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for optimizer in optimizers.optimizers(context):
            if optimizer.eps is None or not 0 <= optimizer.eps <= _LARGEST_LOST or _is_fused(optimizer):
                continue
            if not optimizers.is_half(context, optimizer.call):
                continue
            yield self.finding(
                context,
                optimizer.call,
                f"eps={optimizer.eps:g} is 0 in float16 (2**-25 = 2.98e-08 and less round to 0), the dtype of these "
                f"parameters and so of {optimizer.kind.name}'s state: a step divides 0 by 0 where a gradient is 0",
                severity=Severity.WARNING if _is_set_elsewhere(context, optimizer) else None,
                fix=Fix(f"use eps={_KEPT}", Safety.UNSAFE, _with_eps(context, optimizer)),
            )


def _is_set_elsewhere(context: Context, optimizer: Optimizer) -> bool:
    """Whether the eps is an option's default: a run may give another."""
    return optimizer.eps_node is not None and half.is_setting(context.values.of(context.module, optimizer.eps_node))


def _is_fused(optimizer: Optimizer) -> bool:
    """Whether the fused kernel may be chosen, which computes in float32."""
    node = edit.argument(optimizer.call, "fused")
    return node is not None and not (isinstance(node, ast.Constant) and not node.value)


def _with_eps(context: Context, optimizer: Optimizer) -> tuple[Edit, ...]:
    node = optimizer.eps_node
    if node is None or any(keyword.value is node for keyword in optimizer.call.keywords):
        return edit.set_argument(context.module, optimizer.call, "eps", _KEPT)
    return (edit.replace(context.module, node, _KEPT, parentheses=True),)
