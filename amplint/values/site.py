"""A frame's view of one file: the small vocabulary in which the recognisers are written."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from amplint.tree import Module
from amplint.values.value import Alternatives, Argument, Frame, Value

if TYPE_CHECKING:
    from amplint.values.engine import Values

MAX_ALTERNATIVES = 12
"""What has more possibilities than this is unknown besides."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where expressions are evaluated: a file and a frame."""

    engine: Values
    module: Module
    frame: Frame
    opened: list[Frame] | None = None
    """Where given, calls made from here only note the frames that they open: what they return is left unknown."""

    def of(self, node: ast.expr) -> Alternatives:
        return self.engine.of(self.module, node, self.frame)

    def value(self, node: ast.expr, op: str, **fields: Any) -> Value:
        return Value(self.engine, op, self.module, node, self.frame, **fields)

    def unknown(self, node: ast.expr, dotted: str = "") -> Alternatives:
        return (self.value(node, "unknown", dotted=dotted),)

    def argument(self, node: ast.expr) -> Argument:
        return Argument(self.module, node, self.frame)

    def at(self, module: Module, frame: Frame) -> Site:
        return Site(self.engine, module, frame)


@dataclass(frozen=True, slots=True)
class Given:
    """The arguments of a call, from wherever they come. `open`: there are `*` or `**` arguments besides."""

    positional: tuple[Argument, ...] = ()
    keywords: Mapping[str, Argument] = field(default_factory=dict)
    open: bool = False

    @classmethod
    def of_call(cls, site: Site, call: ast.Call) -> Given:
        positional: list[Argument] = []
        is_open = False
        for argument in call.args:
            if isinstance(argument, ast.Starred):
                is_open = True
                break
            positional.append(site.argument(argument))
        keywords = {k.arg: site.argument(k.value) for k in call.keywords if k.arg is not None}
        return cls(tuple(positional), keywords, is_open or len(keywords) < len(call.keywords))

    def after(self, first: Iterable[Argument]) -> Given:
        """These arguments behind `first` positional ones."""
        return Given((*first, *self.positional), self.keywords, self.open)

    def bind(self, parameters: Iterable[str]) -> dict[str, Argument]:
        """By parameter name; keywords that are no parameters keep their name, surplus positional ones are dropped."""
        bound = dict(zip(parameters, self.positional, strict=False))
        bound.update(self.keywords)
        return bound


def known(argument_values: Alternatives) -> Argument:
    """An operand that is worked out already."""
    first = argument_values[0]
    return Argument(first.module, first.node, first.frame, argument_values)


def merged(parts: Iterable[Value]) -> Alternatives:
    """The alternatives without repetition; beyond the bound, the rest is one unknown."""
    values = tuple(dict.fromkeys(parts))
    if len(values) <= MAX_ALTERNATIVES:
        return values
    last = values[MAX_ALTERNATIVES]
    rest = Value(last.engine, "unknown", last.module, last.node, last.frame)
    return (*values[:MAX_ALTERNATIVES], rest)


def without_none(values: Alternatives) -> Alternatives:
    """The alternatives besides None, where there are others: what is used as a tensor was not None."""
    rest = tuple(v for v in values if not (v.op == "constant" and v.constant is None))
    return rest or values
