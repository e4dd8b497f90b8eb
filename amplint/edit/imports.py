"""How a fix writes a dotted name: with the user's own binding, or with an import added the way the file imports."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from typing import TypeAlias

from amplint.edit.layout import Layout, layout
from amplint.rule import Edit
from amplint.tree import Module

Import: TypeAlias = ast.Import | ast.ImportFrom

_SHORT = {"torch.nn.functional": "F", "torch.nn": "nn"}


def add_import(module: Module, dotted: str, at: ast.AST) -> tuple[str, tuple[Edit, ...]]:
    """How `dotted` (`torch.nn.functional.softplus`, `math.log`) is written at `at`, and the edits that make it so.

    In order: a binding that is there (`F`, `th`, `nn.functional`), a star import, one more name in a `from` import of
    the same module, a new import.
    """
    if spelling := module.bound_as(dotted, at):
        return spelling, ()
    parent, _, name = dotted.rpartition(".")
    is_free = not _is_bound(module, name, at)
    if is_free and parent in module.star_imports and not name.startswith("_"):
        return name, ()
    if is_free and (statement := _from_import(module, parent)):
        return name, add_name(module, statement, name)
    root = dotted.partition(".")[0]
    short = _SHORT.get(parent)
    if short and not _is_bound(module, short, at):
        return f"{short}.{name}", (insert_import(module, f"import {parent} as {short}"),)
    if not _is_bound(module, root, at):
        return dotted, (insert_import(module, f"import {root}"),)
    alias = f"_{root}"
    return f"{alias}{dotted[len(root) :]}", (insert_import(module, f"import {root} as {alias}"),)


def add_name(module: Module, statement: ast.ImportFrom, name: str) -> tuple[Edit, ...]:
    """Add `name` to a `from` import: in its place if the names are sorted, else as the last one."""
    place = layout(module)
    names = [alias.name for alias in statement.names]
    if names == sorted(names, key=str.lower) and (
        later := [a for a in statement.names if a.name.lower() > name.lower()]
    ):
        start = place.span(later[0])[0]
        line = place.line_start(start)
        own_line = place.mask[line:start].strip() == "" and line > place.start(statement)
        separator = f"{place.source.newline}{place.text[line:start]}" if own_line else " "
        return (Edit(start, start, f"{name},{separator}"),)
    last = place.span(statement.names[-1])
    line = place.line_start(last[0])
    after = place.next_char(last[1])
    if place.mask[line : last[0]].strip() or line <= place.start(statement):
        return (Edit(last[1], last[1], f", {name}"),)
    has_comma = place.mask[after : after + 1] == ","
    line_end = place.line_end(after if has_comma else last[1])
    comma = () if has_comma else (Edit(last[1], last[1], ","),)
    text = f"{place.source.newline}{place.text[line : last[0]]}{name}{',' if has_comma else ''}"
    return (*comma, Edit(line_end, line_end, text))


def insert_import(module: Module, text: str) -> Edit:
    """A new import statement among those at the top of the file, sorted as isort sorts them."""
    place = layout(module)
    newline = place.source.newline
    imports = list(_top_imports(module))
    wanted = ast.parse(text).body[0]
    assert isinstance(wanted, ast.Import | ast.ImportFrom)
    section = [item for item in imports if _section(item) == _section(wanted)]
    earlier = [item for item in section if _sort_key(item) < _sort_key(wanted)]
    if earlier:
        return _line_after(place, earlier[-1], text)
    if section:
        at = place.leading_comments(section[0])
        return Edit(at, at, f"{text}{newline}")
    if before := [item for item in imports if _section(item) < _section(wanted)]:
        return _line_after(place, before[-1], f"{newline}{text}")
    if imports:
        at = place.leading_comments(imports[0])
        return Edit(at, at, f"{text}{newline}{newline}")
    return _first_import(place, text)


def _is_bound(module: Module, name: str, at: ast.AST) -> bool:
    """Whether `name` means something at `at`, or anything at all at the top of the module."""
    return bool(module.lookup(name, at) or module.bindings(module.tree, name))


def _from_import(module: Module, parent: str) -> ast.ImportFrom | None:
    """The top-level `from parent import …` that a name can be added to."""
    for item in module.tree.body:
        is_from = isinstance(item, ast.ImportFrom) and item.level == 0 and item.module == parent
        if is_from and all(alias.name != "*" for alias in item.names):  # type: ignore[attr-defined]
            return item  # type: ignore[return-value]
    return None


def _top_imports(module: Module) -> Iterator[Import]:
    """The import statements at the top of the file, before its other code."""
    for index, item in enumerate(module.tree.body):
        if isinstance(item, ast.Import | ast.ImportFrom):
            yield item
        elif (
            not (index == 0 and _is_docstring(item)) and not _is_masked(item) and not isinstance(item, ast.Try | ast.If)
        ):
            return


def _is_docstring(item: ast.stmt) -> bool:
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str)


def _is_masked(item: ast.stmt) -> bool:
    """Whether a statement stands for a magic of a notebook."""
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Name) and not item.value.id.strip("_")


def _root(item: Import) -> str:
    return (item.module or "." if isinstance(item, ast.ImportFrom) else item.names[0].name).partition(".")[0]


def _section(item: Import) -> int:
    """isort's sections: __future__, the standard library, third party, relative."""
    if isinstance(item, ast.ImportFrom) and item.level:
        return 3
    root = _root(item)
    if root == "__future__":
        return 0
    return 1 if root in sys.stdlib_module_names else 2


def _sort_key(item: Import) -> tuple[bool, str]:
    if isinstance(item, ast.ImportFrom):
        return True, (item.module or "").lower()
    return False, item.names[0].name.lower()


def _line_after(place: Layout, item: Import, text: str) -> Edit:
    newline = place.source.newline
    at = place.line_end(place.end(item))
    after = place.after_newline(at)
    return Edit(at, at, f"{newline}{text}") if after == at else Edit(after, after, f"{text}{newline}")


def _first_import(place: Layout, text: str) -> Edit:
    """The first import of a file that has none at its top: below its docstring or its leading comments."""
    newline = place.source.newline
    body = [item for item in place.module.tree.body if not _is_masked(item)]
    if body and _is_docstring(body[0]):
        at = place.after_newline(place.line_end(place.end(body[0])))
        return Edit(at, at, f"{newline}{text}{newline}")
    at = place.leading_comments(body[0]) if body else 0
    return Edit(at, at, f"{text}{newline}{newline if body else ''}")
