"""Which functions of a file may switch half precision on: where following it begins. Read off the tree alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amplint.tree import Module

WORDS = ("autocast", "half", "float16", "fp16", "precision", "HalfTensor")
"""A file without one of these switches nothing."""

_NAMES = frozenset({"autocast", "half", "float16", "HalfTensor", "Accelerator", "Fabric"})
_STRINGS = frozenset({"fp16", "float16", "16-mixed", "torch.HalfTensor", "torch.cuda.HalfTensor"})
_PLAIN_CONTEXTS = frozenset(
    "no_grad inference_mode enable_grad set_grad_enabled open record_function profile tqdm suppress catch_warnings "
    "set_detect_anomaly device stream no_sync accumulate join Pool ThreadPoolExecutor TemporaryDirectory "
    "Progress".split()
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def roots(module: Module) -> tuple[ast.AST, ...]:
    """The functions (and the module) that may switch it on, or use what another method of their class switched on.

    () where nothing in the file does.
    """
    marked = [node for node in module.parents if _is_switch(node)]
    if not marked:
        return ()
    found: dict[ast.AST, None] = {module.tree: None}
    for node in marked:
        for function in _around(module, node):
            found[function] = None
    for function in module.functions:
        if any(_is_open_context(node) for node in ast.walk(function)):
            found[function] = None
    return tuple(found)


def _is_switch(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in _NAMES
    if isinstance(node, ast.Name):
        return node.id in _NAMES
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in _STRINGS


def _around(module: Module, node: ast.AST) -> Iterator[ast.AST]:
    """The functions around a switch or decorated by it, and the methods of the class that it stands in."""
    for ancestor in module.ancestors(node):
        if isinstance(ancestor, _FUNCTIONS):
            yield ancestor
        elif isinstance(ancestor, ast.ClassDef):
            yield from (item for item in ancestor.body if isinstance(item, _FUNCTIONS))


def _is_open_context(node: ast.AST) -> bool:
    """Whether a `with` enters something that may hold an autocast context: a variable, a call of something."""
    if not isinstance(node, ast.With | ast.AsyncWith):
        return False
    return any(_last_name(item.context_expr) not in _PLAIN_CONTEXTS for item in node.items)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
