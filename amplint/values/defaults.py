"""The dtype of tensors and modules that name none: float32, until `torch.set_default_dtype` says otherwise."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from amplint.tree import Module
from amplint.values import order
from amplint.values.dtype import Dtype, Dtypes
from amplint.values.value import Certainty, Frame, Value

if TYPE_CHECKING:
    from amplint.values.engine import Values

SETTERS = ("set_default_dtype", "set_default_tensor_type")
FILES = "files that set a default"
"""The key of the paths of these files."""
_FLOAT32: Dtypes = frozenset({Dtype.FLOAT32})


def dtypes(value: Value) -> Dtypes:
    """The default dtypes that may hold where a value is made."""
    return at(value.engine, value.module, value.node, value.frame)


def at(engine: Values, module: Module, node: ast.AST, frame: Frame) -> Dtypes:
    """The default dtypes that may hold at a node: set before it in its function, in the callers, or by their files."""
    files = engine.remember(FILES, lambda: _files(engine), frozenset)
    if not files:
        return _FLOAT32
    found: set[Dtype] = set()
    for where, place, around in _outwards(module, node, frame):
        for call in reversed(_setters(engine, where).get(around, ())) if where.source.path in files else ():
            has_run = order.has_run(where, call, place)
            if has_run is not Certainty.NEVER:
                argument = call.args[0] if call.args else call.keywords[0].value
                found |= engine.named_dtypes(engine.of(where, argument))
            if has_run is Certainty.ALWAYS:
                return frozenset(found)
    return frozenset(found | _FLOAT32)


def _outwards(module: Module, node: ast.AST, frame: Frame) -> Iterator[tuple[Module, ast.AST, ast.AST]]:
    """(file, node, function) where code runs, and where it is called from; last the files themselves."""
    files: dict[Module, ast.AST] = {}
    current: Frame | None = frame
    while current is not None:
        function = current.function
        if function is None:
            files[module] = node  # the file is still being run
        else:
            files.setdefault(module, module.tree)
            yield module, node, function
        if current.call is None or current.caller is None:
            break
        node, current = current.call, current.caller
        module = current.module
    yield from ((module, place, module.tree) for module, place in files.items())


def _files(engine: Values) -> frozenset[Path]:
    return frozenset(path for name in SETTERS for path in engine.project.files_calling(name))


def _setters(engine: Values, module: Module) -> dict[ast.AST, list[ast.Call]]:
    """The calls of a file that set the default, by the function (or file) they stand in, in the order of the text."""
    return engine.remember(("default setters", module.tree), lambda: _find_setters(module), dict)


def _find_setters(module: Module) -> dict[ast.AST, list[ast.Call]]:
    found: dict[ast.AST, list[ast.Call]] = {}
    for call in module.calls:
        is_given = bool(call.args or call.keywords)
        if is_given and module.is_named(call.func, *(f"torch.{name}" for name in SETTERS)):
            found.setdefault(module.function(call) or module.tree, []).append(call)
    for calls in found.values():
        calls.sort(key=order.start)
    return found
