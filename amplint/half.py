"""What the rules on float16's range share: where an operation meets float16, how surely, and the cast that mends it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from amplint import edit
from amplint.context import Context
from amplint.rule import Edit, Related, Safety, Severity
from amplint.tree import Module
from amplint.values import Certainty, Dtype, Frame, Region, Value

Grade = Callable[[Value], Certainty]
"""How surely an operation fails in one activation: ALWAYS, MAY, or NEVER."""

_FILLED_WITH = {
    "tensor": "data",
    "as_tensor": "data",
    "scalar_tensor": "s",
    "new_tensor": "data",
    "full": "fill_value",
    "full_like": "fill_value",
    "new_full": "fill_value",
}

FAILS = (Certainty.ALWAYS, Certainty.MAY)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The activations in which an operation fails; `always` if there is no other that is known."""

    failing: tuple[Value, ...]
    always: bool

    @property
    def severity(self) -> Severity:
        """An error where the operand is known to be float16, a warning where it may be."""
        return Severity.ERROR if self.always else Severity.WARNING

    @property
    def under_autocast(self) -> bool:
        """Whether the operation fails only under autocast, where parameters are float32."""
        return all(value.region.is_float16 for value in self.failing)

    @property
    def safety(self) -> Safety:
        """Of a cast to float32: nothing minds it under autocast; a half module wants its own dtype back."""
        return Safety.SAFE if self.under_autocast else Safety.UNSAFE

    @property
    def related(self) -> tuple[Related, ...]:
        """Why the first of them runs in float16, and the calls that lead there."""
        first = self.failing[0]
        return explained(first.region, first.frame)


def explained(region: Region, frame: Frame) -> tuple[Related, ...]:
    """What switches float16 on, and the calls that lead from there."""
    why = region.why if region.is_float16 else ()
    return tuple(Related(p.path, p.position, p.message) for p in dict.fromkeys((*why, *frame.path)))


def verdicts(context: Context, grade: Grade, *operations: str) -> Iterator[tuple[Value, Verdict]]:
    """The operations of the file that fail in one of the known ways to reach them, once for each place."""
    done: set[ast.AST] = set()
    for value in context.values.operations(context.module, *operations, half=True):
        if value.node not in done and (verdict := judge(context, value, grade)):
            done.add(value.node)
            yield value, verdict


def judge(context: Context, value: Value, grade: Grade) -> Verdict | None:
    """The verdict on one operation over all known ways to reach it; None if it fails in none of them."""
    *reached, outside = context.values.seen(value)
    graded = [(seen, grade(seen)) for seen in reached or [outside]]
    failing = tuple(seen for seen, certainty in graded if certainty in FAILS)
    if not failing:
        return None
    return Verdict(failing, all(certainty is Certainty.ALWAYS for _, certainty in graded))


def is_half(*values: Value) -> Certainty:
    """Whether these alternatives are float16: all of them surely, one of them maybe, or none."""
    if not any(value.may_be_half for value in values) or _is_cast_by_flag(values):
        return Certainty.NEVER
    return Certainty.ALWAYS if all(value.is_half for value in values) else Certainty.MAY


def _is_cast_by_flag(values: tuple[Value, ...], depth: int = 4) -> bool:
    """Whether autocast hangs on a flag, and a cast to float32 stands in one branch: likely under the same flag."""
    if not values or depth == 0 or any(value.is_half or value.region.certain for value in values):
        return False
    if len(values) > 1 and any(value.op in ("float", "to") and is_float32(value) for value in values):
        return True
    inner = (v.operand(v.operation.parameters[0]) for v in values if v.is_tensor_op and v.operation)
    return any(_is_cast_by_flag(operands, depth - 1) for operands in inner)


def is_float32(*values: Value) -> bool:
    """Whether all alternatives are certainly float32."""
    return bool(values) and all(value.dtypes == {Dtype.FLOAT32} for value in values)


def combined(certainties: Iterable[Certainty]) -> Certainty:
    """Of several alternatives: ALWAYS if all fail for certain, MAY if one may, else NEVER."""
    graded = list(certainties)
    if not any(certainty in FAILS for certainty in graded):
        return Certainty.NEVER
    return Certainty.ALWAYS if all(certainty is Certainty.ALWAYS for certainty in graded) else Certainty.MAY


def operand_node(value: Value, name: str) -> ast.expr | None:
    """The expression of an operand if it is written in the operation's own statement, so that a fix can change it."""
    node = value.argument(name)
    if node is None or node not in value.module.parents:
        return None
    return node if value.module.statement(node) is value.module.statement(value.node) else None


def upcast(module: Module, node: ast.expr, call: str = ".float()") -> tuple[Edit, ...]:
    """Call a cast on an expression where it stands: `x` becomes `x.float()`, `a + b` becomes `(a + b).float()`."""
    place = edit.layout(module)
    if place.is_parenthesised(node) or edit.precedence(node) >= edit.Precedence.ATOM:
        end = place.span(node, parentheses=True)[1]
        return (Edit(end, end, call),)
    start, end = place.span(node)
    return (Edit(start, start, "("), Edit(end, end, f"){call}"))


def joined(edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """The edits, sorted, with the insertions at one place as one: where casts nest, the inner one's are given first."""
    inserted: dict[int, str] = {}
    replaced: set[Edit] = set()
    for change in edits:
        if change.start == change.end:
            inserted[change.start] = inserted.get(change.start, "") + change.text
        else:
            replaced.add(change)
    return tuple(sorted([*replaced, *(Edit(place, place, text) for place, text in inserted.items())]))


def dtype_source(context: Context, node: ast.expr | None) -> str | None:
    """A short expression of the same dtype as `node`: itself if it is a name, or a float16 name within it."""
    if node is None:
        return None
    if is_dotted(node):
        return context.source.segment(node)
    for name in names_in(node):
        if context.values.half(context.values.of(context.module, name)[0]) in FAILS:
            return context.source.segment(name)
    return None


def names_in(node: ast.AST) -> Iterator[ast.expr]:
    """The dotted names within an expression, outermost first, that are no functions being called."""
    if isinstance(node, ast.expr) and is_dotted(node):
        yield node
        return
    for field, value in ast.iter_fields(node):
        if isinstance(node, ast.Call) and field == "func":
            value = value.value if isinstance(value, ast.Attribute) else None
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from names_in(child)


def is_dotted(node: ast.expr) -> bool:
    """Whether an expression is a name, or an attribute of one."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def numbers(values: Iterable[Value]) -> Iterator[float]:
    """The constants among these alternatives: Python numbers, and tensors filled with one."""
    for value in values:
        number = value.number(_FILLED_WITH[value.op]) if value.op in _FILLED_WITH else value.as_number()
        if number is not None:
            yield number


def is_setting(values: Collection[Value], depth: int = 3) -> bool:
    """Whether a number hangs on a configuration, which may well give another: it grades no finding an error."""
    if depth == 0:
        return False
    operands = [operand for value in values for name in ("input", "other") for operand in value.operand(name)]
    return any(value.op == "setting" for value in values) or (bool(operands) and is_setting(operands, depth - 1))


def agreed(values: Iterable[Value], test: Callable[[float], bool]) -> list[float]:
    """The constants among these alternatives, if all of them pass; where one does not, the author chose by dtype."""
    found = list(numbers(values))
    return found if all(test(number) for number in found) else []


def is_local(module: Module, node: ast.expr) -> bool:
    """Whether an expression is the name of a local variable (no parameter)."""
    if not isinstance(node, ast.Name):
        return False
    found = module.lookup(node.id, node)
    return found is not None and not isinstance(found[0], ast.Module) and not is_parameter(module, node)


def is_parameter(module: Module, node: ast.expr) -> bool:
    """Whether an expression is the name of a parameter."""
    if not isinstance(node, ast.Name):
        return False
    found = module.lookup(node.id, node)
    return found is not None and any(isinstance(binding, ast.arg) for binding in found[1])
