"""The process that runs one script: `python -m amplint.runtime [options] SCRIPT [ARGS…]`.

Exit status 0 if the run went well, 1 if it failed, 2 for a wrong use.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import runpy
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from amplint.runtime.verdict import Ending, Failure, FailureKind, Run

PROGRESS_EVERY = 0.5
"""Seconds between two lines of progress in the report."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script that the command line names; print the verdict, or write it to `--report`."""
    options = _parser().parse_args(argv)
    if not Path(options.script).is_file():
        print(f"no such script: {options.script}", file=sys.stderr)
        return 2
    if options.folder:
        os.chdir(options.folder)
    reporter = _Reporter(options.report)
    run = _Execution(options, reporter).run()
    reporter.result(run)
    if options.report is None:
        from amplint.runtime.report import text_of_run

        print(text_of_run(run), file=sys.stderr)
    return int(run.failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m amplint.runtime", description="Run a training script and watch it.")
    parser.add_argument("--device", choices=("auto", "cuda", "simulated"), default="auto")
    parser.add_argument("--steps", type=int, default=200, help="end the script after so many optimizer steps")
    parser.add_argument("--timeout", type=float, default=120.0, help="end it after so many seconds")
    parser.add_argument(
        "--memory", type=float, default=0.0, help="its limit in GiB, where the platform has one; 0: none"
    )
    parser.add_argument("--no-trace", dest="trace", action="store_false", help="only watch: faster")
    parser.add_argument("--folder", help="run it there")
    parser.add_argument("--report", help="write the verdict to this file, as JSON lines")
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    return parser


class _Execution:
    """One run of the script in this process."""

    def __init__(self, options: argparse.Namespace, reporter: _Reporter) -> None:
        self.options = options
        self.reporter = reporter
        self.result = Run()

    def run(self) -> Run:
        import torch

        from amplint.runtime.simulated_cuda import simulated_cuda
        from amplint.runtime.tracer import Tracer
        from amplint.runtime.watcher import Ended, Watcher

        options, result = self.options, self.result
        real = options.device == "cuda" or (options.device == "auto" and torch.cuda.is_available())
        if real and not torch.cuda.is_available():
            result.failure = Failure(FailureKind.EXCEPTION, 0, "there is no CUDA device; use --device simulated")
            result.ending = Ending.FAILED
            return result
        if not real:  # CUDA maps more than it uses
            _limit_memory(options.memory)
        result.device = "cuda" if real else "simulated"
        result.torch = str(torch.__version__)
        tracer = Tracer() if options.trace else None

        def on_step(watcher: Watcher, taken: bool) -> None:
            if tracer:
                tracer.end_step(taken)
            self.reporter.progress(watcher.steps)

        def on_ignored() -> None:
            self._read(watcher, tracer)
            self.reporter.result(result)
            os._exit(int(result.failed))

        watcher = Watcher(steps=options.steps, seconds=options.timeout, on_step=on_step, on_ignored=on_ignored)
        started = time.monotonic()
        with contextlib.ExitStack() as stack:
            half = None if real else stack.enter_context(simulated_cuda())
            result.device_name = str(torch.cuda.get_device_name(0))
            stack.enter_context(watcher.watching())
            stack.enter_context(_as_program(options.script, options.args))
            if tracer:
                stack.enter_context(tracer)
            try:
                runpy.run_path(options.script, run_name="__main__")
            except Ended:
                pass
            except BaseException as error:
                if watcher.ending is Ending.FINISHED:  # otherwise it came of being ended
                    self._failed_with(error, watcher.steps)
        result.seconds = time.monotonic() - started
        result.substituted = tuple(sorted(half.substituted)) if half else ()
        self._read(watcher, tracer)
        return result

    def _read(self, watcher: Any, tracer: Any) -> None:
        result = self.result
        result.ending = watcher.ending
        result.steps = watcher.steps
        result.skipped = watcher.skipped
        result.last_loss = watcher.last_loss
        result.scale = watcher.scale
        if watcher.failure is not None:
            result.failure = watcher.failure
        if result.failure is not None:
            result.ending = Ending.FAILED
            raised = result.failure.kind is FailureKind.EXCEPTION
            result.bad_tensor = tracer.first(gradients=not raised) if tracer else None

    def _failed_with(self, error: BaseException, steps: int) -> None:
        from amplint.runtime.frames import place_of_error

        if isinstance(error, SystemExit) and error.code in (None, 0):
            return
        if isinstance(error, SystemExit):
            message = f"exit status {error.code}" if isinstance(error.code, int) else str(error.code)
        else:
            message = f"{type(error).__name__}: {error}"
        self.result.failure = Failure(FailureKind.EXCEPTION, steps, message, place_of_error(error.__traceback__))


@contextlib.contextmanager
def _as_program(script: str, args: list[str]) -> Iterator[None]:
    """`sys.argv` and `sys.path` as `python SCRIPT ARGS` has them."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [script, *args]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


class _Reporter:
    """Writes JSON lines: progress now and then, the result at the end."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._written = 0.0
        self._lock = threading.Lock()

    def progress(self, steps: int) -> None:
        if time.monotonic() - self._written >= PROGRESS_EVERY:
            self._written = time.monotonic()
            self._write({"progress": steps})

    def result(self, run: Run) -> None:
        self._write({"result": run.to_json()})

    def _write(self, line: dict[str, Any]) -> None:
        if self._path is None:
            return
        with self._lock, open(self._path, "a", encoding="utf-8") as report:
            report.write(json.dumps(line) + "\n")


def _limit_memory(gibibytes: float) -> None:
    """Bound this process's data; the platforms that cannot go without."""
    if not gibibytes:
        return
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        limit = int(gibibytes * (1 << 30))
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
