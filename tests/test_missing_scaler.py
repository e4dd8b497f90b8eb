"""Where a GradScaler that is missing goes (AMP209), and its state in a checkpoint (AMP213)."""

from __future__ import annotations

import pytest

from amplint.registry import all_rules
from tests.programs import MAIN, fixed, judge

MISSING, UNSAVED = (next(rule for rule in all_rules() if rule.code == code) for code in ("AMP209", "AMP213"))

LOOP = """
import contextlib
import torch

FP16 = True

def train(model, loader, opt, fp16, args):
    {before}
    for x in loader:
        with {context}:
            loss = model(x)
        {backward}
        {step}
"""


def loop(
    context: str = "torch.autocast('cuda', dtype=torch.float16)",
    before: str = "pass",
    backward: str = "loss.backward()",
    step: str = "opt.step()",
) -> str:
    return LOOP.format(before=before, context=context, backward=backward, step=step)


@pytest.mark.parametrize(
    ("context", "made"),
    [
        ("torch.autocast('cuda', dtype=torch.float16)", 'torch.amp.GradScaler("cuda")'),
        ("torch.autocast('cuda', dtype=torch.float16, enabled=True)", 'torch.amp.GradScaler("cuda")'),
        ("torch.autocast('cuda', dtype=torch.float16, enabled=fp16)", 'torch.amp.GradScaler("cuda", enabled=fp16)'),
        ("torch.cuda.amp.autocast(fp16)", 'torch.amp.GradScaler("cuda", enabled=fp16)'),
        ("torch.autocast('cuda', torch.float16, args.amp)", 'torch.amp.GradScaler("cuda", enabled=args.amp)'),
        (
            "torch.autocast('cuda', dtype=torch.float16) if fp16 else contextlib.nullcontext()",
            'torch.amp.GradScaler("cuda", enabled=fp16)',
        ),
    ],
)
def test_the_scaler_is_made_before_the_loop_and_switched_as_autocast_is(context: str, made: str) -> None:
    text = fixed(MISSING, {MAIN: loop(context)})
    assert f"    scaler = {made}\n    for x in loader:" in text
    assert "scaler.scale(loss).backward()\n        scaler.step(opt)\n        scaler.update()" in text


@pytest.mark.parametrize(
    "text",
    [
        loop(before="scaler = None"),
        loop(step="print(opt.step())"),
        loop(step="opt.step(lambda: loss)"),
        loop(before="fp16 = fp16 and args.on", context="torch.autocast('cuda', torch.float16, fp16)"),
        loop(context="torch.autocast('cuda', torch.float16, bool(args.on))"),
    ],
)
def test_a_scaler_that_cannot_be_written_there_is_not(text: str) -> None:
    assert [finding.fix for finding in judge(MISSING, {MAIN: text})] == [None]


@pytest.mark.parametrize(
    "text",
    [
        loop(context="torch.autocast('cuda', dtype=torch.bfloat16)"),
        loop(context="torch.autocast('cuda', dtype=args.dtype)"),
        loop(context="torch.autocast(args.device, dtype=torch.float16)"),
        loop(context="contextlib.nullcontext()"),
        loop(backward="(loss * 1024 * args.scale).backward()"),
        loop(backward="pass"),
    ],
)
def test_without_float16_that_is_known_no_scaler_is_missing(text: str) -> None:
    assert judge(MISSING, {MAIN: text}) == []


def test_the_scaler_of_a_class_is_made_after_its_optimizer() -> None:
    text = """
import torch

class Loop:
    def __init__(self, model):
        self.model = model
        self.opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(self, x):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = self.model(x)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
"""
    result = fixed(MISSING, {MAIN: text})
    assert 'lr=0.1)\n        self.scaler = torch.amp.GradScaler("cuda")\n' in result
    assert "self.scaler.scale(loss).backward()\n        self.scaler.unscale_(self.opt)\n" in result
    assert "self.scaler.step(self.opt)\n        self.scaler.update()\n" in result


SAVING = """
import torch

def train(model, opt, loader{parameters}):
    {made}
    for x in loader:
        scaler.scale(model(x)).backward()
        scaler.step(opt)
        scaler.update()
    {saved}
"""
SCALER = "scaler = torch.amp.GradScaler('cuda')"


@pytest.mark.parametrize(
    ("made", "saved", "result"),
    [
        (
            SCALER,
            "torch.save({'m': model.state_dict(), 'o': opt.state_dict()}, 'a.pt')",
            "'o': opt.state_dict(), 'scaler': scaler.state_dict()}",
        ),
        (
            SCALER,
            "torch.save(dict(m=model.state_dict(), o=opt.state_dict()), 'a.pt')",
            "o=opt.state_dict(), scaler=scaler.state_dict())",
        ),
        (
            SCALER,
            "state = {'m': model.state_dict(), 'o': opt.state_dict()}\n    torch.save(state, 'a.pt')",
            "'o': opt.state_dict(), 'scaler': scaler.state_dict()}",
        ),
        (
            "scaler = torch.amp.GradScaler('cuda') if loader else None",
            "torch.save({'m': model.state_dict(), 'o': opt.state_dict()}, 'a.pt')",
            "'scaler': scaler.state_dict() if scaler is not None else None}",
        ),
    ],
)
def test_the_state_of_the_scaler_is_added_to_what_is_saved(made: str, saved: str, result: str) -> None:
    text = SAVING.format(parameters="", made=made, saved=saved)
    assert len(judge(UNSAVED, {MAIN: text})) == 1
    assert result in fixed(UNSAVED, {MAIN: text})


@pytest.mark.parametrize(
    "saved",
    [
        "torch.save({'m': model.state_dict(), 'o': opt.state_dict(), 's': scaler.state_dict()}, 'a.pt')",
        "torch.save({'m': model.state_dict()}, 'a.pt')",
        "torch.save(model.state_dict(), 'a.pt')",
    ],
)
def test_what_holds_the_scaler_or_no_optimizer_is_left_alone(saved: str) -> None:
    assert judge(UNSAVED, {MAIN: SAVING.format(parameters="", made=SCALER, saved=saved)}) == []


INHERITED = """
import torch

class Base:
    def __init__(self, model, opt):
        self.model, self.opt = model, opt
        self.scaler = {scaler}

    def step(self, x):
        self.scaler.scale(self.model(x)).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
"""
SAVER = """
import torch
from main import Base

class Saver(Base):
    def save(self):
        torch.save({"model": self.model.state_dict(), "optimizer": self.opt.state_dict()}, "a.pt")
"""


@pytest.mark.parametrize(("scaler", "count"), [("torch.amp.GradScaler('cuda')", 1), ("None", 0)])
def test_a_scaler_that_the_base_class_makes_is_missed_in_the_checkpoint(scaler: str, count: int) -> None:
    files = {MAIN: INHERITED.format(scaler=scaler), "saver.py": SAVER}
    found = [finding for finding in judge(UNSAVED, files) if finding.path.name == "saver.py"]
    assert len(found) == count


@pytest.mark.parametrize(
    ("parameters", "call", "count"),
    [
        ("scaler: torch.amp.GradScaler", "pass", 1),
        ("scaler", "save(None, None, torch.amp.GradScaler('cuda'))", 1),
        ("scaler", "save(None, None, 3)", 0),
        ("scaler", "pass", 0),
    ],
)
def test_a_scaler_that_is_handed_to_the_function_that_saves(parameters: str, call: str, count: int) -> None:
    text = f"""
import torch

def save(model, opt, {parameters}):
    torch.save({{"model": model.state_dict(), "optimizer": opt.state_dict()}}, "a.pt")

def main():
    {call}
"""
    assert len(judge(UNSAVED, {MAIN: text})) == count
