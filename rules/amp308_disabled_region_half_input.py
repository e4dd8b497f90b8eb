"""AMP308: a block that turns autocast off, and computes on float16 tensors made outside it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from amplint import half, patterns
from amplint.context import Context
from amplint.project import Callee
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity
from amplint.torch_ops import Kind, Operation
from amplint.tree import Module
from amplint.values import Certainty, Frame, RegionKind, Value

Block: TypeAlias = ast.With | ast.AsyncWith | ast.FunctionDef | ast.AsyncFunctionDef

_HARMLESS = (Kind.SHAPE, Kind.CAST, Kind.COMPARISON, Kind.CREATE, Kind.SCATTER)
"""Operations that compute nothing with the numbers: a cast may follow."""

_CONTAINERS = ("dict", "tuple", "setitem")

_NEEDS_ITS_WEIGHTS_DTYPE = (Kind.LAYER, Kind.MATMUL)


class DisabledRegionHalfInput(Rule):
    """Turning autocast off does not turn float16 tensors into float32.

    ## What it does
    Reports the first use, in a block or function under `autocast(enabled=False)`, of each tensor that was made in
    float16 outside it and is used without `.float()`, be it held in a dict or list. Reshaping, indexing, comparing and
    casting it is no use yet; nor is arithmetic with a float32 tensor, which promotes.

    ## Why
    The block keeps autocast from casting operands. It does not change tensors that are float16 already, such as the
    logits of a model that ran under autocast: log_softmax, exp and sums on them stay in float16, with 11 bits of
    precision and infinity above 65504, which is what the block was written to avoid. A layer with float32 weights
    raises `expected scalar type`.

    ## Example
    ```python
    with torch.autocast("cuda", enabled=False):
        loss = F.cross_entropy(logits, target)
    ```
    Use instead:
    ```python
    with torch.autocast("cuda", enabled=False):
        loss = F.cross_entropy(logits.float(), target)
    ```

    ## Fix
    Safe: `.float()` at the use. None where a function is handed a dict or list: its items want the cast.

    ## References
    - [PyTorch: autocast](https://pytorch.org/docs/stable/amp.html#torch.autocast), "Inputs should be cast to float32"
    - [D-FINE issue 361](https://github.com/Peterande/D-FINE/issues/361)
    """

    code = "AMP308"
    name = "disabled-region-half-input"
    severity = Severity.WARNING
    summary = "float16 tensors are used in autocast(enabled=False) without .float()"
    triggers = ((b"autocast", b"False"),)
    fixable = "safe"
    INVALID: ClassVar = (
        Example(
            """
            import torch
            from losses import Sharpness

            def train_step(head: torch.nn.Linear, x, y):
                criterion = Sharpness()
                with torch.autocast("cuda", dtype=torch.float16):
                    out = head(x)
                    with torch.autocast("cuda", enabled=False):
                        return criterion(out, y)  # expect
            """,
            """
            import torch
            from losses import Sharpness

            def train_step(head: torch.nn.Linear, x, y):
                criterion = Sharpness()
                with torch.autocast("cuda", dtype=torch.float16):
                    out = head(x)
                    with torch.autocast("cuda", enabled=False):
                        return criterion(out.float(), y)
            """,
            {
                "losses.py": """
                from torch import nn

                class Sharpness(nn.Module):
                    def forward(self, logits, target):
                        p = logits.softmax(-1)
                        return (p * target).sum()
                """,
            },
        ),
        Example(
            """
            import torch
            import torch.nn.functional as F
            from torch import nn

            class Speaker(nn.Module):
                def __init__(self, dim, speakers):
                    super().__init__()
                    self.head = nn.Linear(dim, speakers)

                def loss(self, x, speaker):
                    logits = self.head(x)
                    margin = self.head(x).amax(-1)
                    with torch.autocast("cuda", enabled=False):
                        by_row = logits.flatten(1)
                        ce = F.cross_entropy(by_row, speaker)  # expect
                        return ce + (margin - 1).exp().mean()  # expect

            def step(model: Speaker, x, speaker):
                with torch.autocast("cuda", dtype=torch.float16):
                    return model.loss(x, speaker)
            """,
            """
            import torch
            import torch.nn.functional as F
            from torch import nn

            class Speaker(nn.Module):
                def __init__(self, dim, speakers):
                    super().__init__()
                    self.head = nn.Linear(dim, speakers)

                def loss(self, x, speaker):
                    logits = self.head(x)
                    margin = self.head(x).amax(-1)
                    with torch.autocast("cuda", enabled=False):
                        by_row = logits.flatten(1)
                        ce = F.cross_entropy(by_row.float(), speaker)
                        return ce + (margin.float() - 1).exp().mean()

            def step(model: Speaker, x, speaker):
                with torch.autocast("cuda", dtype=torch.float16):
                    return model.loss(x, speaker)
            """,
        ),
        Example(
            """
            import torch as th
            from torch.cuda.amp import autocast

            @autocast(False)
            def contrast(a, b):
                return th.logsumexp(a @ b.T, dim=-1).mean()  # expect

            def train_step(encode: th.nn.Linear, x, y):
                with autocast():
                    left = encode(x)
                    right = encode(y)
                    loss = contrast(left, right)
                with autocast(enabled=False):
                    return loss + left.exp().mean()  # expect
            """,
            """
            import torch as th
            from torch.cuda.amp import autocast

            @autocast(False)
            def contrast(a, b):
                return th.logsumexp(a.float() @ b.T.float(), dim=-1).mean()

            def train_step(encode: th.nn.Linear, x, y):
                with autocast():
                    left = encode(x)
                    right = encode(y)
                    loss = contrast(left, right)
                with autocast(enabled=False):
                    return loss + left.float().exp().mean()
            """,
        ),
        Example(
            """
            import torch
            import torch.nn.functional as F
            from torch import nn

            class Detector(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.boxes, self.scores = nn.Linear(8, 4), nn.Linear(8, 2)

                def forward(self, x):
                    out = {"scores": self.scores(x), "sizes": self.boxes(x).softmax(-1)}
                    out["boxes"] = self.boxes(x)
                    return out

            class Matching(nn.Module):
                def forward(self, outputs, target):
                    return (outputs["scores"].sigmoid() - target).abs().mean()

            def train_step(x, target, y):
                net, matching = Detector(), Matching()
                with torch.autocast("cuda"):
                    out = net(x)
                    levels = [net.scores(x), net.scores(x * 2)]
                with torch.autocast("cuda", enabled=False):
                    loss = matching(out, target)  # expect
                    loss += F.cross_entropy(out["scores"], y) + out["boxes"].exp().mean()  # expect
                    return loss + sum(level.exp().mean() for level in levels)  # expect
            """,
            """
            import torch
            import torch.nn.functional as F
            from torch import nn

            class Detector(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.boxes, self.scores = nn.Linear(8, 4), nn.Linear(8, 2)

                def forward(self, x):
                    out = {"scores": self.scores(x), "sizes": self.boxes(x).softmax(-1)}
                    out["boxes"] = self.boxes(x)
                    return out

            class Matching(nn.Module):
                def forward(self, outputs, target):
                    return (outputs["scores"].sigmoid() - target).abs().mean()

            def train_step(x, target, y):
                net, matching = Detector(), Matching()
                with torch.autocast("cuda"):
                    out = net(x)
                    levels = [net.scores(x), net.scores(x * 2)]
                with torch.autocast("cuda", enabled=False):
                    loss = matching(out, target)
                    loss += F.cross_entropy(out["scores"].float(), y) + out["boxes"].float().exp().mean()
                    return loss + sum(level.float().exp().mean() for level in levels)
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch
        from torch import nn

        class Detector(nn.Module):
            def __init__(self):
                super().__init__()
                self.scores = nn.Linear(8, 2)

            def forward(self, x):
                return {"scores": self.scores(x), "sizes": self.scores(x).softmax(-1)}

        class Matching(nn.Module):
            def forward(self, outputs, target):
                scores = outputs["scores"].float()
                return (scores.sigmoid() - target).abs().mean() + outputs["sizes"].log().mean()

        def train_step(x, target, y):
            net, matching = Detector(), Matching()
            with torch.autocast("cuda"):
                out = net(x)
                out["extra"] = net.scores(x)
                levels = [net.scores(x), net.scores(x * 2)]
            with torch.autocast("cuda", enabled=False):
                out["scores"] = out["scores"].float()
                wide = [level.float() for level in levels]
                loss = matching(out, target) + out["sizes"].log().mean() + out["scores"].exp().mean()
                return loss + out["extra"].float().exp().mean() + sum(level.exp().mean() for level in wide)
        """,
        """
        import torch
        from torch import nn

        class Careful(nn.Module):
            def forward(self, p, t):
                p = p.float()
                return (p.softmax(-1) - t).abs().mean()

        def adversarial(scores):
            return sum((1 - s.float()).square().mean() for s in scores)

        def step(head: nn.Linear, criterion: Careful, x, y):
            with torch.autocast("cuda", dtype=torch.float16):
                out = head(x)
                with torch.autocast("cuda", enabled=False):
                    return criterion(out, y) + adversarial([out, head(x.float())])
        """,
        """
        import torch
        import torch.nn.functional as F
        from torch import nn

        class Speaker(nn.Module):
            def __init__(self, dim, speakers):
                super().__init__()
                self.head = nn.Linear(dim, speakers)

            def loss(self, x, speaker):
                logits = self.head(x)
                probabilities = self.head(x).softmax(-1)
                with torch.autocast("cuda", enabled=False):
                    right = logits.argmax(-1) == speaker
                    logits = logits.float()
                    other = self.head(x.float())
                    return F.cross_entropy(logits, speaker) + probabilities.square().sum() + other.mean(), right

        def step(model: Speaker, x, speaker):
            with torch.autocast("cuda", dtype=torch.float16):
                return model.loss(x, speaker)
        """,
        """
        import torch

        def unknown(logits, target):
            with torch.autocast("cuda", enabled=False):
                return (logits.exp() - target).mean()

        def brain_float(head: torch.nn.Linear, x):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                y = head(x)
            with torch.autocast("cuda", enabled=False):
                return y.exp().mean()

        def half_model(x):
            model = torch.nn.Linear(8, 8).half()
            y = model(x.half())
            with torch.autocast("cuda", enabled=False):
                return model(y) + y.exp()

        def promoted(head: torch.nn.Linear, x, z):
            with torch.autocast("cuda"):
                y = head(x)
                target = y.softmax(-1)
            with torch.autocast("cuda", enabled=False):
                return (y.view(-1) - target.view(-1)).abs().mean() + torch.nn.functional.l1_loss(y, z)
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for block in _disabled(context):
            reported: set[str] = set()
            for use in _uses(context, block):
                text = ast.unparse(use.node)
                if text in reported:
                    continue
                reported.add(text)
                verb = "holds" if use.is_container else "is"
                cast = Fix("cast to float32", Safety.SAFE, half.upcast(context.module, use.node))
                yield self.finding(
                    context,
                    use.node,
                    f"{text} {verb} float16 here: autocast(enabled=False) stops further casts, it undoes none; "
                    f"{use.operation.op} runs in float16 (65504 at most, 11 bits)",
                    fix=None if use.is_container else cast,
                    related=half.Verdict((use.origin,), True).related,
                )


_PROMOTING_LOSSES = (
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "kl_div",
    "binary_cross_entropy_with_logits",
)


@dataclass(frozen=True, slots=True)
class _Use:
    """An operand from outside the block, the operation that takes it, and where its float16 comes from."""

    node: ast.expr
    operation: Value
    origin: Value
    is_container: bool = False
    """Whether it is a dict or list that holds the float16 tensor."""


def _disabled(context: Context) -> Iterator[Block]:
    """The blocks and functions under autocast(enabled=False)."""
    for node in context.module.nodes:
        if isinstance(node, ast.With | ast.AsyncWith):
            switches = [item.context_expr for item in node.items]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            switches = node.decorator_list
        else:
            continue
        if any(_is_off(context, switch) for switch in switches):
            yield node


def _is_off(context: Context, switch: ast.expr) -> bool:
    """Whether a context manager or decorator is autocast(enabled=False), directly or through a variable."""
    values = context.values.of(context.module, switch)
    return bool(values) and all(
        value.op == "autocast" and [flag.constant for flag in value.operand("enabled")] == [False] for value in values
    )


def _uses(context: Context, block: Block) -> Iterator[_Use]:
    """The operands of operations in the block that are float16 and come from outside it, in the order of the text."""
    nodes = [node for statement in block.body for node in ast.walk(statement) if isinstance(node, ast.Call | ast.BinOp)]
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
        for value in context.values.of(context.module, node):
            if value.node is node and value.is_tensor_op:
                yield from _half_operands(context, block, value)
        if isinstance(node, ast.Call):
            yield from _handed_on(context, block, node)


def _half_operands(context: Context, block: Block, value: Value) -> Iterator[_Use]:
    for seen in context.values.seen(value):
        operation = seen.operation
        if seen.region.kind is not RegionKind.DISABLED or operation is None or operation.kind in _HARMLESS:
            continue
        if not _computes_in_half(seen, operation):
            continue
        for name in seen.arguments:
            node = half.operand_node(seen, name)
            origin = next((v for v in seen.operand(name) if _is_autocast_half(context.module, block, v)), None)
            if node is not None and origin is not None:
                yield _Use(node, seen, origin)


def _handed_on(context: Context, block: Block, call: ast.Call) -> Iterator[_Use]:
    """The arguments that are float16 and with which a function of this project, called in the block, computes so."""
    values = context.values
    for callee in context.project.callees(context.module, call):
        for frame in values.frames(callee.module, callee.function):
            if frame.call is not call or frame.caller is None:
                continue
            for name, node in callee.arguments.items():
                given = values.of(context.module, node, frame.caller)
                origin = next((v for v in given if _is_autocast_half(context.module, block, v)), None)
                loads = _loads(callee, name)
                if origin is not None and (operation := _first_use(context, callee.module, loads, frame)):
                    yield _Use(node, operation, origin)
                elif origin is None and any(value.op in _CONTAINERS for value in given):
                    yield from _taken_out(context, block, node, callee, loads, frame)


def _taken_out(
    context: Context, block: Block, node: ast.expr, callee: Callee, loads: list[ast.Name], frame: Frame
) -> Iterator[_Use]:
    """The first use of a float16 item of a dict or list that a function is handed."""
    for load in loads:
        item = callee.module.parent(load)
        if not isinstance(item, ast.Subscript) or item.value is not load:
            continue
        taken = context.values.of(callee.module, item, frame)
        origin = next((v for v in taken if _is_autocast_half(context.module, block, v)), None)
        if origin is not None and (operation := _first_use(context, callee.module, [load], frame)):
            yield _Use(node, operation, origin, is_container=True)


def _loads(callee: Callee, parameter: str) -> list[ast.Name]:
    """Where a function reads its parameter, in the order of the text."""
    names = (node for node in ast.walk(callee.function) if isinstance(node, ast.Name) and node.id == parameter)
    return sorted((n for n in names if isinstance(n.ctx, ast.Load)), key=lambda n: (n.lineno, n.col_offset))


def _first_use(context: Context, module: Module, loads: list[ast.Name], frame: Frame) -> Value | None:
    """The operation in which a parameter is used first, if that runs in float16 in this activation."""
    for load in loads:
        around = next((a for a in module.ancestors(load) if isinstance(a, ast.Call | ast.BinOp | ast.stmt)), None)
        if not isinstance(around, ast.Call | ast.BinOp):
            continue
        for value in context.values.of(module, around, frame):
            operation = value.operation if value.is_tensor_op and value.node is around else None
            if operation is None or operation.kind in _HARMLESS:
                continue
            is_off = value.region.kind is RegionKind.DISABLED
            return value if is_off and value.may_be_half and _computes_in_half(value, operation) else None
    return None


def _computes_in_half(seen: Value, operation: Operation) -> bool:
    """Whether a float16 operand makes the operation run in float16, or raise; a float32 target promotes."""
    if seen.op in _PROMOTING_LOSSES:
        return half.is_half(*seen.operand("target")) is Certainty.ALWAYS
    return seen.may_be_half or operation.kind in _NEEDS_ITS_WEIGHTS_DTYPE


def _is_autocast_half(module: Module, block: Block, value: Value) -> bool:
    """Whether a tensor, reshaped or not, was made float16 by autocast outside the block (a half model means it)."""
    bare = list(patterns.bare(value))
    return (
        value.may_be_half
        and all(part.region.is_float16 for part in bare)
        and not any(part.module is module and block in module.ancestors(part.node) for part in bare)
    )
