"""AMP108: the log-determinant of tanh, written so that it loses its digits where tanh saturates."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from amplint import patterns
from amplint.context import Context
from amplint.edit import Precedence
from amplint.rewrite import Rewrite, UnmovableError
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity
from amplint.triggers import call
from amplint.values import Certainty, Peeled, Value


class TanhLogJacobian(Rule):
    """log(1 - tanh(x)**2) is -inf where tanh rounds to 1.

    ## What it does
    Reports the logarithm of 1 - tanh(x)**2, with or without an epsilon, scaled by the range of an action or not: the
    change-of-variables term of squashed Gaussian policies (SAC) and flows.

    ## Why
    tanh(x) is exactly 1 above 9.01 in float32 and above 4.51 in float16 (tanh runs in the dtype it is given, so under
    autocast too); the logarithm is -inf there. An epsilon of 1e-6 caps it at -13.8 instead, with a wrong value and no
    gradient, so that a saturated policy is never pushed back. The identity
    `log(1 - tanh(x)**2) = 2 * (log(2) - x - softplus(-2 * x))` is exact for every x.

    ## Example
    ```python
    log_prob -= torch.log(1 - torch.tanh(x).pow(2) + 1e-6)
    ```
    Use instead:
    ```python
    log_prob -= 2 * (math.log(2) - x - F.softplus(-2 * x))
    ```

    ## Fix
    Unsafe: the numbers change where the old ones were wrong. None where x is not at hand, or where it is not known
    whether the scale is a number or a tensor.

    ## References
    - [TanhTransform](https://pytorch.org/docs/stable/distributions.html#torch.distributions.transforms.TanhTransform)
    - Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", 2018, appendix C
    """

    code = "AMP108"
    name = "tanh-log-jacobian"
    severity = Severity.WARNING
    summary = "log(1 - tanh(x)**2) is -inf where tanh rounds to 1"
    triggers = ((b"tanh", call("log", "1p")), (b"Tanh", call("log", "1p")))
    fixable = "unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch
            import torch.nn.functional as F

            def squash(u, log_prob):
                action = torch.tanh(u)
                log_prob = log_prob - torch.log(1 - action.pow(2) + 1e-6).sum(-1)  # expect
                return action, log_prob
            """,
            """
            import math

            import torch
            import torch.nn.functional as F

            def squash(u, log_prob):
                action = torch.tanh(u)
                log_prob = log_prob - (2 * (math.log(2) - u - F.softplus(-2 * u))).sum(-1)
                return action, log_prob
            """,
        ),
        Example(
            """
            import math

            import torch as th

            class Flow(th.nn.Module):
                def forward(self, x):
                    y = x.tanh()
                    return y, -th.log(1.0 - y * y).sum(1)  # expect

                def scaled(self, x, low, high):
                    y = th.tanh(x)
                    half = (high - low) / 2
                    return th.log(half * (1 - y**2) + 1e-6)  # expect

                def ranged(self, x, scale: th.Tensor):
                    y = th.tanh(x)
                    return self.prior(x) - th.log(scale * (1 - y**2) + 1e-6)  # expect

                def clipped(self, x):
                    return (1 - th.tanh(x - 1) ** 2).clamp(min=1e-6).log()  # expect
            """,
            """
            import math

            import torch as th

            class Flow(th.nn.Module):
                def forward(self, x):
                    y = x.tanh()
                    return y, -(2 * (math.log(2) - x - th.nn.functional.softplus(-2 * x))).sum(1)

                def scaled(self, x, low, high):
                    y = th.tanh(x)
                    half = (high - low) / 2
                    return th.log(half * (1 - y**2) + 1e-6)

                def ranged(self, x, scale: th.Tensor):
                    return self.prior(x) - (th.log(scale) + 2 * (math.log(2) - x - th.nn.functional.softplus(-2 * x)))

                def clipped(self, x):
                    return 2 * (math.log(2) - (x - 1) - th.nn.functional.softplus(-2 * (x - 1)))
            """,
        ),
        Example(
            """
            import torch
            from torch import nn

            class Actor(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.squash = nn.Tanh()

                def log_prob(self, u):
                    a = self.squash(u)
                    return (1 - a.square()).log1p(), torch.log(1 - a.square() + 1e-7)  # expect

                def bounded(self, a):
                    return torch.log(torch.relu(1 - torch.tanh(a) ** 2) + 1e-6)  # expect

                def shifted(self, x):
                    y = torch.tanh(self.net(x))
                    return torch.log(1 - y.pow(2) + self.eps), torch.log1p(-(y**2))  # expect
            """,
            """
            import math

            import torch
            from torch import nn

            class Actor(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.squash = nn.Tanh()

                def log_prob(self, u):
                    a = self.squash(u)
                    return (1 - a.square()).log1p(), 2 * (math.log(2) - u - nn.functional.softplus(-2 * u))

                def bounded(self, a):
                    return 2 * (math.log(2) - a - nn.functional.softplus(-2 * a))

                def shifted(self, x):
                    y = torch.tanh(self.net(x))
                    return torch.log(1 - y.pow(2) + self.eps), torch.log1p(-(y**2))
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import math

        import torch
        import torch.nn.functional as F

        def squash(u, log_prob):
            return torch.tanh(u), log_prob - (2 * (math.log(2) - u - F.softplus(-2 * u))).sum(-1)
        """,
        """
        import torch

        def entropy(p, x):
            return torch.log(1 - p.pow(2)) + torch.tanh(x).pow(2)

        def other(x):
            return torch.log(1 + torch.tanh(x) ** 2) + torch.log(2 - torch.tanh(x) ** 2)

        def shrunk(x):
            return torch.log(1 - 0.9 * torch.tanh(x) ** 2) + torch.log(1.1 - torch.tanh(x) ** 2 + 0.1)
        """,
        """
        import numpy as np
        import torch

        def reference(x):
            return np.log(1 - np.tanh(x) ** 2)

        def branch(x, squash):
            y = torch.tanh(x) if squash else 0.5 * x.sin()
            return torch.log(1 - y**2)
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for log in context.values.operations(context.module, "log", "log1p"):
            if not patterns.is_made_here(context.module, log.argument("input")):
                continue
            insides = context.values.peel(log.operand("input"), patterns.GUARDED)
            found = [_tanh_squared(context, log, peeled.core) for peeled in insides]
            tangents = [tangent for tangent in found if tangent is not None]
            if not tangents or len(tangents) < len(found):
                continue
            limit = "4.51 (float16)" if tangents[0].tanh.is_half else "9.01 (4.51 in float16)"
            message = f"tanh is exactly 1 above {limit}: this log is -inf there, or an epsilon caps it without gradient"
            fix = _fix(context, log, insides[0], tangents[0]) if len(insides) == 1 else None
            yield self.finding(context, log.node, message, fix=fix)


@dataclass(frozen=True, slots=True)
class _Tangent:
    """The tanh in 1 - tanh(x)**2; `is_alone`: nothing scales the difference or is added to it."""

    tanh: Value
    is_alone: bool = True


def _tanh_squared(context: Context, log: Value, value: Value) -> _Tangent | None:
    if log.op == "log":
        return _in_difference(context, value)
    return _in_square(context, value.operand("input")) if value.op == "neg" else None


def _in_difference(context: Context, value: Value) -> _Tangent | None:
    """The tanh in `value`, if that is 1 - tanh(x)**2, perhaps rectified, scaled, or with something added."""
    operands = (*value.operand("input"), *value.operand("other"))
    if value.op == "relu":
        return _in_difference(context, operands[0]) if len(operands) == 1 else None
    if value.op == "mul" or (value.op == "add" and _may_add_epsilon(context, operands)):
        found = next((tangent for factor in operands if (tangent := _in_difference(context, factor))), None)
        return None if found is None else _Tangent(found.tanh, is_alone=False)
    return _in_square(context, patterns.one_minus(value))


def _in_square(context: Context, squares: tuple[Value, ...]) -> _Tangent | None:
    bases = [base for square in squares for base in patterns.squared(context.values, square)]
    tangents = [inner for base in bases for inner in patterns.bare(base)]
    return _Tangent(tangents[0]) if patterns.every(tangents, lambda value: value.op == "tanh") else None


def _may_add_epsilon(context: Context, operands: tuple[Value, ...]) -> bool:
    """Whether one operand may be an epsilon whose number is not known: `+ self.eps`."""
    others = [value for value in operands if context.values.is_tensor(value) is not Certainty.ALWAYS]
    return bool(others) and all(value.as_number() is None for value in others)


def _scaled(context: Context, product: Value) -> tuple[Value, ast.expr] | None:
    """The scale in scale * (1 - tanh(x)**2), as a value and as it is written."""
    for name, other in (("input", "other"), ("other", "input")) if product.op == "mul" else ():
        factors, scales, node = product.operand(name), product.operand(other), product.argument(other)
        found = _in_difference(context, factors[0]) if len(factors) == 1 else None
        if found is not None and found.is_alone and len(scales) == 1 and node is not None:
            return scales[0], node
    return None


def _log_of(rewrite: Rewrite, scaled: tuple[Value, ast.expr]) -> str:
    """The logarithm of a scale: of a number or of a tensor. Raises UnmovableError where it is not known which."""
    scale, node = scaled
    number = scale.as_number()
    if number is not None and number > 0:
        return rewrite.call("math.log", rewrite.text(node))
    if scale.engine.is_tensor(scale) is Certainty.ALWAYS:
        return rewrite.call("torch.log", rewrite.text(node))
    raise UnmovableError("the scale may be a number or a tensor")


def _fix(context: Context, log: Value, inside: Peeled, tangent: _Tangent) -> Fix | None:
    scaled = _scaled(context, inside.core)
    if not (tangent.is_alone or scaled) or not patterns.is_only_guarded(inside):
        return None
    rewrite = Rewrite(context, log.node)
    try:
        x = patterns.part(tangent.tanh)
        term, factor = rewrite.text(x, Precedence.TERM), rewrite.text(x, Precedence.UNARY)
        log_2 = rewrite.call("math.log", "2")
        softplus = rewrite.call("torch.nn.functional.softplus", f"-2 * {factor}")
        scale = f"{_log_of(rewrite, scaled)} + " if scaled else ""
        rewrite.replace(log.node, f"{scale}2 * ({log_2} - {term} - {softplus})")
        return rewrite.fix("Use the identity with softplus", Safety.UNSAFE)
    except UnmovableError:
        return None
