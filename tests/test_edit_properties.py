"""Whatever the program looks like, an edit does to its tree exactly what it says, and to its text nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from hypothesis import given, note
from hypothesis import strategies as st

from amplint import edit
from amplint.rule import Edit
from amplint.source import Source, apply_edits
from amplint.tree import Module, parse

SIMPLE = [
    "a = 1",
    "f(x, (y), z=1)",
    "b += f(\n  1,  # one\n)",
    "pass",
    "s = '''\n  text\n'''",
    "g(é)",
    "x = 1 \\\n  + 2",
]
HEADERS = [
    "if c:",
    "while c:",
    "for i in j:",
    "with w as v:",
    "def k(p=1):",
    "class C:",
    "@d\ndef h():",
    "async def m():",
]
COMMENTS = ["", "  # after", ";", "; # after"]


@st.composite
def blocks(draw: st.DrawFn, indentation: str, unit: str, depth: int) -> list[str]:
    """The lines of a block, each without its newline."""
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        lines += [
            f"{indentation}{c}" for c in draw(st.lists(st.sampled_from(["# lead", "", "\f", "# %%"]), max_size=2))
        ]
        kind = draw(
            st.sampled_from(["simple", "simple", "several", "inline", "block", "else"] if depth else ["simple"])
        )
        if kind == "simple":
            lines.append(indentation + draw(st.sampled_from(SIMPLE)) + draw(st.sampled_from(COMMENTS)))
        elif kind == "several":
            parts = draw(st.lists(st.sampled_from(SIMPLE), min_size=2, max_size=3))
            lines.append(indentation + "; ".join(parts) + draw(st.sampled_from(COMMENTS)))
        else:
            header = indentation + draw(st.sampled_from(HEADERS)).replace("\n", f"\n{indentation}")
            if kind == "inline":
                parts = draw(st.lists(st.sampled_from(SIMPLE), min_size=1, max_size=2))
                lines.append(f"{header} {'; '.join(parts)}{draw(st.sampled_from(COMMENTS))}")
                continue
            lines += [header, *draw(blocks(indentation + unit, unit, depth - 1))]
            if kind == "else":
                word = draw(st.sampled_from(["elif e:", "else:"]))
                body = draw(blocks(indentation + unit, unit, depth - 1))
                lines += [f"{indentation}if c:", f"{indentation}{unit}pass", f"{indentation}{word}", *body]
    return lines


@st.composite
def modules(draw: st.DrawFn) -> Module:
    lines = draw(blocks("", draw(st.sampled_from(["    ", "  ", "\t"])), 2))
    text = "\n".join(lines) + draw(st.sampled_from(["", "\n"]))
    return parse(Source(Path("a.py"), text.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))))


def statements(module: Module) -> list[ast.stmt]:
    return [node for node in ast.walk(module.tree) if isinstance(node, ast.stmt)]


def is_elif(module: Module, statement: ast.stmt) -> bool:
    return edit.layout(module).is_elif(statement)


def dumped(part: object) -> object:
    """What `ast.dump` tells of a tree, which may hold compact nodes and others."""
    if isinstance(part, ast.AST):
        fields = [(name, dumped(value)) for name, value in ast.iter_fields(part) if value is not None]
        return type(part).__name__, fields
    return [dumped(item) for item in part] if isinstance(part, list) else repr(part)


def result(module: Module, edits: Iterable[Edit]) -> object:
    """The tree of the edited text."""
    note(module.source.text)
    text = apply_edits(module.source.text, edits)
    note(text)
    return dumped(ast.parse(text))


NEW = ast.parse("new()").body[0]
GUARD = "if guard:\n    new()"


@given(modules(), st.data())
def test_insert(module: Module, data: st.DataObject) -> None:
    statement = data.draw(st.sampled_from(statements(module)))
    if is_elif(module, statement):
        return
    lines = data.draw(st.sampled_from([["new()"], GUARD.split("\n")]))
    before = data.draw(st.booleans())
    put = edit.insert_before if before else edit.insert_after
    got = result(module, put(module, statement, lines))
    block = module.block(statement)
    at = next(i for i, item in enumerate(block) if item is statement)
    block[at + (not before) : at + (not before)] = ast.parse("\n".join(lines)).body
    assert got == dumped(module.tree)


@given(modules(), st.data())
def test_remove(module: Module, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(statements(module)), min_size=1, max_size=4, unique_by=id))
    everything = statements(module)
    removed = [s for s in chosen if not is_elif(module, s) and not any(a in chosen for a in module.ancestors(s))]
    got = result(module, edit.remove_statements(module, removed))
    blocks = [module.block(statement) for statement in removed]
    for statement, block in zip(removed, blocks, strict=True):
        block[:] = [item for item in block if item is not statement] or [ast.Pass()]
        if not any(item in everything for item in block) and block is module.tree.body:
            block.clear()
    assert got == dumped(module.tree)


@given(modules(), st.data())
def test_move(module: Module, data: st.DataObject) -> None:
    statement = data.draw(st.sampled_from([s for s in statements(module) if not is_elif(module, s)]))
    inside = list(ast.walk(statement))
    targets = [s for s in statements(module) if s not in inside and not is_elif(module, s)]
    if not targets:
        return
    target = data.draw(st.sampled_from(targets))
    before = data.draw(st.booleans())
    got = result(module, (edit.move_before if before else edit.move_after)(module, [statement], target))
    source, destination = module.block(statement), module.block(target)
    source[:] = [item if item is not statement else ast.Expr(ast.Constant("gone")) for item in source]
    at = next(i for i, item in enumerate(destination) if item is target) + (not before)
    destination.insert(at, statement)
    gone = next(item for item in source if isinstance(item, ast.Expr) and getattr(item.value, "value", 0) == "gone")
    source.remove(gone)
    if not source:
        source.append(ast.Pass())
    assert got == dumped(module.tree)


@given(modules(), st.data())
def test_nest(module: Module, data: st.DataObject) -> None:
    statement = data.draw(st.sampled_from([s for s in statements(module) if not is_elif(module, s)]))
    got = result(module, edit.nest(module, [statement], "if guard:"))
    block = module.block(statement)
    at = next(i for i, item in enumerate(block) if item is statement)
    block[at] = ast.If(ast.Name("guard", ast.Load()), [statement], [])
    assert got == dumped(module.tree)


@given(modules(), st.data())
def test_what_stands_outside_the_edits_is_kept(module: Module, data: st.DataObject) -> None:
    statement = data.draw(st.sampled_from([s for s in statements(module) if not is_elif(module, s)]))
    edits = edit.insert_before(module, statement, ["new()"])
    text = module.source.text
    changed = apply_edits(text, edits)
    assert len(edits) == 1
    assert changed.startswith(text[: edits[0].start])
    assert changed.endswith(text[edits[0].end :])
    assert set(changed.replace("new()", "")) <= set(text) | {";", " ", "\n"}


OPERANDS = [
    "a",
    "-a",
    "a + b",
    "a * b",
    "a ** b",
    "not a",
    "a or b",
    "a if b else c",
    "lambda: a",
    "f(a)",
    "(a, b)",
    "1",
]


@given(st.lists(st.sampled_from(OPERANDS), min_size=1, max_size=4), st.sampled_from(OPERANDS), st.booleans())
def test_replace_puts_the_new_expression_in_the_place_of_the_old(parts: list[str], new: str, brackets: bool) -> None:
    """In any place, with or without the old one's parentheses."""
    text = parts[0]
    for part in parts[1:]:
        text = re.sub(r"\ba\b", f"({text})", part, count=1)
    module = parse(Source(Path("a.py"), f"x = {text}\n"))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.expr) and not isinstance(getattr(node, "ctx", None), ast.Store):
            got = ast.unparse(
                ast.parse(apply_edits(module.source.text, [edit.replace(module, node, new, parentheses=brackets)]))
            )
            start, end = edit.layout(module).span(node, parentheses=True)
            expected = f"{module.source.text[:start]}({new}){module.source.text[end:]}"
            assert got == ast.unparse(ast.parse(expected))
