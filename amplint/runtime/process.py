"""Starting the process that runs a script, and ending it: always, with all that it started.

The process gets a session (and so a process group) of its own, no standard input, limits on time and memory, and
a pipe for its output of which only the beginning and the end are kept. Imports no torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

import amplint
from amplint.runtime.verdict import Ending, Failure, FailureKind, Run

GRACE = 15.0
"""Seconds beyond its own time limit in which a script can end by itself."""
KEPT = 16 * 1024
"""Characters kept of the beginning of the output, and as many of its end."""
NEUTRAL = Path(amplint.__file__).parents[1]
"""Where amplint itself starts: `python -m` looks for modules there first, and must not find the script's."""
_POLL = 0.05
_PAUSE = 0.005
_LEAVE = 2.0
"""Seconds that a process is given to leave after its result."""
_DYING = 10.0
"""Seconds that killed processes are waited for; a busy machine may not let them die at once."""
_TOKEN = "AMPLINT_RUN"


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a run may go."""

    steps: int = 200
    seconds: float = 120.0
    memory: float = 16.0
    """GiB, on platforms that have such a limit; 0 for none."""
    threads: int = 0
    """Of torch, so that runs side by side do not crowd each other; 0 leaves that to torch."""


def run_script(
    script: Path,
    args: tuple[str, ...] = (),
    *,
    folder: Path,
    device: str = "auto",
    limits: Limits = Limits(),
    trace: bool = False,
    on_progress: Callable[[int], None] = lambda steps: None,
    cancelled: threading.Event | None = None,
) -> Run:
    """Run a script in a process of its own, in `folder`; `on_progress` is told the steps so far.

    Never raises for what the script does. Whatever ends this call, a KeyboardInterrupt or `cancelled` too, ends
    the process and all that it started.
    """
    cancelled = cancelled or threading.Event()
    with tempfile.TemporaryDirectory(prefix="amplint-run-") as scratch:
        report = Path(scratch, "report.jsonl")
        options = {
            "--report": report,
            "--folder": folder.absolute(),
            "--device": device,
            "--steps": limits.steps,
            "--timeout": limits.seconds,
            "--memory": limits.memory,
        }
        command = [sys.executable, "-m", "amplint.runtime", *(str(part) for pair in options.items() for part in pair)]
        command += [*(() if trace else ("--no-trace",)), str(script.absolute()), *args]
        started = time.monotonic()
        with supervised(command, NEUTRAL, limits.threads) as (process, output):
            reader = _ReportReader(report, on_progress)
            _wait(process, reader, started + limits.seconds + GRACE, cancelled)
            returncode = process.poll()
        reader.read()
        run = reader.run or _without_result(returncode, limits, reader.steps)
        run.seconds = run.seconds or time.monotonic() - started
        run.output = output.text()
        return run


def _wait(process: subprocess.Popen[bytes], reader: _ReportReader, until: float, cancelled: threading.Event) -> None:
    """Wait for the result, or the end of the process, or until that time."""
    while reader.run is None and process.poll() is None and time.monotonic() < until:
        if cancelled.wait(_POLL):
            return
        reader.read()
    with contextlib.suppress(subprocess.TimeoutExpired):  # threads of the script may not let it go
        process.wait(_LEAVE if reader.run else 0)


def _without_result(returncode: int | None, limits: Limits, steps: int) -> Run:
    """The run of a process that did not live to report."""
    if returncode is None:
        seconds = limits.seconds + GRACE
        failure = Failure(FailureKind.HUNG, steps, f"did not end within {seconds:.0f} seconds, and was killed")
    elif returncode < 0:
        with contextlib.suppress(ValueError):
            name = signal.Signals(-returncode).name
            failure = Failure(FailureKind.DIED, steps, f"killed by {name}")
            return Run(ending=Ending.FAILED, steps=steps, failure=failure)
        failure = Failure(FailureKind.DIED, steps, f"killed by signal {-returncode}")
    else:
        failure = Failure(FailureKind.DIED, steps, f"ended by itself with status {returncode}")
    return Run(ending=Ending.FAILED, steps=steps, failure=failure)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM unwind the stack as Ctrl-C does, so that processes and copies go; for the main thread."""

    def leave(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def supervised(command: list[str], folder: Path, threads: int = 0) -> Iterator[tuple[subprocess.Popen[bytes], Output]]:
    """A process and its output; at the end it is killed, with its group and whatever left the group."""
    token = f"{_TOKEN}={uuid.uuid4()}"
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**_environment(threads), _TOKEN: token.partition("=")[2]},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    output = Output(process.stdout)
    try:
        yield process, output
    finally:
        _kill(process)
        _kill_marked(token)
        output.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the group: the process may be gone, its children not."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def _kill_marked(token: str) -> None:
    """Kill what the process started in other sessions, known by the environment it inherited (on Linux)."""
    until = time.monotonic() + _DYING
    while marked := [pid for pid in _pids() if token.encode() in _environment_of(pid)]:
        for pid in marked:  # one that forks meanwhile is met in the next round
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            return
        time.sleep(_PAUSE)


def _pids() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return []


def _environment_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def _environment(threads: int) -> dict[str, str]:
    """This process's, with what would open windows, write bytecode or report to a service switched off."""
    quiet = {
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8:backslashreplace",
        "MPLBACKEND": "Agg",
        "WANDB_MODE": "disabled",
        "TQDM_DISABLE": "1",
    }
    few = {"OMP_NUM_THREADS": str(threads)} if threads else {}
    return {**few, **os.environ, **quiet}


class Output:
    """Reads a pipe to its end in a thread, and keeps the beginning and the end."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while chunk := os.read(self._pipe.fileno(), 65536):
                room = KEPT - len(self._head)
                self._head += chunk[:room]
                self._tail += chunk[max(room, 0) :]
                excess = max(len(self._tail) - KEPT, 0)
                self._dropped += excess
                del self._tail[:excess]

    def close(self) -> None:
        """Wait for what is left; a process that left the group may hold the pipe open, so not for ever."""
        self._thread.join(timeout=1.0)

    def text(self) -> str:
        """What was kept, with a word on what was not."""
        gap = f"\n[… {self._dropped} bytes left out …]\n".encode() if self._dropped else b""
        return bytes(self._head + gap + self._tail).decode("utf-8", "replace")


class _ReportReader:
    """Reads the report's lines as they come."""

    def __init__(self, path: Path, on_progress: Callable[[int], None]) -> None:
        self._path = path
        self._on_progress = on_progress
        self._position = 0
        self.steps = 0
        self.run: Run | None = None

    def read(self) -> None:
        """Take in the whole lines that are new."""
        try:
            with open(self._path, "rb") as report:
                report.seek(self._position)
                new = report.read()
        except OSError:
            return
        whole = new[: new.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError):  # the script may have written there
                self._take(json.loads(line))

    def _take(self, record: dict[str, Any]) -> None:
        if "progress" in record:
            self.steps = record["progress"]
            self._on_progress(self.steps)
        else:
            self.run = Run.from_json(record["result"])
