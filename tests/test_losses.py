"""How the rules of finiteness tell what the loss is, which tests look at it, and how the step is called."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from amplint import losses
from amplint.registry import all_rules
from amplint.source import Source
from amplint.tree import Module, parse
from tests.programs import MAIN, fixed, judge

UNCHECKED, NAN_ONLY = (next(rule for rule in all_rules() if rule.code == code) for code in ("AMP401", "AMP402"))

TRAIN = """
import itertools
import math
import sys
import torch
from tqdm import tqdm

def stop(value):
    raise RuntimeError(value)

def train(model, loader, opt, scaler: torch.amp.GradScaler, limit, criterion{parameters}):
    history, n = [], 0
{body}
"""


def training(body: str, parameters: str = "") -> str:
    return TRAIN.format(body=textwrap.indent(body, "    "), parameters=parameters)


def step(loop: str, after: str = "pass") -> str:
    lines = ["loss = model(1)", "scaler.scale(loss).backward()", "scaler.step(opt)", "scaler.update()", after]
    return "\n".join([loop, *(f"    {line}" for line in lines)])


@pytest.mark.parametrize(
    ("loop", "after", "parameters", "header", "told"),
    [
        ("for k, x in enumerate(loader):", "pass", "", None, "step {k}: loss is"),
        ("for k, x in tqdm(enumerate(loader)):", "pass", "", None, "step {k}: loss is"),
        ("for k in range(9):", "pass", "", None, "step {k}: loss is"),
        ("for k in itertools.count():", "pass", "", None, "step {k}: loss is"),
        ("while True:", "n += 1", "", None, "step {n}: loss is"),
        ("for x in loader:", "n += 1", "", None, "step {n}: loss is"),
        ("for x in loader:", "pass", ", global_step=0", None, "step {global_step}: loss is"),
        ("for x in loader:", "pass", "", "for step, x in enumerate(loader):", "step {step}: loss is"),
        ("for x, y in loader:", "pass", "", "for step, (x, y) in enumerate(loader):", "step {step}: loss is"),
        ("for (x, y) in loader:", "n += 2", "", "for step, (x, y) in enumerate(loader):", "step {step}: loss is"),
        ("for k in loader.values():", "pass", "", "for step, k in enumerate(loader.values()):", "step {step}: loss is"),
        (
            "for k, *_ in zip(loader):",
            "pass",
            "",
            "for step, (k, *_) in enumerate(zip(loader)):",
            "step {step}: loss is",
        ),
        ("while True:", "pass", "", None, "loss is"),
        ("if True:", "pass", "", None, "loss is"),
    ],
)
def test_the_inserted_test_says_at_which_step(
    loop: str, after: str, parameters: str, header: str | None, told: str
) -> None:
    text = fixed(UNCHECKED, {MAIN: training(step(loop, after), parameters)})
    assert f'raise FloatingPointError(f"{told} {{loss.item()}}")' in text
    assert (header or loop) in text


def checked(before: str = "pass", after: str = "pass", loss: str = "model(x)") -> str:
    lines = [f"loss = {loss}", before, "scaler.scale(loss).backward()", "scaler.step(opt)", "scaler.update()", after]
    body = "\n".join(["for x in loader:", *textwrap.indent("\n".join(lines), "    ").splitlines()])
    return training(body)


@pytest.mark.parametrize(
    "before",
    [
        "if not torch.isfinite(loss):\n    continue",
        "assert loss < limit",
        "if loss > limit:\n    raise ValueError",
        "if loss > limit:\n    sys.exit(1)",
        "if loss > limit:\n    stop(loss)",
        "if loss > limit:\n    continue",
        "if loss > limit:\n    pass\nelse:\n    return",
        "value = loss.item()\nif not value < limit:\n    break",
        "history.append(loss.detach())\nif history[-1] > limit:\n    break",
        "first, *rest = loss, 1\nassert first < limit",
        "loss = loss / 2\nif not math.isfinite(loss.item()):\n    break",
    ],
)
def test_a_loss_that_is_tested_needs_no_test(before: str) -> None:
    assert judge(UNCHECKED, {MAIN: checked(before)}) == []


@pytest.mark.parametrize(
    "before",
    [
        "pass",
        "if x > limit:\n    continue",
        "if loss > limit:\n    print('large')",
        "if n > limit:\n    stop(loss)",
        "assert n < limit",
        "other = n\nassert other < limit",
    ],
)
def test_tests_of_something_else_and_without_consequence_do_not_count(before: str) -> None:
    assert len(judge(UNCHECKED, {MAIN: checked(before)})) == 1


@pytest.mark.parametrize(
    ("before", "becomes"),
    [
        ("if torch.isnan(loss):\n    break", "if not torch.isfinite(loss):"),
        ("if not torch.isnan(loss):\n    n += 1", "if torch.isfinite(loss):"),
        ("if loss.isnan().any():\n    break", "if not loss.isfinite().all():"),
        ("if loss != loss:\n    break", "if not torch.isfinite(loss):"),
        ("value = loss.item()\nif value != value:\n    break", "if not math.isfinite(value):"),
        ("value = float(loss)\nif math.isnan(value):\n    break", "if not math.isfinite(value):"),
        ("bad = torch.isnan(loss)\nassert not bad", "bad = not torch.isfinite(loss)"),
        ("while torch.isnan(loss):\n    loss = model(x)", "while not torch.isfinite(loss):"),
        ("n = 1 if torch.isnan(loss) else 2", "n = 1 if not torch.isfinite(loss) else 2"),
        ("if x is None or torch.isnan(loss):\n    break", "if x is None or not torch.isfinite(loss):"),
    ],
)
def test_a_test_for_nan_alone_becomes_one_for_finiteness(before: str, becomes: str) -> None:
    text = checked(before)
    assert len(judge(NAN_ONLY, {MAIN: text})) == 1
    assert becomes in fixed(NAN_ONLY, {MAIN: text})


@pytest.mark.parametrize(
    "before",
    [
        "if any(torch.isnan(part) for part in (loss, x)):\n    break",
        "if torch.isnan(loss).any(dim=0):\n    break",
        "if torch.isnan(loss).item():\n    break",
    ],
)
def test_a_test_for_nan_in_another_form_is_reported_without_a_fix(before: str) -> None:
    text = checked(before.replace("part)", "loss)"))
    assert [finding.fix for finding in judge(NAN_ONLY, {MAIN: text})] == [None]


@pytest.mark.parametrize(
    "before",
    [
        "if torch.isnan(x):\n    break",
        "if torch.isnan(loss):\n    loss = torch.zeros_like(loss)",
        "if torch.isnan(loss):\n    loss = torch.tensor(0.0).to('cuda')",
        "if torch.isnan(loss):\n    loss = -1.0",
        "print(torch.isnan(loss))",
        "n += torch.isnan(loss).sum()",
        "loss = loss[~torch.isnan(loss)].mean()",
        "if torch.isnan(loss) or torch.isinf(loss):\n    break",
        "value = loss.item()\nif math.isnan(value) or not math.isfinite(value):\n    break",
        "torch.isnan(loss)",
    ],
)
def test_what_is_no_guard_or_excludes_inf_too_is_left_alone(before: str) -> None:
    assert judge(NAN_ONLY, {MAIN: checked(before)}) == []


def module(body: str) -> Module:
    return parse(
        Source(Path("main.py"), f"import torch\ndef f(self, a, b, criterion):\n{textwrap.indent(body, '    ')}\n")
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("loss = a + b\nloss.backward()", {"loss", "a", "b"}),
        ("loss = criterion(a)\nloss.backward()", {"loss"}),
        ("loss = a if b else -criterion(a)\nloss.backward()", {"loss", "a"}),
        ("self.loss = a.mean()\nself.loss.backward()", {"self.loss", "a"}),
        ("(loss := a[0]).backward()", {"a"}),
        ("loss = sum([a, b])\nloss += torch.mean(b)\nloss.backward()", {"loss", "a", "b"}),
        ("loss, other = a, b\nloss.backward()", {"loss", "a"}),
    ],
)
def test_what_a_loss_is_put_together_from(body: str, expected: set[str]) -> None:
    found = module(body)
    ((_, loss),) = losses.backward_losses(found)
    assert losses.names(found, loss) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("loss", True),
        ("self.loss", True),
        ("losses['total']", True),
        ("loss.mean()", True),
        ("self.loss_fn(x)", False),
        ("loss.detach()", False),
        ("loss.item()", False),
        ("loss(x)", False),
        ("x.mean()", False),
        ("3", False),
    ],
)
def test_what_is_called_a_loss(expression: str, expected: bool) -> None:
    assert losses.is_called_loss(ast.parse(expression, mode="eval").body) is expected
