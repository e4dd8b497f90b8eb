"""AMP103: binary cross entropy of probabilities, which CUDA autocast refuses and float16 cannot resolve."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from amplint import patterns
from amplint.context import Context
from amplint.rewrite import Rewrite, UnmovableError, first_possible
from amplint.rule import Example, Finding, Fix, Related, Rule, Safety, Severity
from amplint.values import Peeled, Region, RegionKind, Value

_BANNED = (RegionKind.FLOAT16, RegionKind.BFLOAT16, RegionKind.UNKNOWN)
_FUNCTION = "torch.nn.functional.binary_cross_entropy"
_CLASS = "torch.nn.BCELoss"


class BceOnProbabilities(Rule):
    """binary_cross_entropy of a sigmoid, where the with-logits form belongs.

    ## What it does
    Reports `F.binary_cross_entropy` and calls of an `nn.BCELoss` under CUDA autocast, and elsewhere if what they are
    given is a sigmoid: in the same expression, through locals, as the last layer of a model in another file.

    ## Why
    Under CUDA autocast both raise `RuntimeError: torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are
    unsafe to autocast`, even on float32 input. Outside of it a sigmoid is exactly 1 above 16.64 in float32 (8.32 in
    float16): a confidently wrong prediction costs at most 100, since the logarithm is cut off there, and the sigmoid
    passes no gradient back, so it is never unlearnt. `binary_cross_entropy_with_logits` is exact for every logit and
    allowed under autocast, where it runs in float32.

    ## Example
    ```python
    loss = F.binary_cross_entropy(torch.sigmoid(logits), target)
    ```
    Use instead:
    ```python
    loss = F.binary_cross_entropy_with_logits(logits, target)
    ```

    ## Fix
    Safe where the sigmoid is in the same expression or in a local that only the loss reads; unsafe otherwise. None
    where the sigmoid is a layer of a model: take it off there, and put it back where probabilities are needed.
    Inside `autocast(enabled=False)`, on float32 input, the loss is fine.

    ## References
    - [Autocast: prefer binary_cross_entropy_with_logits](https://pytorch.org/docs/stable/amp.html)
    """

    code = "AMP103"
    name = "bce-on-probabilities"
    severity = Severity.ERROR
    summary = "binary_cross_entropy raises under autocast and loses large logits; use the with-logits form"
    triggers = ((b"binary_cross_entropy",), (b"BCELoss",))
    fixable = "safe/unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch
            import torch.nn.functional as F

            def loss(logits, target):
                return F.binary_cross_entropy(torch.sigmoid(logits), target)  # expect

            def masked(logits, target, weight):
                score = logits.sigmoid()
                score = score[:, 0]
                return F.binary_cross_entropy(score, target, weight=weight)  # expect
            """,
            """
            import torch
            import torch.nn.functional as F

            def loss(logits, target):
                return F.binary_cross_entropy_with_logits(logits, target)

            def masked(logits, target, weight):
                return F.binary_cross_entropy_with_logits(logits[:, 0], target, weight=weight)
            """,
        ),
        Example(
            """
            import torch
            from torch import nn

            class Tagger(nn.Module):
                def __init__(self, dim, tags):
                    super().__init__()
                    self.out = nn.Linear(dim, tags)
                    self.criterion = nn.BCELoss(reduction="sum")

                def forward(self, x, y):
                    # one probability a tag
                    p = torch.sigmoid(self.out(x))
                    return p, self.criterion(p.clamp(1e-7, 1 - 1e-7), y)  # expect
            """,
            """
            import torch
            from torch import nn

            class Tagger(nn.Module):
                def __init__(self, dim, tags):
                    super().__init__()
                    self.out = nn.Linear(dim, tags)
                    self.criterion = nn.BCEWithLogitsLoss(reduction="sum")

                def forward(self, x, y):
                    logits = self.out(x)
                    # one probability a tag
                    p = torch.sigmoid(logits)
                    return p, self.criterion(logits, y)
            """,
        ),
        Example(
            """
            import torch
            from torch.nn import BCELoss, Module

            class Edges(Module):
                def __init__(self):
                    super().__init__()
                    self.bce = BCELoss()

                def forward(self, scores, y):
                    return self.bce(  # expect
                        scores.sigmoid(),  # one score an edge
                        y,
                    ).mean()
            """,
            """
            import torch
            from torch.nn import BCELoss, Module

            class Edges(Module):
                def __init__(self):
                    super().__init__()
                    self.bce = torch.nn.BCEWithLogitsLoss()

                def forward(self, scores, y):
                    return self.bce(
                        scores,  # one score an edge
                        y,
                    ).mean()
            """,
        ),
        Example(
            """
            import torch
            from model import Critic

            criterion = torch.nn.BCELoss()

            def step(critic: Critic, images, real):
                score = critic(images).view(-1)
                return criterion(score, real)  # expect

            def under_autocast(model, x, y):
                with torch.autocast("cuda"):
                    p = model(x)
                    return torch.nn.functional.binary_cross_entropy(p.float(), y)  # expect
            """,
            None,
            {
                "model.py": """
                from torch import nn

                class Critic(nn.Module):
                    def __init__(self):
                        super().__init__()
                        self.net = nn.Sequential(nn.Conv2d(3, 8, 4), nn.Flatten(), nn.Linear(8, 1), nn.Sigmoid())

                    def forward(self, images):
                        if images.is_cuda:
                            return nn.parallel.data_parallel(self.net, images, range(2))
                        return self.net(images)
                """,
            },
        ),
    )
    VALID: ClassVar = (
        """
        import torch
        import torch.nn.functional as F

        def loss(logits, target):
            return F.binary_cross_entropy_with_logits(logits, target)

        def metric(logits, target):
            p = torch.sigmoid(logits)
            return ((p > 0.5) == target).float().mean()
        """,
        """
        import torch
        import torch.nn.functional as F

        def assign(p, target):
            with torch.autocast("cuda"):
                cost = p @ target
                with torch.autocast("cuda", enabled=False):
                    cost = cost.float() + F.binary_cross_entropy(p.float().sigmoid(), target.float())
            return cost
        """,
        """
        import torch
        import torch.nn.functional as F

        def occupancy(density, target):
            # no sigmoid, and no autocast
            return F.binary_cross_entropy(1 - torch.exp(-density), target)

        def product(a, b, target):
            return F.binary_cross_entropy(a.sigmoid() * b.sigmoid(), target)
        """,
        """
        import torch
        from torch import nn

        class Dice(nn.Module):
            def __init__(self):
                super().__init__()
                self.binary_cross_entropy = nn.BCEWithLogitsLoss()
                self.entropy = nn.BCELoss

            def forward(self, logits, y):
                with torch.autocast("cuda"):
                    return self.binary_cross_entropy(logits, y) + binary_cross_entropy(logits.sigmoid(), y)

        def binary_cross_entropy(p, y):
            return -(y * p + (1 - y) * (1 - p)).mean()
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for loss in context.values.operations(context.module, "binary_cross_entropy"):
            banned = _banned(context, loss)
            peeled = patterns.fed_by(context.values, loss, {"sigmoid"})
            if banned is None and (not peeled or not _matters(context, loss)):
                continue
            fix = _fix(context, loss, peeled[0]) if len(peeled) == 1 else None
            if banned is None:
                message = (
                    "the sigmoid is exactly 1 above 16.64 (8.32 in float16), where this loss stops at 100 and has no "
                    "gradient; binary_cross_entropy_with_logits takes the logits"
                )
                yield self.finding(context, loss.node, message, severity=Severity.WARNING, fix=fix)
                continue
            message = (
                "binary_cross_entropy raises under CUDA autocast, on float32 input too; the with-logits form does not"
            )
            severity = Severity.ERROR if banned.certain else Severity.WARNING
            related = tuple(Related(place.path, place.position, place.message) for place in banned.why)
            yield self.finding(context, loss.node, message, severity=severity, fix=fix, related=related)


def _banned(context: Context, loss: Value) -> Region | None:
    """A CUDA autocast region in which the loss is computed, a certain one if there is one."""
    regions = [seen.region for seen in context.values.seen(loss) if seen.region.kind in _BANNED]
    return next((region for region in regions if region.certain), next(iter(regions), None))


def _matters(context: Context, loss: Value) -> bool:
    """Whether the loss is computed outside `autocast(enabled=False)`, or there on what may be float16."""
    return any(
        seen.region.kind is not RegionKind.DISABLED or any(value.may_be_half for value in seen.operand("input"))
        for seen in context.values.seen(loss)
    )


def _fix(context: Context, loss: Value, peeled: Peeled) -> Fix | None:
    given, probability = loss.argument("input"), patterns.unguarded(peeled)
    if given is None or probability is None or not isinstance(loss.node, ast.Call):
        return None
    call = loss.node

    def attempt(local: str) -> Fix:
        rewrite = Rewrite(context, given, local=local)
        is_direct = rewrite.put(rewrite.text(patterns.part(peeled.core)), probability, given)
        if context.module.is_named(call.func, _FUNCTION):
            rewrite.rename_called(call, f"{_FUNCTION}_with_logits")
        else:
            _take_logits(context, rewrite, call)
        safe = is_direct or bool(rewrite.unused())
        return rewrite.fix("Give the logits to the with-logits form", Safety.SAFE if safe else Safety.UNSAFE)

    return first_possible(lambda: attempt(""), lambda: attempt("logits"))


def _take_logits(context: Context, rewrite: Rewrite, call: ast.Call) -> None:
    """Make the criterion that is called an nn.BCEWithLogitsLoss. Raises UnmovableError if other calls use it too."""
    criteria = context.values.of(context.module, call.func)
    built = criteria[0].node if len(criteria) == 1 and criteria[0].module is context.module else None
    if not isinstance(built, ast.Call) or not context.module.is_named(built.func, _CLASS):
        raise UnmovableError("the criterion is built elsewhere")
    for other in context.values.operations(context.module, "binary_cross_entropy"):
        if other.node is call or not isinstance(other.node, ast.Call):
            continue
        if any(value.node is built for value in context.values.of(context.module, other.node.func)):
            raise UnmovableError("the criterion is called elsewhere too")
    rewrite.rename_called(built, "torch.nn.BCEWithLogitsLoss")
