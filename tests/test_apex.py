"""The move from apex to torch.amp (AMP502): made where all that apex does is a plain loop, reported everywhere."""

from __future__ import annotations

import pytest

from amplint.registry import all_rules
from tests.programs import MAIN, fixed, judge

RULE = next(rule for rule in all_rules() if rule.code == "AMP502")

LOOP = """
import torch
from apex import amp

def train(model, optimizer, loader, flags):
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
"""
MOVED = """
import torch

def train(model, optimizer, loader, flags):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
INITIALIZE = 'model, optimizer = amp.initialize(model, optimizer, opt_level="O1")'
SCALE = "with amp.scale_loss(loss, optimizer) as scaled:\n            scaled.backward()"
STEP = "        optimizer.step()\n"


def test_a_plain_loop_moves() -> None:
    assert fixed(RULE, {MAIN: LOOP}) == MOVED


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("scaled.backward()", "scaled.backward(retain_graph=True)", "scaler.scale(loss).backward(retain_graph=True)\n"),
        ("flags):", "flags, scaler):", 'grad_scaler = torch.amp.GradScaler("cuda")\n'),
        (
            STEP,
            f"        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)\n{STEP}",
            "scaler.unscale_(optimizer)\n        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
        ),
        (STEP, f"{STEP}    torch.save(amp.state_dict(), 'a.pt')\n", "torch.save(scaler.state_dict(), 'a.pt')\n"),
        (STEP, f"{STEP}    amp.load_state_dict(flags)\n", "scaler.load_state_dict(flags)\n"),
        ('"O1")', '"O1", verbosity=0)', 'scaler = torch.amp.GradScaler("cuda")\n'),
    ],
)
def test_what_else_apex_does_in_the_loop_moves_too(old: str, new: str, expected: str) -> None:
    assert old in LOOP
    assert expected in fixed(RULE, {MAIN: LOOP.replace(old, new)})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"O1"', '"O3"'),
        ('opt_level="O1"', "**flags"),
        ('"O1")', '"O1", num_losses=2)'),
        (INITIALIZE, 'nets = amp.initialize(model, optimizer, opt_level="O1")'),
        (INITIALIZE, 'net, optimizer = amp.initialize(model, optimizer, opt_level="O1")'),
        (INITIALIZE, 'model, optimizer, n = amp.initialize(model, optimizer, opt_level="O1"), 1'),
        (INITIALIZE, f"{INITIALIZE}\n    {INITIALIZE}"),
        (INITIALIZE, INITIALIZE.replace("model", "flags.model")),
        (SCALE, "pass"),
        (SCALE, "with amp.scale_loss(loss, optimizer) as scaled:\n            scaled.mean().backward()"),
        (
            SCALE,
            "with amp.scale_loss(loss, optimizer) as scaled:\n            print(scaled)\n            scaled.backward()",
        ),
        (SCALE, SCALE.replace("optimizer)", "optimizer, loss_id=0)")),
        (SCALE, SCALE.replace("optimizer", "flags")),
        (SCALE, SCALE.replace(" as scaled", "")),
        ("loss = model(x).mean()", "loss = flags(x)"),
        ("loss = model(x).mean()", "x = x + 1; loss = model(x).mean()"),
        (STEP, "        optimizer.step(flags)\n"),
        (STEP, ""),
        (STEP, f"{STEP}    print(list(amp.master_params(optimizer)))\n"),
        (STEP, f"{STEP}    amp.init()\n"),
    ],
)
def test_what_is_not_plain_is_reported_without_a_fix(old: str, new: str) -> None:
    assert old in LOOP
    found = judge(RULE, {MAIN: LOOP.replace(old, new)})
    assert found
    assert all(finding.fix is None for finding in found)


def test_the_import_stays_where_something_mentions_it() -> None:
    text = fixed(RULE, {MAIN: f"{LOOP}\nregister(amp)\n"})
    assert "from apex import amp\n" in text
    assert "scaler.step(optimizer)" in text
