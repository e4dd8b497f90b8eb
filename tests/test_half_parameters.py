"""Which casts to float16 are in effect on the parameters that a GradScaler unscales (AMP211)."""

from __future__ import annotations

import textwrap

import pytest

from amplint.registry import all_rules
from tests.programs import MAIN, judge

RULE = next(rule for rule in all_rules() if rule.code == "AMP211")


def reported(made: str, use: str = "model", helpers: str = "") -> list[str]:
    """The lines on which casts are reported, where `use` is what the optimizer holds the parameters of."""
    text = f"""
import torch
from peft import get_peft_model
from transformers import AutoModel

class Net(torch.nn.Module):
    pass

{helpers}

def train(loader, flag, config):
{textwrap.indent(made, "    ")}
    optimizer = torch.optim.SGD({use}.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        scaler.scale({use}(x)).backward()
        scaler.step(optimizer)
        scaler.update()
"""
    lines = text.splitlines()
    return [lines[finding.start.line - 1].strip() for finding in judge(RULE, {MAIN: text})]


BUILD = "def build():\n    net = Net()\n    return net.half()"


@pytest.mark.parametrize(
    ("made", "line"),
    [
        ("model = Net().half()", "model = Net().half()"),
        ("model = Net().cuda().half().train()", "model = Net().cuda().half().train()"),
        ("model = Net().to(torch.float16)", "model = Net().to(torch.float16)"),
        ("model = Net().to('cuda', dtype=torch.half)", "model = Net().to('cuda', dtype=torch.half)"),
        ("dtype = torch.float16\nmodel = Net().to(dtype)", "model = Net().to(dtype)"),
        ("model = Net()\nmodel.half()", "model.half()"),
        ("model = Net()\nmodel.float()\nmodel.half()", "model.half()"),
        ("model = torch.nn.Sequential(Net().half(), Net())", "model = torch.nn.Sequential(Net().half(), Net())"),
        ("model = torch.compile(Net().half())", "model = torch.compile(Net().half())"),
        (
            "model = AutoModel.from_pretrained('a', torch_dtype=torch.float16)",
            "model = AutoModel.from_pretrained('a', torch_dtype=torch.float16)",
        ),
        (
            "model = AutoModel.from_pretrained('a', torch_dtype='float16')",
            "model = AutoModel.from_pretrained('a', torch_dtype='float16')",
        ),
        ("if flag:\n    model = Net().half()\nelse:\n    model = Net()\nmodel.eval()", ""),
        ("model = Net()\nif flag:\n    model.half()", ""),
        ("model = Net().half().float()", ""),
        ("model = Net().half()\nmodel.float()", ""),
        ("model = Net().half()\nmodel.to(torch.float32)", ""),
        ("model = Net().to(torch.bfloat16)", ""),
        ("model = Net().to('cuda')", ""),
        ("model = Net().to(config.dtype)", ""),
        ("model = AutoModel.from_pretrained('a')", ""),
        ("model = Net()\nmodel.half()\nfor p in model.parameters():\n    p.data = p.data.float()", ""),
        ("model = config.half", ""),
    ],
)
def test_the_cast_that_is_in_effect(made: str, line: str) -> None:
    assert reported(made) == ([line] if line else [])


@pytest.mark.parametrize(
    ("made", "helpers", "line"),
    [
        ("model = build()", BUILD, "return net.half()"),
        ("model = build()", BUILD.replace(".half()", ".half().float()"), ""),
        ("model, other = config.prepare(Net().half(), 1)", "", "model, other = config.prepare(Net().half(), 1)"),
        ("model = config.prepare(Net().half())", "", "model = config.prepare(Net().half())"),
    ],
)
def test_the_cast_of_what_a_function_gives(made: str, helpers: str, line: str) -> None:
    assert reported(made, helpers=helpers) == ([line] if line else [])


def test_the_cast_of_an_argument_is_reported_where_it_is_given() -> None:
    text = """
import torch

def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        scaler.scale(model(x)).backward()
        scaler.step(optimizer)
        scaler.update()

def main(build, loader):
    train(build().half(), loader)
    train(build(), loader)
"""
    assert [finding.start.line for finding in judge(RULE, {MAIN: text})] == [13]


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("self.net = build().half()", 1),
        ("self.net = build()\n        self.net.half()", 1),
        ("self.net = build().half()\n        self.net.float()", 0),
        ("self.net: torch.nn.Module = build().half()", 1),
        ("self.net = build()", 0),
    ],
)
def test_the_cast_of_an_attribute(body: str, count: int) -> None:
    text = f"""
import torch

class Loop:
    def __init__(self, build):
        {body}
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    def step(self, x):
        self.scaler.scale(self.net(x)).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
"""
    assert len(judge(RULE, {MAIN: text})) == count


TRAINERS = """
import lightning as L
import torch
from transformers import Trainer, TrainingArguments

class Net(torch.nn.Module):
    pass

def train(build, config):
    {}
"""


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("Trainer(model=Net().half(), args=TrainingArguments('out', fp16=True))", 1),
        ("args = TrainingArguments('out', fp16=True)\n    Trainer(Net().half(), args)", 1),
        ("Trainer(model=Net().half(), args=TrainingArguments('out', fp16=False))", 0),
        ("Trainer(model=Net().half(), args=config)", 0),
        ("Trainer(model=Net(), args=TrainingArguments('out', fp16=True))", 0),
        ("L.Trainer(precision='16-mixed').fit(Net().half())", 1),
        ("trainer = L.Trainer(precision=16)\n    trainer.fit(model=Net().half())", 1),
        ("L.Trainer(precision='bf16-mixed').fit(Net().half())", 0),
        ("L.Trainer(precision='16-mixed').fit(Net())", 0),
        ("build.fit(Net().half())", 0),
    ],
)
def test_the_model_that_a_trainer_is_given(body: str, count: int) -> None:
    assert len(judge(RULE, {MAIN: TRAINERS.format(body)})) == count
