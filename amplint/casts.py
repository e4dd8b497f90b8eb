"""Where a module is cast to float16 on its way to a place: the casts whose effect is still there when it arrives."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from amplint import flow
from amplint.context import Context
from amplint.project import Definition
from amplint.tree import Function, Module

_FLOAT16 = ("torch.float16", "torch.half")
_OTHER_DTYPES = ("torch.float32", "torch.float", "torch.bfloat16", "torch.float64", "torch.double")
_SAME_MODULE = frozenset(
    [
        "to",
        "cuda",
        "cpu",
        "xpu",
        "train",
        "eval",
        "requires_grad_",
        "apply",
        "share_memory",
        "compile",
        "gradient_checkpointing_enable",
    ]
)
_WRAPPERS = frozenset(
    [
        "DistributedDataParallel",
        "DataParallel",
        "DDP",
        "FSDP",
        "FullyShardedDataParallel",
        "compile",
        "prepare",
        "prepare_model",
        "setup",
        "convert_sync_batchnorm",
        "script",
    ]
)
_ADAPTERS = frozenset(
    [
        "add_adapter",
        "get_peft_model",
        "inject_adapter_in_model",
        "set_attn_processor",
        "prepare_model_for_kbit_training",
        "cast_training_params",
    ]
)
"""Calls that bring trainable float32 parameters in, or cast those that are trainable back."""

_MAX_STEPS = 6


@dataclass(frozen=True, slots=True)
class Cast:
    """One call that makes a module float16, and the argument that says so (None for `.half()`)."""

    module: Module
    call: ast.Call
    dtype: ast.expr | None = None


def half_casts(
    context: Context, module: Module, node: ast.expr, steps: int = _MAX_STEPS, until: ast.expr | None = None
) -> Iterator[Cast]:
    """The casts to float16 that are in effect on the module that `node` gives, in the order of the search.

    `until`: a later place of the same function, at which in-place casts after `node` have taken effect as well.
    Casts under a condition are left out, unless `node` stands under it too.
    """
    if steps == 0:
        return
    if isinstance(node, ast.Call):
        yield from _of_call(context, module, node, steps)
    elif isinstance(node, ast.Name | ast.Attribute):
        last = _last_statement_cast(module, node, until or node)
        if last is not None:
            if isinstance(last, Cast):
                yield last
            return
        yield from _of_variable(context, module, node, steps)


def _of_call(context: Context, module: Module, call: ast.Call, steps: int) -> Iterator[Cast]:
    cast = cast_of(module, call)
    if cast is not None:
        if isinstance(cast, Cast):
            yield cast
        return
    name = _last_name(call.func)
    if name in _SAME_MODULE and isinstance(call.func, ast.Attribute) and not module.names(call.func):
        yield from half_casts(context, module, call.func.value, steps)
    elif name == "Sequential":
        for layer in call.args:
            yield from half_casts(context, module, layer, steps - 1)
    elif name in _WRAPPERS and call.args:
        yield from half_casts(context, module, call.args[0], steps - 1)
    else:
        for callee in context.project.callees(module, call):
            if not isinstance(callee.function, ast.Lambda) and callee.function.name != "__init__":
                for returned in _returned(callee.module, callee.function):
                    yield from half_casts(context, callee.module, returned, steps - 1)


def _of_variable(context: Context, module: Module, node: ast.Name | ast.Attribute, steps: int) -> Iterator[Cast]:
    if isinstance(node, ast.Name):
        for reaching in flow.definitions(module, node):
            if reaching.how is flow.How.PARAMETER and isinstance(reaching.node, ast.arg):
                yield from _of_parameter(context, module, reaching.node, steps)
            elif reaching.value is not None and not _is_conditional(module, reaching.node, node):
                value = reaching.value
                if len(reaching.path) == 1 and isinstance(value, ast.Call) and _last_name(value.func) in _WRAPPERS:
                    position = reaching.path[0]
                    value = value.args[position] if 0 <= position < len(value.args) else value
                yield from half_casts(context, module, value, steps - 1)
        return
    for cls in context.project.types(module, node.value):
        for definition in context.project.attribute(cls, node.attr):
            statement = definition.module.parent(definition.node)
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                if isinstance(definition.node, ast.Attribute):
                    last = _last_statement_cast(definition.module, definition.node, definition.node)
                    if last is not None:
                        if isinstance(last, Cast):
                            yield last
                        continue
                yield from half_casts(context, definition.module, statement.value, steps - 1)


def _of_parameter(context: Context, module: Module, parameter: ast.arg, steps: int) -> Iterator[Cast]:
    function = module.function(parameter)
    if function is None:
        return
    for site in context.project.callers(Definition(module, function)):
        for callee in context.project.callees(site.module, site.call):
            argument = callee.argument(parameter.arg) if callee.function is function else None
            if argument is not None:
                yield from half_casts(context, site.module, argument, steps - 1)


def cast_of(module: Module, call: ast.Call) -> Cast | bool | None:
    """The cast to float16 that a call is; True for one to another dtype, None for no cast."""
    name = _last_name(call.func)
    if isinstance(call.func, ast.Attribute) and not module.names(call.func):
        if name == "half" and not call.args:
            return Cast(module, call)
        if name in ("float", "double", "bfloat16") and not call.args:
            return True
    candidates = [*call.args] if name in ("to", "type") else []
    keywords = ("dtype", "torch_dtype", "weight_dtype")
    candidates += [keyword.value for keyword in call.keywords if keyword.arg in keywords]
    if name not in ("to", "type", "from_pretrained", "from_config", "from_single_file") and not name[:1].isupper():
        return None
    for candidate in candidates:
        dtypes = _dtypes(module, candidate)
        if dtypes and all(dtype in _FLOAT16 for dtype in dtypes):
            return Cast(module, call, candidate)
        if dtypes:
            return True
    return None


def _dtypes(module: Module, node: ast.expr) -> list[str]:
    """The torch dtypes that an expression names, through local variables; "" for one that is not known."""
    names = module.names(node)
    if names:
        return [name for name in names if name in (*_FLOAT16, *_OTHER_DTYPES)]
    if isinstance(node, ast.Constant) and node.value in ("float16", "fp16"):
        return ["torch.float16"]
    found: list[str] = []
    if isinstance(node, ast.Name):
        for reaching in flow.definitions(module, node):
            inner = module.names(reaching.value) if reaching.value is not None else ()
            found += inner or [""]
    return found if any(name in (*_FLOAT16, *_OTHER_DTYPES) for name in found) else []


def _last_statement_cast(module: Module, node: ast.Name | ast.Attribute, until: ast.expr) -> Cast | bool | None:
    """The last statement before `until`, in its function, that casts in place what `node` names: `model.half()`.

    True where it is a cast to another dtype, or one after which trainable float32 parameters come in.
    """
    scope = module.function(node) or module.tree
    text = ast.unparse(node)
    found: Cast | bool | None = None
    for call in _calls_between(scope, text, node, until):
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == text:
            cast = cast_of(module, call)
            statement = module.parent(call)
            if cast is not None and isinstance(statement, ast.Expr) and not _is_conditional(module, call, node):
                found = cast
        is_upcast = _last_name(call.func) in _ADAPTERS or _is_loop_upcast(module, call, text)
        if is_upcast and found is not None:
            found = True
    return found


def _is_loop_upcast(module: Module, call: ast.Call, text: str) -> bool:
    """Whether a call casts the parameters of `text` to float32 one by one: `p.data = p.data.float()` in a loop."""
    loop = next((a for a in module.ancestors(call) if isinstance(a, ast.For)), None)
    iterated = ast.unparse(loop.iter) if loop is not None else ""
    return cast_of(module, call) is True and text in iterated and "parameters" in iterated


def _calls_between(scope: ast.AST, text: str, node: ast.expr, until: ast.expr) -> Iterator[ast.Call]:
    """The calls of a function between the last assignment of `text` before `node`, and `until`, in source order.

    For an assignment itself (`self.model = …`): the calls after it.
    """
    calls = [c for c in ast.walk(scope) if isinstance(c, ast.Call) and _place(c) < _place(until)]
    stores = [
        _place(n)
        for n in ast.walk(scope)
        if isinstance(n, ast.Name | ast.Attribute) and isinstance(n.ctx, ast.Store) and ast.unparse(n) == text
    ]
    if isinstance(node.ctx, ast.Store):  # type: ignore[attr-defined]
        calls = [c for c in ast.walk(scope) if isinstance(c, ast.Call) and _place(c) > _place(node)]
        stores = []
    start = max((place for place in stores if place < _place(node)), default=(0, 0))
    yield from sorted((c for c in calls if _place(c) > start), key=_place)


def _is_conditional(module: Module, node: ast.AST, at: ast.AST) -> bool:
    """Whether `node` runs under a test or in a handler that `at` is not under."""
    around = {id(ancestor) for ancestor in module.ancestors(at)}
    return any(
        isinstance(ancestor, ast.If | ast.Try | ast.While | ast.IfExp | ast.Match) and id(ancestor) not in around
        for ancestor in module.ancestors(node)
        if module.function(ancestor) is module.function(node)
    )


def _returned(module: Module, function: Function) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None and module.function(node) is function:
            yield node.value


def _place(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _last_name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
