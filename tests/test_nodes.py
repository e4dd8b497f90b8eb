"""Compact nodes are the nodes that `ast` gives, but for the memory they take."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from amplint.nodes import compact, compact_children, kind_of
from amplint.source import Source
from amplint.tree import parse

OWN_TEXTS = sorted(Path(inspect.getfile(parse)).parent.rglob("*.py"))


def compacted(text: str) -> ast.Module:
    return parse(Source.from_bytes(Path("example.py"), text.encode())).tree


def told(node: object) -> object:
    """All that a node says, with its place."""
    if isinstance(node, list):
        return [told(item) for item in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    names = (*node._fields, *node._attributes)
    return type(node).__name__, [(name, told(getattr(node, name, None))) for name in names]


@pytest.mark.parametrize("path", OWN_TEXTS, ids=lambda path: path.stem)
def test_nothing_is_lost(path: Path) -> None:
    text = path.read_text()
    tree = compacted(text)
    assert told(tree) == told(ast.parse(text))
    assert ast.unparse(tree) == ast.unparse(ast.parse(text))


EVERY_PART = """\
import a as b
with a as b: pass
match a:
    case [1, *r]: pass
@d
class A(B, k=1):
    def f(self, x: int = 1, *a, **k) -> int:
        return [x for x in f'{a!r}']
"""


def test_no_node_has_a_dictionary() -> None:
    tree = compacted(EVERY_PART)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.expr_context):
            assert not vars(node), ast.dump(node)


def test_rare_fields_are_kept() -> None:
    constant = compact(ast.parse("u'a'", mode="eval").body)
    assert isinstance(constant, ast.Constant)
    assert (constant.value, constant.kind) == ("a", "u")


def test_a_compact_node_is_left_as_it_is() -> None:
    node = compact(ast.parse("f(x)", mode="eval").body)
    assert compact(node) is node
    first = compact_children(node)
    assert [id(child) for child in compact_children(node)] == [id(child) for child in first]


def test_the_kind_is_that_of_ast() -> None:
    node = ast.parse("f(x)", mode="eval").body
    assert kind_of(compact(node)) is kind_of(node) is ast.Call
    assert kind_of(ast.Load()) is ast.Load


def test_every_kind_that_a_tree_may_hold_is_compact() -> None:
    concrete = [
        kind
        for kind in vars(ast).values()
        if isinstance(kind, type) and issubclass(kind, ast.AST) and kind._attributes and ast.AST in kind.__mro__[:3]
    ]
    plain = [kind.__name__ for kind in concrete if kind.__base__ is not ast.AST and type(compact(_empty(kind))) is kind]
    assert not plain


def _empty(kind: type[ast.AST]) -> ast.AST:
    return kind(**dict.fromkeys((*kind._fields, *kind._attributes), 0))
