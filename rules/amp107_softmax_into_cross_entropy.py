"""AMP107: probabilities given to a loss that makes probabilities of what it is given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from amplint import patterns
from amplint.context import Context
from amplint.rewrite import Rewrite, first_possible
from amplint.rule import Example, Finding, Fix, Related, Rule, Safety, Severity
from amplint.values import Peeled, Value

_APPLIES = {"cross_entropy": "softmax", "binary_cross_entropy_with_logits": "sigmoid"}


class SoftmaxIntoCrossEntropy(Rule):
    """cross_entropy of a softmax normalizes twice.

    ## What it does
    Reports a softmax or sigmoid given to `cross_entropy`, `nn.CrossEntropyLoss`,
    `binary_cross_entropy_with_logits` or `nn.BCEWithLogitsLoss`, also where it is the last layer of the model and the
    loss is in the trainer.

    ## Why
    These losses take logits. The softmax of numbers between 0 and 1 is nearly uniform: with two classes no class gets
    more than 0.73, so the loss of a perfect prediction is still 0.31 (two classes) or log(1 + (n - 1)/e), and the
    gradient of what is wrong for certain is nearly zero, because the first softmax is saturated. Training seems to
    work and stays at a plateau.

    ## Example
    ```python
    probs = torch.softmax(model(x), dim=1)
    loss = F.cross_entropy(probs, y)
    ```
    Use instead:
    ```python
    logits = model(x)
    loss = F.cross_entropy(logits, y)
    ```

    ## Fix
    Unsafe, since it changes what is trained: the loss gets what the softmax was given. None where the softmax is in
    another function or file.

    ## References
    - [torch.nn.CrossEntropyLoss](https://pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html)
    """

    code = "AMP107"
    name = "softmax-into-cross-entropy"
    severity = Severity.WARNING
    summary = "cross_entropy takes logits; of a softmax it normalizes twice"
    triggers = ((b"cross_entropy",), (b"CrossEntropyLoss",), (b"BCEWithLogitsLoss",))
    fixable = "unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch
            import torch.nn.functional as F

            def loss(logits, y):
                return F.cross_entropy(F.softmax(logits, dim=1), y)  # expect

            def tokens(hidden, head, y):
                scores = hidden @ head
                probs = scores.softmax(-1)
                picked = probs.argmax(-1)
                return F.cross_entropy(probs.view(-1, probs.size(-1)), y.view(-1)), picked  # expect

            def tags(logits, y):
                p = torch.sigmoid(logits)
                return F.binary_cross_entropy_with_logits(p, y)  # expect
            """,
            """
            import torch
            import torch.nn.functional as F

            def loss(logits, y):
                return F.cross_entropy(logits, y)

            def tokens(hidden, head, y):
                scores = hidden @ head
                probs = scores.softmax(-1)
                picked = probs.argmax(-1)
                return F.cross_entropy(scores.view(-1, scores.size(-1)), y.view(-1)), picked

            def tags(logits, y):
                return F.binary_cross_entropy_with_logits(logits, y)
            """,
        ),
        Example(
            """
            import torch
            from net import Net

            class Trainer:
                def __init__(self, classes):
                    self.net = Net(classes)
                    self.loss_fn = torch.nn.CrossEntropyLoss(label_smoothing=0.1)

                def step(self, x, y):
                    out = self.net(x)
                    return self.loss_fn(out, y)  # expect
            """,
            None,
            {
                "net.py": """
                from torch import nn

                class Net(nn.Module):
                    def __init__(self, classes):
                        super().__init__()
                        self.body = nn.Linear(16, classes)
                        self.activation = nn.Softmax(dim=1)

                    def forward(self, x):
                        return self.activation(self.body(x))
                """,
            },
        ),
        Example(
            """
            from torch import nn

            classifier = nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.Softmax(dim=-1))
            criterion = nn.CrossEntropyLoss()

            def evaluate(batches):
                return sum(criterion(classifier(x), y) for x, y in batches)  # expect
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch
        import torch.nn.functional as F

        def loss(logits, y):
            probs = torch.softmax(logits, dim=1)
            return F.cross_entropy(logits, y), probs.max(1)

        def distil(student, teacher):
            return F.cross_entropy(student, F.softmax(teacher / 2, dim=1))

        def attention(q, k, v, head, y):
            weights = torch.softmax(q @ k.transpose(-1, -2), -1)
            return F.cross_entropy(head(weights @ v), y)
        """,
        """
        import torch
        from torch import nn

        class Soft(nn.Module):
            def forward(self, p, y):
                return 1 - 2 * (p * y).sum() / (p + y).sum()

        class Task(nn.Module):
            def __init__(self, kind):
                super().__init__()
                self.criterion = Soft() if kind == "dice" else nn.BCEWithLogitsLoss()
                self.kind = kind

            def forward(self, logits, y):
                if self.kind == "dice":
                    return self.criterion(logits.sigmoid(), y)
                return self.criterion(logits, y)
        """,
        """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(8, 3)

            def forward(self, x):
                out = self.fc(x)
                if not self.training:
                    out = out.softmax(-1)
                return out

        net, criterion = Net(), nn.CrossEntropyLoss()

        def step(x, y):
            return criterion(net(x), y)
        """,
        """
        import torch
        from torch import nn
        import torch.nn.functional as F

        def dice(p, y):
            return 1 - (p * y).sum()

        def cross_entropy(p, y):
            return -(y * p).sum()

        def step(logits, y, criterion=dice):
            p = torch.softmax(logits, 1)
            return criterion(p, y) + cross_entropy(p, y) + F.mse_loss(p, y) + F.nll_loss(F.log_softmax(logits, 1), y)
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for loss in context.values.operations(context.module, *_APPLIES):
            peeled = patterns.fed_by(context.values, loss, {"softmax", "sigmoid"})
            if not peeled:
                continue
            given = peeled[0].core
            message = f"{loss.op} applies {_APPLIES[loss.op]} itself, but gets a {given.op}; give it the logits"
            related = () if given.module is context.module else (_origin(given),)
            fix = _fix(context, loss, peeled[0]) if len(peeled) == 1 else None
            yield self.finding(context, loss.node, message, fix=fix, related=related)


def _origin(given: Value) -> Related:
    source = given.module.source
    return Related(source.path, source.position(source.span(given.node)[0]), f"the {given.op}")


def _fix(context: Context, loss: Value, peeled: Peeled) -> Fix | None:
    given, probability = loss.argument("input"), patterns.unguarded(peeled)
    if given is None or probability is None:
        return None

    def attempt(local: str) -> Fix:
        rewrite = Rewrite(context, given, local=local)
        rewrite.put(rewrite.text(patterns.part(peeled.core)), probability, given)
        return rewrite.fix("Give the logits to the loss", Safety.UNSAFE)

    return first_possible(lambda: attempt(""), lambda: attempt("logits"))
