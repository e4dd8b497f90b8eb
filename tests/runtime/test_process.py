"""Processes that run scripts: bounded, and gone afterwards with all that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch

from amplint.runtime import process
from amplint.runtime.process import KEPT, Limits, run_script, supervised
from amplint.runtime.verdict import Ending, FailureKind, Run

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


def python(source: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(source)]


def is_alive(pid: int) -> bool:
    try:
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def is_gone(pid: int) -> bool:
    """Whether it ends, for which a killed process may need its time."""
    until = time.monotonic() + 30
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not is_alive(pid)


def wait_for(path: Path) -> int:
    """The number that a process writes to a file, once it has."""
    while not path.exists() or not path.read_text().endswith("\n"):
        time.sleep(0.01)
    return int(path.read_text())


@linux
def test_its_children_go_with_it(tmp_path: Path) -> None:
    source = """
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(child.pid, file=open("pid", "w"))
        time.sleep(600)
    """
    with supervised(python(source), tmp_path) as (parent, _):
        child = wait_for(tmp_path / "pid")
        assert is_alive(child)
    assert parent.returncode == -signal.SIGKILL
    assert is_gone(child)


@linux
def test_a_child_that_left_the_group_goes_too(tmp_path: Path) -> None:
    source = """
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                print(os.getpid(), file=open("pid", "w"))
                time.sleep(600)
            os._exit(0)
        os.wait()
    """
    with supervised(python(source), tmp_path) as (parent, _):
        daemon = wait_for(tmp_path / "pid")
        parent.wait()
        assert is_alive(daemon)
    assert is_gone(daemon)


@linux
def test_a_fork_bomb_is_stopped(tmp_path: Path) -> None:
    source = """
        import os, time
        print(os.getpid(), file=open("pid", "w"))
        for _ in range(6):  # 64 processes, each of which would go on
            os.fork()
        while True:
            time.sleep(1)
    """
    with supervised(python(source), tmp_path) as (parent, _):
        wait_for(tmp_path / "pid")
        time.sleep(0.2)
    source = str(parent.args[-1]).encode()
    started = [pid for pid in os.listdir("/proc") if pid.isdigit() and source in read(Path(f"/proc/{pid}/cmdline"))]
    assert all(is_gone(int(pid)) for pid in started)


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_process_that_traps_signals_goes(tmp_path: Path) -> None:
    source = """
        import signal, time
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        print("1", file=open("ready", "w"))
        while True:
            time.sleep(1)
    """
    with supervised(python(source), tmp_path) as (parent, _):
        wait_for(tmp_path / "ready")
    assert parent.returncode == -signal.SIGKILL


def test_a_flood_of_output_is_bounded(tmp_path: Path) -> None:
    source = """
        import sys
        print("first")
        for _ in range(2000):
            sys.stdout.write("x" * 10_000)
        print("last")
    """
    with supervised(python(source), tmp_path) as (parent, output):
        assert parent.wait() == 0
    text = output.text()
    assert text.startswith("first")
    assert text.endswith("last\n")
    assert "bytes left out" in text
    assert len(text) < 3 * KEPT


def test_it_has_no_standard_input(tmp_path: Path) -> None:
    with supervised(python("import sys; print(repr(sys.stdin.read()))"), tmp_path) as (parent, output):
        parent.wait()
    assert output.text() == "''\n"


def test_termination_of_the_owner_ends_it(tmp_path: Path) -> None:
    source = f"""
        import sys
        from pathlib import Path
        from amplint.runtime.process import supervised, terminable
        child = [sys.executable, "-c", "import time; time.sleep(600)"]
        with terminable(), supervised(child, Path({str(tmp_path)!r})) as (process, _):
            print(process.pid, file=open({str(tmp_path / "pid")!r}, "w"))
            process.wait()
    """
    owner = subprocess.Popen(python(source))
    child = wait_for(tmp_path / "pid")
    owner.send_signal(signal.SIGTERM)
    assert owner.wait() == 128 + signal.SIGTERM
    assert is_gone(child)


# From here on the process is amplint's own, which imports torch.

QUICK = Limits(steps=5, seconds=120.0)


def run(script: Path, source: str, *args: str, limits: Limits = QUICK, device: str = "simulated") -> Run:
    script.write_text(textwrap.dedent(source))
    return run_script(script, args, folder=script.parent, device=device, limits=limits)


TRAINING = """
    import os, shutil, signal, sys, torch

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.chdir("/")
    shutil.rmtree(os.path.dirname(os.path.abspath(sys.argv[0])))
    print("arguments", sys.argv[1:])
    weight = torch.nn.Parameter(torch.ones(2, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    while True:
        try:
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
        except BaseException:
            pass
"""


def test_a_script_that_will_not_end_and_deletes_its_folder(script: Path) -> None:
    result = run(script, TRAINING, "--lr", "1")
    assert (result.ending, result.failure, result.steps) == (Ending.STEPS, None, 5)
    assert result.device == "simulated"
    assert "arguments ['--lr', '1']" in result.output


def test_a_script_that_hangs_is_killed(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE", 0.0)
    result = run(script, "import time; time.sleep(600)", limits=Limits(seconds=4.0))
    assert result.failure is not None
    assert result.failure.kind is FailureKind.HUNG


def test_a_script_that_leaves_at_once(script: Path) -> None:
    result = run(script, "import os; print('bye', flush=True); os._exit(3)")
    assert result.failure is not None
    assert result.failure.kind is FailureKind.DIED
    assert "status 3" in result.failure.message
    assert result.output == "bye\n"


def test_a_script_that_crashes(script: Path) -> None:
    result = run(script, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert result.failure is not None
    assert result.failure.message == "killed by SIGSEGV"


ENDED_IN_A_MESS = """
    import threading, time, torch

    threading.Thread(target=time.sleep, args=(600,)).start()
    weight = torch.nn.Parameter(torch.ones(2, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    try:
        while True:
            weight.square().sum().backward()
            optimizer.step()
    finally:
        [].pop()
"""


def test_what_comes_of_being_ended_is_no_failure(script: Path) -> None:
    begun = time.monotonic()
    result = run(script, ENDED_IN_A_MESS, limits=Limits(steps=5, seconds=200.0))
    assert (result.ending, result.failure, result.steps) == (Ending.STEPS, None, 5)
    assert time.monotonic() - begun < 200.0  # the thread that sleeps is not waited for


def test_an_exception_has_its_place(script: Path) -> None:
    result = run(script, "import torch\n\ndef fail():\n    torch.ones(2) @ torch.ones(3)\n\nfail()\n")
    assert result.failure is not None
    assert result.failure.kind is FailureKind.EXCEPTION
    assert (result.failure.place.file, result.failure.place.line) == (str(script), 4)


def test_modules_of_the_scripts_folder_do_not_replace_amplints(script: Path) -> None:
    trap = "raise SystemExit('imported by amplint itself')"
    for name in ("amplint.py", "argparse.py", "runpy.py"):
        script.with_name(name).write_text(trap)
    result = run(script, "import os, sys; print(os.getcwd(), sys.path[0])")
    assert result.failure is None
    assert result.output.split() == [str(script.parent)] * 2


@linux
def test_memory_is_bounded(script: Path) -> None:
    result = run(script, "keep = bytearray(20 << 30)", limits=Limits(memory=8.0, seconds=60.0))
    assert result.failure is not None
    assert result.failure.message.startswith("MemoryError")


def test_cancelling_ends_it(script: Path) -> None:
    script.write_text("import time; time.sleep(600)")
    cancelled = threading.Event()
    cancelled.set()
    begun = time.monotonic()
    run_script(script, folder=script.parent, cancelled=cancelled)
    assert time.monotonic() - begun < 60.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_that_is_not_there_is_said(script: Path) -> None:
    result = run(script, "", device="cuda")
    assert result.failure is not None
    assert "--device simulated" in result.failure.message
