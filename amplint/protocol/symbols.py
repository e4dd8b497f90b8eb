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


@dataclass(slots=True, eq=False)
class Symbol:
    """A term; never changed. `parts` are symbols, constants, and nodes that give an identity.

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
    source: ast.expr | None = field(default=None, repr=False)
    """The expression that the symbol was made for, in `module`."""
    module: Module | None = field(default=None, repr=False)
    essence: object = field(default=None, init=False, repr=False)
    """What `recognise.essence` says of it, once it was asked."""
    _hash: int = field(default=0, init=False, repr=False)
    _loops: frozenset[Part] | None = field(default=None, init=False, repr=False)
    _elements: frozenset[Symbol] | None = field(default=None, init=False, repr=False)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Symbol) or hash(self) != hash(other):
            return False
        return self.kind == other.kind and self.parts == other.parts

    def __hash__(self) -> int:
        if not self._hash:
            self._hash = hash((self.kind, self.parts))
        return self._hash

    @property
    def loops(self) -> frozenset[Part]:
        """The loops in whose rounds the value may differ."""
        if self._loops is None:
            own = frozenset(self.parts) if self.kind == "round" else _NOTHING
            self._loops = own.union(*(part.loops for part in self.parts if isinstance(part, Symbol)))
        return self._loops

    def walk(self) -> Iterator[Symbol]:
        """This symbol and all within it."""
        stack: list[Symbol] = [self]
        while stack:
            symbol = stack.pop()
            yield symbol
            stack += [part for part in symbol.parts if isinstance(part, Symbol)]

    @property
    def elements(self) -> frozenset[Symbol]:
        """The elements of iterables that the value is made of."""
        if self._elements is None:
            self._elements = _NO_SYMBOLS.union(*(part.elements for part in self.parts if isinstance(part, Symbol)))
        return self._elements | {self} if self.kind == "element" else self._elements

    @property
    def is_none(self) -> bool:
        return self.kind == "constant" and self.parts[0] is None


_NOTHING: frozenset[Part] = frozenset()
_NO_SYMBOLS: frozenset[Symbol] = frozenset()

NONE = Symbol("constant", (None,))
TRUE = Symbol("constant", (True,))
FALSE = Symbol("constant", (False,))
