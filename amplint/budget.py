"""A bound on the processor time that one file may cost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class OutOfTimeError(BaseException):
    """The time is used up. No Exception, so that no analysis takes it for a failure of its own."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise OutOfTimeError within the block once it has used this much processor time.

    Without effect outside the main thread and where the system has no such timer.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGVTALRM, _expired)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


def _expired(number: int, frame: FrameType | None) -> None:
    raise OutOfTimeError
