"""AMP301: an epsilon that float16 rounds to zero."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from amplint import edit, half, precedence, uses
from amplint.context import Context
from amplint.rule import Edit, Example, Finding, Fix, Rule, Safety, Severity
from amplint.values import Certainty, Value

_LARGEST_LOST = 2.0**-25
"""At or below this, float16 rounds to zero."""
_LARGEST_LOST_BELOW_ONE = 2.0**-12
"""1 - eps is 1 in float16 for an eps at or below this."""
_KEPT = "1e-4"
"""An eps whose reciprocal float16 holds too."""

_TO_ZERO = "2**-25 = 2.98e-08 and less round to 0"

_LOWER = {"clamp": "min", "clamp_min": "min", "maximum": "other", "max": "dim"}
_UPPER = {"clamp": "max", "clamp_max": "max", "minimum": "other", "min": "dim"}
_EPS = {
    "normalize": (1e-12, _LARGEST_LOST),
    "cosine_similarity": (1e-8, _LARGEST_LOST),
    "poisson_nll_loss": (1e-8, _LARGEST_LOST),
    "gaussian_nll_loss": (1e-6, _LARGEST_LOST),
    "logit": (None, _LARGEST_LOST_BELOW_ONE),
}
"""Operations with an `eps`: its default, and the largest that is lost."""

_STORES = {"where": ("input", "other"), "masked_fill": ("value",)}
"""Operations that put a constant into a tensor, and its parameters."""

_GUARDS = ("add", *_STORES, *dict.fromkeys((*_LOWER, *_UPPER)))


class EpsUnderflow(Rule):
    """An epsilon that float16 rounds to zero guards nothing.

    ## What it does
    Reports an epsilon at or below 2**-25 = 2.98e-08 that is added to a float16 tensor, or that one is clamped to; an
    upper bound 1 - eps with eps at or below 2**-12 = 0.000244; and an `eps=` of that size, the default included, of
    `F.normalize`, `cosine_similarity` or `logit` on float16 tensors. The epsilon may be a literal, a constant, a
    default argument, an attribute, or come from a caller in another file. The default of a command line's option or of
    `cfg.get("eps", 1e-8)` is what runs unless somebody sets another: a warning.

    Only where the operand is float16. Under CUDA autocast `sum`, `norm`, `prod`, `exp`, `pow` (so `x ** 2`), `softmax`
    and the losses return float32, where 1e-8 survives; LayerNorm, GroupNorm, BatchNorm and RMSNorm add their eps in
    float32 in any case. A sum that is bounded away from zero by itself needs no epsilon and is not reported.

    ## Why
    float16 keeps no positive number at or below 2**-25, so `y + 1e-8` is `y` and `y.clamp(min=1e-8)` is
    `y.clamp(min=0)`. Where y is 0, `x / (y + 1e-8)` is infinite or NaN, `log(p + 1e-10)` is `-inf`, and
    `sqrt(var + 1e-12)` has a NaN gradient. Just below 1 the spacing is 2**-11, so `p.clamp(max=1 - 1e-7)` reaches 1 and
    `log(1 - p)` is `-inf`.

    ## Example
    ```python
    scores = (scores - low) / (high - low + 1e-8)
    ```
    Use instead:
    ```python
    scores = (scores - low) / ((high - low).float() + 1e-4)
    ```

    ## Fix
    The operation is done in float32. Safe under autocast where the result is not a denominator. Unsafe in a
    denominator, where the epsilon becomes 1e-4 too: the gradient 1/eps flows back into float16, where 2e-5 is the
    smallest whose reciprocal is finite. Unsafe in `.half()` code, where the result is cast back to float16.

    ## References
    - [pylate issue 239](https://github.com/lightonai/pylate/issues/239), min-max normalised scores
    - [PyTorch: CUDA ops that autocast to float32](https://pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior)
    """

    code = "AMP301"
    name = "eps-underflow"
    severity = Severity.ERROR
    summary = "an epsilon that float16 rounds to zero guards nothing"
    in_half = True
    triggers = (
        (b"1e-",),
        (b"eps",),
        (b"e-0",),
        (b"e-1",),
        (b"e-8",),
        (b"normalize",),
        (b"cosine_similarity",),
        (b"clamp",),
        (b" + ",),
    )
    fixable = "safe/unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch
            from torch import nn

            class Saliency(nn.Module):
                def __init__(self, channels):
                    super().__init__()
                    self.head = nn.Conv2d(channels, 1, 1)

                def forward(self, feature_map):
                    heat = self.head(feature_map).flatten(1)
                    low = heat.amin(1, keepdim=True)
                    # keep away from zero
                    tiny = 1e-8
                    return (heat - low) / (heat.amax(1, keepdim=True) - low + tiny)  # expect

            def predict(net: Saliency, feature_map):
                with torch.autocast("cuda", dtype=torch.float16):
                    return net(feature_map)
            """,
            """
            import torch
            from torch import nn

            class Saliency(nn.Module):
                def __init__(self, channels):
                    super().__init__()
                    self.head = nn.Conv2d(channels, 1, 1)

                def forward(self, feature_map):
                    heat = self.head(feature_map).flatten(1)
                    low = heat.amin(1, keepdim=True)
                    # keep away from zero
                    return (heat - low) / ((heat.amax(1, keepdim=True) - low).float() + 1e-4)

            def predict(net: Saliency, feature_map):
                with torch.autocast("cuda", dtype=torch.float16):
                    return net(feature_map)
            """,
        ),
        Example(
            """
            import torch as th
            import torch.nn.functional as F

            @th.autocast(device_type="cuda")
            def spread(layer: th.nn.Linear, x):
                h = layer(x)
                std = th.sqrt(h.var(-1) + 1e-12)  # expect
                p = h.sigmoid()
                worst = p.amax(-1).clamp(  # expect
                    1e-7, 1 - 1e-7)
                rest = th.log(1 - h.tanh().abs().clamp(max=0.99999))  # expect
                floor = th.maximum(h.abs(), th.tensor(1e-10))  # expect
                sure = th.where(h == 0, 1e-12, h)  # expect
                return sure.mean() + std.mean() + worst.mean() + rest.mean() + (1 / floor).mean()
            """,
            """
            import torch as th
            import torch.nn.functional as F

            @th.autocast(device_type="cuda")
            def spread(layer: th.nn.Linear, x):
                h = layer(x)
                std = th.sqrt(h.var(-1).float() + 1e-4)
                p = h.sigmoid()
                worst = p.amax(-1).float().clamp(
                    1e-7, 1 - 1e-7)
                rest = th.log(1 - h.tanh().abs().float().clamp(max=0.99999))
                floor = th.maximum(h.abs(), th.tensor(1e-10))
                sure = th.where(h == 0, 1e-12, h)
                return sure.mean() + std.mean() + worst.mean() + rest.mean() + (1 / floor).mean()
            """,
        ),
        Example(
            """
            import torch
            from geometry import iou

            class BoxLoss(torch.nn.Module):
                def __init__(self, eps=1e-9):
                    super().__init__()
                    self.eps = eps
                    self.box = torch.nn.Linear(256, 4)

                def forward(self, feats, target):
                    box = self.box(feats)
                    return 1 - iou(box, target.to(box.dtype), self.eps).mean()

            def step(loss: BoxLoss, feats, target):
                with torch.autocast("cuda", torch.float16):
                    return loss(feats, target)
            """,
            None,
            {
                "geometry.py": """
                import torch

                def area(box):
                    return (box[..., 2] - box[..., 0]) * (box[..., 3] - box[..., 1])

                def iou(a, b, eps):
                    low = torch.maximum(a[..., :2], b[..., :2])
                    high = torch.minimum(a[..., 2:], b[..., 2:])
                    side = (high - low).clamp(min=0)
                    inter = side[..., 0] * side[..., 1]
                    return inter / (area(a) + area(b) - inter + eps)  # expect
                """,
            },
        ),
        Example(
            """
            import argparse
            import torch
            from torch import nn

            class Gate(nn.Module):
                def __init__(self, cfg, options):
                    super().__init__()
                    self.fc = nn.Linear(cfg["width"], 1)
                    self.eps = cfg.get("eps", 1e-8)
                    self.floor = options.floor

                def forward(self, x):
                    h = self.fc(x).abs()
                    h = h / (h.amax() + self.eps)  # expect
                    return h.clamp(min=self.floor)  # expect

            def main(cfg, x):
                parser = argparse.ArgumentParser()
                parser.add_argument("--floor", type=float, default=1e-12)
                gate = Gate(cfg, parser.parse_args())
                with torch.autocast("cuda"):
                    return gate(x)
            """,
            """
            import argparse
            import torch
            from torch import nn

            class Gate(nn.Module):
                def __init__(self, cfg, options):
                    super().__init__()
                    self.fc = nn.Linear(cfg["width"], 1)
                    self.eps = cfg.get("eps", 1e-8)
                    self.floor = options.floor

                def forward(self, x):
                    h = self.fc(x).abs()
                    h = h / (h.amax().float() + max(self.eps, 1e-4))
                    return h.float().clamp(min=max(self.floor, 1e-4))

            def main(cfg, x):
                parser = argparse.ArgumentParser()
                parser.add_argument("--floor", type=float, default=1e-12)
                gate = Gate(cfg, parser.parse_args())
                with torch.autocast("cuda"):
                    return gate(x)
            """,
        ),
        Example(
            """
            import torch
            import torch.nn.functional as F
            from torch import nn

            class Towers(nn.Module):
                def __init__(self, dim, eps=1e-8):
                    super().__init__()
                    self.image, self.text = nn.Linear(dim, 64), nn.Linear(dim, 64)
                    self.eps = eps

                def forward(self, image, text):
                    a = F.normalize(self.image(image), dim=-1)  # expect
                    b = self.text(text)
                    b = b * torch.rsqrt(b.pow(2).mean(-1, keepdim=True) + self.eps)  # expect
                    return a @ (b / (b.norm(dim=-1, keepdim=True) + 1e-10)).T  # expect

            @torch.inference_mode()
            def rank(image, text):
                towers = Towers(512).cuda().half().eval()
                return towers(image.half(), text.half()).argmax(-1)
            """,
            """
            import torch
            import torch.nn.functional as F
            from torch import nn

            class Towers(nn.Module):
                def __init__(self, dim, eps=1e-8):
                    super().__init__()
                    self.image, self.text = nn.Linear(dim, 64), nn.Linear(dim, 64)
                    self.eps = eps

                def forward(self, image, text):
                    a = F.normalize(self.image(image).float(), dim=-1).to(image.dtype)
                    b = self.text(text)
                    b = b * torch.rsqrt(b.pow(2).mean(-1, keepdim=True).float() + max(self.eps, 1e-4)).to(b.dtype)
                    return a @ (b / (b.norm(dim=-1, keepdim=True).float() + 1e-4)).to(b.dtype).T

            @torch.inference_mode()
            def rank(image, text):
                towers = Towers(512).cuda().half().eval()
                return towers(image.half(), text.half()).argmax(-1)
            """,
        ),
        Example(
            """
            import torch
            from apex import amp
            from torch import nn

            class Ratio(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.fc = nn.Linear(8, 1)

                def forward(self, x):
                    h = self.fc(x).abs()
                    return h / (h.amax() + 1e-8)  # expect

            def train(loader, optimizer):
                net, optimizer = amp.initialize(Ratio(), optimizer, opt_level="O1")
                for x in loader:
                    with amp.scale_loss(net(x).mean(), optimizer) as loss:
                        loss.backward()
                    optimizer.step()
            """,
            """
            import torch
            from apex import amp
            from torch import nn

            class Ratio(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.fc = nn.Linear(8, 1)

                def forward(self, x):
                    h = self.fc(x).abs()
                    return h / (h.amax().float() + 1e-4)

            def train(loader, optimizer):
                net, optimizer = amp.initialize(Ratio(), optimizer, opt_level="O1")
                for x in loader:
                    with amp.scale_loss(net(x).mean(), optimizer) as loss:
                        loss.backward()
                    optimizer.step()
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch
        from apex import amp
        from torch import nn

        class Ratio(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(8, 1)

            def forward(self, x):
                h = self.fc(x).abs()
                return h / (h.amax() + 1e-8)

        class Scaled(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(8, 1)

            def forward(self, x):
                h = self.fc(x).abs().float()
                return h / (h.amax() + 1e-8)

        def train(x, optimizer):
            plain, optimizer = amp.initialize(Ratio(), optimizer, opt_level="O0")
            net, optimizer = amp.initialize(Scaled(), optimizer, opt_level="O2")
            y = net(x)
            return plain(x), y / (y + 1e-8)
        """,
        """
        import torch
        from torch import nn

        class Overlap(nn.Module):
            def __init__(self, eps=1e-8):
                super().__init__()
                self.eps = eps
                self.net = nn.Conv2d(3, 1, 3)

            def forward(self, image, target):
                p = self.net(image).sigmoid()
                both = (p * target).sum((1, 2, 3))
                dice = (2 * both + self.eps) / (p.sum((1, 2, 3)) + target.sum((1, 2, 3)) + self.eps)
                energy = self.net(image) ** 2
                weights = self.net(image).flatten(1).softmax(-1)
                entropy = -(weights.mean(0) * torch.log(weights.mean(0) + 1e-10)).sum()
                return dice, energy / (energy.mean() + 1e-12), entropy

        @torch.autocast("cuda", dtype=torch.float16)
        def loss(net: Overlap, image, target):
            return net(image, target)
        """,
        """
        import torch
        import torch.nn.functional as F
        from torch import nn

        class Head(nn.Module):
            def __init__(self, dim):
                super().__init__()
                self.fc = nn.Linear(dim, dim)
                self.norm = nn.LayerNorm(dim, eps=1e-12)
                self.batch = nn.BatchNorm1d(dim, eps=1e-12)

            def forward(self, x):
                h = self.batch(self.norm(self.fc(x)))
                z = F.normalize(self.fc(x), dim=-1, eps=1e-12)
                unit = self.fc(x).float()
                unit = unit / (unit.std(-1, keepdim=True) + 1e-8)
                return h, z / (z.norm(dim=-1, keepdim=True) + 1e-8), unit

        def run(head: Head, x):
            with torch.autocast("cuda", dtype=torch.float16):
                return head(x)
        """,
        """
        import torch
        from torch import nn

        def scaled(x, eps=1e-8):
            return x / (x.amax(-1, keepdim=True) + eps)

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(8, 8)

            def forward(self, x):
                with torch.autocast("cuda", enabled=False):
                    x = scaled(x.float())
                return scaled(self.fc(x).float())

        def run(net: Net, x):
            with torch.autocast("cuda", dtype=torch.float16):
                return net(x)

        def brain_float(fc: nn.Linear, x):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                h = fc(x)
                return h / (h.abs().amax() + 1e-8)
        """,
        """
        import numpy as np
        import torch

        def ratio(layer: torch.nn.Linear, x, sizes):
            counts = np.asarray(sizes) / (np.sum(sizes) + 1e-8)
            with torch.autocast("cuda"):
                h = layer(x)
                gate = h.sigmoid()
                floor = 1e-4 if h.dtype == torch.float16 else 1e-8
                x = x / (h.std() + floor)
                wide = gate / (gate.mean(1, keepdim=True) + 1e-5)
                shifted = h.abs() + 1.0
                return wide / (shifted + 1e-8), torch.from_numpy(counts)

        def anywhere(x, y):
            return x / (y + 1e-8)
        """,
        """
        import argparse
        import torch
        from torch import nn

        class Gate(nn.Module):
            def __init__(self, cfg, options):
                super().__init__()
                self.fc = nn.Linear(8, 1)
                self.eps = cfg.get("eps", 1e-4)
                self.floor = options.floor
                self.tiny = options.tiny

            def forward(self, x):
                h = self.fc(x).abs()
                wide = h.float() / (h.float().amax() + self.tiny)
                return (h / (h.amax() + self.eps)).clamp(min=self.floor), wide

        def main(cfg, x):
            parser = argparse.ArgumentParser()
            parser.add_argument("--floor", type=float, default=1e-6)
            parser.add_argument("--tiny", type=float, default=1e-12)
            gate = Gate(cfg, parser.parse_args())
            with torch.autocast("cuda"):
                return gate(x)
        """,
        """
        import torch

        def precise(layer: torch.nn.Linear, x):
            with torch.autocast("cuda"):
                loss = torch.log(layer(x).sigmoid() + 1e-8)
                worse = torch.log(1 - layer(x).sigmoid() + 1e-10)
                angle = torch.acos(layer(x).tanh().clamp(-1 + 1e-7, 1 - 1e-7))
                return loss, worse, angle
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        operations = (*_GUARDS, *_EPS)
        claimed = precedence.Claims(context)
        for value, verdict in half.verdicts(context, _grade, *operations):
            if value.node in claimed:
                continue
            lost = next(_lost(verdict.failing[0]))
            yield self.finding(
                context,
                value.node,
                _message(value.op, lost),
                severity=verdict.severity,
                fix=_Mending(context, verdict, value, lost).fix(),
                related=verdict.related,
            )


@dataclass(frozen=True, slots=True)
class _Lost:
    """An epsilon that vanishes: its parameter, its size, and the parameter of the tensor it should guard."""

    parameter: str
    size: float
    tensor: str = "input"


def _grade(seen: Value) -> Certainty:
    """How surely an epsilon of the operation vanishes."""
    lost = list(_lost(seen))
    tensors = [tensor for one in lost for tensor in seen.operand(one.tensor)]
    certainty = half.is_half(*tensors) if tensors else Certainty.NEVER
    is_set = any(half.is_setting(seen.operand(one.parameter)) for one in lost)
    return Certainty.MAY if is_set and certainty is Certainty.ALWAYS else certainty


def _lost(seen: Value) -> Iterator[_Lost]:
    """The epsilons of an operation that are lost where the tensor they guard is float16."""
    if seen.op == "add":
        yield from _lost_addend(seen, "other", "input")
        yield from _lost_addend(seen, "input", "other")
    elif seen.op in _EPS:
        yield from _lost_eps(seen)
    elif seen.op in _STORES:
        yield from _lost_constant(seen)
    else:
        yield from _lost_bound(seen)


def _lost_addend(seen: Value, parameter: str, tensor: str) -> Iterator[_Lost]:
    if not any(0.0 in value.interval for value in seen.operand(tensor)):
        return
    for size in half.agreed(seen.operand(parameter), lambda size: 0 < size <= _LARGEST_LOST):
        yield _Lost(parameter, size, tensor)


def _lost_constant(seen: Value) -> Iterator[_Lost]:
    """A constant that stands in for 0, and is stored as 0."""
    for parameter in _STORES[seen.op]:
        for size in half.agreed(seen.operand(parameter), lambda size: 0 < size <= _LARGEST_LOST):
            if half.is_half(seen) is not Certainty.NEVER:
                yield _Lost(parameter, size, "other" if parameter == "input" else "input")


def _lost_bound(seen: Value) -> Iterator[_Lost]:
    """A lower bound that becomes 0, an upper one that becomes 1, where the tensor gets there."""
    tensors = seen.operand("input")
    if lower := _LOWER.get(seen.op):
        for size in half.agreed(seen.operand(lower), lambda size: 0 < size <= _LARGEST_LOST):
            if any(value.interval.lower <= 0 for value in tensors):
                yield _Lost(lower, size)
    if upper := _UPPER.get(seen.op):
        for size in half.agreed(seen.operand(upper), lambda size: 0 < 1 - size <= _LARGEST_LOST_BELOW_ONE):
            if any(value.interval.upper >= 1 for value in tensors):
                yield _Lost(upper, size)


def _lost_eps(seen: Value) -> Iterator[_Lost]:
    """The `eps=` of an operation that runs in float16; what autocast runs in float32 keeps it."""
    default, limit = _EPS[seen.op]
    tensor = "var" if seen.op == "gaussian_nll_loss" else "x1" if seen.op == "cosine_similarity" else "input"
    if half.is_half(seen) is Certainty.NEVER:
        return
    given = half.numbers(seen.operand("eps")) if seen.operand("eps") else [default]
    for size in given:
        if size is not None and 0 < size <= limit:
            yield _Lost("eps", size, tensor)


def _message(op: str, lost: _Lost) -> str:
    if lost.parameter == "eps":
        limit = "2**-12 = 0.000244 and less vanish beside 1" if op == "logit" else _TO_ZERO
        return f"eps={lost.size:g} of {op} is lost in float16 ({limit}): it does not keep the result finite"
    if op == "add":
        return (
            f"adding {lost.size:g} to a float16 tensor adds nothing ({_TO_ZERO}): where the tensor is 0, so is the sum"
        )
    if op in _STORES:
        return (
            f"{lost.size:g} is stored as 0 in a float16 tensor ({_TO_ZERO}): the 0 that it stands in for is still there"
        )
    if lost.size > 0.5:
        return (
            f"an upper bound of {lost.size:.9g} is 1 in float16, whose numbers just below 1 are 2**-11 = 0.000488 apart"
        )
    return f"a lower bound of {lost.size:g} is 0 in float16 ({_TO_ZERO})"


class _Mending:
    """The fix of one finding."""

    def __init__(self, context: Context, verdict: half.Verdict, value: Value, lost: _Lost) -> None:
        self.context = context
        self.module = context.module
        self.verdict = verdict
        self.value = value
        self.lost = lost

    def fix(self) -> Fix | None:
        """The operation in float32; with a larger epsilon in a denominator; cast back in a half module."""
        tensors = [half.operand_node(self.value, name) for name in self._tensors()]
        if self.value.in_place or self.value.op in _STORES or None in tensors or not self._is_plain():
            return None
        use = uses.use(self.module, self.value.node)
        edits = [e for node in dict.fromkeys(tensors) if node for e in half.upcast(self.module, node)]
        if use.role is not uses.Role.OTHER and self.lost.size < 0.5:
            edits += self._larger_eps()
        if not self.verdict.under_autocast:
            source = half.dtype_source(self.context, tensors[0])
            edits += half.upcast(self.module, use.consumer, f".to({source}.dtype)" if source else ".half()")
        is_safe = self.verdict.under_autocast and use.role is uses.Role.OTHER
        message = "do this in float32" if is_safe else f"do this in float32, with an eps of at least {_KEPT}"
        return Fix(message, Safety.SAFE if is_safe else Safety.UNSAFE, half.joined(edits))

    def _is_plain(self) -> bool:
        """Whether the epsilon is a Python number (not a tensor of one)."""
        return all(value.as_number() is not None for value in self.value.operand(self.lost.parameter))

    def _tensors(self) -> tuple[str, ...]:
        return ("x1", "x2") if self.value.op == "cosine_similarity" else (self.lost.tensor,)

    def _larger_eps(self) -> tuple[Edit, ...]:
        """Write the larger epsilon in place of the constant; a parameter or attribute keeps its say above it."""
        node = half.operand_node(self.value, self.lost.parameter)
        if node is None:
            return ()
        is_set = half.is_setting(self.value.operand(self.lost.parameter))
        is_constant = isinstance(node, ast.Constant) or (half.is_local(self.module, node) and not is_set)
        text = _KEPT if is_constant else f"max({self.context.source.segment(node)}, {_KEPT})"
        unused = edit.unused_after(self.module, [node]) if is_constant else []
        return (edit.replace(self.module, node, text, parentheses=True), *edit.remove_statements(self.module, unused))
