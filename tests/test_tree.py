"""The walked tree: scopes and the dotted names that imports and aliases give."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from amplint.source import Source
from amplint.tree import Module, parse


def module(text: str) -> Module:
    return parse(Source(Path("main.py"), textwrap.dedent(text)))


def last_call(tree: Module) -> ast.Call:
    return tree.calls[-1]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import torch\ntorch.log(x)", ("torch.log",)),
        ("import torch as th\nth.log(x)", ("torch.log",)),
        ("import torch.nn.functional as F\nF.softmax(x)", ("torch.nn.functional.softmax",)),
        ("import torch.nn.functional\ntorch.nn.functional.softmax(x)", ("torch.nn.functional.softmax",)),
        ("from torch import log as ln\nln(x)", ("torch.log",)),
        ("from torch.nn import functional\nfunctional.softmax(x)", ("torch.nn.functional.softmax",)),
        ("from torch.nn.functional import *\nsoftmax(x)", ("torch.nn.functional.softmax",)),
        ("import torch\nlog = torch.log\nlog(x)", ("torch.log",)),
        ("import torch\ndef f(x):\n    log = torch.log\n    return log(x)", ("torch.log",)),
        ("from . import ops\nops.unit(x)", (".ops.unit",)),
        ("from ..ops import unit\nunit(x)", ("..ops.unit",)),
        ("try:\n    from torch.amp import autocast\nexcept ImportError:\n    from torch.cuda.amp import autocast\n"
         "autocast()", ("torch.amp.autocast", "torch.cuda.amp.autocast")),
        ("def f(x):\n    import torch\n    torch.log(x)", ("torch.log",)),
        ("import torch\nclass A:\n    log = 1\n    def f(self, x):\n        return torch.log(x)", ("torch.log",)),
    ],
)  # fmt: skip
def test_names_through_imports_and_aliases(text: str, names: tuple[str, ...]) -> None:
    tree = module(text)
    assert tree.names(last_call(tree).func) == names


@pytest.mark.parametrize(
    "text",
    [
        "log(x)",
        "from torch import log\ndef log(x): ...\nlog(x)",
        "from torch import log\ndef f(log, x):\n    return log(x)",
        "import torch\ntorch = load()\ntorch.log(x)",
        "import torch\ndef f(torch):\n    return torch.log(1)",
        "from torch import log\n[log(x) for log in logs]",
        "self.log(x)",
        "log = math.log if fast else other\nlog(x)",
    ],
)
def test_no_name_for_what_is_bound_to_something_else(text: str) -> None:
    tree = module(text)
    assert tree.names(last_call(tree).func) == ()


def test_a_class_body_is_no_scope_for_its_methods() -> None:
    tree = module("from torch import log\nclass A:\n    log = 1\n    def f(self, x):\n        return log(x)")
    assert tree.names(last_call(tree).func) == ("torch.log",)


def test_a_global_statement_binds_the_module() -> None:
    tree = module("def f():\n    global scaler\n    scaler = make()\ndef g():\n    scaler.step(opt)")
    found = tree.lookup("scaler", last_call(tree))
    assert found is not None
    assert isinstance(found[0], ast.Module)


@pytest.mark.parametrize(("before", "after"), [("        on = False\n", ""), ("", "        on = False\n")])
def test_a_nonlocal_statement_binds_the_function_around(before: str, after: str) -> None:
    source = (
        f"def f():\n    def g():\n{before}        def h():\n            nonlocal on\n            on = True\n{after}"
    )
    tree = module(source)
    function = next(node for node in tree.functions if node.name == "h")
    stored = next(node for node in ast.walk(function) if isinstance(node, ast.Name))
    found = tree.lookup("on", stored)
    assert found is not None
    scope, bindings = found
    assert getattr(scope, "name", "") == "g"
    assert len(bindings) == 2


def test_decorators_defaults_and_bases_are_outside() -> None:
    tree = module("@outer(1)\nclass A(make()):\n    pass\n")
    assert all(tree.scope(call) is tree.tree for call in tree.calls)


def test_a_walrus_in_a_comprehension_binds_the_function() -> None:
    tree = module("def f(xs):\n    total = [last := x for x in xs]\n    return g(last)")
    found = tree.lookup("last", last_call(tree))
    assert found is not None
    assert isinstance(found[0], ast.FunctionDef)


def test_spelling_uses_the_binding_of_the_user() -> None:
    tree = module("import torch as th\nfrom torch.nn import functional as F\nF.softmax(x)")
    at = last_call(tree)
    assert tree.bound_as("torch.log_softmax", at) == "th.log_softmax"
    assert tree.bound_as("torch.nn.functional.log_softmax", at) == "F.log_softmax"
    assert tree.bound_as("math.log", at) is None


def test_statement_block_and_qualname() -> None:
    tree = module("class A:\n    def f(self):\n        if x:\n            g(1)\n        else:\n            h(2)\n")
    call = last_call(tree)
    statement = tree.statement(call)
    assert tree.block(statement) == [statement]
    function = tree.function(call)
    assert function is not None
    assert tree.qualname(function) == "A.f"
    assert tree.class_of(function) is tree.classes[0]
