"""The protocol rules against torch itself: random small training steps run with a real GradScaler on the CPU.

What torch does is recorded for every setting of the program's flags, up to the first exception: that unscale_, step or
update raised, and which clips saw scaled gradients. The rules must say the same of the source.
"""

from __future__ import annotations

import itertools
import re
import sys
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from amplint.registry import all_rules
from tests.programs import judge

torch = pytest.importorskip("torch")

SCALE = 1024.0
FLAGS = ("first", "second")
HEADER = "def train(scaler, optimizer, model, loss, clip_grad_norm_, batches, first, second):\n"

EVENTS = {
    "scaler.scale(loss()).backward()": 4,
    "scaler.unscale_(optimizer)": 3,
    "clip_grad_norm_(model.parameters(), 1.0)": 3,
    "scaler.step(optimizer)": 3,
    "scaler.update()": 3,
    "optimizer.zero_grad()": 1,
}
RAISING = ("AMP203", "AMP220")
"""The rules whose faults make torch raise. Which of them speaks, and at which call, is a matter of the catalogue."""
SOMETIMES_RAISING = ("AMP206", "AMP219")
ALWAYS_REPORTED = re.compile(r"has already been called|called after step")
"""Not so `No inf checks were recorded`: the rules stay silent where tests may be two ways to say the same."""


class StopTrainingError(Exception):
    """What torch raised, passed on past the program."""


@dataclass
class Observer:
    """A training step's scaler and clip, which note what torch does with them."""

    clips: set[int] = field(default_factory=set)
    """The lines of clips that were reached, and of those that saw scaled gradients."""
    scaled_clips: set[int] = field(default_factory=set)
    errors: set[str] = field(default_factory=set)

    def run(self, source: str, flags: tuple[bool, ...]) -> None:
        weight = torch.nn.Parameter(torch.zeros(2))
        model = torch.nn.ParameterList([weight])
        namespace: dict[str, Any] = {}
        exec(compile(source, "main.py", "exec"), namespace)
        try:
            namespace["train"](
                _Watched(torch.amp.GradScaler("cpu", init_scale=SCALE), self),
                torch.optim.SGD([weight], lr=0.0),
                model,
                weight.sum,
                self.clip(weight),
                range(2),
                *flags,
            )
        except StopTrainingError:
            return

    def clip(self, weight: Any) -> Callable[..., None]:
        def clip_grad_norm_(parameters: object, max_norm: float) -> None:
            line = sys._getframe(1).f_lineno
            self.clips.add(line)
            if weight.grad is not None and weight.grad.abs().max() > SCALE / 2:
                self.scaled_clips.add(line)

        return clip_grad_norm_


class _Watched:
    """A GradScaler whose exceptions are noted."""

    def __init__(self, scaler: Any, observer: Observer) -> None:
        self._scaler = scaler
        self._observer = observer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._scaler, name)

        def call(*arguments: Any) -> Any:
            try:
                return method(*arguments)
            except (RuntimeError, AssertionError) as error:
                self._observer.errors.add(str(error))
                raise StopTrainingError from error

        return call


def observe(source: str) -> Observer:
    """What happens in any setting of the flags."""
    observer = Observer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for flags in itertools.product((False, True), repeat=len(FLAGS)):
            observer.run(source, flags)
    return observer


def reported(source: str, code: str) -> set[int]:
    rule = next(rule for rule in all_rules() if rule.code == code)
    return {finding.start.line for finding in judge(rule, {"main.py": source})}


events = st.sampled_from([event for event, weight in EVENTS.items() for _ in range(weight)])
simple = st.lists(events, min_size=1, max_size=3)
tests = st.sampled_from([*FLAGS, *(f"not {flag}" for flag in FLAGS), "first and second", "first or second"])


@st.composite
def branches(draw: st.DrawFn) -> list[str]:
    lines = [f"if {draw(tests)}:", *("    " + line for line in draw(simple))]
    if draw(st.booleans()):
        lines += ["else:", *("    " + line for line in draw(simple))]
    return lines


blocks = st.lists(st.one_of(simple, branches()), min_size=1, max_size=4).map(
    lambda parts: list(itertools.chain(*parts))
)


@st.composite
def programs(draw: st.DrawFn) -> str:
    """A training step, perhaps in a loop; it ends as training steps do, so that the scaler owns the optimizer."""
    body = ["scaler.scale(loss()).backward()", *draw(blocks)]
    ending = ["scaler.step(optimizer)", "scaler.update()"]
    if draw(st.booleans()):
        body = ["for batch in batches:", *("    " + line for line in [*body, *(ending if draw(st.booleans()) else [])])]
        ending = ending if draw(st.booleans()) else ["scaler.step(optimizer)"]
    return HEADER + textwrap.indent("\n".join([*body, *ending]), "    ") + "\n"


def straight(*lines: str) -> str:
    return HEADER + textwrap.indent("\n".join(lines), "    ") + "\n"


CLIP_FIRST = straight(
    "scaler.scale(loss()).backward()", "clip_grad_norm_(model.parameters(), 1.0)", "scaler.step(optimizer)"
)
UNSCALED_AFTER_A_STEP = straight(
    "scaler.scale(loss()).backward()",
    "if first:",
    "    scaler.step(optimizer)",
    "scaler.scale(loss()).backward()",
    "scaler.unscale_(optimizer)",
    "scaler.update()",
    "scaler.scale(loss()).backward()",
    "scaler.step(optimizer)",
    "scaler.update()",
)
UNSCALED_TWICE = straight(
    "scaler.scale(loss()).backward()",
    "scaler.unscale_(optimizer)",
    "scaler.unscale_(optimizer)",
    "scaler.step(optimizer)",
    "scaler.update()",
)


UNSCALED_TWICE_ON_ONE_WAY = straight(
    "scaler.scale(loss()).backward()",
    "scaler.unscale_(optimizer)",
    "scaler.scale(loss()).backward()",
    "if first:",
    "    scaler.unscale_(optimizer)",
    "    scaler.update()",
    "else:",
    "    scaler.update()",
    "clip_grad_norm_(model.parameters(), 1.0)",
    "scaler.step(optimizer)",
    "scaler.update()",
)

SCALED_AGAIN_ON_ONE_WAY = straight(
    "scaler.scale(loss()).backward()",
    "scaler.unscale_(optimizer)",
    "if first:",
    "    scaler.scale(loss()).backward()",
    "scaler.update()",
    "clip_grad_norm_(model.parameters(), 1.0)",
    "scaler.step(optimizer)",
    "scaler.update()",
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(CLIP_FIRST)
@example(UNSCALED_TWICE_ON_ONE_WAY)
@example(SCALED_AGAIN_ON_ONE_WAY)
@given(programs())
def test_clips_of_scaled_gradients(source: str) -> None:
    observer = observe(source)
    found = reported(source, "AMP201")
    assert observer.scaled_clips <= found, f"missed {observer.scaled_clips - found} in\n{source}"
    wrong = found & observer.clips - observer.scaled_clips
    assert not wrong or observer.errors, f"reported {wrong} in\n{source}"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(UNSCALED_TWICE)
@example(UNSCALED_AFTER_A_STEP)
@given(programs())
def test_what_raises(source: str) -> None:
    observer = observe(source)
    found = {code for code in (*RAISING, *SOMETIMES_RAISING) if reported(source, code)}
    certain = {error for error in observer.errors if ALWAYS_REPORTED.search(error)}
    assert found or not certain, f"missed {certain} in\n{source}"
    assert observer.errors or found <= set(SOMETIMES_RAISING), f"reported {found} in\n{source}"
