"""AMP110: probabilities where log-probabilities belong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from amplint import logarithms, patterns
from amplint.context import Context
from amplint.rewrite import Rewrite, first_possible
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity
from amplint.values import Peeled, Value


class NllOnProbabilities(Rule):
    """nll_loss or kl_div of a softmax, without its logarithm.

    ## What it does
    Reports a softmax given as the input of `nll_loss`, `nn.NLLLoss`, `kl_div` or `nn.KLDivLoss`.

    ## Why
    Both take log-probabilities. `nll_loss` of probabilities is minus the probability of the right class: it lies in
    [-1, 0] instead of [0, inf), its gradient vanishes where the softmax saturates, and a confident mistake is hardly
    corrected. `kl_div` of probabilities is no divergence at all and may be negative.

    ## Example
    ```python
    loss = F.nll_loss(F.softmax(logits, dim=1), y)
    ```
    Use instead:
    ```python
    loss = F.nll_loss(F.log_softmax(logits, dim=1), y)
    ```

    ## Fix
    Unsafe, since it changes what is trained: `log_softmax` takes the place of the softmax, for the loss alone. None
    where the softmax is in another function or file.

    ## References
    - [torch.nn.NLLLoss](https://pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html)
    - [torch.nn.KLDivLoss](https://pytorch.org/docs/stable/generated/torch.nn.KLDivLoss.html)
    """

    code = "AMP110"
    name = "nll-on-probabilities"
    severity = Severity.ERROR
    summary = "nll_loss and kl_div take log-probabilities, not a softmax"
    triggers = ((b"nll_loss",), (b"NLLLoss",), (b"kl_div",), (b"KLDivLoss",))
    fixable = "unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch
            import torch.nn.functional as F

            def loss(logits, y):
                return F.nll_loss(F.softmax(logits, dim=1), y)  # expect

            def distil(student, teacher, t):
                p = (student / t).softmax(dim=-1)
                q = (teacher / t).softmax(dim=-1)
                return F.kl_div(p, q, reduction="batchmean") * t**2  # expect
            """,
            """
            import torch
            import torch.nn.functional as F

            def loss(logits, y):
                return F.nll_loss(F.log_softmax(logits, dim=1), y)

            def distil(student, teacher, t):
                q = (teacher / t).softmax(dim=-1)
                return F.kl_div((student / t).log_softmax(dim=-1), q, reduction="batchmean") * t**2
            """,
        ),
        Example(
            """
            from torch import softmax
            from torch.nn import NLLLoss

            nll = NLLLoss()

            def loss(scores, y):
                p = softmax(scores, -1)
                return nll(p, y), p  # expect
            """,
            """
            from torch import log_softmax, softmax
            from torch.nn import NLLLoss

            nll = NLLLoss()

            def loss(scores, y):
                p = softmax(scores, -1)
                return nll(log_softmax(scores, -1), y), p
            """,
        ),
        Example(
            """
            import torch
            from torch import nn

            class Classifier(nn.Module):
                def __init__(self, dim, classes):
                    super().__init__()
                    self.fc = nn.Linear(dim, classes)
                    self.softmax = nn.Softmax(dim=1)

                def forward(self, x, y):
                    p = self.softmax(self.fc(x))
                    return nn.functional.nll_loss(p, y)  # expect
            """,
            """
            import torch
            from torch import nn

            class Classifier(nn.Module):
                def __init__(self, dim, classes):
                    super().__init__()
                    self.fc = nn.Linear(dim, classes)
                    self.softmax = nn.Softmax(dim=1)

                def forward(self, x, y):
                    return nn.functional.nll_loss(nn.functional.log_softmax(self.fc(x), dim=1), y)
            """,
        ),
        Example(
            """
            from torch import nn

            class Head(nn.Module):
                def __init__(self, dim, classes):
                    super().__init__()
                    self.net = nn.Sequential(nn.Linear(dim, classes), nn.Softmax(dim=1))
                    self.criterion = nn.NLLLoss()

                def forward(self, x, y):
                    return self.criterion(self.net(x), y)  # expect
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch
        import torch.nn.functional as F

        def vat(logits, perturbed):
            with torch.no_grad():
                p = F.softmax(logits, dim=1)
            log_p = F.log_softmax(perturbed, dim=1)
            return F.kl_div(log_p, p, reduction="batchmean") + F.kl_div(input=log_p, target=p).sum()
        """,
        """
        import torch
        import torch.nn.functional as F

        def loss(logits, y):
            return F.nll_loss(F.log_softmax(logits, dim=1), y)

        def distil(student, teacher):
            return F.kl_div(F.log_softmax(student, -1), F.softmax(teacher, -1), reduction="batchmean")

        def mixture(a, b, target):
            m = (a.softmax(1) + b.softmax(1)) / 2
            return F.kl_div(m.clamp(1e-7, 1).log(), target)
        """,
        """
        import torch
        from torch import nn

        class Head(nn.Module):
            def __init__(self, dim, classes, log):
                super().__init__()
                self.fc = nn.Linear(dim, classes)
                self.norm = nn.LogSoftmax(dim=1) if log else nn.Softmax(dim=1)
                self.criterion = nn.NLLLoss() if log else nn.MSELoss()

            def forward(self, x, y):
                return self.criterion(self.norm(self.fc(x)), y)
        """,
        """
        import torch
        import torch.nn.functional as F

        def nll_loss(p, y):
            return -p.gather(1, y[:, None]).log().mean()

        def loss(logits, y):
            prob_student = F.log_softmax(logits, 1)
            return nll_loss(logits.softmax(1), y) + F.kl_div(prob_student, y, log_target=True)
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for loss in context.values.operations(context.module, "nll_loss", "kl_div"):
            peeled = patterns.fed_by(context.values, loss, {"softmax"})
            if not peeled:
                continue
            message = f"{loss.op} takes log-probabilities, but gets a softmax, in [0, 1] instead of (-inf, 0]"
            fix = _fix(context, loss, peeled[0]) if len(peeled) == 1 else None
            yield self.finding(context, loss.node, message, fix=fix)


def _fix(context: Context, loss: Value, peeled: Peeled) -> Fix | None:
    given, softmax = loss.argument("input"), patterns.unguarded(peeled)
    if given is None or softmax is None:
        return None

    def attempt(local: str) -> Fix:
        rewrite = Rewrite(context, given, local=local)
        rewrite.put(logarithms.log_softmax(rewrite, peeled.core), softmax, given)
        return rewrite.fix("Use log_softmax", Safety.UNSAFE)

    return first_possible(lambda: attempt(""), lambda: attempt("logits"))
