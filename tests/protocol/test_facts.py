"""Tests in their one form, and what follows from tests: never more than holds for every value of the variables."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amplint.protocol.facts import Facts, assume, chosen, compared, negated, truth
from amplint.protocol.symbols import FALSE, NONE, TRUE, Symbol

Values = dict[str, Any]
Term = tuple[Symbol, Callable[[Values], Any]]
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "is": operator.is_,
    "is not": operator.is_not,
}
THING = object()
CASES: list[Values] = [
    dict(zip("abnmo", values, strict=True))
    for values in product((False, True), (False, True), range(3), range(3), (None, THING))
]


def name(text: str) -> Term:
    return Symbol("name", (text,)), lambda values: values[text]


def constant(value: object) -> Term:
    return Symbol("constant", (value,)), lambda values: value  # type: ignore[arg-type]


def comparison(sign: str, left: Term, right: Term) -> Term:
    return compared(sign, left[0], right[0]), lambda values: OPERATORS[sign](left[1](values), right[1](values))


def inverse(term: Term) -> Term:
    return negated(term[0]), lambda values: not term[1](values)


def choice(test: Term, then: Term, otherwise: Term) -> Term:
    return chosen(test[0], then[0], otherwise[0]), lambda values: (then if test[1](values) else otherwise)[1](values)


def joined(kind: str, parts: list[Term]) -> Term:
    of = all if kind == "all" else any
    return Symbol(kind, tuple(part[0] for part in parts)), lambda values: of(part[1](values) for part in parts)


FLAGS = st.sampled_from("ab").map(name)
NUMBERS = st.one_of(st.sampled_from("nm").map(name), st.integers(0, 2).map(constant))
CHOSEN = st.builds(choice, FLAGS, NUMBERS, NUMBERS)
SIGNS = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
SIMPLE = st.one_of(
    FLAGS,
    st.builds(comparison, SIGNS, st.one_of(NUMBERS, CHOSEN), st.one_of(NUMBERS, CHOSEN)),
    st.builds(comparison, st.sampled_from(["is", "is not", "==", "!="]), st.just(name("o")), st.just(constant(None))),
    st.builds(comparison, st.sampled_from(["is", "=="]), st.just(constant(None)), st.just(name("o"))),
    st.builds(comparison, st.sampled_from(["is", "==", "!="]), FLAGS, st.booleans().map(constant)),
    st.builds(comparison, st.just("=="), st.booleans().map(constant), FLAGS),
)
TESTS = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        inner.map(inverse),
        st.builds(joined, st.sampled_from(["all", "any"]), st.lists(inner, min_size=2, max_size=3)),
        st.builds(choice, inner, inner, inner),
    ),
    max_leaves=6,
)
A, B, N, O = name("a"), name("b"), name("n"), name("o")  # noqa: E741
IS_NONE = comparison("is", O, constant(None))


@given(st.lists(st.tuples(TESTS, st.booleans()), max_size=3), TESTS)
@example([(joined("all", [A, B]), False), (A, True)], B)
@example([(joined("any", [A, B]), True)], joined("any", [B, A]))
@example([(comparison("==", N, constant(1)), True)], comparison("==", N, constant(2)))
@example([(choice(A, B, constant(False)), True)], A)
@example([(IS_NONE, False)], O)
@example([(O, True)], IS_NONE)
def test_nothing_is_known_that_some_value_denies(assumed: list[tuple[Term, bool]], asked: Term) -> None:
    facts: Facts = {}
    cases = list(CASES)
    for (symbol, value_of), expected in assumed:
        cases = [values for values in cases if bool(value_of(values)) == expected]
        if not assume(symbol, expected, facts):
            assert not cases
            return
    known = truth(asked[0], facts)
    if known is not None:
        assert all(bool(asked[1](values)) == known for values in cases)


@pytest.mark.parametrize(
    ("assumed", "asked", "known"),
    [
        ([(A, True)], A, True),
        ([(inverse(A), True)], A, False),
        ([(joined("all", [A, B]), True)], B, True),
        ([(joined("all", [A, B]), False), (A, True)], B, None),
        ([(A, True), (joined("all", [A, B]), False)], B, False),
        ([(A, False), (joined("any", [A, B]), True)], B, True),
        ([(joined("any", [A, B]), True)], joined("any", [B, A]), True),
        ([(joined("any", [A, B]), False)], joined("any", [B, IS_NONE]), None),
        ([(choice(A, B, constant(False)), True)], B, True),
        ([(choice(A, constant(False), B), True)], A, False),
        ([(B, True)], choice(A, B, B), True),
        ([(B, True), (IS_NONE, True)], choice(A, B, IS_NONE), True),
        ([(A, True), (B, False)], choice(A, B, IS_NONE), False),
        ([(comparison("==", N, constant(1)), True)], comparison("==", N, constant(2)), False),
        ([(comparison("==", N, constant(1)), False)], comparison("==", N, constant(2)), None),
        ([(comparison(">", N, constant(1)), True)], comparison("<", constant(1), N), True),
        ([(comparison("<", N, constant(1)), False)], comparison("is", N, constant(None)), False),
        ([(comparison("==", N, constant(1)), True)], comparison("is not", N, constant(None)), True),
        ([(O, True)], IS_NONE, False),
        ([(IS_NONE, True)], O, False),
        ([], O, None),
    ],
)
def test_what_follows(assumed: list[tuple[Term, bool]], asked: Term, known: bool | None) -> None:
    facts: Facts = {}
    assert all(assume(term[0], value, facts) for term, value in assumed)
    assert truth(asked[0], facts) is known


def test_a_contradiction_is_none_of_the_paths() -> None:
    facts: Facts = {}
    assert assume(joined("all", [A, B])[0], True, facts)
    assert not assume(A[0], False, facts)
    assert not assume(negated(B[0]), True, facts)


def test_equal_tests_have_one_form() -> None:
    a, b = A[0], B[0]
    assert compared("!=", a, b) == negated(compared("==", a, b))
    assert compared(">=", a, b) == compared("<=", b, a)
    assert compared("==", NONE, a) == compared("is", a, NONE)
    assert compared("not in", a, b) == negated(compared("in", a, b))
    assert compared("==", a, TRUE) == compared("is", a, TRUE) == a
    assert compared("==", FALSE, a) == negated(a)
    assert compared("<", constant(1)[0], constant("x")[0]).kind == "compare"
    assert compared("is", Symbol("attribute", (a, "grad")), NONE) == FALSE
    assert chosen(negated(a), TRUE, FALSE) == negated(a)
    assert chosen(a, b, b) == b
    assert chosen(TRUE, a, b) == a
    assert negated(negated(a)) == a
    assert negated(TRUE) == FALSE
