"""EXA101: autocast without a dtype, for a team that wants the dtype of its regions written down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from amplint.context import Context
from amplint.edit import argument, set_argument
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity


class AutocastWithoutDtype(Rule):
    """An autocast region leaves its dtype to the default.

    ## What it does
    Reports `torch.autocast(...)` and `torch.amp.autocast(...)` calls that give no `dtype`.

    ## Why is this bad?
    The default is float16 on CUDA and bfloat16 on the CPU; a reader has to know that to judge the code inside.

    ## Fix
    Safe: writes the CUDA default down.
    """

    code = "EXA101"
    name = "autocast-without-dtype"
    severity = Severity.INFO
    summary = "an autocast region whose dtype is not written down"
    triggers = ((b"autocast",),)
    fixable = "safe"
    INVALID: ClassVar = (
        Example(
            "import torch\nwith torch.autocast('cuda'):  # expect\n    pass\n",
            "import torch\nwith torch.autocast('cuda', dtype=torch.float16):\n    pass\n",
        ),
    )
    VALID: ClassVar = ("import torch\nwith torch.autocast('cuda', dtype=torch.bfloat16):\n    pass\n",)

    def check(self, context: Context) -> Iterator[Finding]:
        module = context.module
        for call in module.calls:
            if module.is_named(call.func, "torch.autocast", "torch.amp.autocast") and argument(call, "dtype") is None:
                edits = set_argument(module, call, "dtype", "torch.float16")
                fix = Fix("write the dtype down", Safety.SAFE, edits)
                yield self.finding(context, call, "autocast computes in float16 on CUDA by default", fix=fix)
