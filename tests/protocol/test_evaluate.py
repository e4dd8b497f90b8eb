"""What expressions stand for along a path: which tests are decided, and which objects are the same."""

from __future__ import annotations

import textwrap

import pytest

from amplint.protocol import Kind
from amplint.protocol.ownership import optimizers_on
from tests.protocol.test_paths import all_shown, function, paths

HEAD = """
import enum
import math
import settings
from settings import CHANGED, CLIP, Config

LIMIT = 1.0
OFF = False

class Local:
    on = True
    off = False
    open = ...
    several = True
    several = False

class Typed:
    clip: bool = False

"""
SETTINGS = """
CLIP = True
CHANGED = True
CHANGED = unknown()

class Config:
    clip = False
"""


def decided(test: str, before: str) -> bool | None:
    """The only outcome of a test; None where both are possible."""
    body = f"{textwrap.dedent(before)}\nif {test}:\n    scaler.unscale_(opt)\nscaler.step(opt)\n"
    found = all_shown(HEAD + function(body), settings=SETTINGS)
    return {frozenset({"US"}): True, frozenset({"S"}): False, frozenset({"US", "S"}): None}[frozenset(found - {""})]


@pytest.mark.parametrize(
    ("before", "test", "expected"),
    [
        ("mode = -1", "mode == -1", True),
        ("mode = -1", "mode == 1", False),
        ("mode = +1", "mode == -1", None),
        ("mode = 'fp16'", "mode in loss", None),
        ("mode = None", "mode is None", True),
        ("mode = 0", "not mode", True),
        ("mode = ...", "mode", None),
        ("pass", "1 < 2 < 3", True),
        ("pass", "1 < 2 < 2", False),
        ("pass", "2 <= 2 != 3", True),
        ("pass", "1 < flag < 0", None),
        ("clip, rate = True, 0", "clip", True),
        ("clip, rate = True, 0", "rate", False),
        ("clip, (rate, [more]) = True, (1, [0])", "more", False),
        ("clip, *rest = True, 0", "clip", True),
        ("options = [1, 0]", "options[0]", True),
        ("options = [1, 0]", "options[-1]", False),
        ("options = [1, 0]", "options[2]", None),
        ("options = [1, 0]", "options[-3]", None),
        ("options = [1, 0]", "options['a']", None),
        ("options = {'clip': True, 'rate': 0}", "options['clip']", True),
        ("options = {'clip': True, 'rate': 0}", "options['rate']", False),
        ("options = {'clip': True, 'rate': 0}", "options.get('rate')", False),
        ("options = {'clip': True, **flag}", "options['rate']", None),
        ("options = {}\noptions['clip'] = True", "options['clip']", True),
        ("options = {'clip': True}\noptions['clip'] = False", "options['clip']", False),
        ("model.clip = True", "model.clip", True),
        ("model.clip = True", "other.clip", None),
        ("model.clip = False", "getattr(model, 'clip')", False),
        ("model.clip = False", "getattr(model, 'clip', True)", False),
        ("model.clip = False", "getattr(model, flag)", None),
        ("clip = bool(OFF)", "clip", False),
        ("pass", "OFF", False),
        ("pass", "LIMIT", True),
        ("pass", "CLIP", True),
        ("pass", "settings.CLIP", True),
        ("pass", "settings.CHANGED", None),
        ("pass", "CHANGED", None),
        ("pass", "Config.clip", False),
        ("pass", "Local.on", True),
        ("pass", "Local.off", False),
        ("pass", "Local().off", False),
        ("pass", "Local.open", None),
        ("pass", "Local.several", None),
        ("pass", "Typed.clip", False),
        ("pass", "Typed().clip", None),  # a constructor may give another
        ("OFF = True", "OFF", True),
        ("global OFF\nOFF = flag()", "OFF", None),
        ("use = True if flag else True", "use", True),
        ("use = flag if OFF else False", "use", False),
        ("use = (kept := False)", "kept", False),
        ("use = flag and True", "use", None),
        ("use = flag and OFF", "use", False),
        ("use = flag or LIMIT", "use", True),
        ("use = OFF or None", "use is None", True),
        ("use = [x for x in flag]", "use", None),
    ],
)
def test_constants_decide(before: str, test: str, expected: bool | None) -> None:
    assert decided(test, before) is expected


@pytest.mark.parametrize(
    ("before", "test", "expected"),
    [
        ("if isinstance(model, str): return", "isinstance(model, str)", False),
        ("if isinstance(model, str): return", "isinstance(loss, str)", None),
        ("if len(loss) != 1: return", "len(loss) == 1", True),
        ("if len(loss) != 1: return", "len(loss) == 2", False),
        ("if loss.mean() > 1: return", "loss.mean() > 1", None),
        ("if next(loss): return", "next(loss)", None),
        ("if flag.get('a'): return", "flag.get('a')", False),
        ("if flag.get('a'): return", "flag.get('b')", None),
        ("if flag['a']: return", "flag.get('a')", False),
        ("if flag.get(): return", "flag.get()", False),
        ("chosen = model if flag else None\nif not model.on: return", "chosen.on", True),
        ("chosen = None if flag else model\nif not model.on: return", "chosen.on", True),
        ("chosen = model if flag else loss\nif not model.on: return", "chosen.on", None),
        ("chosen = model if flag else loss\nif not flag or not model.on: return", "chosen.on", True),
        ("if (flag and True): return", "flag", False),
        ("use = flag or None\nif flag: return", "use", False),
        ("if flag % 2: return", "flag % 2", False),
        ("if flag % 2: return", "flag % 3", None),
        ("if flag + 1: return", "flag - 1", None),
        ("flag += 1\nif flag: return", "flag", False),
        ("if flag: return\nflag += 1", "flag", None),
        ("if not flag.on: return\nflag = flag.to('cuda')", "flag.on", True),
        ("if not flag.on: return\nflag = other", "flag.on", None),
        ("if -flag: return", "-flag", False),
        ("if -flag: return", "~flag", None),
        ("if {'a': flag}: return", "{'a': other}", None),
        ("if (flag, other) == loss: return", "(flag, other) == loss", False),
        ("if (flag, other) == loss: return", "(other, flag) == loss", None),
        ("if all([x for x in flag]): return", "all([x for x in other])", None),
    ],
)
def test_equal_expressions_have_equal_truth(before: str, test: str, expected: bool | None) -> None:
    assert decided(test, before) is expected


@pytest.mark.parametrize(
    ("spelled", "is_same"),
    [
        ("opt", True),
        ("other", False),
        ("(o := opt)", True),
        ("[opt][0]", True),
        ("{'main': opt}['main']", True),
        ("opt if True else other", True),
        ("opt if opt else None", True),
        ("(opt or None)", True),
        ("(opt and True or opt)", False),
        ("accelerator.prepare(opt)", True),
        ("accelerator.prepare(model, opt)[1]", True),
        ("accelerator.unwrap_model(opt)", True),
        ("list(opt)", True),
        ("opt.module", False),
        ("opt.state", False),
        ("iter(opt)", True),
        ("built(model)", False),
        ("flag.optimizers['main']", False),
    ],
)
def test_optimizers_in_several_spellings(spelled: str, is_same: bool) -> None:
    body = f"stepped = {spelled}\nscaler.unscale_(opt)\nscaler.step(stepped)\n"
    found = paths(function(body, "scaler, opt, model, accelerator, flag, other"))
    assert {len(optimizers_on(path)) == 1 for path in found} == {is_same}


@pytest.mark.parametrize(
    "built",
    [
        "m.optimizer()",
        "m.configured(0.1)",
        "SGD(m)",
        "SGD(m.parameters())",
        "SGD([{'params': m.parameters()}])",
        "SGD(params=m.parameters())",
        "configured(m.parameters(), 0.1)",
    ],
)
def test_what_one_call_makes_of_two_objects_is_two_objects(built: str) -> None:
    source = f"""
        from torch.optim import SGD
        def build(m):
            m.zero_grad()
            return {built}
        def train(scaler, model, other, loss):
            first, second = build(model), build(other)
            scaler.scale(loss).backward()
            scaler.unscale_(first)
            scaler.unscale_(second)
            scaler.step(first)
    """
    (path,) = paths(source)
    unscaled = [event.optimizer for event in path.events if event.kind is Kind.UNSCALE]
    assert len(set(unscaled)) == 2


@pytest.mark.parametrize(
    "loop",
    [
        "for o in (first, second)",
        "for i, o in enumerate([first, second])",
        "for o in reversed([first, second])",
        "for o, rate in zip([first, second], loss)",
        "for o in tqdm([first, second])",
    ],
)
def test_loops_over_known_items(loop: str) -> None:
    body = f"{loop}:\n    scaler.unscale_(o)\nscaler.step(first)\nscaler.step(second)\n"
    (path,) = paths(function(body, "scaler, first, second, loss"))
    unscaled = {event.optimizer for event in path.events if event.kind is Kind.UNSCALE}
    assert unscaled == {event.optimizer for event in path.events if event.kind is Kind.STEP}
    assert len(unscaled) == 2


def test_what_a_call_makes_of_items_is_not_known() -> None:
    body = "for o in picked([first, second]):\n    scaler.unscale_(o)\nscaler.step(first)\nscaler.step(second)\n"
    (path,) = paths(function(body, "scaler, first, second"))
    unscaled = {event.optimizer for event in path.events if event.kind is Kind.UNSCALE}
    assert unscaled.isdisjoint({event.optimizer for event in path.events if event.kind is Kind.STEP})


@pytest.mark.parametrize(
    ("declared", "expected"), [("nonlocal clip", {"BUS"}), ("pass", {"BS"}), ("global clip", {"BS"})]
)
def test_a_closure_assigns_where_its_variable_lives(declared: str, expected: set[str]) -> None:
    body = f"""
        clip = False
        def run():
            {declared}
            scaler.scale(loss).backward()
            clip = True
        run()
        if clip:
            scaler.unscale_(opt)
        scaler.step(opt)
    """
    assert all_shown(function(body)) == expected
