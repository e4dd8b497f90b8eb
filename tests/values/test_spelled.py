"""What the tree alone tells of an expression or a call."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from amplint.project import Project
from amplint.source import Source
from amplint.tree import Module
from amplint.values import spelled

PROGRAM = """
import torch
import torch.nn.functional as F
from helpers import helper

class Net(torch.nn.Module):
    def __init__(self, body, heads):
        super().__init__()
        self.body = body.half()  # body
        self.first = heads[0].half()  # heads[0]

    def forward(self, given, scale=1.0):
        given.half()  # given
        summed = given + scale
        summed.half()  # summed
        F.softmax(given, -1).half()  # F.softmax(given, -1)
        self.body(given).half()  # self.body(given)
        given.transpose(0, 1).to("cuda").half()  # given.transpose(0, 1).to("cuda")

def convert(model, rows: torch.Tensor, mask, other):
    model.half()  # model
    rows.half()  # rows
    mask[:, None].half()  # mask[:, None]
    other.half()  # other
    return torch.matmul(other, mask)
"""


def program(text: str, **others: str) -> tuple[Project, Module]:
    texts = {Path("main.py"): text} | {Path(f"{name}.py"): other for name, other in others.items()}
    project = Project(texts, lambda path: Source(path, textwrap.dedent(texts[path])))
    module = project.whole(Path("main.py"))
    assert module is not None
    return project, module


def receiver(module: Module, text: str) -> ast.expr:
    """What `.half()` is called on where it is written like this."""
    return next(
        call.func.value
        for call in module.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "half" and ast.unparse(call.func.value) == text
    )


@pytest.mark.parametrize(
    "text",
    [
        "given",
        "summed",
        "F.softmax(given, -1)",
        "given.transpose(0, 1).to('cuda')",
        "rows",
        "mask[:, None]",
        "other",
    ],
)
def test_what_can_only_be_a_tensor(text: str) -> None:
    _, module = program(PROGRAM)
    assert spelled.is_tensor(module, receiver(module, text))


@pytest.mark.parametrize("text", ["body", "heads[0]", "self.body(given)", "model"])
def test_what_may_be_a_module(text: str) -> None:
    _, module = program(PROGRAM)
    assert not spelled.is_tensor(module, receiver(module, text))


@pytest.mark.parametrize(
    ("call", "enters"),
    [
        ("helper(x)", True),
        ("model(x)", True),
        ("model.run(x)", True),
        ("Net.apply(x)", True),
        ("torch.utils.checkpoint.checkpoint(model, x)", True),
        ("(lambda y: y)(x)", True),
        ("torch.relu(x)", False),
        ("len(x)", False),
        ("model.absent(x)", False),
        ("options.run(x)", False),
        ("x.view(2).view(1)", False),
    ],
)
def test_calls_that_may_run_code_of_the_project(call: str, enters: bool) -> None:
    text = f"""
        import torch
        import torch.utils.checkpoint
        from other import helper, Net

        def f(model, x, **options):
            {call}
        """
    other = """
        class Net:
            def run(self): ...
            def view(self): ...

        def helper(x): ...
        """
    project, module = program(text, other=other)
    statement = module.functions[0].body[0]
    assert isinstance(statement, ast.Expr)
    assert isinstance(statement.value, ast.Call)
    assert spelled.may_enter(project, module, statement.value) is enters
