"""The protocol rules against torch itself: random small training steps run with a real GradScaler on the CPU.

What torch does is recorded for every setting of the program's flags, up to the first exception: that unscale_, step or
update raised, and whether a clip saw scaled gradients. The rules must say the same of the source.
"""

from __future__ import annotations

import itertools
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
RAISED = {
    "AMP203": "unscale_() has already been called",
    "AMP206": "step() has already been called",
    "AMP220": "No inf checks were recorded prior to update",
}


class StopTrainingError(Exception):
    """What torch raised, passed on past the program."""


@dataclass
class Observer:
    """A training step's scaler and clip, which note what torch does with them."""

    happened: set[tuple[int, str]] = field(default_factory=set)
    reached: set[tuple[int, str]] = field(default_factory=set)

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
            self.reached.add((line, "AMP201"))
            if weight.grad is not None and weight.grad.abs().max() > SCALE / 2:
                self.happened.add((line, "AMP201"))

        return clip_grad_norm_


class _Watched:
    """A GradScaler whose exceptions are noted with the line that called it."""

    def __init__(self, scaler: Any, observer: Observer) -> None:
        self._scaler = scaler
        self._observer = observer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._scaler, name)

        def call(*arguments: Any) -> Any:
            line = sys._getframe(1).f_lineno
            self._observer.reached |= {(line, code) for code in RAISED}
            try:
                return method(*arguments)
            except (RuntimeError, AssertionError) as error:
                self._observer.happened |= {(line, code) for code, text in RAISED.items() if text in str(error)}
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


blocks = st.lists(st.one_of(simple, branches()), min_size=1, max_size=4).map(lambda parts: list(itertools.chain(*parts)))


@st.composite
def programs(draw: st.DrawFn) -> str:
    """A training step, perhaps in a loop; it ends as training steps do, so that the scaler owns the optimizer."""
    body = ["scaler.scale(loss()).backward()", *draw(blocks)]
    ending = ["scaler.step(optimizer)", "scaler.update()"]
    if draw(st.booleans()):
        body = ["for batch in batches:", *("    " + line for line in [*body, *(ending if draw(st.booleans()) else [])])]
        ending = ending if draw(st.booleans()) else ["scaler.step(optimizer)"]
    return HEADER + textwrap.indent("\n".join([*body, *ending]), "    ") + "\n"


CLIP_FIRST = HEADER + textwrap.indent(
    "scaler.scale(loss()).backward()\nclip_grad_norm_(model.parameters(), 1.0)\nscaler.step(optimizer)\n", "    "
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(CLIP_FIRST)
@given(programs())
def test_clips_of_scaled_gradients(source: str) -> None:
    agree(source, "AMP201")


def agree(source: str, code: str) -> None:
    """Every fault that torch shows is reported; nothing is reported that runs without showing it."""
    observer = observe(source)
    found = reported(source, code)
    happened = {line for line, shown in observer.happened if shown == code}
    reached = {line for line, seen in observer.reached if seen == code}
    assert happened <= found, f"missed {happened - found} in\n{source}"
    assert found & reached <= happened, f"reported {found & reached - happened} in\n{source}"
