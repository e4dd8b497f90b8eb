"""`amplint verify` and `amplint trace`, end to end: the linter fixes, the scripts run under simulated CUDA."""

from __future__ import annotations

import json
import textwrap
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from amplint.cli import cli
from amplint.runtime.verify import scripts_in

TRAINING = """
    import sys

    import torch
    from torch import nn

    STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 30


    def main():
        torch.manual_seed(0)
        inputs = 60 * torch.randn(32, 8).to("cuda")
        targets = torch.randint(0, 4, (32, 1)).to("cuda")
        model = nn.Linear(8, 4).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
        for step in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                logits = model(inputs)
                loss = -{log_probabilities}.gather(1, targets).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            if not torch.isfinite(loss):
                raise FloatingPointError(f"loss {{loss}} at step {{step}}")


    if __name__ == "__main__":
        main()
"""
FAULTY = textwrap.dedent(TRAINING).lstrip().format(log_probabilities="torch.log(torch.softmax(logits, dim=1))")
SOUND = textwrap.dedent(TRAINING).lstrip().format(log_probabilities="torch.log_softmax(logits, dim=1)")


def amplint(*args: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(arg) for arg in args])


def verify(*args: str | Path) -> tuple[int, list[dict[str, Any]]]:
    result = amplint("verify", "--device", "simulated", "--output-format", "json", *args)
    assert result.exit_code in (0, 1), result.output
    return result.exit_code, json.loads(result.stdout)


def test_a_fixture_fails_for_its_reason_and_its_fix_does_not(script: Path) -> None:
    unsafe, safe = script.with_name("unsafe.py"), script.with_name("safe.py")
    unsafe.write_text(FAULTY)
    safe.write_text(SOUND)
    status, (of_unsafe, of_safe) = verify(script.parent, "--", "20")
    assert status == 0
    assert of_unsafe["codes"] == ["AMP101"]
    assert of_unsafe["explanation"]["code"] == "AMP101"
    before, after = of_unsafe["before"], of_unsafe["after"]
    assert before["device"] == "simulated"
    assert before["failure"]["place"]["file"] == str(unsafe)
    assert "torch.log(torch.softmax(logits, dim=1))" in before["bad_tensor"]["place"]["code"]
    assert (after["failure"], after["steps"]) == (None, 20)
    assert of_safe["before"] == after  # the same program: not run again
    assert of_safe["after"] is None
    assert unsafe.read_text() == FAULTY
    assert sorted(path.name for path in script.parent.iterdir()) == ["safe.py", "unsafe.py"]


def test_an_unsafe_fixture_that_does_not_fail_is_a_failure(script: Path) -> None:
    unsafe = script.with_name("unsafe.py")
    unsafe.write_text(SOUND)
    result = amplint("verify", "--device", "simulated", "--steps", "5", unsafe)
    assert result.exit_code == 1
    assert "should fail, and does not" in result.stdout
    assert "5 steps finite" in result.stdout
    assert "simulated CUDA" in result.stdout


def test_a_clean_script_that_fails_is_a_failure(script: Path) -> None:
    script.write_text("import torch\n\nraise ValueError('no data')\n")
    result = amplint("verify", "--device", "simulated", "--output-format", "markdown", script)
    assert result.exit_code == 1
    assert "| exception, after 0 steps, line 3 |" in result.stdout


def test_trace_names_the_line_and_its_rule(script: Path) -> None:
    script.write_text(FAULTY)
    result = amplint("trace", "--device", "simulated", script, "40")
    assert result.exit_code == 1
    line = next(n for n, code in enumerate(FAULTY.splitlines(), 1) if "torch.log(" in code)
    assert f"train.py:{line}: loss = -torch.log(torch.softmax(logits, dim=1))" in result.stdout
    assert "AMP101 log-softmax" in result.stdout


def test_trace_of_a_sound_script(script: Path) -> None:
    script.write_text(SOUND)
    result = amplint("trace", "--device", "simulated", "--output-format", "json", script, "3")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["steps"], found["failure"], found["explanation"]) == (3, None, None)


def test_without_torch_it_says_how_to_get_it(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr("amplint.commands.verify.find_spec", find_nothing)
    script.write_text(SOUND)
    for command in ("verify", "trace"):
        result = amplint(command, script)
        assert result.exit_code == 2
        assert "pip install 'amplint[verify]'" in result.stderr


def test_a_folder_without_scripts_is_a_wrong_use(tmp_path: Path) -> None:
    result = amplint("verify", tmp_path)
    assert result.exit_code == 2
    assert "no training script" in result.stderr


def test_which_files_of_a_folder_are_scripts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOUND)
    (tmp_path / "model.py").write_text("import torch\n")
    (tmp_path / "tool.py").write_text("if __name__ == '__main__':\n    print()\n")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "train.py").write_text(SOUND)
    assert scripts_in([tmp_path]) == [tmp_path / "train.py"]
    assert scripts_in([tmp_path / "model.py"]) == [tmp_path / "model.py"]
