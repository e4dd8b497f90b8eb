"""Code that runs only with some versions of a library: what a modernising rule must leave alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from amplint.tree import Module

_GATE = re.compile(
    r"""__version__ | version\.parse | (?:loose|parse|digit|check|torch|pt)_?version | find_spec | signature\(
      | (?:has|get)attr\(\s*(?:torch|th|amp)\b
      | is_torch | torch_?(?:greater|less|ver|ge|gt|le|lt|major|minor|\d) | has_(?:torch|native|new)""",
    re.IGNORECASE | re.VERBOSE,
)
_ABSENCE = {"ImportError", "ModuleNotFoundError", "AttributeError"}
_ANYTHING = {"Exception", "BaseException", "TypeError"}
_TYPE_CHECKING = ("typing.TYPE_CHECKING", "typing_extensions.TYPE_CHECKING")


def is_gated(module: Module, node: ast.AST) -> bool:
    """Whether `node` runs only with some versions of what is installed.

    In an `if` (or after one that leaves the block) whose test asks for a version or for a name; in a `try` that catches
    a failed import or a missing name, or in its handlers. An import counts there whatever is caught.
    """
    child = node
    for parent in module.ancestors(node):
        if isinstance(parent, ast.If | ast.IfExp | ast.While) and child is not parent.test:
            if _asks(module, parent.test):
                return True
        elif isinstance(parent, ast.Try) and child in parent.body:
            if any(_catches_absence(handler, widely=isinstance(node, ast.alias)) for handler in parent.handlers):
                return True
        elif isinstance(parent, ast.ExceptHandler) and _catches_absence(parent, widely=True):
            return True
        if isinstance(child, ast.stmt) and any(_leaves_if_absent(module, item) for item in _before(parent, child)):
            return True
        child = parent
    return False


def _asks(module: Module, test: ast.expr) -> bool:
    if module.is_named(test, *_TYPE_CHECKING):
        return False
    return _GATE.search(module.source.segment(test)) is not None


def _catches_absence(handler: ast.ExceptHandler, *, widely: bool) -> bool:
    """Whether a handler is for a missing name; `widely`: or for anything."""
    if handler.type is None:
        return widely
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in types}
    return bool(names & (_ABSENCE | _ANYTHING if widely else _ABSENCE))


def _before(parent: ast.AST, child: ast.stmt) -> Iterator[ast.stmt]:
    """The statements before `child` in its block."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(parent, field, None)
        if isinstance(block, list) and child in block:
            yield from block[: block.index(child)]


def _leaves_if_absent(module: Module, statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.If) or not _asks(module, statement.test):
        return False
    return isinstance(statement.body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)
