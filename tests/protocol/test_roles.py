"""Which objects are scalers and optimizers: `thing.step(...)` and its like are events only where they are."""

from __future__ import annotations

import pytest

from tests.protocol.test_paths import all_shown

CLASSES = """
import torch
from sklearn.preprocessing import StandardScaler
from torch.amp import GradScaler

class Own(GradScaler):
    pass

class OwnOptimizer(torch.optim.Optimizer):
    pass

class Plain:
    def other(self):
        pass

def get_scaler():
    return load()

"""


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ("GradScaler()", "BS"),
        ("Own()", "BS"),
        ("torch.cuda.amp.GradScaler()", "BS"),
        ("GradScaler() if flag else Own()", "BS"),
        ("None or GradScaler()", "BS"),
        ("make_scaler(flag)", "BS"),
        ("args.scaler", "BS"),
        ("StandardScaler()", "B"),
        ("Plain()", "B"),
        ("ShiftScaler(flag)", "B"),
        ("3", "B"),
    ],
)
def test_what_a_scaler_is_made_by(made: str, expected: str) -> None:
    """The step of anything else is none of an optimizer through a scaler."""
    source = f"{CLASSES}def train(loss, opt, flag, args):\n    scaler = {made}\n"
    source += "    scaler.scale(loss).backward()\n    scaler.step(opt)\n"
    assert all_shown(source) == {expected}


@pytest.mark.parametrize(
    ("made", "stepped"),
    [
        ("torch.optim.SGD(p, 0.1)", True),
        ("OwnOptimizer(p)", True),
        ("build_optimizer(p)", True),
        ("args.optimizer", True),
        ("torch.optim.lr_scheduler.StepLR(p, 1)", False),
        ("build_scheduler(p)", False),
        ("Plain()", False),
        ("3", False),
    ],
)
def test_what_an_optimizer_is_made_by(made: str, stepped: bool) -> None:
    source = f"{CLASSES}def train(loss, p, args):\n    thing = {made}\n    loss.backward()\n    thing.step()\n"
    assert all_shown(source) == {"bs" if stepped else "b"}


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        ("thing: torch.optim.Optimizer", "bs"),
        ("thing: 'OwnOptimizer'", "bs"),
        ("opt_g", "bs"),
        ("adamw", "bs"),
        ("solver", "bs"),
        ("thing: Plain", "b"),
        ("thing", "b"),
        ("lr_sched", "b"),
        ("options", "b"),
    ],
)
def test_which_parameters_are_optimizers(parameter: str, expected: str) -> None:
    name = parameter.partition(":")[0]
    assert all_shown(f"{CLASSES}def train(loss, {parameter}):\n    loss.backward()\n    {name}.step()\n") == {expected}


def test_what_is_zeroed_and_stepped_is_an_optimizer() -> None:
    assert all_shown("def train(loss, thing):\n    thing.zero_grad()\n    loss.backward()\n    thing.step()\n") == {
        "Zbs"
    }


@pytest.mark.parametrize("held", ["settings.scaler", "scaler"])
def test_a_scaler_of_another_file(held: str) -> None:
    source = f"""
        import settings
        from settings import scaler
        def train(loss, opt):
            {held}.scale(loss).backward()
            {held}.step(opt)
    """
    assert all_shown(source, settings="from torch.amp import GradScaler\nscaler = GradScaler('cuda')\n") == {"BS"}


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("settings.AMP", {"BS"}),
        ("Settings.amp", {"BS"}),
        ("settings.OFF", {"bs"}),
        ("Settings.off", {"bs"}),
        ("settings.unknown", {"BS", "bs"}),
    ],
)
def test_a_flag_of_another_file_decides(flag: str, expected: set[str]) -> None:
    source = f"""
        import settings
        from settings import Settings
        def train(loss, opt, scaler):
            if {flag}:
                scaler.scale(loss).backward()
                scaler.step(opt)
            else:
                loss.backward()
                opt.step()
    """
    other = "AMP = True\nOFF = False\nclass Settings:\n    amp = True\n    off = False\n"
    assert all_shown(source, settings=other) == expected


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("accelerator.backward(loss)", "[B]"),
        ("self.accelerator.backward(loss)", "[B]"),
        ("thing.backward(loss)", "[B]"),
        ("tool.backward(loss)", "b"),
    ],
)
def test_an_object_of_a_framework_is_known_by_name_or_annotation(call: str, expected: str) -> None:
    source = f"""
        from accelerate import Accelerator
        def train(self, accelerator, loss, opt, tool, thing: Accelerator):
            {call}
            opt.zero_grad()
    """
    assert all_shown(source) == {f"{expected}Z"}
