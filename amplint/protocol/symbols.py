"""Symbols: what an expression stands for along one path, as far as identity and tests need to know.

Two expressions with equal symbols are the same object or have the same value. A variable is replaced by what it was
assigned, a parameter by its argument, so `self.scaler` in a helper and `trainer.scaler` in its caller are one symbol.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from amplint.tree import Module

Part: TypeAlias = "Symbol | ast.AST | str | int | float | bool | bytes | complex | None"


@dataclass(frozen=True, slots=True)
class Symbol:
    """A term. `parts` are symbols, constants, and nodes that give an identity.

    kind        parts                      stands for
    constant    value                      a literal
    name        scope node, name           a variable or parameter whose value is not known
    self        class node                 the instance that a method runs on
    new         call node, *arguments      what a call made here gave: an optimizer, a scaler, any object
    made        call node, round, …        the same, one of its own in each round of a loop
    call        function, *arguments       a call that gives the same result when asked again: `len(x)`
    attribute   base, name
    item        base, key
    element     iterable, loop node, round what the loop's target holds in that round
    choice      test, then, else           a conditional expression
    any, all    *operands                  `or`, `and`
    not         operand
    compare     operator, left, right      operators are ==, <, <=, is, in
    operation   operator, *operands        arithmetic; list, tuple, dict displays
    opaque      node, round                anything else
    """

    kind: str
    parts: tuple[Part, ...] = ()
    source: ast.expr | None = field(default=None, compare=False, repr=False)
    """The expression that the symbol was made for, in `module`."""
    module: Module | None = field(default=None, compare=False, repr=False)

    def walk(self) -> Iterator[Symbol]:
        """This symbol and all within it."""
        stack: list[Symbol] = [self]
        while stack:
            symbol = stack.pop()
            yield symbol
            stack += [part for part in symbol.parts if isinstance(part, Symbol)]

    @property
    def is_none(self) -> bool:
        return self.kind == "constant" and self.parts[0] is None


NONE = Symbol("constant", (None,))
TRUE = Symbol("constant", (True,))
FALSE = Symbol("constant", (False,))
