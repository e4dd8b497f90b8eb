"""Tests that a frame decides: which branches of a function can run when it is called like this."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from amplint import flow
from amplint.tree import Module
from amplint.values import settings
from amplint.values.dtype import Dtype
from amplint.values.site import Site
from amplint.values.value import Value

_DTYPE_TEST = re.compile(r"\.dtype\s*(?:[=!]=|(?:in|not|is)\b)")


def feasible(site: Site, node: ast.AST) -> bool:
    """Whether the branches around `node` can be taken in this frame. True where a test is not decided."""
    is_base = site.frame.call is None and site.frame.receiver is None
    if is_base and not site.engine.remember(("dtype tests", site.module), lambda: _tests_dtypes(site.module), bool):
        return True
    tests = site.engine.remember(("tests", node), lambda: _tests_around(site.module, node), lambda: ())
    if is_base:  # what a parameter is, is not known; its dtype may be
        tests = tuple((test, outcome) for test, outcome in tests if _is_dtype_test(test))
    return all(truth(site, test) in (None, outcome) for test, outcome in tests)


def _tests_dtypes(module: Module) -> bool:
    """Whether something in the file may be decided by the dtype of a tensor."""
    return _DTYPE_TEST.search(module.source.text) is not None


def _is_dtype_test(node: ast.AST) -> bool:
    return isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == "dtype"


def _tests_around(module: Module, node: ast.AST) -> tuple[tuple[ast.expr, bool], ...]:
    return (*flow.branches_around(module, node), *_survived(module, node))


def _survived(module: Module, node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    """(test, outcome) of each `if` before `node` one of whose branches leaves, so that `node` runs after the other."""
    for statement in (node, *module.ancestors(node)):
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        if not isinstance(statement, ast.stmt):
            continue
        for earlier in module.block(statement):
            if earlier is statement:
                break
            if isinstance(earlier, ast.If) and _leaves(earlier.body):
                yield earlier.test, False
            elif isinstance(earlier, ast.If) and _leaves(earlier.orelse):
                yield earlier.test, True


def _leaves(block: list[ast.stmt]) -> bool:
    return bool(block) and isinstance(block[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)


def truth(site: Site, test: ast.expr) -> bool | None:
    """What a test gives in this frame; None if that is not known."""
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = truth(site, test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        return _combined(site, test)
    if isinstance(test, ast.Compare):
        return _compared(site, test)
    if isinstance(test, ast.Name | ast.Attribute):
        return _agreed({_truthiness(value) for value in settings.of(site, test)})
    return None


def _combined(site: Site, test: ast.BoolOp) -> bool | None:
    deciding = isinstance(test.op, ast.Or)
    outcomes = [truth(site, part) for part in test.values]
    if deciding in outcomes:
        return deciding
    return None if None in outcomes else not deciding


def _compared(site: Site, test: ast.Compare) -> bool | None:
    if len(test.ops) != 1 or not isinstance(test.left, ast.Name | ast.Attribute | ast.Constant):
        return None
    op, right = test.ops[0], test.comparators[0]
    if isinstance(test.left, ast.Attribute) and _is_dtype_test(test):
        return _dtype_compared(site, test.left, op, right)
    if not isinstance(right, ast.Constant) or not isinstance(op, ast.Is | ast.IsNot | ast.Eq | ast.NotEq):
        return None
    equal = _agreed({_equals(value, right.value) for value in settings.of(site, test.left)})
    return equal if equal is None or isinstance(op, ast.Is | ast.Eq) else not equal


def _dtype_compared(site: Site, left: ast.expr, op: ast.cmpop, right: ast.expr) -> bool | None:
    """`x.dtype == torch.float16`, `x.dtype in (torch.float16, torch.bfloat16)`, where the dtype of x is known."""
    wanted = right.elts if isinstance(right, ast.Tuple | ast.List | ast.Set) else [right]
    own = site.engine.named_dtypes(site.of(left))
    others = site.engine.named_dtypes(tuple(v for node in wanted for v in site.of(node)))
    if Dtype.UNKNOWN in own | others or not own or not others:
        return None
    is_in = True if own <= others and len(own) == 1 else False if own.isdisjoint(others) else None
    return is_in if is_in is None or isinstance(op, ast.Eq | ast.In | ast.Is) else not is_in


def _equals(value: Value, constant: object) -> bool | None:
    if value.op == "constant":
        return bool(value.constant == constant)
    if constant is None and (
        value.is_tensor_op or value.op in ("instance", "module", "sequential", "function", "tuple")
    ):
        return False
    return None


def _truthiness(value: Value) -> bool | None:
    if value.op == "constant":
        return bool(value.constant)
    return True if value.op in ("instance", "module", "function", "class", "method", "partial") else None


def _agreed(outcomes: set[bool | None]) -> bool | None:
    return next(iter(outcomes)) if len(outcomes) == 1 else None
