"""Judging many files in several processes, where that pays.

A run starts alone. If it takes long, it forks: the helpers inherit what was found out about the project so far. A
helper that dies costs the file it was at, which is named; the rest goes on.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from amplint.diagnostic import Judgement
from amplint.pipeline import Linter

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkContext
    from multiprocessing.process import BaseProcess

PATIENCE = 2.0
"""Seconds that a run judges alone before it calls for help."""

_Item = tuple[int, Path]


def judge_all(linter: Linter, paths: Sequence[Path], jobs: int | None = None) -> Iterator[tuple[int, Judgement]]:
    """The judgement of each path with its index, as they are ready. `jobs` None: one process for each processor."""
    jobs = jobs or processors()
    begun = time.monotonic()
    for index, path in enumerate(paths):
        if jobs > 1 and len(paths) - index > jobs and time.monotonic() - begun > PATIENCE and hasattr(os, "fork"):
            yield from _judge_together(linter, list(enumerate(paths))[index:], jobs)
            return
        yield index, linter.judge(path)


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(slots=True)
class _Helper:
    """A process and the item it is at."""

    process: BaseProcess
    connection: Connection
    item: _Item


def _judge_together(linter: Linter, items: list[_Item], jobs: int) -> Iterator[tuple[int, Judgement]]:
    """Largest files first, one at a time to each helper."""
    from multiprocessing import connection, get_context

    context = get_context("fork")
    pending = sorted(items, key=lambda item: (_size(item[1]), item))
    gc.freeze()  # what the helpers inherit stays shared, as long as the collector does not touch it
    helpers: dict[Connection, _Helper] = {}
    try:
        for _ in range(jobs):
            _employ(context, linter, pending.pop(), helpers)
        while helpers:
            ready = connection.wait(list(helpers))
            for helper in [helper for known, helper in helpers.items() if known in ready]:
                index, path = helper.item
                judgement = _answer(helper)
                if judgement is None:
                    del helpers[helper.connection]
                    if pending:
                        _employ(context, linter, pending.pop(), helpers)
                    judgement = linter.died(path, _cause(helper.process))
                elif pending:
                    helper.item = pending.pop()
                    helper.connection.send(helper.item[1])
                else:
                    del helpers[helper.connection]
                    helper.connection.send(None)
                    helper.process.join()
                yield index, judgement
    finally:
        for helper in helpers.values():
            helper.process.terminate()
        gc.unfreeze()


def _employ(context: ForkContext, linter: Linter, item: _Item, helpers: dict[Connection, _Helper]) -> None:
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(linter, theirs, item[1]), daemon=True)
    process.start()
    theirs.close()
    helpers[ours] = _Helper(process, ours, item)


def _answer(helper: _Helper) -> Judgement | None:
    """What a helper says of its item; None if it died over it."""
    try:
        judgement: Judgement = helper.connection.recv()
    except (EOFError, OSError):
        return None
    return judgement


def _serve(linter: Linter, connection: Connection, path: Path) -> None:
    """Judge path after path until None comes, or whoever asks is gone."""
    from multiprocessing import parent_process
    from multiprocessing.connection import wait

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None
    following: Path | None = path
    while following is not None:
        connection.send(linter.judge(following))
        if connection not in wait([connection, parent.sentinel]):
            return
        following = connection.recv()


def _cause(process: BaseProcess) -> str:
    process.join()
    status = process.exitcode
    if status is not None and status < 0:
        return signal.Signals(-status).name
    return f"exit status {status}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
