"""Values of lists that are built step by step, and of returns that an early exit decides."""

from __future__ import annotations

import ast

import pytest

from amplint.context import Analyses, Context, Options
from amplint.project import Project
from amplint.source import Source
from tests.programs import ROOT

HEAD = "import torch\nfrom torch import nn\n"


def returned(body: str) -> set[str]:
    """The operations that `f(x, flag)` may return."""
    source = Source(ROOT / "main.py", f"{HEAD}{body}\nout = f(torch.rand(2, 3), True)\n")
    project = Project({source.path: source}, lambda path: source)
    module = project.whole(source.path)
    assert module is not None
    context = Context(module, Analyses(project, Options()))
    last = module.tree.body[-1]
    assert isinstance(last, ast.Assign)
    return {value.op for value in context.values.of(module, last.value)}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (["layers = [nn.Linear(3, 3)]", "layers.append(nn.Sigmoid())"], {"sigmoid"}),
        (["layers = [nn.Linear(3, 3)]", "layers += [nn.ReLU(), nn.Softmax(1)]"], {"softmax"}),
        (["layers = [nn.Linear(3, 3)]", "layers.extend([nn.Tanh()])"], {"tanh"}),
        (["layers = [nn.Sigmoid()]", "if flag is None:", "    layers.append(nn.ReLU())"], {"identity", "relu"}),
        (["layers = []", "for _ in range(2):", "    layers.append(nn.ReLU())", "layers.append(nn.Tanh())"], {"tanh"}),
        (["layers = [nn.Sigmoid()]", "layers = [nn.Tanh()]"], {"tanh"}),
        (["layers = make()", "layers.append(nn.Sigmoid())"], {"unknown"}),
        (["layers = [nn.Sigmoid()]", "layers.insert(0, nn.ReLU())"], {"sigmoid"}),
    ],
)
def test_layers_added_one_by_one(steps: list[str], expected: set[str]) -> None:
    lines = ["def f(x, flag):", *(f"    {step}" for step in steps), "    return nn.Sequential(*layers)(x)"]
    assert returned("\n".join(lines)) == expected


@pytest.mark.parametrize(
    "grown",
    [
        "items = [*items, x]",
        "items = [items, x]",
        "items = [*items, *items]",
        "items += [items]",
        "items.append(items)",
    ],
)
def test_a_list_that_holds_itself_comes_to_an_end(grown: str) -> None:
    lines = [
        "items = [x]",
        "for _ in range(3):",
        f"    {grown}",
        "for item in items:",
        "    x = item",
        "return x.exp()",
    ]
    assert "exp" in returned("\n".join(["def f(x, flag):", *(f"    {line}" for line in lines)]))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["if flag:", "    return x.sigmoid()", "return x.exp()"], {"sigmoid"}),
        (["if not flag:", "    return x.sigmoid()", "return x.exp()"], {"exp"}),
        (["if flag:", "    x = x * 2", "else:", "    return x.sigmoid()", "return x.exp()"], {"exp"}),
        (["if x.sum() > 0:", "    return x.sigmoid()", "return x.exp()"], {"sigmoid", "exp"}),
        (["if flag:", "    x = x.sigmoid()", "return x.exp()"], {"exp"}),
    ],
)
def test_an_early_return_decides_what_follows(lines: list[str], expected: set[str]) -> None:
    assert returned("\n".join(["def f(x, flag):", *(f"    {line}" for line in lines)])) == expected


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        ("items[0]", {"relu", "tanh"}),
        ("items[1]", {"relu", "tanh"}),
        ("torch.cat(items)", {"cat"}),
    ],
)
def test_what_is_appended_is_in_the_list(read: str, expected: set[str]) -> None:
    lines = ["items = [x.relu()]", "for _ in range(3):", "    items.append(x.tanh())", f"return {read}"]
    assert returned("\n".join(["def f(x, flag):", *(f"    {line}" for line in lines)])) == expected


def test_what_is_appended_to_another_list_is_not() -> None:
    lines = ["items = [x.relu()]", "kept = items", "items = [x.exp()]", "items.append(x.tanh())", "return kept[0]"]
    assert returned("\n".join(["def f(x, flag):", *(f"    {line}" for line in lines)])) == {"relu"}


def test_a_dict_that_is_set_in_a_loop_comes_to_an_end() -> None:
    lines = ["d = {}", "for i in range(3):", "    d['a'] = x", "    d['b'] = i", "return d['c']"]
    assert returned("\n".join(["def f(x, flag):", *(f"    {line}" for line in lines)])) == {"unknown"}
    lines = ["d = {}", "for i in range(3):", "    d['a'] = x.exp()", "    d['b'] = i", "return d['a']"]
    assert "exp" in returned("\n".join(["def f(x, flag):", *(f"    {line}" for line in lines)]))
