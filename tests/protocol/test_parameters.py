"""How a clip that is inserted names the parameters that the optimizer holds."""

from __future__ import annotations

import re

import pytest

from amplint.registry import all_rules
from tests.programs import MAIN, fixed

CLIPPING = next(rule for rule in all_rules() if rule.code == "AMP202")
GROUPS = '[p for group in opt.param_groups for p in group["params"]]'


def clipped(source: str) -> str:
    """The first argument of the clip that the fix inserts."""
    (found,) = re.findall(r"clip_grad_norm_\((.*), max_norm=1\.0\)", fixed(CLIPPING, {MAIN: source}))
    return str(found)


LOCAL = """
import torch
from itertools import chain

def train(net, other, loader, head, args, opt):
    {made}
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        scaler.scale({loss}).backward()
        scaler.step(opt)
        scaler.update()
"""


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ("opt = torch.optim.SGD(net.parameters(), 0.1)", "net.parameters()"),
        ("opt = torch.optim.SGD(params=net.parameters(), lr=0.1)", "net.parameters()"),
        (
            "opt = torch.optim.SGD([*net.parameters(), *head.parameters()], 0.1)",
            "[*net.parameters(), *head.parameters()]",
        ),
        (
            "opt = torch.optim.SGD(list(net.parameters()) + list(head.parameters()), 0.1)",
            "list(net.parameters()) + list(head.parameters())",
        ),
        (
            "opt = torch.optim.SGD(chain(net.parameters(), head.parameters()), 0.1)",
            "chain(net.parameters(), head.parameters())",
        ),
        ("held = list(net.parameters())\n    opt = torch.optim.SGD(held, 0.1)", "list(net.parameters())"),
        ("held = [p for p in net.parameters()]\n    opt = torch.optim.SGD(held, 0.1)", "held"),
        ("held = [p for p in net.parameters()]\n    opt = torch.optim.SGD(held, 0.1)\n    held = []", GROUPS),
        ("opt = torch.optim.SGD(filter(args.chosen, net.parameters()), 0.1)", GROUPS),
        ("opt = torch.optim.SGD([{'params': net.parameters()}], 0.1)", GROUPS),
        ("opt = torch.optim.SGD(**args.sgd)", GROUPS),
        ("opt = torch.optim.SGD((p for p in net.parameters()), 0.1)", GROUPS),
    ],
)
def test_what_the_constructor_was_given_where_it_can_be_read_again(made: str, expected: str) -> None:
    assert clipped(LOCAL.format(made=made, loss="net(x)")) == expected


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("net(x)", "net.parameters()"),
        ("net(x) + net(x + 1)", "net.parameters()"),
        ("net(x) + other.model(x)", GROUPS),
        ("other.backbone(x)", "other.backbone.parameters()"),
        ("args.build(x)(x)", GROUPS),
        ("head(x)", GROUPS),
    ],
)
def test_of_an_optimizer_that_is_handed_in_those_of_the_one_model(loss: str, expected: str) -> None:
    assert clipped(LOCAL.format(made="opt.zero_grad()", loss=loss)) == expected


KEPT = """
import torch

class Loop:
    def __init__(self, net, rest):
        {kept}
        self.opt = torch.optim.SGD({given}, lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    def step(self, loss):
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
"""


@pytest.mark.parametrize(
    ("kept", "given", "expected"),
    [
        ("self.net = net", "net.parameters()", "self.net.parameters()"),
        ("self.net = net", "self.net.parameters()", "self.net.parameters()"),
        (
            "self.first, self.rest = net, rest",
            "[*net.parameters(), *rest.parameters()]",
            "[*self.first.parameters(), *self.rest.parameters()]",
        ),
        ("self.name = 'net'", "net.parameters()", GROUPS.replace("opt", "self.opt")),
        ("self.net = torch.compile(net)", "net.parameters()", GROUPS.replace("opt", "self.opt")),
    ],
)
def test_in_a_method_what_the_constructor_keeps(kept: str, given: str, expected: str) -> None:
    assert clipped(KEPT.format(kept=kept, given=given)) == expected


def test_what_another_function_or_class_is_given_cannot_be_written() -> None:
    function = """
import torch

def build(net):
    return torch.optim.SGD(net.parameters(), lr=0.1)

def train(thing, loader):
    opt = build(thing)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        scaler.scale(thing(x)).backward()
        scaler.step(opt)
        scaler.update()
"""
    assert clipped(function) == GROUPS
    elsewhere = KEPT.format(kept="self.net = net", given="net.parameters()").replace("self.scaler.step(self.opt)", "")
    other = """
class Runner:
    def run(self, loop: Loop, loss):
        loop.scaler.scale(loss).backward()
        loop.scaler.step(loop.opt)
        loop.scaler.update()
"""
    assert clipped(elsewhere + other) == GROUPS.replace("opt", "loop.opt")
