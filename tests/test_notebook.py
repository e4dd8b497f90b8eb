"""Notebooks: what of them is read as Python, where places are, and that nothing but the fixed lines changes."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplint.edit import add_import, insert_after, insert_before, remove_statement
from amplint.magics import python_of
from amplint.notebook import Notebook
from amplint.rule import Edit, Position
from amplint.source import SkippedSourceError, UnreadableSourceError
from amplint.tree import Module, parse

PATH = Path("n.ipynb")


def document(*cells: str | list[str], indent: int | None = 1, **metadata: Any) -> str:
    made = [{"cell_type": "code", "metadata": {}, "outputs": [], "source": cell} for cell in cells]
    notebook = {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=indent, ensure_ascii=False) + "\n"


def notebook(text: str) -> Notebook:
    return Notebook.from_bytes(PATH, text.encode())


def statement(module: Module, start: str) -> ast.stmt:
    found = [node for node in ast.walk(module.tree) if isinstance(node, ast.stmt)]
    return next(node for node in found if module.source.segment(node).startswith(start))


# -- magics ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("%matplotlib inline\na", ["a"]),
        ("!pip install -q x\na", ["a"]),
        ("if a:\n    !ls $b", ["a"]),
        ("files = !ls\na", ["files", "a"]),
        ("opts = %env HOME\na", ["opts", "a"]),
        ("a?", []),
        ("a.b??\n?c", []),
        ("!pip install \\\n    x \\\n    y\na", ["a"]),
        ("!ls \\", []),
        ("%time a = b", ["a", "b"]),
        ("for a in b:\n    %time c", ["a", "b", "c"]),
        ("%timeit -n 10 a", []),
        ("%%time\na = b", ["a", "b"]),
        ("\n%%capture out\na", ["a"]),
        ("%%bash\necho a", []),
        ("%%writefile train.py\nimport torch", []),
        ("a = (b\n% c)", ["a", "b", "c"]),
        ("'''\n%time\n! a\n'''\nb", ["b"]),
        ("# a?\nb", ["b"]),
        ("await a", ["a"]),
        ("a;", ["a"]),
        ("!a\r\n%b\r\nc", ["c"]),
        ("%a\n" * 50 + "b", ["b"]),
    ],
)
def test_magics_are_masked(source: str, names: list[str]) -> None:
    cell = python_of(source)
    assert cell.error is None
    assert len(cell.python) == len(source)
    assert [c in "\r\n" for c in cell.python] == [c in "\r\n" for c in source]
    found = [node.id for node in ast.walk(ast.parse(cell.python)) if isinstance(node, ast.Name)]
    assert sorted(name for name in found if name.strip("_")) == sorted(names)


@pytest.mark.parametrize("source", ["for i in (", "print 'a'", "%time\nx = = 1", "x = 1\0"])
def test_a_broken_cell_is_blank(source: str) -> None:
    cell = python_of(source)
    assert cell.error is not None
    assert not cell.python.strip()


# -- reading ---------------------------------------------------------------------------------------------------------


def test_cells_are_one_program() -> None:
    text = json.loads(document("import torch\n", ["%time x = 1\n", "y = 2"], "for", "z"))
    text["cells"].insert(1, {"cell_type": "markdown", "metadata": {}, "source": "# torch"})
    program = notebook(json.dumps(text))
    module = parse(program)
    assert [program.segment(node) for node in module.tree.body] == ["import torch", "0", "x = 1", "y = 2", "z"]
    places = [program.locate(program.position(program.span(node)[0])) for node in module.tree.body]
    assert places == [
        (1, Position(1, 1)),
        (3, Position(1, 1)),
        (3, Position(1, 7)),
        (3, Position(2, 1)),
        (5, Position(1, 1)),
    ]
    assert [(program.locate(at), why) for at, why in program.unreadable] == [((4, Position(1, 1)), "invalid syntax")]


def test_a_notebook_without_cells_is_empty() -> None:
    assert notebook('{"cells": [], "metadata": {}, "nbformat": 4}').text == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"cells": [', "not a notebook: Expecting value"),
        ("[]", "no object at the top"),
        ('{"nbformat": 4}', "no list of cells"),
        ('{"cells": [1]}', "no list of cells"),
        ('{"cells": [{"cell_type": "code", "source": [1]}]}', "no list of cells"),
        ("[" * 100_000, "not a notebook"),
    ],
)
def test_what_is_no_notebook(text: str, message: str) -> None:
    with pytest.raises(UnreadableSourceError, match=message):
        notebook(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"worksheets": [{"cells": []}], "nbformat": 3}',
        document("x", kernelspec={"language": "julia", "name": "julia-1.9"}),
        document("x", language_info={"name": "R"}),
    ],
)
def test_what_is_not_for_us_is_skipped(text: str) -> None:
    with pytest.raises(SkippedSourceError):
        notebook(text)


# -- writing back ----------------------------------------------------------------------------------------------------


def changed(text: str, *edits: tuple[str, str]) -> str:
    """The document after each first occurrence of a text in the program was replaced."""
    program = notebook(text)
    starts = [(program.text.index(old), old, new) for old, new in edits]
    return program.edited([Edit(start, start + len(old), new) for start, old, new in starts]).document


def test_a_line_of_a_list() -> None:
    text = document(["a = 1\n", "b = 2  # é\n", "c = 3"])
    assert changed(text, ("b = 2", "b = 'ü\"\\'")) == text.replace("b = 2", "b = 'ü\\\"\\\\'")


def test_a_string_and_every_unusual_escape() -> None:
    source = '"\\u0061 = 1\\nb = \\"\\/\\ud83d\\ude00 \\u00e9\\"\\nc = a"'
    text = document("SOURCE", indent=None).replace('"SOURCE"', source)
    assert changed(text, ("c = a", "c = 2 * a")) == text.replace("c = a", "c = 2 * a")
    assert changed(text, ("a = 1", "a = 'ü'")) == text.replace("\\u0061 = 1", "\\u0061 = '\\u00fc'")


def test_inserted_lines_have_the_layout_of_the_others() -> None:
    text = document(["a()\n", "b()"], indent=4)
    module = parse(notebook(text))
    inserted = module.source.edited(insert_before(module, statement(module, "b"), ["x()", "y()"]))
    assert isinstance(inserted, Notebook)
    assert inserted.document == document(["a()\n", "x()\n", "y()\n", "b()"], indent=4)
    inserted = module.source.edited(insert_after(module, statement(module, "b"), ["x()"]))
    assert isinstance(inserted, Notebook)
    assert inserted.document == document(["a()\n", "b()\n", "x()"], indent=4)


@pytest.mark.parametrize(
    ("source", "start", "expected"),
    [
        (["a()\n", "b()\n", "c()"], "a", ["b()\n", "c()"]),
        (["a()\n", "b()\n", "c()"], "b", ["a()\n", "c()"]),
        (["a()\n", "b()\n", "c()"], "c", ["a()\n", "b()"]),
        (["a()\n", "b()\n"], "b", ["a()\n"]),
        ("a()\nb()", "b", "a()"),
        (["a()"], "a", [""]),
    ],
)
def test_removed_lines(source: str | list[str], start: str, expected: str | list[str]) -> None:
    module = parse(notebook(document("first", source, "last")))
    result = module.source.edited(remove_statement(module, statement(module, start)))
    assert isinstance(result, Notebook)
    assert result.document == document("first", expected, "last")


def test_an_edit_over_two_cells_is_refused() -> None:
    program = notebook(document("a", "b"))
    with pytest.raises(ValueError, match="over two cells"):
        program.edited([Edit(0, len(program.text), "")])


def test_comments_of_another_cell_lead_nothing() -> None:
    module = parse(notebook(document("# the end", "b()")))
    result = module.source.edited(insert_before(module, module.tree.body[0], ["a()"]))
    assert isinstance(result, Notebook)
    assert result.document == document("# the end", "a()\nb()")


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("%matplotlib inline\nimport torch", "%matplotlib inline\nimport math\n\nimport torch"),
        ("%%time\nx = 1", "%%time\nimport math\n\nx = 1"),
    ],
)
def test_an_import_goes_below_the_magics(first: str, expected: str) -> None:
    module = parse(notebook(document(first, "y")))
    _, edits = add_import(module, "math.log", module.tree.body[-1])
    result = module.source.edited(edits)
    assert isinstance(result, Notebook)
    assert result.document == document(expected, "y")


LINES = st.lists(
    st.sampled_from(["a = 1", "b = 'é\\n'", "# 😀", "", "%time c", "!ls", '"""\n\n"""', "a = 1"]), max_size=5
)


@given(
    cells=st.lists(st.tuples(LINES, st.booleans()), max_size=4),
    indent=st.sampled_from([None, 0, 1, 4]),
    ascii_only=st.booleans(),
    new=st.sampled_from(["", "b", "x = 'ü'\n", "\n", "y\nz"]),
    data=st.data(),
)
def test_only_the_edited_source_changes(
    cells: list[tuple[list[str], bool]], indent: int | None, ascii_only: bool, new: str, data: st.DataObject
) -> None:
    sources = ["\n".join(lines) if flat else "\n".join(lines).splitlines(keepends=True) for lines, flat in cells]
    text = json.dumps(json.loads(document(*sources)), indent=indent, ensure_ascii=ascii_only)
    program = notebook(text)
    assert program.to_bytes(program.text) == text.encode()
    assert program.edited([]).document == text
    if not program.cells:
        return
    cell = data.draw(st.sampled_from(program.cells))
    start = data.draw(st.integers(0, len(cell.source)))
    end = data.draw(st.integers(start, len(cell.source)))
    result = program.edited([Edit(cell.start + start, cell.start + end, new)])
    expected = json.loads(text)
    expected["cells"][cell.number - 1]["source"] = cell.source[:start] + new + cell.source[end:]
    got = json.loads(result.document)
    for side in (expected, got):
        for item in side["cells"]:
            item["source"] = "".join(item["source"])
    assert got == expected
    before, after = cell.value
    assert result.document.startswith(text[:before])
    assert result.document.endswith(text[after:])


def test_positions_round_trip() -> None:
    program = notebook(document(["ö = 1\n", "!ls\n"], "", ["ß = ñ(\n", "    é)"]))
    for offset in range(len(program.text)):
        cell, place = program.locate(program.position(offset))
        source = next(c for c in program.cells if c.number == cell)
        lines = source.source.split("\n")
        inside = source.start + sum(len(line) + 1 for line in lines[: place.line - 1]) + place.column - 1
        assert inside == offset


def test_a_fixed_notebook_is_valid() -> None:
    """By the format's own library."""
    nbformat = pytest.importorskip("nbformat")
    cells = [nbformat.v4.new_markdown_cell("# é"), nbformat.v4.new_code_cell("%matplotlib inline\na()\nb()")]
    text = nbformat.writes(nbformat.v4.new_notebook(cells=cells))
    module = parse(notebook(text))
    edits = (*insert_before(module, statement(module, "b"), ["x()"]), *remove_statement(module, statement(module, "a")))
    result = module.source.edited(edits)
    assert isinstance(result, Notebook)
    read = nbformat.reads(result.document, as_version=4)
    nbformat.validate(read)
    assert read.cells[1].source == "%matplotlib inline\nx()\nb()"
    assert nbformat.writes(read) == result.document
