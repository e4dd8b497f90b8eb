"""The patterns that rules look for in a file's bytes, before anything is parsed."""

from __future__ import annotations

import json

import pytest

from amplint.triggers import attribute, call

LOG = call("log", "2", "10")


@pytest.mark.parametrize(
    "text",
    [
        "x.log()",
        "torch.log2(x)",
        "x.log_()",
        "x.log ()",
        "safe_log(x)",
        "f = torch.log",
        "from torch import log as ln",
        "map(torch.log10, xs)",
        "_math.log(x)",
        "log(x)",
    ],
)
def test_what_may_be_a_call(text: str) -> None:
    assert LOG.search(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "logits(x)",
        "log_softmax(x)",
        "x.log_prob(a)",
        "catalog(x)",
        "logging.info(x)",
        "# see the log",
        "math.log(x)",
        "np.log10(x)",
        "numpy.log(x)",
        "log1p(x)",
    ],
)
def test_what_is_none(text: str) -> None:
    assert not LOG.search(text.encode())


def test_a_line_of_a_notebook_begins_a_name() -> None:
    cell = json.dumps("x = 1\nlog(x)\n\tlog(y)").encode()
    assert len(LOG.findall(cell)) == 2


@pytest.mark.parametrize("text", ["p.grad", "p.grad.norm()", 'getattr(p, "grad")', "getattr(p, 'grad', None)"])
def test_an_attribute(text: str) -> None:
    assert attribute("grad").search(text.encode())


@pytest.mark.parametrize(
    "text", ["torch.no_grad()", "x.grad_fn", "x.requires_grad", "gradient", "m.gradient_checkpointing"]
)
def test_no_such_attribute(text: str) -> None:
    assert not attribute("grad").search(text.encode())
