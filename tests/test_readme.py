"""What the README promises: the test command is CI's, the table lists every rule, the example comes out as shown."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner

from amplint.cli import cli
from amplint.registry import all_rules

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
TRAIN = """\
import torch


def train(model, opt, loader):
    scaler = torch.amp.GradScaler()
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            logits = model(x)
            loss = -(y * torch.log(torch.softmax(logits, dim=-1))).sum(-1).mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
"""


def test_ci_runs_the_test_command() -> None:
    (command,) = re.findall(r"^pip install -c constraints.*pytest.*$", README, re.MULTILINE)
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()


def test_every_rule_is_listed() -> None:
    listed = set(re.findall(r"^\| \[?(AMP\d+)", README, re.MULTILINE))
    assert listed == {rule.code for rule in all_rules() if rule.code.startswith("AMP")}


def test_the_example_is_fixed_as_shown(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    safe = CliRunner().invoke(cli, ["fix", "--isolated", "--apply", "--select", "AMP1,AMP2", str(script)])
    assert safe.exit_code == 1
    assert script.read_text() == TRAIN.replace(
        "torch.log(torch.softmax(logits, dim=-1))", "torch.log_softmax(logits, dim=-1)"
    )
    script.write_text(TRAIN)
    CliRunner().invoke(cli, ["fix", "--isolated", "--apply", "--unsafe-fixes", str(script)])
    fixed = script.read_text()
    for line in (
        "for step, (x, y) in enumerate(loader):",
        "loss = torch.nn.functional.cross_entropy(logits, y)",
        "if not torch.isfinite(loss):",
        'raise FloatingPointError(f"step {step}: loss is {loss.item()}")',
        "scaler.unscale_(opt)",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)",
    ):
        assert line in fixed, fixed
        assert line in README
