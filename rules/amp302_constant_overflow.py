"""AMP302: a constant that float16 cannot hold, written into a float16 tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

from amplint import edit, half
from amplint.context import Context
from amplint.rule import Edit, Example, Finding, Fix, Rule, Safety, Severity
from amplint.values import FLOAT16_MAX, Certainty, Dtype, Value, round_to

_AS_FAR_AS_IT_GOES = 1e6
"""A constant of at least this size in arithmetic is a mask; a smaller one may be a scale, which no limit replaces."""

_CHECKED = {
    "masked_fill": ("value",),
    "fill_": ("value",),
    "full": ("fill_value",),
    "full_like": ("fill_value",),
    "new_full": ("fill_value",),
    "index_fill": ("value",),
    "pad": ("value",),
    "threshold": ("value",),
    "clamp": ("min", "max"),
    "clamp_min": ("min",),
    "clamp_max": ("max",),
}
"""Operations that raise for a constant beyond the range, and its parameters."""

_SILENT = {
    "add": ("input", "other"),
    "sub": ("input", "other"),
    "rsub": ("input", "other"),
    "mul": ("input", "other"),
    "where": ("input", "other"),
    "maximum": ("input", "other"),
    "minimum": ("input", "other"),
    "setitem": ("value",),
    "tensor": ("data",),
    "new_tensor": ("data",),
    "scalar_tensor": ("s",),
}
"""Operations that make an infinity of it."""

_PARAMETERS = _CHECKED | _SILENT


class ConstantOverflow(Rule):
    """A constant beyond 65504 does not fit into a float16 tensor.

    ## What it does
    Reports constants beyond ±65504 that are filled, masked, clamped, added, multiplied, selected by `torch.where` or
    assigned into a tensor which is float16 there: `-1e9` in an attention mask, `torch.finfo(torch.float32).min`. The
    constant may come from a module constant, an attribute, a default argument or a caller in another file. Nothing is
    reported where the tensor is float32: after `softmax`, `sum`, `**` or `.float()` under autocast, or where a float32
    mask promotes the sum.

    ## Why
    The largest float16 is 65504. `masked_fill`, `fill_`, `clamp`, `full_like`, `index_fill` and `F.pad` raise
    `value cannot be converted to type c10::Half without overflow`. Arithmetic, `torch.tensor`, `torch.where` and
    `x[i] = -1e9` store `-inf` without a word, and softmax over a row that is `-inf` throughout is NaN. The smallest
    number of the tensor's own dtype masks just as well: such a row becomes uniform.

    ## Example
    ```python
    scores = scores.masked_fill(mask == 0, -1e9)
    ```
    Use instead:
    ```python
    scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
    ```

    ## Fix
    Safe: `torch.finfo(x.dtype).min` (or `.max`), right in every dtype. A constant that is a parameter of the function
    is limited instead: `max(value, torch.finfo(x.dtype).min)`. None for a factor or summand below 1e6, which may be a
    scale.

    ## References
    - [apex issue 1052](https://github.com/NVIDIA/apex/issues/1052), the exception under autocast
    - [transformers pull request 17306](https://github.com/huggingface/transformers/pull/17306), which replaced such
      constants by `torch.finfo(dtype).min`
    """

    code = "AMP302"
    name = "constant-overflow"
    severity = Severity.ERROR
    summary = "a constant beyond 65504 is written into a float16 tensor"
    in_half = True
    triggers = ((b"fill",), (b"where",), (b"1e",), (b"finfo",), (b"000",), (b"999",))
    fixable = "safe"
    INVALID: ClassVar = (
        Example(
            """
            import torch
            from torch import nn

            class Attention(nn.Module):
                def __init__(self, dim):
                    super().__init__()
                    self.query, self.key = nn.Linear(dim, dim), nn.Linear(dim, dim)

                def forward(self, x, padding):
                    weights = self.query(x) @ self.key(x).transpose(1, 2)
                    weights = weights.masked_fill(padding, -1e9)  # expect
                    return weights.softmax(-1) @ x

            def infer(layer: Attention, x, padding):
                with torch.autocast("cuda", dtype=torch.float16):
                    return layer(x, padding)
            """,
            """
            import torch
            from torch import nn

            class Attention(nn.Module):
                def __init__(self, dim):
                    super().__init__()
                    self.query, self.key = nn.Linear(dim, dim), nn.Linear(dim, dim)

                def forward(self, x, padding):
                    weights = self.query(x) @ self.key(x).transpose(1, 2)
                    weights = weights.masked_fill(padding, torch.finfo(weights.dtype).min)
                    return weights.softmax(-1) @ x

            def infer(layer: Attention, x, padding):
                with torch.autocast("cuda", dtype=torch.float16):
                    return layer(x, padding)
            """,
        ),
        Example(
            """
            import torch as th

            def mask_bias(keep):
                keep = keep.to(th.float16)
                lowest = -1e10
                return (1.0 - keep) * lowest  # expect

            def best(scores, blocked):
                scores = scores.half()
                scores[blocked] = -1e8  # expect
                top = th.where(blocked, scores, -float(10 ** 6))  # expect
                return top.clamp(  # expect
                    max=1e5)
            """,
            """
            import torch as th

            def mask_bias(keep):
                keep = keep.to(th.float16)
                return (1.0 - keep) * th.finfo(keep.dtype).min

            def best(scores, blocked):
                scores = scores.half()
                scores[blocked] = th.finfo(scores.dtype).min
                top = th.where(blocked, scores, th.finfo(scores.dtype).min)
                return top.clamp(
                    max=th.finfo(top.dtype).max)
            """,
        ),
        Example(
            """
            import torch
            from masks import hide

            class Pointer(torch.nn.Module):
                def __init__(self, dim):
                    super().__init__()
                    self.score = torch.nn.Linear(dim, 1)

                @torch.autocast("cuda")
                def forward(self, nodes, seen):
                    return hide(self.score(nodes).squeeze(-1), seen).softmax(-1)
            """,
            None,
            {
                "masks.py": """
                import torch

                def hide(logits, where, value=-1e9):
                    return torch.where(where, value, logits)  # expect
                """,
            },
        ),
        Example(
            """
            import torch
            from torch.nn import Linear
            from torch import finfo

            LOWEST = torch.finfo(torch.float32).min

            @torch.autocast(device_type="cuda", dtype=torch.float16)
            def route(gate: Linear, x, allowed):
                logits = gate(x)
                scaled = logits * 100_000  # expect
                logits.masked_fill_(~allowed, LOWEST)  # expect
                return (gate(x) + x.new_ones(1).half()).masked_fill(~allowed, LOWEST)  # expect
            """,
            """
            import torch
            from torch.nn import Linear
            from torch import finfo

            LOWEST = torch.finfo(torch.float32).min

            @torch.autocast(device_type="cuda", dtype=torch.float16)
            def route(gate: Linear, x, allowed):
                logits = gate(x)
                scaled = logits * 100_000
                logits.masked_fill_(~allowed, finfo(logits.dtype).min)
                return (gate(x) + x.new_ones(1).half()).masked_fill(~allowed, finfo(torch.float16).min)
            """,
        ),
        Example(
            """
            import argparse
            from contextlib import ExitStack
            import torch

            class Mixed:
                def __enter__(self):
                    self.context = torch.autocast("cuda")
                    self.context.__enter__()

                def __exit__(self, *error):
                    self.context.__exit__(*error)

            def options():
                parser = argparse.ArgumentParser()
                parser.add_argument("--fill", type=float, default=-1e9)
                return parser.parse_args()

            def stacked(layer: torch.nn.Linear, x, mask):
                with ExitStack() as stack:
                    stack.enter_context(torch.autocast("cuda"))
                    return layer(x).masked_fill(mask, options().fill)  # expect

            def entered(layer: torch.nn.Linear, x, mask):
                with Mixed():
                    return layer(x).masked_fill(mask, -1e9)  # expect

            def made(x, mask):
                torch.set_default_dtype(torch.float16)
                scores = torch.rand(8)
                return scores.masked_fill(mask, -1e9)  # expect
            """,
            """
            import argparse
            from contextlib import ExitStack
            import torch

            class Mixed:
                def __enter__(self):
                    self.context = torch.autocast("cuda")
                    self.context.__enter__()

                def __exit__(self, *error):
                    self.context.__exit__(*error)

            def options():
                parser = argparse.ArgumentParser()
                parser.add_argument("--fill", type=float, default=-1e9)
                return parser.parse_args()

            def stacked(layer: torch.nn.Linear, x, mask):
                with ExitStack() as stack:
                    stack.enter_context(torch.autocast("cuda"))
                    return layer(x).masked_fill(mask, max(options().fill, torch.finfo(torch.float16).min))

            def entered(layer: torch.nn.Linear, x, mask):
                with Mixed():
                    return layer(x).masked_fill(mask, torch.finfo(torch.float16).min)

            def made(x, mask):
                torch.set_default_dtype(torch.float16)
                scores = torch.rand(8)
                return scores.masked_fill(mask, torch.finfo(scores.dtype).min)
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import argparse
        from contextlib import ExitStack
        import torch

        class Timed:
            def __enter__(self):
                self.context = torch.profiler.record_function("timed")
                self.context.__enter__()

            def __exit__(self, *error):
                self.context.__exit__(*error)

        def options():
            parser = argparse.ArgumentParser()
            parser.add_argument("--fill", type=float, default=-1e4)
            return parser.parse_args()

        def stacked(layer: torch.nn.Linear, x, mask):
            with ExitStack() as stack:
                stack.enter_context(torch.autocast("cuda"))
                y = layer(x).masked_fill(mask, options().fill)
            return y, layer(x).masked_fill(mask, -1e9)

        def entered(layer: torch.nn.Linear, x, mask):
            with Timed():
                return layer(x).masked_fill(mask, -1e9)

        def made(x, mask):
            torch.set_default_dtype(torch.float16)
            net = torch.nn.Linear(8, 8)
            torch.set_default_dtype(torch.float32)
            return net, torch.rand(8).masked_fill(mask, -1e9)
        """,
        """
        import torch
        from torch import nn

        class Attention(nn.Module):
            def __init__(self, dim):
                super().__init__()
                self.query, self.key = nn.Linear(dim, dim), nn.Linear(dim, dim)

            def forward(self, x, padding):
                weights = (self.query(x) @ self.key(x).transpose(1, 2)).float()
                weights = weights.masked_fill(padding, -1e9)
                second = self.query(x) @ self.key(x).transpose(1, 2)
                second = second.masked_fill(padding, -65504.0).masked_fill(padding, -1e4)
                return (weights.softmax(-1) + second.softmax(-1).masked_fill(padding, -1e9)) @ x

        def infer(layer: Attention, x, padding):
            with torch.autocast("cuda", dtype=torch.float16):
                return layer(x, padding)
        """,
        """
        import torch

        def score(layer: torch.nn.Linear, x, padding):
            with torch.autocast("cuda", dtype=torch.float16):
                bias = (1 - padding[:, None].long()) * -1e9
                logits = layer(x) + bias
                logits = logits.masked_fill(padding, float("-inf"))
                lowest = -1e4 if logits.dtype == torch.float16 else -1e9
                logits = logits.masked_fill(padding, lowest)
                return logits.masked_fill(padding, torch.finfo(logits.dtype).min)
        """,
        """
        import torch

        def decode(layer: torch.nn.Linear, x, padding):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return layer(x).masked_fill(padding, -1e9)

        def train(layer: torch.nn.Linear, x, padding):
            return layer(x).masked_fill(padding, -1e9) * 1e6

        def unknown(scores, padding):
            return scores.masked_fill(padding, -1e9)
        """,
        """
        import torch
        import numpy as np

        def windows(image):
            canvas = np.full((4, 4), -1e9)
            canvas[0] = 1e6
            return torch.from_numpy(canvas)

        def summed(layer: torch.nn.Linear, x):
            with torch.autocast("cuda"):
                total = layer(x).sum(-1) - 1e6
                count = torch.zeros(3, device=x.device)
                count[x.argmax(0)] = 1e8
                rate = x.sigmoid().half() * 1000
                return total / count, rate
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for value, verdict in half.verdicts(context, _grade, *_PARAMETERS):
            name, number = next(_overflows(verdict.failing[0]))
            yield self.finding(
                context,
                value.node,
                _message(value.op, number),
                severity=verdict.severity,
                fix=_fix(context, value, name, number),
                related=verdict.related,
            )


def _grade(seen: Value) -> Certainty:
    """How surely one of the constants overflows the float16 it is written into."""
    names = [name for name, _ in _overflows(seen)]
    if not names:
        return Certainty.NEVER
    certainty = half.is_half(*(seen.operand("input") if seen.op in ("setitem", "fill_") else (seen,)))
    is_set = any(half.is_setting(seen.operand(name)) for name in names)
    return Certainty.MAY if is_set and certainty is Certainty.ALWAYS else certainty


def _overflows(seen: Value) -> Iterator[tuple[str, float]]:
    """The parameters whose constant is beyond the range of float16, with the constant."""
    for name in _PARAMETERS[seen.op]:
        found = [number for value in seen.operand(name) if (number := _number(value)) is not None]
        if found and all(_is_beyond(seen, name, number) for number in found):
            yield name, found[0]


def _number(value: Value) -> float | None:
    """A Python number, or a 0-dim tensor of one, which does not promote either."""
    if value.op in ("tensor", "scalar_tensor") and Dtype.FLOAT16 not in value.dtypes:
        return value.number("data" if value.op == "tensor" else "s")
    return value.as_number()


def _is_beyond(seen: Value, name: str, number: float) -> bool:
    if math.isinf(number) or abs(number) <= FLOAT16_MAX:
        return False
    if seen.op in _CHECKED:
        return True
    if seen.op == "mul":
        return any(_may_overflow(factor, number) for factor in seen.operand("other" if name == "input" else "input"))
    return math.isinf(round_to(number, Dtype.FLOAT16))


def _may_overflow(factor: Value, number: float) -> bool:
    """Whether a factor of ordinary size takes the product out of range (0.001 * 1e5 fits)."""
    magnitude = factor.interval.absolute().upper
    return math.isinf(magnitude) or abs(number) * magnitude > FLOAT16_MAX


def _message(op: str, number: float) -> str:
    if op in _CHECKED:
        return (
            f"{op.rstrip('_')} of {number:g} into a float16 tensor raises: "
            f"the largest float16 is 65504 (float32 holds {number:g})"
        )
    infinity = "inf" if number > 0 else "-inf"
    return (
        f"{number:g} becomes {infinity} in float16, whose largest value is 65504; a row of infinities is NaN in softmax"
    )


def _fix(context: Context, value: Value, name: str, number: float) -> Fix | None:
    constant = half.operand_node(value, name)
    if constant is None or not _is_limit(value.op, number):
        return None
    dtype, dtype_edits = _dtype(context, value, name)
    spelling, edits = edit.add_import(context.module, "torch.finfo", value.node)
    limit = f"{spelling}({dtype}).{'max' if number > 0 else 'min'}"
    if half.is_parameter(context.module, constant) or half.is_setting(value.operand(name)):
        limit = f"{'min' if number > 0 else 'max'}({context.source.segment(constant)}, {limit})"
    unused = edit.remove_statements(context.module, edit.unused_after(context.module, [constant]))
    replaced = edit.replace(context.module, constant, limit, parentheses=True)
    return Fix(f"use {limit}", Safety.SAFE, tuple(sorted({replaced, *dtype_edits, *edits, *unused})))


def _is_limit(op: str, number: float) -> bool:
    """Whether the constant stands for "as far as it goes", and a number can stand in its place."""
    if op in ("tensor", "scalar_tensor", "new_tensor", "full", "minimum", "maximum"):
        return False
    return op not in ("add", "sub", "rsub", "mul") or abs(number) >= _AS_FAR_AS_IT_GOES


def _dtype(context: Context, value: Value, name: str) -> tuple[str, tuple[Edit, ...]]:
    """How the dtype of the tensor is written, and the edits that this needs."""
    other = {"input": "other", "other": "input"}.get(name, "input") if value.op in _SILENT else "input"
    source = half.dtype_source(context, half.operand_node(value, other))
    if source:
        return f"{source}.dtype", ()
    return edit.add_import(context.module, "torch.float16", value.node)
