"""Setting, adding, renaming and removing the arguments of a call and the items of a display."""

from __future__ import annotations

import ast
from typing import TypeAlias

from amplint.edit.expressions import replace
from amplint.edit.layout import Layout, layout
from amplint.rule import Edit
from amplint.tree import Module

Container: TypeAlias = ast.Call | ast.Dict | ast.List | ast.Set
Argument: TypeAlias = ast.expr | ast.keyword


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """The value given to a parameter, by keyword or at `position`; None where none is, or a `*args` may hide it."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if position is None or position >= len(call.args):
        return None
    if any(isinstance(arg, ast.Starred) for arg in call.args[: position + 1]):
        return None
    return call.args[position]


def set_argument(module: Module, call: ast.Call, name: str, text: str) -> tuple[Edit, ...]:
    """Give the keyword argument `name` the value `text`: in place if it is there, else after the last argument."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return (replace(module, keyword.value, text, parentheses=True),)
    return append_item(module, call, f"{name}={text}")


def append_item(module: Module, container: Container, text: str) -> tuple[Edit, ...]:
    """Add an argument, or an item of a display, after the last one, laid out as the others are."""
    place = layout(module)
    items = _items(container)
    close = place.span(container)[1] - 1
    if not items:
        return (Edit(close, close, text),)
    if isinstance(items[-1], ast.GeneratorExp) and place.span(items[-1])[1] == close + 1:
        start = place.span(items[-1])[0]
        return (Edit(start, start, "("), Edit(close, close, f"), {text}"))
    end = _span(place, items[-1])[1]
    after = place.next_char(end)
    has_comma = place.mask[after] == ","
    own_line = _own_line(place, items[-1])
    if own_line is None or ("\n" not in place.text[end:close] and "\r" not in place.text[end:close]):
        return (Edit(end, end, f", {text}"),) if not has_comma else (Edit(after + 1, after + 1, f" {text},"),)
    line_end = place.line_end(after if has_comma else end)
    comma = () if has_comma else (Edit(end, end, ","),)
    trailing = "," if has_comma else ""
    return (*comma, Edit(line_end, line_end, f"{place.source.newline}{own_line}{text}{trailing}"))


def prepend_argument(module: Module, call: ast.Call, text: str) -> tuple[Edit, ...]:
    """Add a first argument."""
    place = layout(module)
    items = _items(call)
    if not items:
        close = place.span(call)[1] - 1
        return (Edit(close, close, text),)
    start, end = _span(place, items[0])
    if isinstance(items[0], ast.GeneratorExp) and len(items) == 1 and end == place.span(call)[1]:
        return (Edit(start, start + 1, f"({text}, ("), Edit(end, end, ")"))
    own_line = _own_line(place, items[0])
    separator = " " if own_line is None else f"{place.source.newline}{own_line}"
    return (Edit(start, start, f"{text},{separator}"),)


def remove_argument(module: Module, call: ast.Call, name: str | Argument) -> tuple[Edit, ...]:
    """Remove an argument, given by its keyword or its node, with its comma, and its line if it has one alone."""
    items = _items(call)
    index = next(i for i, item in enumerate(items) if _is(item, name))
    return (_without(layout(module), call, items, index),)


def name_argument(module: Module, call: ast.Call, position: int, name: str) -> tuple[Edit, ...]:
    """Turn the positional argument at `position` into the keyword argument `name`."""
    start = _span(layout(module), call.args[position])[0]
    return (Edit(start, start, f"{name}="),)


def _is(item: ast.AST, wanted: str | Argument) -> bool:
    if isinstance(wanted, str):
        return isinstance(item, ast.keyword) and item.arg == wanted
    return item is wanted or (isinstance(item, ast.keyword) and item.value is wanted)


def _without(place: Layout, call: ast.Call, items: list[ast.AST], index: int) -> Edit:
    start, end = _span(place, items[index])
    after = place.next_char(end)
    has_comma = place.mask[after] == ","
    if (_own_line(place, items[index])) is not None:
        line_end = place.line_end(after + 1 if has_comma else end)
        if not place.mask[after + has_comma : line_end].strip():  # alone on its lines
            return Edit(place.line_start(start), place.after_newline(line_end), "")
    if index + 1 < len(items):
        return Edit(start, _span(place, items[index + 1])[0], "")
    if index:
        previous = _span(place, items[index - 1])[1]
        return Edit(previous, end, "")
    return Edit(start, after + 1 if has_comma else end, "")


def _items(container: Container) -> list[ast.AST]:
    """The arguments or items in the order of the text; those of a dict are its values."""
    if isinstance(container, ast.Call):
        items: list[ast.AST] = [*container.args, *container.keywords]
        return sorted(items, key=lambda item: (item.lineno, item.col_offset))  # type: ignore[attr-defined]
    return list(container.values if isinstance(container, ast.Dict) else container.elts)


def _span(place: Layout, item: ast.AST) -> tuple[int, int]:
    """The span of an argument with its parentheses."""
    if isinstance(item, ast.keyword):
        return place.span(item)[0], place.span(item.value, parentheses=True)[1]
    return place.span(item, parentheses=True)


def _own_line(place: Layout, item: ast.AST) -> str | None:
    """The blanks before an argument that starts its line; None if it does not."""
    start = _span(place, item)[0]
    parent = place.module.parent(item)
    if isinstance(parent, ast.Dict):
        key = next(key for key, value in zip(parent.keys, parent.values, strict=True) if value is item)
        start = place.span(key, parentheses=True)[0] if key else place.mask.rindex("**", 0, start)
    line = place.line_start(start)
    return None if place.mask[line:start].strip() else place.text[line:start]
