"""Which assignments a use of a name can see."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent

import pytest

from amplint.flow import How, attribute_definitions, contradict, definitions, exclude_each_other, facts_at
from amplint.source import Source
from amplint.tree import Module


def module_of(text: str) -> Module:
    source = Source(Path("/main.py"), dedent(text))
    return Module(source, ast.parse(source.text))


def reaching(body: str, name: str = "p") -> list[str]:
    """What the use `print(p)` can see, as text; the position in a tuple behind it."""
    lines = "".join(f"    {line}\n" for line in dedent(body).strip("\n").splitlines())
    module = module_of(f"def f(x, flag=None, other=None):\n{lines}")
    use = next(
        node
        for node in module.parents
        if isinstance(node, ast.Name)
        and node.id == name
        and isinstance(parent := module.parent(node), ast.Call)
        and ast.unparse(parent.func) == "print"
    )
    found = definitions(module, use)
    texts = [ast.unparse(r.value) if r.value is not None else r.how.name for r in found]
    return sorted(f"{text}{list(r.path)}" if r.path else text for text, r in zip(texts, found, strict=True))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("p = 1\np = 2\nprint(p)", ["2"]),
        ("if flag:\n    p = 1\nelse:\n    p = 2\nprint(p)", ["1", "2"]),
        ("p = 0\nif flag:\n    p = 1\nprint(p)", ["0", "1"]),
        ("p = 0\nfor i in x:\n    print(p)\n    p = i", ["0", "i"]),
        ("p = 0\nfor i in x:\n    p = i\n    continue\nprint(p)", ["0", "i"]),
        ("p = 0\nwhile True:\n    p = 1\n    break\nprint(p)", ["1"]),
        ("p = 0\nfor i in x:\n    p = 1\nelse:\n    p = 2\nprint(p)", ["2"]),
        ("try:\n    p = 1\n    p = g()\nexcept E:\n    pass\nprint(p)", ["1", "g()"]),
        ("try:\n    p = 1\nfinally:\n    p = 2\nprint(p)", ["2"]),
        ("with open(x) as p:\n    print(p)", ["open(x)"]),
        ("match x:\n    case 1:\n        p = 1\n    case _:\n        p = 2\nprint(p)", ["1", "2"]),
        ("match x:\n    case [p, *_]:\n        print(p)", ["UNKNOWN"]),
        ("if (p := g(x)):\n    print(p)", ["g(x)"]),
        ("p, q = 1, 2\nprint(p)", ["1"]),
        ("q, (p, *r) = g()\nprint(p)", ["g()[1, 0]"]),
        ("*r, p = g()\nprint(p)", ["g()[-1]"]),
        ("p = 1\np += 2\nprint(p)", ["AUGMENTED"]),
        ("p = 1\np.clamp_(0)\nprint(p)", ["p.clamp_(0)"]),
        ("p = 1\np[x] = 0\nprint(p)", ["ITEM"]),
        ("p = 1\ndef g():\n    print(p)\np = 2", ["1", "2"]),
        ("[print(p) for p in x]", ["x"]),
        ("p = 1\n[print(p) for _ in x]", ["1"]),
        ("p = A(x) if flag else B(x)\nprint(p)", ["A(x)", "B(x)"]),
        ("p = 1\ndel p\nprint(p)", ["UNKNOWN"]),
    ],
)
def test_sees(body: str, expected: list[str]) -> None:
    assert reaching(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("if flag:\n    p = 1\nelse:\n    p = 2\nif flag:\n    print(p)", ["1"]),
        ("if flag:\n    p = 1\nelse:\n    p = 2\nif not flag:\n    print(p)", ["2"]),
        ("if flag is None:\n    p = 1\nelse:\n    p = 2\nif flag is not None:\n    print(p)", ["2"]),
        ("if flag is None:\n    p = 1\nelse:\n    p = 2\nif flag:\n    print(p)", ["2"]),
        ("if flag == 'a':\n    p = 1\nelse:\n    p = 2\nif flag == 'b':\n    print(p)", ["2"]),
        ("p = 0\nif flag and other:\n    p = 1\nif not flag:\n    print(p)", ["0"]),
        ("p = A(x) if flag else B(x)\nif not flag:\n    print(p)", ["B(x)"]),
        ("p = 0\nif not flag:\n    return\nif flag:\n    p = 1\nprint(p)", ["1"]),
        ("p = 0\nif flag:\n    raise E\nelse:\n    p = 1\nprint(p)", ["1"]),
        # the test may change in between, or is another one
        ("if flag:\n    p = 1\nelse:\n    p = 2\nflag = g()\nif flag:\n    print(p)", ["1", "2"]),
        ("if g():\n    p = 1\nelse:\n    p = 2\nif g():\n    print(p)", ["1", "2"]),
        ("if flag:\n    p = 1\nelse:\n    p = 2\nif other:\n    print(p)", ["1", "2"]),
        ("p = 0\nfor i in x:\n    if i:\n        p = 1\n    if not i:\n        print(p)", ["0", "1"]),
        ("if flag:\n    p = 1\nelse:\n    p = 2\nif flag or other:\n    print(p)", ["1", "2"]),
    ],
)
def test_equal_tests_take_equal_branches(body: str, expected: list[str]) -> None:
    assert reaching(body) == expected


def test_deep_loops_keep_all_definitions() -> None:
    depth = 7
    lines = ["p = 0"] + [f"{'    ' * i}for i{i} in x:" for i in range(depth)]
    lines += [f"{'    ' * depth}print(p)", f"{'    ' * depth}p = 1"]
    assert reaching("\n".join(lines)) == ["0", "1"]


def test_attribute_set_in_the_same_function() -> None:
    module = module_of(
        """
        class C:
            def f(self, x):
                self.w = g(x)
                return self.w

            def h(self, x):
                if x:
                    self.w = 1
                return self.w

            def k(self):
                return self.w
        """
    )
    loads = [n for n in module.parents if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)]
    answers = {n.lineno: attribute_definitions(module, n) for n in loads}
    known = {line: ([ast.unparse(r.value) for r in found if r.value], also) for line, (found, also) in answers.items()}
    assert known == {5: (["g(x)"], False), 10: (["1"], True), 13: ([], True)}


def test_facts_of_the_branches_around() -> None:
    module = module_of("def f(a, b):\n    if a and not b:\n        g()\n    else:\n        h()\n")
    calls = {ast.unparse(call): facts_at(module, call) for call in module.calls}
    assert ("a", "", True) in calls["g()"]
    assert ("b", "", False) in calls["g()"]
    assert calls["h()"] == frozenset()
    assert contradict(calls["g()"], {("b", "", True)})
    assert not contradict(calls["g()"], {("c", "", True)})


def test_names_of_outer_scopes_and_builtins() -> None:
    module = module_of("import torch\nLIMIT = 1\nLIMIT = 2\ndef f():\n    return print(LIMIT, torch, len)\n")
    found = {n.id: definitions(module, n) for n in module.parents if isinstance(n, ast.Name)}
    assert [r.how for r in found["LIMIT"]] == [How.ASSIGN, How.ASSIGN]
    assert [r.how for r in found["torch"]] == [How.IMPORT]
    assert found["len"] == ()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("p = a(x) if flag else b(x)\nq = p[0]\nif flag:\n    c(q)", {"a": False, "b": True}),
        ("p = a(x) if flag else b(x)\nflag = x\nif flag:\n    c(p)", {"a": False, "b": False}),
        ("if flag:\n    a(x)\nelse:\n    b(x)\nc(x)", {"a": False, "b": False}),
    ],
)
def test_places_that_cannot_both_run(body: str, expected: dict[str, bool]) -> None:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    module = module_of(f"def f(x, flag):\n{lines}")
    calls = {ast.unparse(call.func): call for call in module.calls}
    found = {name: exclude_each_other(module, calls["c"], calls[name]) for name in expected}
    assert found == expected
