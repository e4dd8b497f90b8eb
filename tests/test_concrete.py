"""Fragments keep comments, parentheses, trailing commas and layout."""

from __future__ import annotations

import pytest

from amplint.concrete import import_from, import_of, without_names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from a.b import c", "from x import c"),
        ("from a import (\n    c,  # first\n    d as e,\n)", "from x import (\n    c,  # first\n    d as e,\n)"),
        ("from  a  import c,\\\n  d", "from  x  import c,\\\n  d"),
        ("from a import *", "from x import *"),
        ("from . import c", "from x import c"),
        ("from a import old as b", "from x import new as b"),
    ],
)
def test_import_from(text: str, expected: str) -> None:
    assert import_from(text, "x", {"old": "new"}) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from a import b, c, d", "from a import b, d"),
        ("from a import c, b", "from a import b"),
        ("from a import b, c", "from a import b"),
        ("from a import (b, c,)", "from a import (b,)"),
        ("from a import (\n    b,\n    c,\n    d,\n)", "from a import (\n    b,\n    d,\n)"),
        ("from a import (\n    b,\n    c,\n)", "from a import (\n    b,\n)"),
    ],
)
def test_without_names(text: str, expected: str) -> None:
    assert without_names(text, {"c"}) == expected


def test_some_name_must_be_left() -> None:
    with pytest.raises(ValueError, match="no name"):
        without_names("from a import b, c as d", {"b", "c"})


def test_import_of() -> None:
    assert import_of("import a.b, a.b as c, a.b.d", {"a.b": "x"}) == "import x, x as c, a.b.d"
