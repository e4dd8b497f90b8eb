"""Whether one node of a function has run by the time that another does, by their order in the text."""

from __future__ import annotations

import ast

from amplint.tree import Module
from amplint.values.value import Certainty

_PERHAPS = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Match, ast.BoolOp)
Place = tuple[int, int]


def has_run(module: Module, earlier: ast.AST, node: ast.AST) -> Certainty:
    """ALWAYS, MAY (it stands in a branch) or NEVER; for a function or file as the node: by the end of that."""
    around = {node, *module.ancestors(node)}
    if end(earlier) > (end(node) if node in module.ancestors(earlier) else start(node)):
        return Certainty.NEVER
    tests = [a for a in module.ancestors(earlier) if isinstance(a, _PERHAPS)]
    shared = [test for test in tests if test in around and test is not node]
    if any(_branch(module, test, earlier) != _branch(module, test, node) for test in shared):
        return Certainty.NEVER
    return Certainty.ALWAYS if len(shared) == len(tests) else Certainty.MAY


def start(node: ast.AST) -> Place:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def end(node: ast.AST) -> Place:
    if isinstance(node, ast.Module):
        return end(node.body[-1]) if node.body else (0, 0)
    return getattr(node, "end_lineno", 0) or 0, getattr(node, "end_col_offset", 0) or 0


def _branch(module: Module, test: ast.AST, node: ast.AST) -> str:
    """The field of a compound statement or expression that a node stands in."""
    child = node
    for ancestor in module.ancestors(node):
        if ancestor is test:
            break
        child = ancestor
    for name, value in ast.iter_fields(test):
        if value is child or (isinstance(value, list) and child in value):
            return name
    return ""
