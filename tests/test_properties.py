"""What holds of check and fix on any program: little torch programs from a grammar, in many layouts."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amplint.fix import fix_source
from amplint.pipeline import Linter, Plan
from amplint.registry import all_rules
from amplint.rule import Finding, offers
from amplint.source import Source, apply_edits

MAIN = Path("/program/main.py")
CODES = frozenset(rule.code for rule in all_rules())

HEADS = (
    "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n",
    '"""Trains."""\nimport torch as th\nimport torch\nfrom torch.nn import functional as F\nimport torch.nn as nn\n',
    "from torch import nn\nfrom torch.nn import functional as F\nimport torch, math\n",
)
LOSSES = (
    "loss = F.nll_loss(torch.log(torch.softmax(out, dim=1)), y)",
    "p = out.softmax(-1)\nloss = -(y * (p + 1e-8).log()).sum(-1).mean()",
    "p = torch.sigmoid(out)\nloss = -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()",
    "loss = F.binary_cross_entropy(torch.sigmoid(out), y)",
    "loss = torch.log(torch.exp(out).sum(dim=1)).mean()",
    "loss = (out.pow(2).sum(-1).sqrt() - y).abs().mean()",
    "w = model(x)\nloss = (out / (w + 1e-8)).mean()",
    "loss = torch.where(y > 0, torch.log(out), out).mean()",
    "loss = F.cross_entropy(torch.softmax(out, 1), y)",
    "loss = F.cross_entropy(out, y)",
    "loss = F.mse_loss(out.float(), y)",
)
STEPS = (
    "scaler.scale(loss).backward()\nscaler.step(opt)\nscaler.update()",
    "scaler.scale(loss).backward()\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    "scaler.step(opt)\nscaler.update()",
    "scaler.scale(loss).backward()\nscaler.unscale_(opt)\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    "scaler.step(opt)\nscaler.update()",
    "scaler.scale(loss).backward()\nopt.step()",
    "scaler.scale(loss / 4).backward()\nscaler.unscale_(opt)\n"
    "if i % 4 == 0:\n    scaler.step(opt)\n    scaler.update()",
    "loss.backward()\nopt.step()",
    "if torch.isnan(loss):\n    continue\nscaler.scale(loss).backward()\nscaler.step(opt)\nscaler.update()",
)
COMMENTS = ("", "  # why", "  # grün ≠ blau", "  # type: ignore")


@st.composite
def programs(draw: st.DrawFn) -> str:
    """A training function, with comments, blank lines, CRLF, tabs and non-ASCII text thrown in."""
    tab = draw(st.sampled_from(["    ", "  ", "\t"]))
    body = [
        "for i, (x, y) in enumerate(loader):",
        f"{tab}opt.zero_grad()",
        f'{tab}with torch.autocast("cuda", dtype=torch.float16):',
        f"{tab * 2}out = model(x)",
        *_indented(draw(st.sampled_from(LOSSES)), tab, 2),
        *_indented(draw(st.sampled_from(STEPS)), tab, 1),
    ]
    lines = [draw(st.sampled_from(HEADS)), "", "def train(model, opt, loader):"]
    lines.append(f'{tab}scaler = torch.amp.GradScaler("cuda")')
    for line in body:
        if draw(st.integers(0, 9)) == 0:
            lines.append(f"{tab}{line[: len(line) - len(line.lstrip())]}# {draw(st.sampled_from(['note', 'größe']))}")
        if draw(st.integers(0, 9)) == 0:
            lines.append("")
        lines.append(f"{tab}{line}{draw(st.sampled_from(COMMENTS)) if draw(st.booleans()) else ''}")
    text = "\n".join(lines) + draw(st.sampled_from(["\n", "", "\n\n"]))
    return text.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))


def _indented(text: str, tab: str, level: int) -> list[str]:
    return [tab * level + line.replace("    ", tab) for line in text.split("\n")]


def check(source: Source) -> tuple[Finding, ...]:
    linter = Linter(lambda: [MAIN], Plan(CODES), {MAIN: source.to_bytes(source.text)})
    return linter.check(MAIN).findings


def kinds(findings: tuple[Finding, ...]) -> set[str]:
    return {finding.code for finding in findings}


MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@MANY
@given(programs(), st.booleans())
def test_fixes_parse_end_and_mend(text: str, unsafe: bool) -> None:
    ast.parse(text)
    result = fix_source(Source(MAIN, text), check, unsafe=unsafe)
    assert result.error is None
    ast.parse(result.text)
    again = fix_source(result.source, check, unsafe=unsafe)
    assert again.text == result.text
    assert not again.fixed
    assert kinds(result.remaining) <= kinds(check(Source(MAIN, text))) | {"AMP401", "AMP202"}


@MANY
@given(programs())
def test_every_fix_alone_parses_and_keeps_the_rest(text: str) -> None:
    source = Source(MAIN, text)
    for finding in check(source):
        for fix in offers(finding):
            fixed = apply_edits(source.text, fix.edits)
            ast.parse(fixed)
            kept = sorted(fix.edits)
            for before, after in pairwise(kept):
                assert before.end <= after.start
            assert fixed.startswith(text[: kept[0].start])
            assert fixed.endswith(text[kept[-1].end :])
            assert ("\r\n" in text) == ("\r\n" in fixed)
            if "\r\n" in text:
                assert "\n" not in fixed.replace("\r\n", "")


@MANY
@given(programs(), st.data())
def test_a_suppression_silences_exactly_its_finding(text: str, data: st.DataObject) -> None:
    source = Source(MAIN, text)
    findings = check(source)
    if not findings:
        return
    chosen = data.draw(st.sampled_from(findings))
    lines = text.split("\n")
    number = chosen.start.line - 1
    ending = "\r" if lines[number].endswith("\r") else ""
    lines[number] = f"{lines[number].rstrip()}  # amplint: ignore[{chosen.code}]{ending}"
    left = check(Source(MAIN, "\n".join(lines)))
    same_line = [f for f in findings if f.code == chosen.code and f.start.line == chosen.start.line]
    assert {(f.code, f.start) for f in left} == {(f.code, f.start) for f in findings if f not in same_line}


@MANY
@given(programs())
def test_positions_round_trip(text: str) -> None:
    source = Source(MAIN, text)
    for finding in check(source):
        for place in (finding.start, finding.end):
            offset = source.line_starts[place.line - 1] + place.column - 1
            assert source.position(offset) == place
