"""AMP307: an indexed write of a float16 value into a float32 buffer, or the reverse."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from amplint import half
from amplint.context import Context
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity
from amplint.values import Certainty, Dtype, Value

_WRITES = {
    "setitem": "value",
    "index_add": "source",
    "index_copy": "source",
    "index_put": "values",
    "scatter": "src",
    "scatter_add": "src",
    "scatter_reduce": "src",
    "masked_scatter": "source",
}
"""Operations that write into a buffer, and the parameter that holds what they write."""

_LONG = ("nonzero", "where", "sort", "topk", "max", "min", "unique")
"""Operations that give several tensors, of which an element is a tensor again."""

_NO_INDICES = {Dtype.FLOAT16, Dtype.BFLOAT16, Dtype.FLOAT32, Dtype.FLOAT64, Dtype.NUMBER}
_INDEX_WORDS = ("mask", "index", "indices")
"""What a tensor or mask is called, where nothing else tells it from an integer."""


class ScatterDtypeMismatch(Rule):
    """An indexed write demands equal dtypes, and autocast makes them differ.

    ## What it does
    Reports `buffer[index] = value` with tensor, list or mask indices, and in-place `index_add_`, `index_copy_`,
    `index_put_`, `scatter_`, `scatter_add_`, `scatter_reduce_` and `masked_scatter_`, where the value is float16 and
    the buffer float32, or the reverse. Slices, integers, `copy_`, `+=`, Python numbers and out-of-place forms under
    autocast convert for themselves and are not reported.

    ## Why
    A buffer made by `torch.zeros` is float32; what a linear layer returns under autocast is float16. Writes through
    advanced indices do not promote. They raise `Index put requires the source and destination dtypes match, got Float
    for the destination and Half for the source`, or `scatter(): Expected self.dtype to be equal to src.dtype`.

    ## Example
    ```python
    scores = torch.zeros(n, vocab, device=x.device)
    scores[alive] = self.head(x)
    ```
    Use instead:
    ```python
    scores = torch.zeros(n, vocab, device=x.device)
    scores[alive] = self.head(x).to(scores.dtype)
    ```

    ## Fix
    Safe: `.to(buffer.dtype)` on the value; it removes a certain exception.

    ## References
    - [PyTorch issue 51730](https://github.com/pytorch/pytorch/issues/51730), scatter_add_ under autocast
    - [casanovo issue 508](https://github.com/Noble-Lab/casanovo/issues/508), a masked write of decoder scores
    """

    code = "AMP307"
    name = "scatter-dtype-mismatch"
    severity = Severity.ERROR
    summary = "an indexed write of float16 into float32, or the reverse, raises"
    in_half = True
    triggers = ((b"] =",), (b"]=",), (b"index_",), (b"scatter",))
    fixable = "safe"
    INVALID: ClassVar = (
        Example(
            """
            import torch
            from torch import nn

            class Decoder(nn.Module):
                def __init__(self, dim, vocab):
                    super().__init__()
                    self.head = nn.Linear(dim, vocab)
                    self.vocab = vocab

                def forward(self, states, lengths):
                    n = states.size(0)
                    scores = torch.zeros(n, 8, self.vocab, device=states.device)
                    running = torch.ones(n, dtype=torch.bool, device=states.device)
                    for step in range(8):
                        scores[running, step] = self.head(states[running, step])  # expect
                        running = running & (step < lengths)
                    return scores

            def decode(model: Decoder, states, lengths):
                with torch.autocast("cuda", dtype=torch.float16):
                    return model(states, lengths)
            """,
            """
            import torch
            from torch import nn

            class Decoder(nn.Module):
                def __init__(self, dim, vocab):
                    super().__init__()
                    self.head = nn.Linear(dim, vocab)
                    self.vocab = vocab

                def forward(self, states, lengths):
                    n = states.size(0)
                    scores = torch.zeros(n, 8, self.vocab, device=states.device)
                    running = torch.ones(n, dtype=torch.bool, device=states.device)
                    for step in range(8):
                        scores[running, step] = self.head(states[running, step]).to(scores.dtype)
                        running = running & (step < lengths)
                    return scores

            def decode(model: Decoder, states, lengths):
                with torch.autocast("cuda", dtype=torch.float16):
                    return model(states, lengths)
            """,
        ),
        Example(
            """
            import torch as th

            class Messages(th.nn.Module):
                def __init__(self, dim):
                    super().__init__()
                    self.send = th.nn.Linear(dim, dim)
                    self.gate = th.nn.Linear(dim, dim)

                @th.autocast("cuda")
                def forward(self, x, edges, order, edge_mask):
                    message = self.send(x)[edges[0]]
                    total = th.zeros(x.size(0), message.size(1), device=x.device)
                    total.index_add_(0, edges[1], message + 1)  # expect
                    total.scatter_add_(0, edges[1][:, None].expand_as(message), message)  # expect
                    kept = th.zeros_like(message)
                    kept[th.argsort(order)] = message.softmax(-1)  # expect
                    kept[[0, 2]] = th.ones(2, message.size(1), device=x.device)  # expect
                    found = order.nonzero(as_tuple=True)[0]
                    total[found] = message[found]  # expect
                    total[edge_mask] = self.gate(x)[edge_mask]  # expect
                    return total, kept
            """,
            """
            import torch as th

            class Messages(th.nn.Module):
                def __init__(self, dim):
                    super().__init__()
                    self.send = th.nn.Linear(dim, dim)
                    self.gate = th.nn.Linear(dim, dim)

                @th.autocast("cuda")
                def forward(self, x, edges, order, edge_mask):
                    message = self.send(x)[edges[0]]
                    total = th.zeros(x.size(0), message.size(1), device=x.device)
                    total.index_add_(0, edges[1], (message + 1).to(total.dtype))
                    total.scatter_add_(0, edges[1][:, None].expand_as(message), message.to(total.dtype))
                    kept = th.zeros_like(message)
                    kept[th.argsort(order)] = message.softmax(-1).to(kept.dtype)
                    kept[[0, 2]] = th.ones(2, message.size(1), device=x.device).to(kept.dtype)
                    found = order.nonzero(as_tuple=True)[0]
                    total[found] = message[found].to(total.dtype)
                    total[edge_mask] = self.gate(x)[edge_mask].to(total.dtype)
                    return total, kept
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch
        from torch import nn

        class Cache(nn.Module):
            def __init__(self, size, dim):
                super().__init__()
                self.register_buffer("keys", torch.zeros(size, dim))
                self.key = nn.Linear(dim, dim)

            def forward(self, x):
                k = self.key(x)
                n = x.size(0)
                where = torch.arange(n, device=x.device)
                self.keys[:n] = k
                self.keys[n - 1] = k[-1]
                self.keys[:n].copy_(k)
                self.keys[where] += k
                self.keys[where] = 1.0
                self.keys[where] = k.to(self.keys.dtype)
                self.keys[where] = k.float()
                for i in range(n):
                    self.keys[i] = k[i]
                return self.keys

        def fill(cache: Cache, x):
            with torch.autocast("cuda", dtype=torch.float16):
                return cache(x)
        """,
        """
        import torch

        def aggregate(layer: torch.nn.Linear, x, index):
            with torch.autocast("cuda", dtype=torch.float16):
                message = layer(x)
                total = torch.zeros(x.size(0), 4, device=x.device)
                same = torch.zeros_like(message)
                same.scatter_add_(0, index, message)
                half = torch.zeros(x.size(0), 4, dtype=message.dtype, device=x.device)
                half[x.argmax(-1)] = message
                return torch.scatter_add(total, 0, index, message), same, half
        """,
        """
        import numpy as np
        import torch

        def unknown(buffer, index, value):
            buffer[index] = value
            buffer.index_add_(0, index, value)

        def labels(x, index):
            onehot = torch.zeros(4, 10).scatter_(1, index, 1.0)
            table = np.zeros(10, dtype=np.float32)
            table[[1, 2]] = np.ones(2, dtype=np.float16)
            return onehot, table, x
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for value, verdict in half.verdicts(context, _grade, *_WRITES):
            if not value.in_place and value.op != "setitem":
                continue
            yield self.finding(
                context,
                value.node,
                _message(verdict.failing[0]),
                severity=verdict.severity,
                fix=_fix(context, value),
                related=verdict.related,
            )


def _grade(seen: Value) -> Certainty:
    """How surely one of buffer and value is float16 and the other float32."""
    if seen.op == "setitem" and not _is_advanced(seen):
        return Certainty.NEVER
    written = seen.operand(_WRITES[seen.op])
    return half.combined(_mismatch(target, value) for target in seen.operand("input") for value in written)


def _mismatch(target: Value, written: Value) -> Certainty:
    """Whether one is float32 for certain and the other float16, or maybe."""
    for exact, other in ((target, written), (written, target)):
        if exact.dtypes == {Dtype.FLOAT32} and other.may_be_half:
            return half.is_half(other)
        if exact.dtypes == {Dtype.FLOAT16} and Dtype.FLOAT32 in other.dtypes:
            return Certainty.ALWAYS if half.is_float32(other) else Certainty.MAY
    return Certainty.NEVER


def _is_advanced(seen: Value) -> bool:
    """Whether an index is certainly a tensor, a mask or a list, so that torch writes through index_put."""
    return any(_is_advanced_index(index) for index in seen.operand("index"))


def _is_advanced_index(index: Value) -> bool:
    if index.op == "tuple":
        if isinstance(index.node, ast.List):
            return True
        return any(_is_advanced_index(v) for element in index.elements for v in index.engine.of_argument(element))
    if _is_single(index) or index.dtypes & _NO_INDICES:
        return False
    is_named_so = isinstance(index.node, ast.Name) and any(word in index.node.id.lower() for word in _INDEX_WORDS)
    is_integer = index.is_tensor_op and bool(index.dtypes & {Dtype.INTEGER, Dtype.BOOL})
    return is_named_so or is_integer or index.engine.is_tensor(index) is Certainty.ALWAYS


def _is_single(index: Value) -> bool:
    """Whether an index tensor may hold one number, which writes as an integer does."""
    if index.op == "getitem":
        return not any(source.op in _LONG for source in index.operand("input"))
    return index.op in ("item", "constant") or (index.op in ("argmax", "argmin") and index.argument("dim") is None)


def _message(seen: Value) -> str:
    is_buffer_half = all(Dtype.FLOAT16 in value.dtypes for value in seen.operand("input"))
    buffer, written = ("float16", "float32") if is_buffer_half else ("float32", "float16")
    how = "this indexed assignment" if seen.op == "setitem" else f"{seen.op}_"
    return f"{how} of a {written} value into a {buffer} buffer raises: it demands equal dtypes"


def _fix(context: Context, value: Value) -> Fix | None:
    written = half.operand_node(value, _WRITES[value.op])
    buffer = value.argument("input")
    if written is None or buffer is None:
        return None
    while isinstance(buffer, ast.Subscript):
        buffer = buffer.value
    if not half.is_dotted(buffer):
        return None
    target = f"{context.source.segment(buffer)}.dtype"
    return Fix(f"cast the value to {target}", Safety.SAFE, half.upcast(context.module, written, f".to({target})"))
