"""AMP402: a guard that tests the loss or the gradients for NaN, and lets inf through."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from amplint import losses, scaling
from amplint.context import Context
from amplint.edit import Precedence, add_import, operand, replace, segment
from amplint.protocol import Kind, Path
from amplint.rule import Edit, Example, Finding, Fix, Rule, Safety, Severity
from amplint.tree import Module

_GRADIENT_WORDS = ("grad", "norm")
_OTHERS = losses.CHECKS - {"isnan"}


class IsnanMissesInf(Rule):
    """A guard on the loss or the gradients tests for NaN only.

    ## What it does
    Reports `isnan(loss)`, `loss != loss` and their like where they decide whether a mixed-precision step goes on, and
    nothing beside them tests for inf.

    ## Why
    What float16 cannot hold, beyond 65504, becomes inf. NaN comes later: inf - inf, 0 * inf, inf / inf. The guard
    lets the inf through `backward()`, and it is the weights or the running statistics that turn NaN.

    ## Example
    ```python
    if torch.isnan(loss):
        continue
    ```
    Use instead:
    ```python
    if not torch.isfinite(loss):
        continue
    ```

    ## Fix
    Safe: `not isfinite(...)`, of the same library.

    ## References
    - [torch.isfinite](https://docs.pytorch.org/docs/stable/generated/torch.isfinite.html)
    """

    code = "AMP402"
    name = "isnan-misses-inf"
    severity = Severity.WARNING
    summary = "a guard on the loss or the gradients tests NaN only"
    triggers = ((b".backward(", b"isnan"), (b".backward(", b"!="), (b"isnan", b"loss"), (b"isnan", b"grad"))
    fixable = "safe"
    INVALID: ClassVar = (
        Example(
            """
            import torch

            def train(model, loader, opt, scaler: torch.amp.GradScaler):
                for x in loader:
                    loss = model(x)
                    if torch.isnan(loss).any():  # expect
                        continue
                    scaler.scale(loss).backward()
                    scaler.step(opt)
                    scaler.update()
            """,
            """
            import torch

            def train(model, loader, opt, scaler: torch.amp.GradScaler):
                for x in loader:
                    loss = model(x)
                    if not torch.isfinite(loss).all():
                        continue
                    scaler.scale(loss).backward()
                    scaler.step(opt)
                    scaler.update()
            """,
        ),
        Example(
            """
            import math
            import torch

            def train(model, loader, opt, scaler: torch.amp.GradScaler):
                for x in loader:
                    loss = model(x)
                    value = loss.item()
                    assert not math.isnan(value)  # expect
                    scaler.scale(loss).backward()
                    scaler.unscale_(opt)
                    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    if grad_norm != grad_norm:  # expect
                        print("gradient gone")
                    scaler.step(opt)
                    scaler.update()
            """,
            """
            import math
            import torch

            def train(model, loader, opt, scaler: torch.amp.GradScaler):
                for x in loader:
                    loss = model(x)
                    value = loss.item()
                    assert math.isfinite(value)
                    scaler.scale(loss).backward()
                    scaler.unscale_(opt)
                    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    if not torch.isfinite(grad_norm):
                        print("gradient gone")
                    scaler.step(opt)
                    scaler.update()
            """,
        ),
        Example(
            """
            import torch

            def broken(loss):
                return loss.isnan()  # expect

            def train(model, loader, opt, scaler: torch.amp.GradScaler):
                for x in loader:
                    loss = model(x)
                    if broken(loss):
                        raise RuntimeError
                    scaler.scale(loss).backward()
                    scaler.step(opt)
                    scaler.update()
            """,
            """
            import torch

            def broken(loss):
                return not loss.isfinite()

            def train(model, loader, opt, scaler: torch.amp.GradScaler):
                for x in loader:
                    loss = model(x)
                    if broken(loss):
                        raise RuntimeError
                    scaler.scale(loss).backward()
                    scaler.step(opt)
                    scaler.update()
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def train(model, loader, opt, scaler: torch.amp.GradScaler):
            for x in loader:
                loss = model(x)
                if torch.isnan(loss) or torch.isinf(loss):
                    continue
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
        """,
        """
        import torch

        def train(model, loader, opt, scaler: torch.amp.GradScaler):
            for x in loader:
                if torch.isnan(x).any():
                    continue
                loss = model(x)
                if not torch.isfinite(loss):
                    raise FloatingPointError(f"NaN: {torch.isnan(loss).item()}")
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
        """,
        """
        import torch

        def full_precision(model, loader, opt):
            for x in loader:
                loss = model(x)
                if torch.isnan(loss):
                    break
                loss.backward()
                opt.step()
                opt.zero_grad()
        """,
        """
        import torch

        def train(model, loader, opt, scaler: torch.amp.GradScaler, previous):
            for x in loader:
                loss = model(x)
                assert torch.isfinite(loss)
                if loss != previous:
                    print("changed")
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        module = context.module
        seen: set[ast.AST] = set()
        for path in context.protocol.paths(module):
            if not _is_mixed_precision(path):
                continue
            known = _losses_of(path, module)
            for test in _nan_tests(path, module):
                if test in seen:
                    continue
                seen.add(test)
                if self._is_incomplete_guard(module, test, known):
                    message = "NaN is tested, inf is not: a float16 overflow beyond 65504 shows as inf first"
                    yield self.finding(context, test, message, fix=_fix(module, test))

    def _is_incomplete_guard(self, module: Module, test: ast.expr, known: frozenset[str]) -> bool:
        subject = _subject(test)
        if subject is None or not _is_loss_or_gradient(subject, known) or not _decides(module, test):
            return False
        if losses.replaced_by_constant(module, test):
            return False
        around = losses.function_or_module(module, test)
        others = (c for c in module.calls if losses.function_or_module(module, c) is around and c is not test)
        wanted = {ast.unparse(subject)} | (losses.followed(around, {ast.unparse(subject)}) & known)
        return not any(_is_named(c, _OTHERS) and losses.mentions(c, wanted) for c in others)


def _is_mixed_precision(path: Path) -> bool:
    return any(
        event.scaled or (event.kind is Kind.BACKWARD and event.framework and scaling.in_float16(event) is not False)
        for event in path.events
    )


def _losses_of(path: Path, module: Module) -> frozenset[str]:
    """The names that hold the loss, or what is made from it, in the functions of the path."""
    known: frozenset[str] = frozenset()
    for event in path.events:
        if event.kind is Kind.BACKWARD and event.subject is not None and event.module is module:
            around = losses.function_or_module(module, event.node)
            loss = losses.unscaled(module, event.subject)
            known |= losses.followed(around, losses.names(module, loss))
    return known


def _nan_tests(path: Path, module: Module) -> Iterator[ast.expr]:
    """The NaN-only tests in the functions that the path passes."""
    functions = {losses.function_or_module(module, e.node) for e in path.events if e.module is module}
    for call in module.calls:
        if _is_named(call, {"isnan"}) and losses.function_or_module(module, call) in functions:
            yield call
    for function in functions:
        for node in ast.walk(function):
            if isinstance(node, ast.Compare) and _is_unequal_to_itself(node):
                yield node


def _is_unequal_to_itself(node: ast.Compare) -> bool:
    return (
        len(node.ops) == 1
        and isinstance(node.ops[0], ast.NotEq)
        and isinstance(node.left, ast.Name | ast.Attribute)
        and ast.unparse(node.left) == ast.unparse(node.comparators[0])
    )


def _is_named(call: ast.Call, wanted: frozenset[str] | set[str]) -> bool:
    return scaling.called(call) in wanted


def _subject(test: ast.expr) -> ast.expr | None:
    """What is tested: the argument of `isnan(x)`, the base of `x.isnan()`, a side of `x != x`."""
    if isinstance(test, ast.Compare):
        return test.left
    if isinstance(test, ast.Call):
        if test.args:
            return test.args[0]
        return test.func.value if isinstance(test.func, ast.Attribute) else None
    return None


def _is_loss_or_gradient(subject: ast.expr, known: frozenset[str]) -> bool:
    text = ast.unparse(subject).lower()
    is_gradient = any(word in text for word in _GRADIENT_WORDS) and "normalize" not in text
    return losses.mentions(subject, known) or is_gradient or losses.is_called_loss(subject)


def _decides(module: Module, test: ast.expr) -> bool:
    """Whether the outcome is a condition, is returned or kept; not where it selects or counts elements."""
    child: ast.AST = test
    for ancestor in module.ancestors(test):
        if isinstance(ancestor, ast.stmt):
            is_condition = isinstance(ancestor, ast.If | ast.While | ast.Assert) and ancestor.test is child
            return is_condition or isinstance(ancestor, ast.Return | ast.Assign)
        if isinstance(ancestor, ast.IfExp) and ancestor.test is child:
            return True
        is_reduced = isinstance(ancestor, ast.Attribute) and ancestor.attr in ("any", "item")
        is_any = isinstance(ancestor, ast.Call) and (child is ancestor.func or ast.unparse(ancestor.func) == "any")
        if not (is_reduced or is_any or isinstance(ancestor, ast.BoolOp | ast.UnaryOp | ast.GeneratorExp)):
            return False
        child = ancestor
    return False


def _fix(module: Module, test: ast.expr) -> Fix | None:
    finite = _finite(module, test)
    if finite is None:
        return None
    text, edits = finite
    whole = test
    parent = module.parent(test)
    if isinstance(parent, ast.Attribute) and parent.attr == "any":
        call = module.parent(parent)
        if not isinstance(call, ast.Call) or call.args or call.keywords:
            return None
        whole, text = call, f"{text}.all()"
        parent = module.parent(call)
    if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not):
        replacement = replace(module, parent, text)
    elif isinstance(parent, ast.Attribute | ast.GeneratorExp):
        return None
    else:
        replacement = replace(module, whole, f"not {text}")
    return Fix("Test for finiteness: `isfinite` excludes inf too", Safety.SAFE, (*edits, replacement))


def _finite(module: Module, test: ast.expr) -> tuple[str, tuple[Edit, ...]] | None:
    """The text of the test for finiteness, and the import it needs."""
    if isinstance(test, ast.Compare):
        is_number = _is_number(module, test.left)
        isfinite, imports = add_import(module, "math.isfinite" if is_number else "torch.isfinite", test)
        return f"{isfinite}({segment(module, test.left)})", imports
    assert isinstance(test, ast.Call)
    func = test.func
    if isinstance(func, ast.Attribute):
        base = operand(segment(module, func.value), Precedence.ATOM)
        arguments = module.source.text[module.source.span(func)[1] : module.source.span(test)[1]]
        return f"{base}.isfinite{arguments}", ()
    dotted = module.name(func)
    if dotted is None or not dotted.endswith(".isnan"):
        return None
    isfinite, imports = add_import(module, f"{dotted[: -len('isnan')]}isfinite", test)
    arguments = module.source.text[module.source.span(func)[1] : module.source.span(test)[1]]
    return f"{isfinite}{arguments}", imports


def _is_number(module: Module, node: ast.expr) -> bool:
    """Whether a variable holds what `.item()` or `float()` gave."""
    if not isinstance(node, ast.Name):
        return False
    values = [part for part in losses.parts(module, node) if isinstance(part, ast.Call)]
    return any(ast.unparse(call.func).endswith(".item") or ast.unparse(call.func) == "float" for call in values)
