"""How verdicts are shown."""

from __future__ import annotations

import json
import math
from pathlib import Path

from amplint.runtime import report
from amplint.runtime.linter import FindingAt
from amplint.runtime.verdict import BadTensor, Ending, Failure, FailureKind, Place, Run
from amplint.runtime.verify import Outcome

PLACE = Place("/project/train.py", 7, "loss = -torch.log(p).mean()")
BAD = BadTensor(24, "forward", "log", "inf", ("float16",), ((8, 2),), PLACE)
FAILED = Run(
    device="simulated",
    ending=Ending.FAILED,
    steps=23,
    last_loss=math.nan,
    scale=1024.0,
    failure=Failure(FailureKind.LOSS, 24, "the loss is nan", Place("/project/train.py", 9, "loss.backward()")),
    bad_tensor=BAD,
)
WELL = Run(device="simulated", steps=200, last_loss=0.25, scale=65536.0)
MENDED = Outcome(
    Path("/project/train.py"),
    codes=("AMP102",),
    before=FAILED,
    after=WELL,
    explanation=FindingAt("/project/train.py", 7, 7, "AMP102", "log-sigmoid", "sigmoid is 0 here"),
)
STILL = Outcome(Path("/project/other.py"), before=FAILED, problem="fails")


def test_a_run_survives_its_way_through_json() -> None:
    for run in (FAILED, WELL, Run()):
        again = Run.from_json(json.loads(json.dumps(run.to_json())))
        assert again.to_json() == run.to_json()
        assert (again.failure, again.bad_tensor) == (run.failure, run.bad_tensor)


def test_text() -> None:
    lines = report.text([MENDED, STILL]).splitlines()
    assert lines[1].split("  ") == [
        "/project/train.py",
        "simulated",
        "non-finite loss, step 24, line 7",
        "200 steps finite, loss 0.25, scale 65536",
        "ok",
    ]
    assert lines[2].endswith("  fails")
    shown = "\n".join(lines)
    assert "first inf of step 24, forward: log(float16[8, 2])" in shown
    assert "/project/train.py:7: loss = -torch.log(p).mean()" in shown
    assert "AMP102 log-sigmoid: sigmoid is 0 here" in shown
    assert "2 scripts, 1 not ok." in lines
    assert lines[-1].startswith("Run under simulated CUDA")


def test_markdown_escapes_its_bars() -> None:
    table = report.markdown([Outcome(Path("a|b.py"), before=WELL)])
    assert "| a\\|b.py | simulated | 200 steps finite" in table
    assert "1 script, all ok." in table


def test_json() -> None:
    (record,) = json.loads(report.as_json([MENDED]))
    assert record["ok"] is True
    assert record["codes"] == ["AMP102"]
    assert record["before"]["last_loss"] == "nan"
    assert record["after"]["steps"] == 200
    assert record["explanation"]["code"] == "AMP102"


def test_real_cuda_is_said() -> None:
    run = Run(device="cuda", device_name="NVIDIA H200", steps=1)
    assert "Run on CUDA: NVIDIA H200." in report.text([Outcome(Path("a.py"), before=run)])


def test_how_a_run_ended() -> None:
    assert report.summary(Run(steps=3, ending=Ending.TIME)) == "3 steps finite, time limit"
    assert report.summary(Run()) == "ran without a training step"
    exception = Run(failure=Failure(FailureKind.EXCEPTION, 1, "ValueError: no\nmore"))
    assert report.summary(exception) == "ValueError: no (after 1 step)"
