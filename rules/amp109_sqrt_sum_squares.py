"""AMP109: a norm or a root mean square written with sqrt, whose gradient at 0 is NaN."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import ClassVar

from amplint import patterns
from amplint.context import Context
from amplint.edit import Precedence
from amplint.rewrite import Rewrite, UnmovableError
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity
from amplint.triggers import call
from amplint.values import Certainty, Dtype, Peeled, Value, Values, round_to

_EPS = "1e-6"
_ROOT = re.compile(rb"\*\* ?\(?(?:0?\.5|1\.?0? ?/)")
_PARTS = ("real", "imag", "grad")
"""Attributes that are tensors where their object is one; others are taken for settings."""


class SqrtSumSquares(Rule):
    """sqrt of a sum of squares has a NaN gradient at 0.

    ## What it does
    Reports square roots of sums and means of squares (`.pow(2).sum().sqrt()`, `sqrt(a**2 + b**2)`, `sqrt(mse)`),
    where gradients flow and nothing inside the root keeps it above zero in the dtype it is computed in.

    ## Why
    The slope of sqrt at 0 is infinite and that of the square is 0: their product, the gradient, is NaN. One pair of
    equal embeddings in a batch, or a perfect prediction, is enough. An epsilon added outside of the root does not
    help. In float16, `x * x` overflows above 255.94 besides (`x ** 2` runs in float32 under autocast, but not in a
    `.half()` model), and an epsilon of 2.98e-8 or less is lost. `torch.linalg.vector_norm` has gradient 0 at 0.

    ## Example
    ```python
    distance = (a - b).pow(2).sum(dim=1).sqrt()
    ```
    Use instead:
    ```python
    distance = torch.linalg.vector_norm(a - b, dim=1)
    ```

    ## Fix
    Safe for a plain sum: `vector_norm`. Unsafe otherwise: 1e-6 is added inside the root, which float16 keeps.

    ## References
    - [torch.linalg.vector_norm](https://pytorch.org/docs/stable/generated/torch.linalg.vector_norm.html)
    - [The gradient of sqrt at 0](https://github.com/pytorch/pytorch/issues/2421)
    """

    code = "AMP109"
    name = "sqrt-sum-squares"
    severity = Severity.WARNING
    summary = "the gradient of sqrt(sum(x**2)) at 0 is NaN; that of vector_norm is 0"
    triggers = ((call("sqrt"),), (_ROOT,), (call("pow"), b".5"), (call("pow"), b"1/2"), (call("pow"), b"1 / 2"))
    fixable = "safe/unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch

            def distance(a, b):
                return torch.sqrt(torch.sum((a - b) ** 2, dim=-1))  # expect

            def length(v: torch.Tensor):
                return v.pow(2).sum(1, keepdim=True).sqrt()  # expect

            def size(x: torch.Tensor):
                squares = x * x
                return squares.sum() ** 0.5  # expect

            def joined(a, b):
                return torch.sqrt(torch.stack((a, b)).pow(2).sum(0))  # expect

            def first(pairs):
                for x, *_ in pairs:
                    yield torch.sqrt(torch.sum(x * x, dim=0))  # expect

            @torch.no_grad()
            def guided(x, target):
                with torch.enable_grad():
                    return torch.autograd.grad(torch.sqrt(torch.sum((x - target) ** 2)), x)  # expect
            """,
            """
            import torch

            def distance(a, b):
                return torch.linalg.vector_norm(a - b, dim=-1)

            def length(v: torch.Tensor):
                return torch.linalg.vector_norm(v, dim=1, keepdim=True)

            def size(x: torch.Tensor):
                return torch.linalg.vector_norm(x)

            def joined(a, b):
                return torch.linalg.vector_norm(torch.stack((a, b)), dim=0)

            def first(pairs):
                for x, *_ in pairs:
                    yield torch.linalg.vector_norm(x, dim=0)

            @torch.no_grad()
            def guided(x, target):
                with torch.enable_grad():
                    return torch.autograd.grad(torch.linalg.vector_norm(x - target), x)
            """,
        ),
        Example(
            """
            import torch
            import torch.nn.functional as F

            def rmse(prediction, target):
                return torch.sqrt(F.mse_loss(prediction, target))  # expect

            def rms(x):
                return x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-8)  # expect

            def gradient_magnitude(image):
                dx, dy = torch.gradient(image, dim=(-2, -1))
                return torch.sqrt(dx**2 + dy**2).mean()  # expect
            """,
            """
            import torch
            import torch.nn.functional as F

            def rmse(prediction, target):
                return torch.sqrt(F.mse_loss(prediction, target) + 1e-6)

            def rms(x):
                return x / ((x.square().mean(-1, keepdim=True) + 1e-6).sqrt() + 1e-8)

            def gradient_magnitude(image):
                dx, dy = torch.gradient(image, dim=(-2, -1))
                return torch.sqrt(dx**2 + dy**2 + 1e-6).mean()
            """,
        ),
        Example(
            """
            import torch

            def length(h):
                return torch.sqrt((h * h).mean(-1) + 1e-8)  # expect

            def step(layer, x):
                with torch.autocast("cuda", dtype=torch.float16):
                    return length(torch.nn.functional.linear(x, layer)).mean()
            """,
        ),
        Example(
            """
            import torch

            def unit(x):
                x = x.half()
                return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-12)  # expect

            class Rmse(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.mse = torch.nn.MSELoss()

                def forward(self, a, b):
                    return self.mse(a, b).pow(0.5)  # expect
            """,
            """
            import torch

            def unit(x):
                x = x.half()
                return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)

            class Rmse(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.mse = torch.nn.MSELoss()

                def forward(self, a, b):
                    return (self.mse(a, b) + 1e-6).pow(0.5)
            """,
        ),
        Example(
            """
            import torch
            import torchaudio

            class Unit(torch.nn.Module):
                def forward(self, x):
                    if self.training or self.scaled:
                        return x / x.pow(2).sum(1).sqrt()  # expect
                    return x

            def distance(path, generated):
                audio, rate = torchaudio.load(path)
                return torch.sqrt(torch.mean(torch.square(audio - generated)))  # expect

            def penalty(critic, mixed):
                critic(mixed).sum().backward(create_graph=True)
                return (mixed.grad.pow(2).sum(1).sqrt() - 1).square().mean()  # expect
            """,
            """
            import torch
            import torchaudio

            class Unit(torch.nn.Module):
                def forward(self, x):
                    if self.training or self.scaled:
                        return x / torch.linalg.vector_norm(x, dim=1)
                    return x

            def distance(path, generated):
                audio, rate = torchaudio.load(path)
                return torch.sqrt(torch.mean(torch.square(audio - generated)) + 1e-6)

            def penalty(critic, mixed):
                critic(mixed).sum().backward(create_graph=True)
                return (torch.linalg.vector_norm(mixed.grad, dim=1) - 1).square().mean()
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch
        from torchmetrics import Metric

        class RootMeanSquare(Metric):
            def update(self, predicted, target):
                self.total += torch.sqrt(((predicted - target) ** 2).sum())
        """,
        """
        import torch
        from transformers import SequenceFeatureExtractor

        class Spectrogram(SequenceFeatureExtractor):
            def __call__(self, sound):
                return torch.stft(sound, 512, return_complex=False).pow(2).sum(-1).sqrt()

        def unit(x: torch.Tensor, config):
            return x / torch.sqrt(torch.clamp(torch.sum(x**2, dim=-1, keepdim=True), min=config.epsilon))
        """,
        """
        import torch

        class Damped(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x / (1 + x.pow(2).mean().sqrt())

            @staticmethod
            def backward(ctx, slope):
                (x,) = ctx.saved_tensors
                size = (slope**2).mean(dim=1, keepdim=True).sqrt()
                with torch.enable_grad():
                    leaf = x.detach().requires_grad_()
                    leaf.exp().sum().backward()
                    return slope / size + leaf.grad.square().mean().sqrt()

        class Head(torch.nn.Module):
            def forward(self, a, b):
                return self.loss(a, b) if self.training else (a - b).pow(2).sum(1).sqrt()

        def gradient_norm(weights):
            return torch.sqrt(sum(w.grad.pow(2).sum() for w in weights)), weights[0].grad.pow(2).sum().sqrt()
        """,
        """
        import torch
        import torchaudio

        def loudness(path):
            audio, rate = torchaudio.load(path)
            return torch.sqrt(torch.mean(torch.square(audio)))
        """,
        """
        import torch

        def charbonnier(a, b, eps=1e-3):
            return torch.sqrt((a - b) ** 2 + eps**2).mean()

        def distance(a, b):
            return torch.sqrt(((a - b) ** 2).sum(-1) + 1e-12) + (a - b).norm(dim=-1)

        def pseudo_huber(x, c):
            return torch.sqrt(x**2 + c**2) - c

        def precondition(self, sample, sigma):
            data = self.config.data
            return sample * (sigma**2 + data**2) ** 0.5 + torch.sqrt(sigma**2 + data**2)

        def rotated(self, x, y, angle):
            c, s = torch.cos(angle), torch.sin(angle)
            return torch.sqrt((x * c) ** 2 + (y * s) ** 2)

        def magnitude(a, b):
            return (a**2 + b**2) ** 0.5

        def huber(prediction, target, args):
            return torch.sqrt((prediction.float() - target.float()) ** 2 + args.delta**2)

        def norm(v, eps=1e-6):
            return v.square().sum(-1).add(eps).sqrt()

        def floor(v):
            return v.pow(2).sum(1).clamp_min(1e-12).sqrt()
        """,
        """
        import torch

        def length(h):
            return torch.sqrt((h**2).mean(-1) + 1e-8) + torch.sqrt((h * h).mean(-1) + 1e-4)

        def step(layer, x):
            with torch.autocast("cuda", dtype=torch.float16):
                return length(torch.nn.functional.linear(x, layer)).mean()
        """,
        """
        import torch

        @torch.no_grad()
        def error(a, b):
            return torch.sqrt(((a - b) ** 2).sum(-1)).mean()

        def report(model, x, y):
            with torch.inference_mode():
                return root_mean_square(model(x) - y)

        def root_mean_square(x):
            return x.pow(2).mean().sqrt()

        def valid(flow, limit):
            length = torch.sum(flow**2, dim=1).sqrt()
            return length < limit, (flow * flow).sum().sqrt().item()

        def test_close(case, a, b):
            gap = ((a - b) ** 2).sum() ** 0.5
            case.assertLess(gap, 1e-3)
            return float(torch.sqrt(torch.sum(a * a)))

        def logged(a, b):
            return (a - b).detach().square().sum().sqrt()
        """,
        """
        import math

        import numpy as np
        import torch

        def norms(a, b):
            return np.sqrt(np.sum((a - b) ** 2)), math.sqrt(a**2 + b**2)

        def scaled(q, k, dim):
            return q @ k.transpose(-1, -2) / dim**0.5

        def layered(n, m):
            x = torch.cat([torch.arange(n).view(1, -1) + i for i in range(m)], dim=0)
            return torch.sqrt(torch.stack((x, x + 1)).pow(2).sum(0))

        def radius(n):
            x = torch.linspace(-1, 1, n)
            return torch.sqrt(x[:, None] ** 2 + x**2)
        """,
        """
        import polars as pl
        import torch

        def speed(frame):
            x, y = pl.col("x"), pl.col("y")
            return frame.with_columns((x**2 + y**2).sqrt().alias("v"), (pl.col("a") ** 2 + pl.col("b") ** 2).sqrt())

        def length(x, y):
            return (x * x + y * y).sqrt()
        """,
        """
        import torch

        def deviation(x):
            return (x.pow(2).mean(0) - x.mean(0).pow(2)).clamp(min=0).sqrt(), x.var().sqrt()

        def likely(p, other):
            return torch.sqrt(p.sum(-1)) + torch.sqrt(p * other) + torch.sqrt(p**2)
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for root in context.values.operations(context.module, "sqrt", "pow"):
            if not patterns.is_made_here(context.module, root.argument("input")):
                continue
            sums = context.values.peel(patterns.rooted(root), patterns.GUARDED)
            if not patterns.every((p.core for p in sums), lambda core: _is_sum_of_squares(context.values, core)):
                continue
            if _is_taken_off_again(root) or _is_kept_above_zero(context.values, root, sums):
                continue
            if not context.values.gradients(root) or not _is_torch(context.values, root, sums):
                continue
            message = (
                "the gradient of this root is NaN where the sum is 0 (in float16 x * x overflows above 255.94, too)"
            )
            fix = _fix(context, root, sums[0]) if len(sums) == 1 else None
            yield self.finding(context, root.node, message, fix=fix)


def _is_torch(values: Values, root: Value, sums: tuple[Peeled, ...]) -> bool:
    """Whether it is a tensor's root: `(a**2 + b**2) ** 0.5` of what is not known may be of two numbers."""
    if any(peeled.core.op == "add" for peeled in sums):
        return values.is_tensor(root) is Certainty.ALWAYS
    return patterns.is_torch(values, root)


def _is_taken_off_again(root: Value) -> bool:
    """Whether it is the pseudo-Huber loss, `sqrt(x**2 + c**2) - c`, whose c is a number."""
    parent = root.module.parent(root.node)
    if not isinstance(parent, ast.BinOp) or not isinstance(parent.op, ast.Sub) or parent.left is not root.node:
        return False
    inside = root.argument("input")
    return inside is not None and any(_has_term(node, ast.dump(parent.right)) for node in ast.walk(inside))


def _has_term(node: ast.AST, dumped: str) -> bool:
    """Whether an expression is an operand of this arithmetic: no exponent, no argument of a call such as `sum(1)`."""
    if not isinstance(node, ast.BinOp):
        return False
    operands = (node.left,) if isinstance(node.op, ast.Pow) else (node.left, node.right)
    return any(ast.dump(operand) == dumped for operand in operands)


def _is_kept_above_zero(values: Values, root: Value, sums: tuple[Peeled, ...]) -> bool:
    """Whether an epsilon or clamp inside the root keeps it above zero, however it is reached."""
    if not any(peeled.took("eps") or peeled.took("clamp") for peeled in sums):
        return False
    return all(_has_floor(values, seen) for seen in values.seen(root))


def _has_floor(values: Values, root: Value) -> bool:
    """Whether one is above zero in the dtype that it has there; one given by a parameter counts by its default.

    One that is not known, as of a configuration, is trusted.
    """
    inside = patterns.rooted(root)
    if any(value.interval.positive for value in inside):
        return True
    for step in (step for peeled in values.peel(inside, patterns.GUARDED) for step in peeled.steps):
        names = ("input", "other") if step.kind == "eps" else ("min", "other") if step.kind == "clamp" else ()
        numbers = [number for name in names if (number := step.value.number(name)) is not None]
        dtype = Dtype.FLOAT16 if step.value.may_be_half else Dtype.FLOAT32
        if any(round_to(number, dtype) > 0 for number in numbers) or (names and not numbers):
            return True
    return False


def _is_sum_of_squares(values: Values, value: Value) -> bool:
    if value.op == "mse_loss":
        return True
    if value.op in ("sum", "mean"):
        terms = patterns.local_operand(value, "input")
        return patterns.every(terms, lambda v: _is_square(values, v) or _is_sum_of_squares(values, v))
    if value.op == "div":
        return patterns.every(patterns.local_operand(value, "input"), lambda v: _is_sum_of_squares(values, v))
    if value.op == "add":
        left, right = (patterns.local_operand(value, name) for name in ("input", "other"))
        are_squares = bool(left and right) and all(
            _is_square(values, v) or _is_sum_of_squares(values, v) for v in (*left, *right)
        )
        return are_squares and not _adds_number(values, value) and not _is_on_ellipse(values, value)
    return False


def _adds_number(values: Values, total: Value) -> bool:
    """Whether one of the squares that are added may be of a number: `x**2 + args.delta**2` stays above zero."""
    operands = (*total.operand("input"), *total.operand("other"))
    bases = [base for square in operands for base in patterns.squared(values, square)]
    certainties = {values.is_tensor(base) for base in bases}
    unknown = [base for base in bases if values.is_tensor(base) is Certainty.UNKNOWN]
    if Certainty.NEVER in certainties or (unknown and Certainty.ALWAYS in certainties):
        return True
    return any(isinstance(base.node, ast.Attribute) and base.node.attr not in _PARTS for base in unknown)


def _is_on_ellipse(values: Values, total: Value) -> bool:
    """Whether the squares are of a sine and a cosine, which are never both 0: `(a * cos(t))**2 + (b * sin(t))**2`."""
    found: set[str] = set()
    for square in (*total.operand("input"), *total.operand("other")):
        for base in patterns.squared(values, square):
            factors = [v for name in ("input", "other") for v in patterns.local_operand(base, name)]
            found |= {value.op for value in ([base] if base.op != "mul" else factors)}
    return {"cos", "sin"} <= found


def _is_square(values: Values, value: Value) -> bool:
    """Whether `value` is a square, or a square times something (a mask, a weight)."""
    if any(patterns.is_square(values, inner) for inner in patterns.bare(value)):
        return True
    if value.op != "mul":
        return False
    return any(_is_square(values, v) for name in ("input", "other") for v in patterns.local_operand(value, name))


def _fix(context: Context, root: Value, peeled: Peeled) -> Fix | None:
    rewrite = Rewrite(context, root.node)
    try:
        base = _plainly_squared(context.values, peeled)
        if base is not None:
            total = peeled.core
            dim, keepdim = (rewrite.keyword(name, total.argument(name)) for name in ("dim", "keepdim"))
            rewrite.replace(root.node, rewrite.call("torch.linalg.vector_norm", rewrite.text(base), dim, keepdim))
            return rewrite.fix("Use vector_norm", Safety.UNSAFE if peeled.steps else Safety.SAFE)
        inside = root.argument("input")
        if inside is None or peeled.took("eps") or peeled.took("clamp"):
            return None
        rewrite.replace(inside, f"{rewrite.text(inside, Precedence.SUM)} + {_EPS}")
        return rewrite.fix("Add an epsilon inside the root", Safety.UNSAFE)
    except UnmovableError:
        return None


def _plainly_squared(values: Values, peeled: Peeled) -> ast.expr | None:
    """x, where what is under the root is a sum of x**2 and nothing else but an epsilon or a clamp."""
    total = peeled.core
    if total.op != "sum" or total.argument("dtype") is not None or not patterns.is_only_guarded(peeled):
        return None
    squares = total.operand("input")
    is_square = len(squares) == 1 and patterns.is_square(values, squares[0])
    return patterns.part(squares[0]) if is_square else None
