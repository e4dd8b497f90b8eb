"""Which variables are read later, statement by statement."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from amplint.protocol.liveness import Liveness
from amplint.source import Source
from amplint.tree import Module, parse


def live_after_mark(body: str) -> set[str]:
    """What is live after the assignment to `mark`, if every call of `use` and every test tells."""
    module = parse(Source(Path("train.py"), textwrap.dedent(body)))
    mark = next(node for node in ast.walk(module.tree) if isinstance(node, ast.Name) and node.id == "mark")
    return set(Liveness(module, telling(module)).after(module.statement(mark))) - {"mark"}


def telling(module: Module) -> list[ast.AST]:
    calls = [call for call in module.calls if isinstance(call.func, ast.Name) and call.func.id == "use"]
    tests = [node.test for node in ast.walk(module.tree) if isinstance(node, ast.If | ast.While)]
    return [*(argument for call in calls for argument in call.args), *tests]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("mark = 1\nuse(a)", {"a"}),
        ("use(a)\nmark = 1", set()),
        ("mark = 1\nother(a)", set()),
        ("mark = 1\na = 2\nuse(a)", set()),
        ("mark = 1\na, (b, *c) = f()\nuse(a, b, c)", set()),
        ("mark = 1\na: int = 2\nuse(a)", set()),
        ("mark = 1\na: int\nuse(a)", {"a"}),
        ("mark = 1\na += 2\nuse(a)", {"a"}),
        ("mark = 1\nif a:\n    b = 1\nuse(b)", {"a", "b"}),
        ("mark = 1\nif a:\n    b = 1\nelse:\n    b = 2\nuse(b)", {"a"}),
        ("for x in data:\n    use(a)\n    mark = 1", {"a"}),
        ("for x in data:\n    a = 1\n    use(a)\n    mark = 1", set()),
        ("for x in data:\n    use(x)\n    mark = 1", set()),
        ("while a:\n    mark = 1\nuse(b)", {"a", "b"}),
        ("for x in data:\n    mark = 1\n    break\n    use(a)\nuse(b)", {"b"}),
        ("for x in data:\n    mark = 1\n    if b:\n        continue\n    use(a)", {"a", "b"}),
        ("for x in data:\n    use(a)\n    mark = 1\n    break", set()),
        ("for x in data:\n    for y in x:\n        mark = 1\n    use(a)", {"a"}),
        ("for x in data:\n    pass\nelse:\n    mark = 1\nuse(a)", {"a"}),
        ("try:\n    mark = 1\n    a = 2\nexcept OSError:\n    use(a)", {"a"}),
        ("try:\n    mark = 1\n    a = 2\n    b = 2\nfinally:\n    use(a)\nuse(b)", {"a", "b"}),
        ("try:\n    mark = 1\nexcept OSError:\n    pass\nelse:\n    use(a)", {"a"}),
        ("mark = 1\na = 2\ntry:\n    b = 2\nfinally:\n    use(a)", set()),
        ("try:\n    f()\nexcept OSError:\n    mark = 1\n    a = 2\nuse(a)", set()),
        ("mark = 1\nif (a := 1):\n    pass", set()),
        ("mark = 1\nuse([a for a in b])", {"b"}),
        (
            "for x in data:\n    if c:\n        mark = 1\n        break\n    for y in x: pass\n    use(a)\nuse(b)",
            {"b"},
        ),
        ("with f():\n    mark = 1\nuse(a)", {"a"}),
        ("mark = 1\nmatch s:\n    case 1:\n        use(a)\n    case _:\n        a = 1\nuse(b)", {"a", "b"}),
    ],
)
def test_statements(body: str, expected: set[str]) -> None:
    in_function = "def main():\n" + textwrap.indent(body, "    ")
    assert live_after_mark(body) == live_after_mark(in_function) == expected


def test_what_a_return_leaves_behind() -> None:
    assert live_after_mark("def f():\n    mark = 1\n    return 0\n    use(a)\n") == set()
    assert live_after_mark(
        "def f():\n    try:\n        mark = 1\n        return 0\n    finally:\n        use(a)\n"
    ) == {"a"}


def test_variables_of_other_functions() -> None:
    closure = "def f():\n    a = 1\n    def g():\n        use(a)\n    g()\n    mark = 1\n"
    assert live_after_mark(closure) == {"a"}
    assert live_after_mark("def g():\n    a = 1\n    use(a)\n\ndef f():\n    mark = 1\n") == set()
    assert live_after_mark("a = 1\nmark = 1\n\ndef g():\n    use(a)\n") == {"a"}


def test_around_a_call() -> None:
    text = "def f():\n    use(a)\n    b = mark(c)\n    use(d)\n    e = 1\n    use(e)\n"
    module = parse(Source(Path("train.py"), text))
    call = next(call for call in module.calls if isinstance(call.func, ast.Name) and call.func.id == "mark")
    assert Liveness(module, [*telling(module), *call.args]).around(call) == {"c", "d"}
