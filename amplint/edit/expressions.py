"""Replacing expressions without changing how the code around them is read."""

from __future__ import annotations

import ast
import enum

from amplint.edit.layout import layout, spaced
from amplint.nodes import kind_of
from amplint.rule import Edit
from amplint.tree import Module


class Precedence(enum.IntEnum):
    """How tightly an expression binds, loosest first (the Python reference, "Operator precedence")."""

    TUPLE = 0
    NAMED = 1
    LAMBDA = 2
    CONDITIONAL = 3
    OR = 4
    AND = 5
    NOT = 6
    COMPARE = 7
    BIT_OR = 8
    BIT_XOR = 9
    BIT_AND = 10
    SHIFT = 11
    SUM = 12
    TERM = 13
    UNARY = 14
    POWER = 15
    AWAIT = 16
    ATOM = 17


_BINARY = {
    ast.BitOr: Precedence.BIT_OR,
    ast.BitXor: Precedence.BIT_XOR,
    ast.BitAnd: Precedence.BIT_AND,
    ast.LShift: Precedence.SHIFT,
    ast.RShift: Precedence.SHIFT,
    ast.Add: Precedence.SUM,
    ast.Sub: Precedence.SUM,
    ast.Pow: Precedence.POWER,
}
_OTHER = {
    ast.Tuple: Precedence.TUPLE,
    ast.Starred: Precedence.TUPLE,
    ast.Yield: Precedence.TUPLE,
    ast.YieldFrom: Precedence.TUPLE,
    ast.NamedExpr: Precedence.NAMED,
    ast.Lambda: Precedence.LAMBDA,
    ast.IfExp: Precedence.CONDITIONAL,
    ast.Compare: Precedence.COMPARE,
    ast.Await: Precedence.AWAIT,
}


def precedence(node: ast.expr) -> Precedence:
    """How tightly `node` binds when it is written without parentheses."""
    if isinstance(node, ast.BinOp):
        return _BINARY.get(type(node.op), Precedence.TERM)
    if isinstance(node, ast.BoolOp):
        return Precedence.OR if isinstance(node.op, ast.Or) else Precedence.AND
    if isinstance(node, ast.UnaryOp):
        return Precedence.NOT if isinstance(node.op, ast.Not) else Precedence.UNARY
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float | complex):
        return Precedence.AWAIT  # `1.real` is no attribute
    return _OTHER.get(kind_of(node), Precedence.ATOM)


def operand(text: str, least: Precedence) -> str:
    """`text`, an expression, in parentheses if it binds less tightly than `least` or runs over a line end.

    >>> operand("a - b", Precedence.UNARY)
    '(a - b)'
    """
    text = text.strip()
    try:
        body = ast.parse(text, mode="eval").body
    except SyntaxError:  # a newline outside brackets, or a `yield`
        return f"({text})"
    return text if precedence(body) >= least or _is_in_brackets(text, body) else f"({text})"


def segment(module: Module, node: ast.expr, least: Precedence = Precedence.TUPLE) -> str:
    """The text of `node` for use as an operand elsewhere, comments and layout kept, parenthesised if it must be."""
    return operand(module.source.segment(node), least)


def required(module: Module, node: ast.expr) -> Precedence:
    """The least precedence that stands in the place of `node` without parentheses."""
    parent = module.parent(node)
    if isinstance(parent, ast.BinOp):
        own = precedence(parent)
        if isinstance(parent.op, ast.Pow):
            return Precedence.AWAIT if node is parent.left else Precedence.UNARY
        return own if node is parent.left else Precedence(own + 1)
    if isinstance(parent, ast.UnaryOp):
        return precedence(parent)
    if isinstance(parent, ast.BoolOp | ast.Compare):
        return Precedence(precedence(parent) + 1)
    if isinstance(parent, ast.Attribute | ast.Await):
        return Precedence.ATOM
    if isinstance(parent, ast.Subscript):
        return Precedence.ATOM if node is parent.value else Precedence.TUPLE
    if isinstance(parent, ast.Call):
        return Precedence.ATOM if node is parent.func else Precedence.LAMBDA
    if isinstance(parent, ast.Starred):
        return Precedence.BIT_OR
    if isinstance(parent, ast.IfExp):
        return Precedence.LAMBDA if node is parent.orelse else Precedence.OR
    if isinstance(parent, ast.comprehension):
        return Precedence.OR
    return Precedence.LAMBDA


def replace(module: Module, node: ast.expr, text: str, *, parentheses: bool = False) -> Edit:
    """Put `text` in the place of `node`, in parentheses where the place asks for them.

    `parentheses`: whether parentheses that `node` has of its own go too; they come back where `text` needs them.
    """
    place = layout(module)
    start, end = place.span(node, parentheses=parentheses)
    if parentheses or not place.is_parenthesised(node):
        text = operand(text, required(module, node))
    return spaced(place, start, end, text)


def _is_in_brackets(text: str, body: ast.expr) -> bool:
    """Whether all of `text` stands in one pair of parentheses, which are the tuple's own or around `body`."""
    if not isinstance(body, ast.Tuple):
        return (body.lineno, body.col_offset) != (1, 0)
    if not text.startswith("("):
        return False
    try:
        ast.parse(f"[{text[1:-1]}\n]", mode="eval")
    except SyntaxError:  # `(a), (b)`
        return False
    return True
