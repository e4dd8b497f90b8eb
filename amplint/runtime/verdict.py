"""What a run of a script came to. Imports no torch: the process that starts a run reads these as JSON."""

from __future__ import annotations

import enum
import math
from dataclasses import asdict, dataclass, field
from typing import Any


class FailureKind(str, enum.Enum):
    """How a run went wrong."""

    EXCEPTION = "exception"
    LOSS = "non-finite loss"
    PARAMETER = "non-finite parameter"
    BUFFER = "non-finite buffer"
    SKIPPED = "steps skipped"
    SCALE = "scale collapsed"
    HUNG = "did not end"
    DIED = "died"


class Ending(str, enum.Enum):
    """Why a run ended."""

    FINISHED = "finished"
    STEPS = "step limit"
    TIME = "time limit"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's code."""

    file: str = ""
    line: int = 0
    code: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """What was seen to fail.

    `step` counts from 1 and is the step under way; of a script that ended by itself (an exception, a signal) only
    the number of steps begun before is known.
    """

    kind: FailureKind
    step: int
    message: str
    place: Place = Place()

    @property
    def when(self) -> str:
        """`step 3`, or `after 2 steps`."""
        if self.kind in (FailureKind.EXCEPTION, FailureKind.HUNG, FailureKind.DIED):
            return f"after {self.step} step{'s' * (self.step != 1)}"
        return f"step {self.step}"


@dataclass(frozen=True, slots=True)
class BadTensor:
    """The first non-finite tensor that an operation made of finite ones."""

    step: int
    phase: str
    """forward, backward, clipping or optimizer"""
    operation: str
    value: str
    """inf or nan"""
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    place: Place
    """For backward, the forward line that the gradient belongs to."""


@dataclass(slots=True)
class Run:
    """One run of one script."""

    device: str = ""
    """cuda or simulated"""
    device_name: str = ""
    torch: str = ""
    ending: Ending = Ending.FINISHED
    steps: int = 0
    skipped: int = 0
    last_loss: float | None = None
    scale: float | None = None
    seconds: float = 0.0
    failure: Failure | None = None
    bad_tensor: BadTensor | None = None
    substituted: tuple[str, ...] = field(default=())
    """Operations that ran in float32 for want of a CPU kernel in half."""
    output: str = ""
    """What the script printed, shortened."""

    @property
    def failed(self) -> bool:
        return self.failure is not None

    def to_json(self) -> dict[str, Any]:
        """A JSON object; numbers that JSON lacks (inf, nan) become strings."""
        plain: dict[str, Any] = asdict(self)
        for key in ("last_loss", "scale"):
            value = plain[key]
            if value is not None and not math.isfinite(value):
                plain[key] = str(value)
        return plain

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Run:
        """The run that `to_json` wrote."""
        data = dict(data)
        data["ending"] = Ending(data["ending"])
        for key in ("last_loss", "scale"):
            data[key] = None if data[key] is None else float(data[key])
        if data["failure"] is not None:
            failure = dict(data["failure"])
            data["failure"] = Failure(
                FailureKind(failure["kind"]), failure["step"], failure["message"], Place(**failure["place"])
            )
        if data["bad_tensor"] is not None:
            bad = dict(data["bad_tensor"])
            bad.update(
                place=Place(**bad["place"]), dtypes=tuple(bad["dtypes"]), shapes=tuple(map(tuple, bad["shapes"]))
            )
            data["bad_tensor"] = BadTensor(**bad)
        data["substituted"] = tuple(data["substituted"])
        return cls(**data)
