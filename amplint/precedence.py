"""One fault, one finding: what the composition rules (1xx) speak of is left to them by the range rules (3xx)."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cached_property

from amplint import patterns
from amplint.context import Context
from amplint.values import Value

_LOGS = ("log", "log2", "log10", "log1p")
_LAYERS = {"index", "cast", "eps", "clamp"}
_PROBABILITIES = ("softmax", "gumbel_softmax", "sigmoid")


class Claims:
    """The nodes of a file that belong to a composition: the logarithm, root or arc cosine itself, and the epsilons,
    clamps and squares between it and what it is composed with. Worked out when first asked for."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __contains__(self, node: ast.AST) -> bool:
        return node in self._nodes

    @cached_property
    def _nodes(self) -> frozenset[ast.AST]:
        context, values, module = self._context, self._context.values, self._context.module
        nodes: list[ast.AST] = []
        for log in values.operations(module, *_LOGS):
            nodes += _chain(context, log, _is_probability)
        for arc in values.operations(module, "acos", "asin"):
            nodes += _chain(context, arc, lambda core: True)
        for root in values.operations(module, "sqrt", "pow"):
            if patterns.rooted(root) and values.gradients(root):
                nodes += _chain(context, root, lambda core: any(_squares(context, core)))
        return frozenset(nodes)


def _chain(context: Context, outer: Value, is_core: Callable[[Value], bool]) -> Iterator[ast.AST]:
    """The nodes from `outer` down to the cores it is composed with."""
    for peeled in context.values.peel(outer.operand("input"), _LAYERS):
        if is_core(peeled.core):
            yield outer.node
            yield from (step.value.node for step in peeled.steps)
            yield from (square.node for square in _squares(context, peeled.core))


def _is_probability(core: Value) -> bool:
    """A softmax or sigmoid, or 1 minus one, or 1 minus the square of a tanh."""
    inner = patterns.one_minus(core)
    return core.op in _PROBABILITIES or any(value.op in (*_PROBABILITIES, "pow", "square", "mul") for value in inner)


def _squares(context: Context, core: Value) -> Iterator[Value]:
    """The squares that are summed, averaged or added in `core`."""
    if core.op in ("sum", "mean"):
        terms = core.operand("input")
    elif core.op == "add":
        terms = (*core.operand("input"), *core.operand("other"))
    else:
        terms = ()
    for term in terms:
        yield from (bare for bare in patterns.bare(term) if patterns.squared(context.values, bare))
