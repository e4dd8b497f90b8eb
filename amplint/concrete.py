"""Rewriting fragments as concrete syntax: LibCST keeps comments, parentheses, trailing commas and layout.

A fragment is the text of one statement, as `Source.segment` gives it. LibCST is imported only when one is rewritten.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import libcst as cst


def import_from(text: str, module: str, renamed: Mapping[str, str] | None = None) -> str:
    """A `from … import` that imports from `module` instead, with the names that `renamed` has under new ones.

    >>> import_from("from a.b import (c,  # why\\n    d as e)", "z", {"c": "x"})
    'from z import (x,  # why\\n    d as e)'
    """
    import libcst as cst

    def change(alias: cst.ImportAlias) -> cst.ImportAlias:
        name = _dotted(alias.name)
        return alias.with_changes(name=_expression((renamed or {}).get(name, name)))

    statement = _import_from(text)
    names = statement.names
    if not isinstance(names, cst.ImportStar):
        names = [change(alias) for alias in names]
    return _code(statement.with_changes(module=_expression(module), relative=(), names=names))


def without_names(text: str, names: Collection[str]) -> str:
    """A `from … import` without the names it imports among `names`. Raises ValueError if none is left."""
    import libcst as cst

    statement = _import_from(text)
    assert not isinstance(statement.names, cst.ImportStar)
    left = [alias for alias in statement.names if _dotted(alias.name) not in names]
    if not left:
        raise ValueError("no name is left to import")
    if left[-1] is not statement.names[-1]:
        left[-1] = left[-1].with_changes(comma=statement.names[-1].comma)
    return _code(statement.with_changes(names=left))


def import_of(text: str, renamed: Mapping[str, str]) -> str:
    """An `import a.b, c as d` with the modules that `renamed` has under their new names.

    >>> import_of("import a.b as c, d", {"a.b": "x.y"})
    'import x.y as c, d'
    """
    import libcst as cst

    statement = _statement(text)
    assert isinstance(statement, cst.Import)
    names = [a.with_changes(name=_expression(renamed.get(_dotted(a.name), _dotted(a.name)))) for a in statement.names]
    return _code(statement.with_changes(names=names))


def _import_from(text: str) -> cst.ImportFrom:
    import libcst as cst

    statement = _statement(text)
    assert isinstance(statement, cst.ImportFrom)
    return statement


def _statement(text: str) -> cst.BaseSmallStatement | cst.BaseCompoundStatement:
    import libcst as cst

    parsed = cst.parse_statement(text)
    return parsed.body[0] if isinstance(parsed, cst.SimpleStatementLine) else parsed


def _expression(dotted: str) -> cst.Attribute | cst.Name:
    import libcst as cst

    name: cst.Attribute | cst.Name | None = None
    for part in dotted.split("."):
        name = cst.Name(part) if name is None else cst.Attribute(name, cst.Name(part))
    assert name is not None
    return name


def _dotted(name: cst.BaseExpression) -> str:
    import libcst as cst

    if isinstance(name, cst.Attribute):
        return f"{_dotted(name.value)}.{name.attr.value}"
    assert isinstance(name, cst.Name)
    return name.value


def _code(node: cst.CSTNode) -> str:
    import libcst as cst

    return cst.Module([]).code_for_node(node)
