"""The text surgery that fixes are made of: pure functions from a module and its nodes to `Edit`s.

They leave every other byte alone and know parentheses, precedence, comments, indentation (tabs, form feeds), suites on
one line, semicolons, newline styles and files without a final newline.
"""

from amplint.edit.arguments import (
    append_item,
    argument,
    name_argument,
    prepend_argument,
    remove_argument,
    set_argument,
)
from amplint.edit.expressions import Precedence, operand, precedence, replace, required, segment
from amplint.edit.imports import add_import
from amplint.edit.layout import Layout, layout
from amplint.edit.statements import (
    insert_after,
    insert_before,
    move_after,
    move_before,
    nest,
    remove_statement,
    remove_statements,
)
from amplint.edit.unused import is_effect_free, unused_after

__all__ = [
    "Layout",
    "Precedence",
    "add_import",
    "append_item",
    "argument",
    "insert_after",
    "insert_before",
    "is_effect_free",
    "layout",
    "move_after",
    "move_before",
    "name_argument",
    "nest",
    "operand",
    "precedence",
    "prepend_argument",
    "remove_argument",
    "remove_statement",
    "remove_statements",
    "replace",
    "required",
    "segment",
    "set_argument",
    "unused_after",
]
