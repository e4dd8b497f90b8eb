"""AMP306: an operation that has no float16 kernel, or an FFT that needs a power of two in float16."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import ClassVar

from amplint import half, torch_ops
from amplint.context import Context
from amplint.rule import Example, Finding, Fix, Rule, Severity
from amplint.torch_ops import Cast, Kind, Operation
from amplint.values import Certainty, RegionKind, Value

_ORDER = (Certainty.NEVER, Certainty.UNKNOWN, Certainty.MAY, Certainty.ALWAYS)
_LENGTHS = ("n", "n_fft", "s")
"""The parameters that give an FFT its size."""


class HalfUnsupportedOp(Rule):
    """An operation that CUDA does not offer in float16.

    ## What it does
    Reports linear solvers and decompositions (`inverse`, `solve`, `cholesky`, `svd`, `eigh`, `det`, `pinv`, …) and
    `quantile` on a float16 operand; `cdist` and `pdist` on `.half()` tensors (under autocast they cast for themselves);
    and FFTs of a float16 operand whose size is not known to be a power of two.

    ## Why
    Autocast casts the operands of the operations on its lists and leaves all others alone. A linear layer's float16
    output so reaches `torch.linalg.inv`, which raises `"linalg_inv_cuda" not implemented for 'Half'`, or
    `torch.fft.rfft`, which raises `cuFFT only supports dimensions whose sizes are powers of two when computing in half
    precision`.

    ## Example
    ```python
    spectrum = torch.fft.rfft(self.embed(x), dim=1)
    ```
    Use instead:
    ```python
    spectrum = torch.fft.rfft(self.embed(x).float(), dim=1)
    ```

    ## Fix
    `.float()` on each float16 operand. Safe under autocast; unsafe in `.half()` code, where what follows may want
    float16 back.

    ## References
    - [Time-Series-Library issue 761](https://github.com/thuml/Time-Series-Library/issues/761), rfft under autocast
    - [PyTorch: automatic mixed precision, CUDA op-specific behaviour](https://pytorch.org/docs/stable/amp.html)
    """

    code = "AMP306"
    name = "half-unsupported-op"
    severity = Severity.ERROR
    summary = "an operation that has no float16 kernel on CUDA"
    in_half = True
    triggers = (
        (b"fft",),
        (b"stft",),
        (b"linalg",),
        (b"cdist",),
        (b"pdist",),
        (b"quantile",),
        (b"inverse",),
        (b"pinverse",),
        (b"det",),
        (b"cholesky",),
        (b"svd",),
        (b"qr",),
        (b"matrix_exp",),
        (b"ctc_loss",),
        (b"CTCLoss",),
    )
    fixable = "safe/unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch
            from torch import nn

            class Periods(nn.Module):
                def __init__(self, channels, dim):
                    super().__init__()
                    self.embed = nn.Linear(channels, dim)

                def forward(self, series):
                    h = self.embed(series)
                    spectrum = torch.fft.rfft(h, dim=1)  # expect
                    return torch.fft.irfft(spectrum * 2, n=series.size(1), dim=1)

            def predict(net: Periods, series):
                with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
                    return net(series)
            """,
            """
            import torch
            from torch import nn

            class Periods(nn.Module):
                def __init__(self, channels, dim):
                    super().__init__()
                    self.embed = nn.Linear(channels, dim)

                def forward(self, series):
                    h = self.embed(series)
                    spectrum = torch.fft.rfft(h.float(), dim=1)
                    return torch.fft.irfft(spectrum * 2, n=series.size(1), dim=1)

            def predict(net: Periods, series):
                with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
                    return net(series)
            """,
        ),
        Example(
            """
            import torch as th

            @th.autocast("cuda")
            def whiten(encode: th.nn.Linear, x):
                z = encode(x)
                cov = z.T @ z / len(z) + 0.01 * th.eye(z.size(1), device=z.device, dtype=z.dtype)
                root = th.linalg.cholesky(cov)  # expect
                median = z.quantile(0.5, dim=0)  # expect
                return th.linalg.solve_triangular(root, z.T.float(), upper=False), median  # expect
            """,
            """
            import torch as th

            @th.autocast("cuda")
            def whiten(encode: th.nn.Linear, x):
                z = encode(x)
                cov = z.T @ z / len(z) + 0.01 * th.eye(z.size(1), device=z.device, dtype=z.dtype)
                root = th.linalg.cholesky(cov.float())
                median = z.float().quantile(0.5, dim=0)
                return th.linalg.solve_triangular(root.float(), z.T.float(), upper=False), median
            """,
        ),
        Example(
            """
            import torch
            from torch import nn

            class Matcher(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.box = nn.Linear(64, 4)

                def forward(self, queries, targets):
                    return torch.cdist(self.box(queries), targets.half(), p=1)  # expect

            def match(queries, targets):
                return Matcher().cuda().half()(queries.half(), targets)
            """,
            """
            import torch
            from torch import nn

            class Matcher(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.box = nn.Linear(64, 4)

                def forward(self, queries, targets):
                    return torch.cdist(self.box(queries).float(), targets.half().float(), p=1)

            def match(queries, targets):
                return Matcher().cuda().half()(queries.half(), targets)
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch
        from torch import nn

        class Periods(nn.Module):
            def __init__(self, channels, dim):
                super().__init__()
                self.embed = nn.Linear(channels, dim)

            def forward(self, series):
                h = self.embed(series)
                a = torch.fft.rfft(h.float(), dim=1)
                b = torch.fft.rfft(h, n=256, dim=1)
                c = torch.fft.fft(h.softmax(1), dim=1)
                size = 2 ** (h.size(1) - 1).bit_length()
                e = torch.fft.rfft(nn.functional.pad(h.mT, (0, size - h.size(1))) * 2)
                with torch.autocast("cuda", enabled=False):
                    d = torch.linalg.inv(h.float() @ h.float().mT)
                return a, b, c, d, e

        def predict(net: Periods, series):
            with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
                return net(series)
        """,
        """
        import torch
        from torch import nn

        class Matcher(nn.Module):
            def __init__(self):
                super().__init__()
                self.box = nn.Linear(64, 4)

            def forward(self, queries, targets):
                return torch.cdist(self.box(queries), targets, p=1)

        def match(net: Matcher, queries, targets):
            with torch.autocast("cuda", dtype=torch.float16):
                return net(queries, targets)
        """,
        """
        import numpy as np
        import torch

        def spectrum(wave: torch.Tensor, window):
            with torch.autocast("cuda", dtype=torch.float16):
                return torch.stft(wave, 1000, window=window, return_complex=True)

        def vocoder(upsample: torch.nn.ConvTranspose1d, mel, window, n_fft):
            with torch.autocast("cuda", dtype=torch.float16):
                wave = upsample(mel).squeeze(1)
                a = torch.stft(wave, 1024, window=window, return_complex=True)
                return a, torch.stft(wave, n_fft, window=window, return_complex=True)

        def solve(a, b):
            return torch.linalg.solve(a, b), np.linalg.inv(np.eye(3))
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for value, verdict in half.verdicts(context, _grade, *_operations()):
            yield self.finding(
                context,
                value.node,
                _message(value),
                severity=verdict.severity,
                fix=_fix(context, value, verdict),
                related=verdict.related,
            )


@cache
def _operations() -> tuple[str, ...]:
    return tuple(row.name for row in torch_ops.operations() if not row.half or row.kind is Kind.FFT)


def _grade(seen: Value) -> Certainty:
    """How surely an operand is float16 when the operation gets it."""
    operation = seen.operation
    if operation is None or _is_cast(seen, operation) or _is_power_of_two(seen):
        return Certainty.NEVER
    operands = _tensors(seen)
    graded = [half.is_half(*seen.operand(name)) for name in operands]
    return max(graded, key=_ORDER.index, default=Certainty.NEVER)


def _is_cast(seen: Value, operation: Operation) -> bool:
    """Whether autocast gives the operation float32."""
    return operation.cast is Cast.FLOAT32 and seen.region.kind not in (RegionKind.NONE, RegionKind.DISABLED)


def _tensors(seen: Value) -> list[str]:
    """The parameters whose operand may be float16."""
    return [name for name in seen.arguments if half.is_half(*seen.operand(name)) is not Certainty.NEVER]


def _is_power_of_two(seen: Value) -> bool:
    """Whether an FFT has a size that cuFFT takes in float16; that of an STFT, or after padding, is taken for one."""
    sizes = [seen.number(name) for name in _LENGTHS if name in seen.arguments]
    if seen.op in ("stft", "istft") and (not sizes or None in sizes):
        return True
    if seen.operation and seen.operation.kind is Kind.FFT and any(map(_is_padded, seen.operand("input"))):
        return True
    return any(size is not None and size > 0 and int(size) & (int(size) - 1) == 0 for size in sizes)


def _is_padded(value: Value, depth: int = 6) -> bool:
    """Whether a tensor is padded, maybe in one branch: before an FFT that is to a power of two."""
    if value.op == "pad":
        return True
    operation = value.operation if value.is_tensor_op else None
    if depth == 0 or operation is None or operation.kind not in (Kind.SHAPE, Kind.CAST, Kind.ARITHMETIC):
        return False
    return any(_is_padded(inner, depth - 1) for inner in value.operand(operation.parameters[0]))


def _message(value: Value) -> str:
    operation = value.operation
    if operation is not None and operation.kind is Kind.FFT:
        return f"{value.op} of a float16 tensor raises unless its size is a power of two (cuFFT in half precision)"
    return (
        f"{value.op} of a float16 tensor raises: CUDA has no float16 kernel for it, and autocast does not cast for it"
    )


def _fix(context: Context, value: Value, verdict: half.Verdict) -> Fix | None:
    nodes = [half.operand_node(value, name) for name in _tensors(verdict.failing[0])]
    if not nodes or None in nodes:
        return None
    edits = {change for node in nodes if node for change in half.upcast(context.module, node)}
    return Fix("cast the operand to float32", verdict.safety, tuple(sorted(edits)))
