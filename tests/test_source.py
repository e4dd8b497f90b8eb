"""Bytes to text and back, exactly, and places in all three ways of counting."""

from __future__ import annotations

import ast
import re
import tokenize
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplint.rule import Edit, Position
from amplint.source import Source, UnreadableSourceError

PATH = Path("a.py")


def read(data: bytes) -> Source:
    return Source.from_bytes(PATH, data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x = 1",
        b"\xef\xbb\xbfx = 1\r\n",
        b"# -*- coding: latin-1 -*-\nx = '\xe9'\n",
        b"#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\nx = '\x80'\r",
        "# coding: euc-jp\nx = '日本'\n".encode("euc-jp"),
        "x = '😀é'\n".encode(),
        b"\xef\xbb\xbf# coding: utf-8\n",
        b"# coding: UTF8\n",
        b"\f\n# coding: latin-1\n'\xe9'",
    ],
)
def test_bytes_round_trip(data: bytes) -> None:
    source = read(data)
    assert source.to_bytes(source.text) == data
    assert ast.dump(ast.parse(source.text)) == ast.dump(ast.parse(data))


@pytest.mark.parametrize(
    ("data", "line", "message"),
    [
        (b"x = 1\ny = '\xe9'\n", 2, "not utf-8 text"),
        (b"# coding: klingon\n", 1, "unknown encoding: klingon"),
        (b"\xef\xbb\xbf# coding: latin-1\n", 1, "a UTF-8 mark"),
        (b"# coding: ascii\n\n'\xe9'", 3, "not ascii text"),
        (b"\xff\xfex\x00", 1, "not utf-8 text"),
    ],
)
def test_unreadable_bytes(data: bytes, line: int, message: str) -> None:
    with pytest.raises(UnreadableSourceError, match=message) as caught:
        read(data)
    assert caught.value.line == line


@pytest.mark.parametrize(
    "data",
    [
        b"x = 1\n\n# coding: latin-1\n",
        b"x = 1\n# coding: latin-1\n",
        b'"""\n# coding: latin-1\n"""\n',
    ],
)
def test_a_cookie_below_the_first_lines_is_none(data: bytes) -> None:
    assert read(data).encoding == "utf-8"
    assert tokenize.detect_encoding(iter(data.splitlines(keepends=True)).__next__)[0] == "utf-8"


TEXTS = st.lists(
    st.sampled_from(["x", "é", "日", "😀", "\n", "\r\n", "\r", "\f", "\t", "\x0b", "\x85", "\u2028", " "]), max_size=20
).map("".join)


@given(TEXTS)
def test_positions_round_trip(text: str) -> None:
    """An offset, its line and column, and its line and byte column name the same place."""
    source = Source(PATH, text)
    assert [
        text[a:b] for a, b in zip(source.line_starts, [*source.line_starts[1:], len(text)], strict=True)
    ] == re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]*$", text)[: len(source.line_starts)]
    for offset in range(len(text) + 1):
        place = source.position(offset)
        start = source.line_starts[place.line - 1]
        assert start + place.column - 1 == offset
        assert source.offset(place.line, len(text[start:offset].encode())) == offset


@given(st.lists(st.sampled_from(["é = f('日', 1)", "x = 1", "'''\n😀\n''' + g(ü)", "if x: y"]), max_size=6))
def test_spans_are_those_of_the_nodes(statements: list[str]) -> None:
    source = Source(PATH, "\n".join(statements))
    for node in ast.walk(ast.parse(source.text)):
        if isinstance(node, ast.expr):
            assert source.segment(node) == ast.get_source_segment(source.text, node)


def test_the_newline_is_the_one_used_first() -> None:
    assert [Source(PATH, text).newline for text in ("a\r\nb\n", "a\nb\r\n", "a\r", "a")] == ["\r\n", "\n", "\r", "\n"]


def test_lines_and_columns_of_long_lines() -> None:
    text = "x = [" + "'é', " * 200_000 + "]"
    source = Source(PATH, text)
    items = ast.parse(text).body[0].value.elts  # type: ignore[attr-defined]
    assert all(source.segment(item) == "'é'" for item in items)
    assert source.position(source.span(items[-1])[0]) == Position(1, len(text) - 5)


def test_edited_keeps_encoding_and_mark() -> None:
    source = read(b"\xef\xbb\xbf# coding: utf-8\nx = 1\n")
    assert source.edited([Edit(16, 17, "\u00e9")]).to_bytes("y") == b"\xef\xbb\xbfy"
    assert source.edited([Edit(16, 17, "\u00e9")]).text == "# coding: utf-8\n\u00e9 = 1\n"
