"""Which line of the user's code is running."""

from __future__ import annotations

import linecache
import os
import sys
from functools import cache
from types import FrameType, TracebackType

import torch

from amplint.runtime.verdict import Place

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_RUNTIME = os.path.dirname(os.path.abspath(__file__)) + os.sep
_OPTIMIZERS = os.path.join(_TORCH, "optim") + os.sep
_CLIPPING = os.path.join(_TORCH, "nn", "utils", "clip_grad.py")


def users_line() -> tuple[str, int, str]:
    """The innermost line outside torch and amplint, and what torch does for it: "optimizer", "clipping" or ""."""
    frame: FrameType | None = sys._getframe(1)
    task = ""
    while frame is not None:
        filename = frame.f_code.co_filename
        if _is_users(filename):
            return filename, frame.f_lineno, task
        task = _task(filename) or task
        frame = frame.f_back
    return "", 0, task


def place_of_error(traceback: TracebackType | None) -> Place:
    """The innermost line outside torch and amplint that an exception passed through."""
    found = Place()
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        if _is_users(filename):
            found = place(filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def place(filename: str, line: int) -> Place:
    """That line, with its code."""
    if not filename:
        return Place()
    return Place(filename, line, linecache.getline(filename, line).strip())


@cache
def _is_users(filename: str) -> bool:
    if filename.startswith("<"):
        return False
    path = os.path.abspath(filename)
    return not path.startswith((_TORCH, _RUNTIME)) and os.path.basename(path) not in _STANDARD


# Standard library files on the way from the start of the program to the script, and from torch to its callers.
_STANDARD = frozenset(("runpy.py", "contextlib.py", "functools.py", "threading.py"))


@cache
def _task(filename: str) -> str:
    if filename.startswith(_OPTIMIZERS):
        return "optimizer"
    return "clipping" if filename == _CLIPPING else ""
