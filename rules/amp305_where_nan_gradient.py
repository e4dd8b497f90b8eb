"""AMP305: a branch that torch.where does not select, and whose gradient is infinite all the same."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from amplint import edit, half, patterns, precedence, rewrite
from amplint.context import Context
from amplint.rule import Edit, Example, Finding, Fix, Rule, Safety, Severity
from amplint.torch_ops import Kind
from amplint.tree import Module
from amplint.triggers import call
from amplint.values import Certainty, Dtype, Value, is_stopped

_LOGS = ("log", "log2", "log10")
_AT_ZERO = (*_LOGS, "sqrt", "rsqrt", "reciprocal")
"""Operations whose slope is infinite where their operand is 0."""

_MASKING = ("where", "masked_fill", "relu", "clamp", "clamp_min", "maximum", "softplus", "threshold", "nan_to_num")
"""Operations that keep a gradient from what they do not select."""

_SINGULAR = (call("log", "2", "10"), call("sqrt"), call("pow"), b"/", b"div", b"**", b"reciprocal")
"""What the text of such an operation holds."""

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_PASSING = (Kind.ELEMENTWISE, Kind.ARITHMETIC, Kind.SHAPE, Kind.CAST)
_DEPTH = 6
_MEASURING = ("metric", "accuracy", "recall", "confusion", "evaluat")
_MASK_WORDS = ("mask", "valid")


class WhereNanGradient(Rule):
    """torch.where does not keep the gradient of the branch it does not select from being NaN.

    ## What it does
    Reports `torch.where(condition, f(x), other)` where f is a logarithm, a square root, a power below 1 or a division,
    at whose singular point x may be: in the branch itself, or in a local that it uses. Also
    `log(x).masked_fill(mask, …)` and `log(x) * mask`.

    Nothing is reported where no gradient flows (`no_grad`, `inference_mode`, detached or constant operands, what is
    rounded or cast to integers, grids of positions, functions that are only called so, metrics by their name), and
    where the operand of f is made safe first: by a `where` or `masked_fill` of its own, a `relu`, a `clamp` whose
    bound survives the dtype, an added constant, or what is called an epsilon.

    ## Why
    The backward of `where` hands a gradient of 0 to the branch that was not selected. The backward of f multiplies it
    by a slope that is infinite there, and 0 times infinity is NaN: one masked pixel makes all gradients NaN, while
    every value of the forward pass is fine.

    ## Example
    ```python
    log_depth = torch.where(seen, torch.log(depth), 0.0)
    ```
    Use instead:
    ```python
    log_depth = torch.where(seen, torch.log(torch.where(seen, depth, 1.0)), 0.0)
    ```

    ## Fix
    Unsafe: the "double where" puts 1 where the branch is not selected. The values selected stay as they are; the
    condition must be the same at both places.

    ## References
    - [PyTorch issue 68425](https://github.com/pytorch/pytorch/issues/68425)
    - [JAX: gradients contain NaN where using where](https://docs.jax.dev/en/latest/faq.html)
    """

    code = "AMP305"
    name = "where-nan-gradient"
    severity = Severity.WARNING
    summary = "the branch that where does not select has an infinite gradient, which becomes NaN"
    triggers = (
        *((call("where"), singular) for singular in _SINGULAR),
        *((call("log", "2", "10"), mask) for mask in (b"mask", b"valid", b">")),
    )
    fixable = "unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch
            from torch import nn

            class LogDepth(nn.Module):
                def forward(self, depth, target):
                    known = target > 0
                    error = torch.where(known, torch.log(depth) - 1, 0.0)  # expect
                    return error.abs().mean()

            def signed_root(x):
                root = torch.sqrt(x)
                return torch.where(x > 0, root, -x)  # expect

            def ratio(a, b):
                return torch.where(b == 0, torch.zeros_like(a), a / b)  # expect

            def masked_loss(error, mask):
                count = mask.bool().sum(-1)
                return torch.where(count > 0, (error * mask).sum(-1) / count, 0.0)  # expect
            """,
            """
            import torch
            from torch import nn

            class LogDepth(nn.Module):
                def forward(self, depth, target):
                    known = target > 0
                    error = torch.where(known, torch.log(torch.where(known, depth, 1.0)) - 1, 0.0)
                    return error.abs().mean()

            def signed_root(x):
                root = torch.sqrt(torch.where(x > 0, x, 1.0))
                return torch.where(x > 0, root, -x)

            def ratio(a, b):
                return torch.where(b == 0, torch.zeros_like(a), a / torch.where(b == 0, 1.0, b))

            def masked_loss(error, mask):
                count = mask.bool().sum(-1)
                return torch.where(count > 0, (error * mask).sum(-1) / torch.where(count > 0, count, 1.0), 0.0)
            """,
        ),
        Example(
            """
            import torch as th

            def gamma(image):
                return th.where(image > 0.0031, image ** (1 / 2.4), 12.92 * image)  # expect

            def entropy(p, mask):
                by_fill = p.log().masked_fill(mask, 0.0)  # expect
                by_product = th.log(p) * (p > 0)  # expect
                by_name = mask * p.log2()  # expect
                return by_fill + by_product + by_name

            def angle(u, v):
                cos = (u * v).sum(-1)
                square = 1 - cos * cos
                return th.where(square > 1e-4, th.atan2(square.sqrt(), cos), cos)  # expect
            """,
            """
            import torch as th

            def gamma(image):
                return th.where(image > 0.0031, th.where(image > 0.0031, image, 1.0) ** (1 / 2.4), 12.92 * image)

            def entropy(p, mask):
                by_fill = th.where(mask, 1.0, p).log().masked_fill(mask, 0.0)
                by_product = th.log(th.where(p > 0, p, 1.0)) * (p > 0)
                by_name = mask * th.where(mask > 0, p, 1.0).log2()
                return by_fill + by_product + by_name

            def angle(u, v):
                cos = (u * v).sum(-1)
                square = 1 - cos * cos
                return th.where(square > 1e-4, th.atan2(th.where(square > 1e-4, square, 1.0).sqrt(), cos), cos)
            """,
        ),
        Example(
            """
            import torch
            from torch import nn

            class Gate(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.fc = nn.Linear(8, 8)

                def forward(self, x):
                    h = self.fc(x)
                    # the floor is 0 in float16
                    return torch.where(h > 0, h.clamp(min=1e-8).sqrt(), 0.0)  # expect

            def run(net: Gate, x):
                with torch.autocast("cuda", dtype=torch.float16):
                    return net(x)
            """,
            """
            import torch
            from torch import nn

            class Gate(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.fc = nn.Linear(8, 8)

                def forward(self, x):
                    h = self.fc(x)
                    # the floor is 0 in float16
                    return torch.where(h > 0, torch.where(h > 0, h.clamp(min=1e-8), 1.0).sqrt(), 0.0)

            def run(net: Gate, x):
                with torch.autocast("cuda", dtype=torch.float16):
                    return net(x)
            """,
        ),
        Example(
            """
            import torch

            def normalize(x):
                deviation = x.std()
                return torch.where(deviation == 0, x, x / deviation)  # expect

            class Scaled(torch.nn.Module):
                def forward(self, x):
                    return normalize(x)
            """,
            """
            import torch

            def normalize(x):
                deviation = x.std()
                return torch.where(deviation == 0, x, x / torch.where(deviation == 0, 1.0, deviation))

            class Scaled(torch.nn.Module):
                def forward(self, x):
                    return normalize(x)
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def buckets(position, exact, count):
            large = exact + (torch.log(position.float() / exact) * count).to(torch.long)
            return torch.where(position < exact, position, torch.min(large, torch.full_like(large, count - 1)))

        def rounded(position, exact):
            return torch.where(position < exact, position, torch.ceil(torch.log(position / exact)))

        def anchors(shapes, dtype):
            cells = []
            for height, width in shapes:
                rows, columns = torch.meshgrid(torch.arange(height).to(dtype), torch.arange(width).to(dtype))
                cells.append(torch.stack([rows, columns], -1) / torch.tensor([height, width]))
            cells = torch.cat(cells, 1)
            inside = ((cells > 0.01) & (cells < 0.99)).all(-1, keepdim=True)
            return torch.where(inside, torch.log(cells / (1 - cells)), torch.inf)

        class Normed(torch.nn.Module):
            def __init__(self, config):
                super().__init__()
                self.eps = config.norm_eps

            def forward(self, x, mask):
                return torch.where(mask, x * torch.pow(x.square().mean(-1, keepdim=True) + self.eps, -0.5), x)
        """,
        """
        import torch
        from torch.utils.data import Dataset

        class Recordings(Dataset):
            def __getitem__(self, index):
                sound = torch.load(self.paths[index])
                loudness = sound.abs().amax()
                return normalize(torch.where(loudness > 0, sound / loudness, sound))

        class Shuffled(Recordings):
            def level(self, sound):
                return torch.where(sound > 0, sound.log(), 0.0)

        def normalize(x):
            deviation = x.std()
            return torch.where(deviation == 0, x, x / deviation)
        """,
        """
        import torch
        import torch.nn.functional as F

        def entropy(p):
            positive = p > 0
            safe = torch.where(positive, p, torch.ones_like(p))
            filled = p.masked_fill(~positive, 1.0)
            return torch.where(positive, p * safe.log(), 0.0) + torch.where(positive, filled.log(), 0.0)

        def floored(x, low=1e-4):
            a = torch.where(x > low, torch.log(x.clamp(min=low)), x - low)
            b = torch.where(x > 0, F.relu(x).sqrt(), 0.0)
            c = torch.where(x > -5, torch.log(F.softplus(x) + 1e-3), x)
            return a + b + c + torch.where(x >= 0, 1.0, -1.0) * torch.sqrt(x.abs() + 1e-4)
        """,
        """
        import torch

        @torch.no_grad()
        def recall(hits, total):
            return torch.where(total > 0, hits / total, torch.zeros_like(hits))

        def confusion_matrix_rates(tp, total):
            return torch.where(total > 0, tp / total, 0.0)

        class SurfaceMetric:
            def __call__(self, distance, total):
                return torch.where(total > 0, distance / total, 0.0)

        def summary(hits, total):
            with torch.inference_mode():
                return torch.where(total > 0, torch.log(hits), 0.0)

        def detached(x):
            y = x.detach()
            return torch.where(y > 0, y.log(), 0.0)

        def average(values, lengths):
            count = (values != 0).sum(-1)
            return torch.where(count > 0, values.sum(-1) / count, 0.0)

        def sinc(t):
            return torch.where(t == 0, 1.0, torch.sin(t) / t)

        def low_pass(size, cutoff):
            return sinc(2 * cutoff * (torch.arange(size) - size // 2))
        """,
        """
        import torch

        def helper(x):
            return torch.where(x > 0, x.sqrt(), 0.0)

        @torch.no_grad()
        def evaluate(model, batch):
            return helper(model(batch))
        """,
        """
        import numpy as np
        import torch

        def reference(x):
            return np.where(x > 0, np.log(x), 0.0)

        def smooth(x, delta):
            return torch.where(x.abs() < delta, 0.5 * x * x / delta, x.abs() - 0.5 * delta)

        def square(x):
            return torch.where(x > 0, x ** 2, x ** 3)

        def overlap(inter, area_a, area_b):
            return torch.where(inter > 0, inter / (area_a + area_b - inter), 0.0)

        def weighted(target, p, scale):
            return target * torch.log(p) + torch.log(p) * scale
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        if _measures(context.module.source.path.parent.name, context.module.source.path.stem):
            return
        claimed = precedence.Claims(context)
        done: set[ast.AST] = set()
        for value in _masks(context):
            masked = None if value.node in done else _first(context, value, claimed)
            if masked is not None:
                done.add(value.node)
                yield self.finding(context, value.node, _message(masked), fix=_fix(context, masked))


def _first(context: Context, value: Value, claimed: precedence.Claims) -> _Masked | None:
    """The first singular operation that `value` masks, in one of the ways to reach it, where gradients flow."""
    for seen in context.values.seen(value):
        for masked in _masked(seen):
            if masked.singular.node not in claimed and _is_learned_from(context, masked):
                return masked
    return None


def _masks(context: Context) -> Iterator[Value]:
    """The operations that mask something, where there is something singular around."""
    yield from context.values.operations(context.module, "where")
    logs = {context.module.function(call) for call in context.module.calls if _last_name(call.func) in _LOGS}
    if logs:
        for value in context.values.operations(context.module, "masked_fill", "mul"):
            if context.module.function(value.node) in logs:
                yield value


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_learned_from(context: Context, masked: _Masked) -> bool:
    """Whether a gradient flows. A quotient by a count is often an average of data: it must stand in a loss or layer."""
    gradients, singular = context.values.gradients, masked.singular
    if _measures(context.module.qualname(masked.mask.node)):
        return False
    if not gradients(singular) or any(_is_grid(value) for value in singular.operand(masked.operand)):
        return False
    if singular.op != "div" or any(gradients(value) for value in singular.operand("other")):
        return True
    function = context.module.function(masked.mask.node)
    name = "" if function is None else function.name.lower()
    return name == "forward" or "loss" in name


def _measures(*names: str) -> bool:
    """Whether something is named as code that measures and does not train: no gradient is asked for there."""
    return any(word in name.lower() for name in names for word in _MEASURING)


def _is_grid(value: Value, effort: int = 24) -> bool:
    """Whether a value is computed from a grid of numbers: a window, a filter, positions. Arithmetic costs four steps,
    for the more there is of it, the less it is the grid alone that decides; arranging costs one.
    """
    if value.op in ("arange", "linspace", "logspace"):
        return True
    if effort <= 0:
        return False
    if value.op in ("tuple", "comprehension"):
        parts = (v for element in value.elements for v in value.engine.of_argument(element))
        return any(_is_grid(part, effort - 1) for part in parts)
    operation = value.operation if value.is_tensor_op else None
    if operation is None or operation.kind not in _PASSING:
        return False
    left = effort - (1 if operation.kind in (Kind.SHAPE, Kind.CAST) else 4)
    return any(_is_grid(inner, left) for name in value.arguments for inner in value.operand(name))


@dataclass(frozen=True, slots=True)
class _Masked:
    """A singular operation behind a mask: `operand` is the one of its operands that reaches the singular point."""

    mask: Value
    singular: Value
    operand: str
    selected_if_true: bool = True


def _masked(value: Value) -> Iterator[_Masked]:
    """The singular operations whose result `value` masks."""
    if value.op == "where":
        for branch in ("input", "other"):
            for singular, operand in _singular_parts(value.operand(branch)):
                if operand == "input" or _tests(value, singular):
                    yield _Masked(value, singular, operand, branch == "input")
    elif value.op == "masked_fill":
        yield from (_Masked(value, log, "input", False) for log in _logs(value.operand("input")))
    else:
        for side, mask in (("input", "other"), ("other", "input")):
            if _is_mask(value, mask):
                yield from (_Masked(value, log, "input") for log in _logs(value.operand(side)))


def _singular_parts(values: tuple[Value, ...], depth: int = _DEPTH) -> Iterator[tuple[Value, str]]:
    """The operations within a branch that have an infinite slope, with the operand in question."""
    for value in values:
        if operand := _singular_operand(value):
            yield value, operand
        operation = value.operation
        if depth and operation and operation.kind in _PASSING and value.op not in _MASKING and not is_stopped(value):
            for name in value.arguments:
                yield from _singular_parts(value.operand(name), depth - 1)


def _logs(values: tuple[Value, ...], depth: int = 3) -> Iterator[Value]:
    """The logarithms that a masked value is, or a sum or difference of, or `p * log(p)`."""
    for value in values:
        for bare in patterns.bare(value):
            if bare.op in _LOGS and _singular_operand(bare):
                yield bare
            elif depth and bare.op in ("add", "sub", "neg", "abs"):
                yield from _logs((*bare.operand("input"), *bare.operand("other")), depth - 1)
            elif depth and bare.op == "mul":
                yield from _logs_weighted_by_themselves(bare)


def _logs_weighted_by_themselves(product: Value) -> Iterator[Value]:
    """log(p), where `product` is p * log(p)."""
    for weight, factor in (("input", "other"), ("other", "input")):
        for log in _logs(product.operand(factor), 0):
            if any(log.engine.same(p, w) for p in log.operand("input") for w in product.operand(weight)):
                yield log


def _singular_operand(value: Value) -> str | None:
    """The operand at which the slope of `value` may be infinite; None if it is finite everywhere it gets to."""
    if value.op in _AT_ZERO or (value.op == "pow" and _is_root(value.number("exponent"))):
        return "input" if any(map(_reaches_zero, value.operand("input"))) else None
    if value.op == "div" and value.is_tensor_op:
        return "other" if any(map(_reaches_zero, value.operand("other"))) else None
    return None


def _is_root(exponent: float | None) -> bool:
    return exponent is not None and exponent < 1 and exponent != 0


def _reaches_zero(operand: Value) -> bool:
    """Whether an operand may be 0 or less, with no masking operation right before it that stops the gradient."""
    if operand.as_number() is not None or operand.op == "python" or operand.interval.positive:
        return False
    if operand.op == "add" and (_adds_number(operand) or _adds_epsilon(operand)):
        return False
    bare = list(patterns.bare(operand))
    return not any(value.op in _MASKING and not _has_lost_floor(value) for value in bare)


def _adds_number(total: Value) -> bool:
    return any(number > 0 for side in ("input", "other") for number in half.numbers(total.operand(side)))


def _adds_epsilon(total: Value) -> bool:
    """Whether something is added that is called an epsilon, whose number a configuration knows."""
    return any("eps" in _last_name(node).lower() for side in ("input", "other") if (node := total.argument(side)))


def _has_lost_floor(clamped: Value) -> bool:
    """Whether a clamp's lower bound is 0 in the dtype it clamps in, though it was meant to be above."""
    floors = half.numbers(clamped.operand({"clamp": "min", "clamp_min": "min", "maximum": "other"}.get(clamped.op, "")))
    is_half = clamped.engine.half(clamped) in (Certainty.ALWAYS, Certainty.MAY)
    return is_half and any(0 < floor <= 2.0**-25 for floor in floors)


def _tests(where: Value, division: Value) -> bool:
    """Whether the condition compares the denominator with a constant: that is what says it may be 0."""
    denominators = division.operand("other")
    for condition in where.operand("condition"):
        for test in patterns.bare(condition):
            for side, constant in (("input", "other"), ("other", "input")):
                if test.op in _COMPARISONS and test.number(constant) is not None:
                    return any(
                        where.engine.same(a, b) for a in map(_magnitude, test.operand(side)) for b in denominators
                    )
    return False


def _magnitude(tested: Value) -> Value:
    """x, where |x| is what a condition looks at."""
    return tested.operand("input")[0] if tested.op == "abs" and tested.operand("input") else tested


def _is_mask(product: Value, name: str) -> bool:
    """Whether a factor is a mask: a comparison, a bool, one cast to a number, or something that is called a mask."""
    node = product.argument(name)
    text = ast.unparse(node).lower() if node is not None and half.is_dotted(node) else ""
    if any(word in text for word in _MASK_WORDS):
        return True
    return any(bare.dtypes == {Dtype.BOOL} for value in product.operand(name) for bare in patterns.bare(value))


_POINTS = {"div": "a denominator of 0", "pow": "a base of 0"}


def _message(masked: _Masked) -> str:
    point = _POINTS.get(masked.singular.op, "an operand of 0")
    mask = {"where": "torch.where", "masked_fill": "masked_fill", "mul": "the product with a mask"}[masked.mask.op]
    return (
        f"{masked.singular.op} has an infinite gradient at {point}, and {mask} does not stop it: "
        "0 * inf is NaN in the backward pass; make the operand safe first"
    )


def _fix(context: Context, masked: _Masked) -> Fix | None:
    """The double where: 1 in place of the operand where the branch is not selected."""
    module, operand = context.module, half.operand_node(masked.singular, masked.operand)
    condition = _condition(context, masked)
    if operand is None or condition is None or not _can_evaluate(context, masked, operand):
        return None
    spelling, imports = edit.add_import(module, "torch.where", operand)
    kept, other = edit.segment(module, operand, edit.Precedence.LAMBDA), "1.0"
    first, second = (kept, other) if masked.selected_if_true else (other, kept)
    changed = edit.replace(module, operand, f"{spelling}({condition}, {first}, {second})", parentheses=True)
    edits: list[Edit] = [changed, *imports]
    return Fix("make the operand 1 where it is not selected", Safety.UNSAFE, tuple(sorted(edits)))


def _condition(context: Context, masked: _Masked) -> str | None:
    """The text of the condition, as a condition."""
    mask = masked.mask
    if mask.op == "where":
        node = half.operand_node(mask, "condition")
    elif mask.op == "masked_fill":
        node = half.operand_node(mask, "mask")
    else:
        node = half.operand_node(mask, "other" if _is_mask(mask, "other") else "input")
    if node is None:
        return None
    text = edit.segment(context.module, node, edit.Precedence.LAMBDA)
    is_bool = mask.op != "mul" or all(value.dtypes == {Dtype.BOOL} for value in context.values.of(context.module, node))
    return text if is_bool else f"{edit.segment(context.module, node, edit.Precedence.BIT_OR)} > 0"


def _can_evaluate(context: Context, masked: _Masked, operand: ast.expr) -> bool:
    """Whether the condition means the same at the operand: within the mask's expression, or in a local only it uses."""
    module, mask = context.module, masked.mask.node
    if any(ancestor is mask for ancestor in module.ancestors(operand)):
        return True
    target, scope = _sole_target(module.statement(operand)), module.scope(mask)
    if target is None or module.scope(operand) is not scope or not rewrite.is_movable(module, operand, mask):
        return False
    names = [node for node in ast.walk(mask) if isinstance(node, ast.Name)]
    uses = [node for node in ast.walk(scope) if isinstance(node, ast.Name) and node.id == target]
    return len(uses) == 2 and all(_is_bound_before(module, node, operand) for node in names if node.id != target)


def _is_bound_before(module: Module, name: ast.Name, at: ast.expr) -> bool:
    """Whether a name has one binding, made before `at`."""
    found = module.lookup(name.id, name)
    return found is None or all(isinstance(b, ast.arg | ast.alias) or b.lineno < at.lineno for b in found[1])  # type: ignore[attr-defined]


def _sole_target(statement: ast.stmt) -> str | None:
    """The local that a plain assignment gives its value to."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return None
