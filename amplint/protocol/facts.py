"""Tests: in one form each, so that equal tests take equal branches, and what is known of them along a path."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from amplint.protocol.symbols import FALSE, NONE, TRUE, Symbol

Facts = dict[Symbol, bool]

_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    "is": operator.is_,
}


def negated(symbol: Symbol) -> Symbol:
    """`not symbol`, without double negation."""
    if symbol.kind == "not":
        inner = symbol.parts[0]
        assert isinstance(inner, Symbol)
        return inner
    if symbol.kind == "constant":
        return FALSE if symbol.parts[0] else TRUE
    return Symbol("not", (symbol,))


def compared(symbol_operator: str, left: Symbol, right: Symbol) -> Symbol:
    """A comparison in its one form: `a > b` is `b < a`, `a != b` is `not a == b`."""
    match symbol_operator:
        case ">":
            return compared("<", right, left)
        case ">=":
            return compared("<=", right, left)
        case "!=" | "is not" | "not in":
            return negated(compared({"!=": "==", "is not": "is", "not in": "in"}[symbol_operator], left, right))
    for side, other, mirrored in ((left, right, False), (right, left, True)):
        if side.kind == "choice":
            test, then, otherwise = _parts(side)
            pairs = [(other, part) if mirrored else (part, other) for part in (then, otherwise)]
            return chosen(test, *(compared(symbol_operator, *pair) for pair in pairs))
    if symbol_operator == "==" and (left.is_none or right.is_none):
        symbol_operator = "is"
    if symbol_operator == "is" and left.is_none:
        left, right = right, left
    if left.kind == right.kind == "constant" and symbol_operator in _ARITHMETIC:
        try:
            return TRUE if _ARITHMETIC[symbol_operator](left.parts[0], right.parts[0]) else FALSE
        except TypeError:
            pass
    if symbol_operator == "is" and right.is_none and (left.kind == "new" or left.parts[-1:] == ("grad",)):
        return FALSE  # a parameter without a gradient takes no part in the protocol
    if symbol_operator == "==" and left.kind == "constant":
        left, right = right, left
    if symbol_operator in ("==", "is") and right.kind == "constant" and isinstance(right.parts[0], bool):
        return left if right.parts[0] else negated(left)
    return Symbol("compare", (symbol_operator, left, right))


def chosen(test: Symbol, then: Symbol, otherwise: Symbol) -> Symbol:
    """`then if test else otherwise`, simplified."""
    if test.kind == "constant":
        return then if test.parts[0] else otherwise
    if test.kind == "not":
        inner = test.parts[0]
        assert isinstance(inner, Symbol)
        return chosen(inner, otherwise, then)
    if then == otherwise:
        return then
    if (then, otherwise) == (TRUE, FALSE):
        return test
    if (then, otherwise) == (FALSE, TRUE):
        return negated(test)
    return Symbol("choice", (test, then, otherwise), source=then.source, module=then.module)


def truth(symbol: Symbol, facts: Facts) -> bool | None:
    """Whether `symbol` is true as far as `facts` tell."""
    if symbol in facts:
        return facts[symbol]
    match symbol.kind:
        case "constant":
            return bool(symbol.parts[0])
        case "new" if _is_constructed(symbol):
            return True
        case "not":
            inner = truth(_parts(symbol)[0], facts)
            return None if inner is None else not inner
        case "all" | "any":
            decisive = symbol.kind == "any"
            values = [truth(part, facts) for part in _parts(symbol)]
            if decisive in values:
                return decisive
            return _truth_in_other_order(symbol, facts) if None in values else not decisive
        case "choice":
            test, then, otherwise = _parts(symbol)
            decided = truth(test, facts)
            if decided is None:
                first, second = truth(then, facts), truth(otherwise, facts)
                return first if first == second else None
            return truth(then if decided else otherwise, facts)
        case "compare":
            return _truth_of_comparison(symbol, facts)
    if facts.get(Symbol("compare", ("is", symbol, NONE))):
        return False
    return None


def assume(symbol: Symbol, value: bool, facts: Facts) -> bool:
    """Add `symbol` is `value` to `facts`, and what follows from it. False if that contradicts them."""
    known = truth(symbol, facts)
    if known is not None:
        return known == value
    match symbol.kind:
        case "not":
            return assume(_parts(symbol)[0], not value, facts)
        case "all" | "any" if value == (symbol.kind == "all"):
            return all(assume(part, value, facts) for part in _parts(symbol))
        case "all" | "any":
            open_parts = [part for part in _parts(symbol) if truth(part, facts) is None]
            if len(open_parts) == 1:
                return assume(open_parts[0], value, facts)
        case "choice":
            return _assume_choice(symbol, value, facts)
        case "compare":
            _assume_operands(symbol, value, facts)
        case _ if value:
            facts.setdefault(Symbol("compare", ("is", symbol, NONE)), False)
    facts[symbol] = value
    return True


def _assume_choice(symbol: Symbol, value: bool, facts: Facts) -> bool:
    """A choice one of whose sides cannot be `value` takes the other."""
    test, then, otherwise = _parts(symbol)
    for taken, side, other in ((True, then, otherwise), (False, otherwise, then)):
        if truth(other, facts) not in (None, value):
            return assume(test, taken, facts) and assume(side, value, facts)
    facts[symbol] = value
    return True


def _assume_operands(symbol: Symbol, value: bool, facts: Facts) -> None:
    """Operands that were ordered, or equal to a constant, are not None."""
    comparison, *operands = symbol.parts
    if comparison in ("<", "<=") or (comparison == "==" and value):
        for operand in operands:
            if isinstance(operand, Symbol) and operand.kind != "constant":
                facts.setdefault(Symbol("compare", ("is", operand, NONE)), False)


def _truth_of_comparison(symbol: Symbol, facts: Facts) -> bool | None:
    comparison, left, right = symbol.parts
    assert isinstance(left, Symbol)
    assert isinstance(right, Symbol)
    if comparison == "is" and right.is_none:
        return False if facts.get(left) else None
    if comparison == "==" and right.kind == "constant":
        for fact, value in facts.items():
            if value and fact.kind == "compare" and fact.parts[:2] == ("==", left) and fact.parts[2] != right:
                other = fact.parts[2]
                if isinstance(other, Symbol) and other.kind == "constant":
                    return False
    return None


def _truth_in_other_order(symbol: Symbol, facts: Facts) -> bool | None:
    """What is known of the same operands of `and` or `or` written in another order."""
    operands = set(symbol.parts)
    return next(
        (value for fact, value in facts.items() if fact.kind == symbol.kind and set(fact.parts) == operands), None
    )


def _parts(symbol: Symbol) -> tuple[Symbol, ...]:
    return tuple(part for part in symbol.parts if isinstance(part, Symbol))


def _is_constructed(symbol: Symbol) -> bool:
    """Whether a "new" symbol is an instance of a class, by its capital; what `mask.any()` gives may be false."""
    call = symbol.parts[0]
    function = call.func if isinstance(call, ast.Call) else None
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return bool(name[:1].isupper())
