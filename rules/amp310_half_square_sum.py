"""AMP310: squares of a float16 tensor, which overflow beyond 255.94, summed or averaged."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from amplint import half, patterns, precedence
from amplint.context import Context
from amplint.rule import Example, Finding, Fix, Rule, Severity
from amplint.torch_ops import Kind
from amplint.values import Certainty, Value, Values

_SUMS = ("sum", "mean", "nansum", "nanmean", "cumsum")
_LARGEST_ROOT = 255.94
"""The largest number whose float16 square is finite."""


class HalfSquareSum(Rule):
    """Squares of a float16 tensor overflow beyond 255.94.

    ## What it does
    Reports `x * x` of a float16 tensor that is summed, averaged, or added to another square (mean squares, variances
    and norms by hand). In `.half()` code also `x ** 2`, `pow(2)` and `square()`, and the sum of a whole feature map
    without `dim`. Under CUDA autocast `**`, `pow` and `square` run in float32, so those are not reported there, nor is
    a tensor whose range is known to be small (`sigmoid`, `tanh`, a softmax).

    ## Why
    The largest float16 is 65504, so `x * x` is infinite for |x| >= 256, which activations reach. The mean is then
    infinite, and a norm made of it divides everything to 0, or to NaN.

    ## Example
    ```python
    variance = (x * x).mean(-1, keepdim=True)
    ```
    Use instead:
    ```python
    variance = (x.float() * x.float()).mean(-1, keepdim=True)
    ```

    ## Fix
    `.float()` on what is squared. Safe under autocast; unsafe in `.half()` code, where what follows may want float16
    back.

    ## References
    - [PyTorch pull request 133085](https://github.com/pytorch/pytorch/pull/133085), RMSNorm upcasts float16 first
    """

    code = "AMP310"
    name = "half-square-sum"
    severity = Severity.WARNING
    summary = "squares of a float16 tensor overflow beyond 255.94"
    in_half = True
    triggers = ((b"*",), (b"pow",), (b"square",), (b"sum",), (b"mul",))
    fixable = "safe/unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch
            from torch import nn

            class Energy(nn.Module):
                def __init__(self, dim):
                    super().__init__()
                    self.fc = nn.Linear(dim, dim)

                def forward(self, x):
                    h = self.fc(x)
                    power = (h * h).mean(-1)  # expect
                    variance = h.mul(h).mean() - h.mean() ** 2  # expect
                    re, im = h.chunk(2, -1)
                    magnitude = re * re + im * im  # expect
                    return power, variance, magnitude

            def run(net: Energy, x):
                with torch.autocast("cuda", dtype=torch.float16):
                    return net(x)
            """,
            """
            import torch
            from torch import nn

            class Energy(nn.Module):
                def __init__(self, dim):
                    super().__init__()
                    self.fc = nn.Linear(dim, dim)

                def forward(self, x):
                    h = self.fc(x)
                    power = (h.float() * h.float()).mean(-1)
                    variance = h.float().mul(h.float()).mean() - h.mean() ** 2
                    re, im = h.chunk(2, -1)
                    magnitude = re.float() * re.float() + im.float() * im.float()
                    return power, variance, magnitude

            def run(net: Energy, x):
                with torch.autocast("cuda", dtype=torch.float16):
                    return net(x)
            """,
        ),
        Example(
            """
            import torch as th
            from norms import MeanSquareNorm

            class Block(th.nn.Module):
                def __init__(self, dim):
                    super().__init__()
                    self.norm = MeanSquareNorm(dim)
                    self.conv = th.nn.Conv2d(3, 8, 3)

                def forward(self, image):
                    maps = self.conv(image)
                    total = maps.sum()  # expect
                    return self.norm(maps), (maps ** 2).sum(1) / total  # expect

            def load(dim):
                return Block(dim).to("cuda", th.float16).eval()
            """,
            """
            import torch as th
            from norms import MeanSquareNorm

            class Block(th.nn.Module):
                def __init__(self, dim):
                    super().__init__()
                    self.norm = MeanSquareNorm(dim)
                    self.conv = th.nn.Conv2d(3, 8, 3)

                def forward(self, image):
                    maps = self.conv(image)
                    total = maps.float().sum()
                    return self.norm(maps), (maps.float() ** 2).sum(1) / total

            def load(dim):
                return Block(dim).to("cuda", th.float16).eval()
            """,
            {
                "norms.py": """
                import torch as th

                class MeanSquareNorm(th.nn.Module):
                    def __init__(self, dim, eps=1e-4):
                        super().__init__()
                        self.weight = th.nn.Parameter(th.ones(dim))
                        self.eps = eps

                    def forward(self, x):
                        power = x.pow(2).mean(-1, keepdim=True)  # expect
                        return self.weight * x * th.rsqrt(power + self.eps)
                """,
            },
        ),
    )
    VALID: ClassVar = (
        """
        import torch
        from torch import nn

        class Energy(nn.Module):
            def __init__(self, dim):
                super().__init__()
                self.fc = nn.Linear(dim, dim)

            def forward(self, x):
                h = self.fc(x)
                power = (h ** 2).mean(-1) + h.pow(2).sum(-1) + h.square().mean()
                gate = h.sigmoid()
                small = (gate * gate).sum(-1)
                wide = h.float()
                p = h.softmax(-1)
                return power, small, (wide * wide).sum(), (p * p).sum(), (h * x).sum(), h * h

        def run(net: Energy, x):
            with torch.autocast("cuda", dtype=torch.float16):
                return net(x)
        """,
        """
        import torch

        def float32(fc: torch.nn.Linear, x):
            h = fc(x)
            return (h * h).mean() + h.sum()

        def brain_float(fc: torch.nn.Linear, x):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                h = fc(x)
                return (h * h).mean()

        def unknown(x, y):
            return (x * x).sum() + (y * y).sum()
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        claimed, summed = precedence.Claims(context), _summed_squares(context)
        for value, verdict in half.verdicts(context, _grade, "mul", "pow", "square", "sum"):
            if not (_is_whole_sum(value) if value.op == "sum" else value.node in summed):
                continue
            if value.node in claimed:
                continue
            yield self.finding(
                context,
                value.node,
                _message(value.op),
                fix=_fix(context, value, verdict),
                related=verdict.related,
            )


def _grade(seen: Value) -> Certainty:
    """How surely it is computed in float16, of numbers that may be large."""
    operands = seen.operand("input")
    large = [value for value in operands if value.interval.absolute().upper >= _LARGEST_ROOT]
    if not large:
        return Certainty.NEVER
    if seen.op == "sum" and not any(_is_feature_map(value) for value in large):
        return Certainty.NEVER
    return half.is_half(seen)


def _is_whole_sum(value: Value) -> bool:
    return value.argument("dim") is None and value.argument("dtype") is None


def _is_feature_map(value: Value, depth: int = 4) -> bool:
    """Whether a tensor is what a layer returns, activated or reshaped maybe."""
    operation = value.operation
    if operation is None or depth == 0:
        return False
    if operation.kind in (Kind.LAYER, Kind.MATMUL):
        return True
    if operation.kind in (Kind.ELEMENTWISE, Kind.SHAPE):
        return any(_is_feature_map(inner, depth - 1) for inner in value.operand(operation.parameters[0]))
    return False


def _summed_squares(context: Context) -> frozenset[ast.AST]:
    """The squares of this file that are summed, averaged, or added to another square."""
    values, found = context.values, list[Value]()
    for total in values.operations(context.module, *_SUMS, half=True):
        found += (square for term in total.operand("input") for square in _squares(values, term))
    for addition in values.operations(context.module, "add", half=True):
        left, right = ([s for v in addition.operand(n) for s in _squares(values, v)] for n in ("input", "other"))
        found += [*left, *right] if left and right else []
    return frozenset(square.node for square in found)


def _squares(values: Values, term: Value, depth: int = 3) -> Iterator[Value]:
    """The squares that `term` is: reshaped, weighted, or added to others."""
    for bare in patterns.bare(term):
        if patterns.squared(values, bare):
            yield bare
        elif bare.op in ("mul", "div", "add") and depth:
            other = () if bare.op == "div" else bare.operand("other")
            for operand in (*bare.operand("input"), *other):
                yield from _squares(values, operand, depth - 1)


def _message(op: str) -> str:
    if op == "sum":
        return "the sum of a whole float16 feature map is infinite beyond 65504, the largest float16"
    return (
        "float16 squares are infinite for |x| >= 256 (the largest float16 is 65504), and so is what is summed of them"
    )


def _fix(context: Context, value: Value, verdict: half.Verdict) -> Fix | None:
    names = ("input", "other") if value.op == "mul" else ("input",)
    nodes = [half.operand_node(value, name) for name in names]
    if value.in_place or None in nodes:
        return None
    edits = {change for node in nodes if node for change in half.upcast(context.module, node)}
    return Fix("square in float32", verdict.safety, tuple(sorted(edits)))
