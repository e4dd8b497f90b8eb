"""What the rules of finiteness share: what is the loss, which tests look at it, how the step is called."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from amplint import flow, scaling
from amplint.context import Context
from amplint.edit import layout, replace, segment
from amplint.rule import Edit
from amplint.tree import Function, Module

Loop = ast.For | ast.AsyncFor | ast.While

CHECKS = frozenset("isfinite isnan isinf isposinf isneginf all_finite is_finite".split())
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_KEPT = frozenset(
    "mean sum div mul add sub nanmean squeeze view reshape float half double to detach clone item cpu tolist numpy "
    "nan_to_num nan_to_num_ clamp clamp_min clamp_max abs where masked_fill stack cat all any max min".split()
)
"""Operations whose result is still the loss, or a part of it."""
_LEAVING = (ast.Return, ast.Break, ast.Continue)
_MAX_PARTS = 200
_STEP_NAMES = ("global_step", "step", "iteration", "batch_idx", "batch_index", "iter_num", "it", "i")


def parts(module: Module, loss: ast.expr) -> list[ast.expr]:
    """The expressions a loss is put together from by sums, means and assignments, itself first.

    What goes into a model or a criterion is no part of it.
    """
    found: dict[ast.expr, None] = {}
    pending = [loss]
    while pending and len(found) < _MAX_PARTS:
        part = pending.pop()
        if part in found:
            continue
        found[part] = None
        pending += _operands(module, part)
    return list(found)


def unscaled(module: Module, subject: ast.expr) -> ast.expr:
    """The loss of a backward pass, without `scaler.scale(...)` around it, here or where a local was assigned."""
    if isinstance(subject, ast.Call) and isinstance(subject.func, ast.Attribute) and subject.func.attr == "scale":
        return unscaled(module, subject.args[0]) if subject.args else subject
    if isinstance(subject, ast.Name):
        made = [r.value for r in flow.definitions(module, subject) if r.how is flow.How.ASSIGN]
        if len(made) == 1 and isinstance(made[0], ast.Call) and unscaled(module, made[0]) is not made[0]:
            return unscaled(module, made[0])
    return subject


def names(module: Module, loss: ast.expr) -> frozenset[str]:
    """The variables and attributes, as written, that hold the loss or a part of it in the function around it."""
    return frozenset(text for part in parts(module, loss) if (text := _dotted(part)))


def followed(function: ast.AST, start: Iterable[str]) -> frozenset[str]:
    """`start` and the names that values made from them are kept in: `value = loss.item()`, `history.append(loss)`."""
    known = set(start)
    size = -1
    while len(known) != size:
        size = len(known)
        for read, kept in _flows(function):
            if not read.isdisjoint(known):
                known |= kept
    return frozenset(known)


def mentions(node: ast.AST, known: Iterable[str]) -> bool:
    """Whether an expression reads one of the names."""
    return not _reads(node).isdisjoint(known)


def limits(
    context: Context, module: Module, function: ast.AST, known: frozenset[str], *, ending: bool = False
) -> Iterator[ast.Compare]:
    """The comparisons of the loss, or of what is made from it, that decide whether the step goes on.

    With `ending`, only those that may end the run: by raising, here or in a function that does nothing else.
    """
    for node in _inside(function):
        if isinstance(node, ast.Assert):
            tests: list[ast.AST] = [node.test]
        elif isinstance(node, ast.If) and any(
            _ends(context, module, block) or (not ending and _leaves(block)) for block in (node.body, node.orelse)
        ):
            tests = [node.test]
        else:
            continue
        for test in tests:
            yield from (
                compare for compare in ast.walk(test) if isinstance(compare, ast.Compare) and mentions(compare, known)
            )


def is_check(call: ast.Call) -> bool:
    """Whether a call is a test of finiteness by name: `torch.isfinite(x)`, `x.isnan()`, `np.isinf(x)`."""
    return scaling.called(call) in CHECKS


# -- naming the step -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """How the number of the step is written, and the edits that make it known (an `enumerate`)."""

    text: str
    edits: tuple[Edit, ...] = ()


def step(module: Module, node: ast.AST) -> Step | None:
    """The number of the step at `node`: the loop's own counter, one that it adds up, a parameter, or an `enumerate`."""
    loops = list(enclosing_loops(module, node))
    for loop in loops:
        if counter := _counter(loop) or _added_up(module, loop):
            return Step(counter)
    function = module.function(node)
    if function is not None:
        arguments = {a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}
        if name := next((name for name in _STEP_NAMES if name in arguments), None):
            return Step(name)
    if loops and isinstance(loops[0], ast.For | ast.AsyncFor):
        return _enumerated(module, loops[0], node)
    return None


def enclosing_loops(module: Module, node: ast.AST) -> Iterator[Loop]:
    """The loops around `node` within its function, innermost first."""
    for ancestor in module.ancestors(node):
        if isinstance(ancestor, _SCOPES):
            return
        if isinstance(ancestor, _LOOPS):
            yield ancestor


# -- inside ----------------------------------------------------------------------------------------------------------


def _operands(module: Module, node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Name():
            yield from _assigned(module, flow.definitions(module, node))
        case ast.Attribute():
            yield from _assigned(module, flow.attribute_definitions(module, node)[0])
        case ast.BinOp():
            yield from (node.left, node.right)
        case ast.UnaryOp():
            yield node.operand
        case ast.IfExp():
            yield from (node.body, node.orelse)
        case ast.NamedExpr():
            yield node.value
        case ast.Subscript():
            yield node.value
        case ast.Call(func=ast.Attribute(attr=name, value=base)) if name in _KEPT:
            yield from node.args
            if not _is_library(module, base):
                yield base
        case ast.Call(func=ast.Name(id="sum")):
            yield from node.args
        case ast.List() | ast.Tuple():
            yield from node.elts


def _is_library(module: Module, base: ast.expr) -> bool:
    return any(name.split(".")[0] in ("torch", "numpy", "math") for name in module.names(base))


def _assigned(module: Module, definitions: Iterable[flow.Reaching]) -> Iterator[ast.expr]:
    for reaching in definitions:
        statement = module.parent(reaching.node)
        if reaching.how is flow.How.AUGMENTED and isinstance(statement, ast.AugAssign):
            yield from (statement.target, statement.value)
        elif reaching.how in (flow.How.ASSIGN, flow.How.ELEMENT) and reaching.value is not None:
            yield reaching.value


@lru_cache(maxsize=64)
def _flows(function: ast.AST) -> tuple[tuple[frozenset[str], frozenset[str]], ...]:
    """What the statements of a function read, and the names in which they keep what they make of it."""
    return tuple(flow for node in _inside(function) if (flow := _flow(node)) and flow[1])


def _flow(node: ast.AST) -> tuple[frozenset[str], frozenset[str]] | None:
    match node:
        case ast.Assign(targets=targets, value=value):
            return _reads(value), frozenset(text for target in targets for text in _targets(target))
        case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
            return _reads(value), frozenset(_targets(target))
        case ast.Call(func=ast.Attribute(attr="append" | "update" | "add", value=base), args=arguments):
            return frozenset().union(*map(_reads, arguments)), frozenset(_targets(base))
    return None


def _reads(node: ast.AST) -> frozenset[str]:
    """The variables and dotted attributes in an expression, as written."""
    return frozenset(text for inner in ast.walk(node) if (text := _dotted(inner)))


def _dotted(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value)
        return f"{base}.{node.attr}" if base else None
    return None


def _targets(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _targets(element)
    elif isinstance(target, ast.Subscript | ast.Starred):
        yield from _targets(target.value)
    elif text := _dotted(target):
        yield text


def _inside(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions within it."""
    pending = [function]
    while pending:
        node = pending.pop()
        yield node
        if node is function or not isinstance(node, _SCOPES):
            pending += ast.iter_child_nodes(node)


def _leaves(block: list[ast.stmt]) -> bool:
    """Whether a block leaves the step: the turn of the loop, the loop or the function."""
    return any(isinstance(statement, _LEAVING) for statement in block)


def _ends(context: Context, module: Module, block: list[ast.stmt]) -> bool:
    """Whether a block ends the run: it raises, exits, or calls a function that raises in the end."""
    for statement in block:
        if isinstance(statement, ast.Raise):
            return True
        if isinstance(statement, ast.Expr) and isinstance(call := statement.value, ast.Call):
            if scaling.called(call) in ("exit", "_exit", "abort"):
                return True
            bodies = (getattr(callee.function, "body", None) for callee in context.project.callees(module, call))
            if any(isinstance(body, list) and isinstance(body[-1], ast.Raise) for body in bodies):
                return True
    return False


def _counter(loop: Loop) -> str | None:
    """`step` of `for step, batch in enumerate(loader)` or of `for step in range(n)`, through wrappers such as tqdm."""
    if not isinstance(loop, ast.For | ast.AsyncFor):
        return None
    iterable = loop.iter
    while isinstance(iterable, ast.Call):
        called = ast.unparse(iterable.func).rpartition(".")[2]
        if called == "enumerate":
            first = loop.target.elts[0] if isinstance(loop.target, ast.Tuple | ast.List) else None
            return first.id if isinstance(first, ast.Name) else None
        if called in ("range", "trange", "count"):
            return loop.target.id if isinstance(loop.target, ast.Name) else None
        if not iterable.args or called in ("items", "values", "keys"):
            return None
        iterable = iterable.args[0]
    return None


def _added_up(module: Module, loop: Loop) -> str | None:
    """A variable that the loop's body adds 1 to."""
    for node in _inside(loop):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.value, ast.Constant):
            inner = next(enclosing_loops(module, node), None)
            if node.value.value == 1 and inner is loop and isinstance(node.target, ast.Name | ast.Attribute):
                return ast.unparse(node.target)
    return None


def _enumerated(module: Module, loop: ast.For | ast.AsyncFor, at: ast.AST) -> Step | None:
    name = next((n for n in ("step", "batch_index") if module.lookup(n, at) is None), None)
    if name is None or isinstance(loop, ast.AsyncFor):
        return None
    place = layout(module)
    start, end = place.span(loop.target, parentheses=True)
    target = place.text[start:end]
    if isinstance(loop.target, ast.Tuple) and not place.is_parenthesised(loop.target) and target[0] not in "([":
        target = f"({target})"
    edits = (
        Edit(start, end, f"{name}, {target}"),
        replace(module, loop.iter, f"enumerate({segment(module, loop.iter)})"),
    )
    return Step(name, edits)


def function_or_module(module: Module, node: ast.AST) -> Function | ast.Module:
    """The function around `node`, or the module's own body."""
    return module.function(node) or module.tree


def backward_losses(module: Module) -> Iterator[tuple[ast.Call, ast.expr]]:
    """The backward calls of a file, `loss.backward()` or a framework's `backward(loss)`, with their unscaled losses."""
    for call in module.calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("backward", "manual_backward"):
            continue
        base = call.func.value
        is_framework = bool(call.args) and isinstance(base, ast.Name | ast.Attribute)
        yield call, unscaled(module, call.args[0] if is_framework else base)


def is_called_loss(node: ast.expr) -> bool:
    """Whether a variable or attribute is called a loss; what was cut from the graph is none."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute) and "loss" in node.attr.lower():
            return not node.attr.startswith("loss_f")
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Attribute) or node.func.attr in ("detach", "item"):
                return False
            node = node.func.value
        else:
            node = node.value
    return isinstance(node, ast.Name) and "loss" in node.id.lower()


def replaced_by_constant(module: Module, test: ast.expr) -> bool:
    """Whether `test` guards an assignment of a constant to what it tests: `if isnan(loss): loss = zeros(())`."""
    guard = next((a for a in module.ancestors(test) if isinstance(a, ast.stmt)), None)
    if not isinstance(guard, ast.If):
        return False
    tested = {ast.unparse(n) for n in ast.walk(test) if isinstance(n, ast.Name | ast.Attribute)}
    return any(
        isinstance(statement, ast.Assign)
        and any(text in tested for target in statement.targets for text in _targets(target))
        and _is_constant(statement.value)
        for statement in guard.body
    )


def _is_constant(node: ast.expr) -> bool:
    """A number, or a tensor that a function makes of constants: `torch.tensor(0.0)`, `torch.zeros_like(loss)`."""
    match node:
        case ast.Constant() | ast.UnaryOp(operand=ast.Constant()):
            return True
        case ast.Call(func=ast.Attribute(attr=name)) if name in _CONSTANT_MAKERS:
            return True
        case ast.Call(func=ast.Attribute(value=ast.Call() as inner, attr="to" | "cuda" | "requires_grad_" | "detach")):
            return _is_constant(inner)
    return False


_CONSTANT_MAKERS = frozenset("tensor zeros zeros_like full full_like new_zeros new_tensor ones ones_like".split())
