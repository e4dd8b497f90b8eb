"""The nodes of a tree in a third of the memory.

Each kind of `ast` has a subclass here with slots for its fields, where `ast` gives every node a dictionary that has
room for thirty. `isinstance`, `match` and `ast`'s own functions do not tell them apart; `type(node)` does (`kind_of`).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

N = TypeVar("N", bound=ast.AST)

_ABSTRACT: tuple[type[ast.AST], ...] = (ast.stmt, ast.expr, ast.excepthandler, ast.pattern)
if sys.version_info >= (3, 12):
    _ABSTRACT = (*_ABSTRACT, ast.type_param)
_PARTS = (ast.alias, ast.arg, ast.arguments, ast.comprehension, ast.keyword, ast.match_case, ast.withitem)
_RARE = frozenset({"type_comment", "kind"})
"""Fields that are hardly ever given: what is not there has the default of the class."""
_NUMBERS = {number: number for number in range(10_000)}
"""Lines and columns, which the parser makes anew for each node."""
_NO_NODES = frozenset(
    "id attr ctx op ops arg module level kind conversion type_comment simple asname is_async kwd_attrs rest".split()
)


def compact(node: N) -> N:
    """The node with its fields in slots. What is below it stays as it was."""
    make = _MAKERS[type(node)]
    return make(node) if make else node


def compact_children(node: ast.AST) -> list[ast.AST]:
    """The nodes right below, without contexts and operators, made compact where they stand."""
    found: list[ast.AST] = []
    for field in fields(type(node)):  # type: ignore[arg-type]  # a class is hashable whatever its instances are
        value = getattr(node, field, None)
        if isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, ast.AST):
                    value[index] = child = compact(item)
                    found.append(child)
        elif isinstance(value, ast.AST):
            child = compact(value)
            setattr(node, field, child)
            found.append(child)
    return found


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes right below, without contexts and operators."""
    found: list[ast.AST] = []
    for field in fields(type(node)):  # type: ignore[arg-type]  # a class is hashable whatever its instances are
        value = getattr(node, field, None)
        if isinstance(value, list):
            found += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def kind_of(node: ast.AST) -> type[ast.AST]:
    """The class of `ast` that a node is of."""
    kind = type(node)
    return kind.__bases__[0] if kind.__module__ == __name__ else kind


@cache
def compact_kind(kind: type[ast.AST]) -> type[ast.AST]:
    """The class that compact nodes of a kind have; the kind itself for a whole file, contexts and operators."""
    if kind.__module__ == __name__ or not (issubclass(kind, _ABSTRACT) or kind in _PARTS):
        return kind
    slots = tuple(name for name in (*kind._fields, *kind._attributes) if name not in _RARE)
    return type(kind.__name__, (kind,), {"__slots__": slots})


@cache
def fields(kind: type[ast.AST]) -> tuple[str, ...]:
    """The fields of a kind of node that may hold located nodes."""
    return () if issubclass(kind, ast.Constant) else tuple(field for field in kind._fields if field not in _NO_NODES)


class _Makers(dict[type[ast.AST], Callable[[Any], Any] | None]):
    """Functions that make nodes of a kind compact; None where they stay as they are. Each is made when it is needed."""

    def __missing__(self, kind: type[ast.AST]) -> Callable[[Any], Any] | None:
        compact = compact_kind(kind)  # type: ignore[arg-type]  # a class is hashable whatever its instances are
        self[kind] = None if compact is kind else _maker(kind, compact)
        return self[kind]


def _maker(kind: type[ast.AST], compact: type[ast.AST]) -> Callable[[Any], Any]:
    """A function that copies a node. It is written out field by field, as `dataclasses` does: every node goes here."""
    lines = ["def make(node):", "    made = new(kind)"]
    for name in kind._fields:
        if name in _RARE:
            lines.append(f"    if node.{name} is not None: made.{name} = node.{name}")
        else:
            lines.append(f"    made.{name} = node.{name}")
    lines += [f"    made.{name} = shared(node.{name}, node.{name})" for name in kind._attributes]
    scope: dict[str, Any] = {"new": kind.__new__, "kind": compact, "shared": _NUMBERS.get}
    exec("\n".join([*lines, "    return made"]), scope)
    made: Callable[[Any], Any] = scope["make"]
    return made


_MAKERS = _Makers()
