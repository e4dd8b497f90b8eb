"""What moves when a fix rewrites an expression, and what must not."""

from __future__ import annotations

import ast
import textwrap

import pytest

from amplint.context import Analyses, Context, Options
from amplint.project import Project
from amplint.rewrite import Rewrite, UnmovableError
from amplint.rule import Safety
from amplint.source import Source, apply_edits
from tests.programs import ROOT


def rewritten(body: str) -> str | None:
    """The body with `outer(…)` made `new(…)` of what `inner(…)` is given; None if that cannot be written."""
    text = "import torch\ndef f(self, x, y):\n" + textwrap.indent(textwrap.dedent(body), "    ")
    source = Source(ROOT / "main.py", text)
    project = Project({source.path: source}, lambda path: source)
    module = project.whole(source.path)
    assert module is not None
    calls = {node.func.id: node for node in module.calls if isinstance(node.func, ast.Name)}
    rewrite = Rewrite(Context(module, Analyses(project, Options())), calls["outer"])
    try:
        rewrite.replace(calls["outer"], f"new({rewrite.text(calls['inner'].args[0])})")
        edits = rewrite.fix("", Safety.SAFE).edits
    except UnmovableError:
        return None
    return textwrap.dedent(apply_edits(text, edits).partition("\n")[2].partition("\n")[2])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return outer(inner(x))", "return new(x)"),
        ("p = inner(x)\nreturn outer(p), p", "p = inner(x)\nreturn new(x), p"),
        ("z = x * 2\np = inner(z)\nreturn outer(p), p", "z = x * 2\np = inner(z)\nreturn new(z), p"),
        ("p = inner(self.scale)\nreturn outer(p), p", "p = inner(self.scale)\nreturn new(self.scale), p"),
        ("p = inner(x)\nif y:\n    return outer(p)\nreturn p", "p = inner(x)\nif y:\n    return new(x)\nreturn p"),
        ("p = inner(x)\nq = outer(p)\nx = y\nreturn p, q, x", "p = inner(x)\nq = new(x)\nx = y\nreturn p, q, x"),
        ("return outer(\n    inner(x)  # why\n)", None),
        ("return outer(inner(\n    x  # why\n    + y\n))", "return new(x  # why\n    + y)"),
    ],
)
def test_what_stays_the_same_moves(body: str, expected: str | None) -> None:
    assert rewritten(body) == expected


@pytest.mark.parametrize(
    "body",
    [
        "p = inner(x)\nx = y\nreturn outer(p)",
        "p = inner(x)\nx += 1\nreturn outer(p)",
        "p = inner(x)\nx[0] = 1\nreturn outer(p)",
        "p = inner(x)\nx.clamp_(0)\nreturn outer(p)",
        "p = inner(self.x)\nself.x = y\nreturn outer(p)",
        "x = inner(x)\nreturn outer(x), x",
        "p = inner(x)\nfor _ in y:\n    x = x + 1\n    outer(p)",
        "p = inner(x)\nfor _ in y:\n    outer(p)\n    x = x + 1",
        "p = inner((z := x))\nreturn outer(p)",
        "g = lambda x: inner(x)\nreturn outer(g)",
        "p = [inner(v) for v in x]\nreturn outer(p)",
        "def g():\n    return inner(x)\nreturn outer(g())",
        "q = outer(y)\nreturn inner(x), q",
    ],
)
def test_what_may_change_stays(body: str) -> None:
    assert rewritten(body) is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("p = inner(self.net(x))\nreturn outer(p), p", None),
        ("return outer(inner(self.net(x)))", "return new(self.net(x))"),
        ("return outer(inner(x), x.exp_())", None),
        ("return outer(inner(x.exp_()))", "return new(x.exp_())"),
    ],
)
def test_no_effect_is_lost_or_doubled(body: str, expected: str | None) -> None:
    assert rewritten(body) == expected
