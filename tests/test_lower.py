"""Reading through LibCST gives the tree that `ast` gives, and reads what the running Python does not know."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

from amplint.lower import _deeply, _lowered, parse_with_libcst
from amplint.source import Source
from amplint.tree import parse

EVERYTHING = '''\
#!/usr/bin/env python
"""Doc."""
from __future__ import annotations
import a.b, c as d
from . import (e as f, g,)
from ..h.i import *
from j import k; global_ = 1

x: int = (1)
z.w: "s"
p = q = (r, *s)
p, = q
p += 1; p -= 2; p *= 3; p /= 4; p //= 5; p %= 6; p **= 7; p @= 8; p &= 9; p |= 1; p ^= 1; p <<= 1; p >>= 1
del a, (b), c[0]
del (a, b)
assert x, ("y")
raise E from (c)
return_ = lambda a, /, b=1, *c, d, e=2, **f: (yield)
pass
1_000, 0x1F, 1.5e3, 2j, ..., True, None, b"x" b"y", "a" 'b', r"\\d", u"x", -1
(a)+b*c-d/e//f%g@h**i<<j>>k&l|m^n
not a and b and c or d or (e or f)
~a; +b
a < b <= c > d >= e == f != g is h is not i in j not in k
a if b else c
(a := b)
[*a, b], {c, *d}, {e: f, **g}, (), (h,), [], {}
[i for i in j if k if l for m in n], {i for i in j}, {i: j for i, j in k}, (i for i in j)
f(i for i in j)
f( (i for i in j) )
f(a, *b, c=(d), **e)(g)[h, i:j, k:l:m][:][n,]
(  # comment
    a . b
    .c
)
f"""{a} {b!r:>{c}} {{}} {d=} {e!s}
{f:%Y}""" "plain" rf'\\d{g}'
"é" + é.ü(ñ)


@dec.orator(1)
@(other)
async def f(a, b: int = 1, *args: (str), c, d: int = 2, **kwargs) -> "x":
    async with a as b, c as (d, e):
        await f
    async for a in b:
        continue
    else:
        pass
    return [i async for i in j]
    return


def g(*, a): yield from a; return a, b


class C(A, *d, metaclass=M, **e):
    class D: pass

    x = 1


if a: b
elif c:
    d
elif e: f; g
else:
    h
while a:
    break
else: b
for a, b in c, d:
    nonlocal_ = 1
try:
    a
except B: c
except (D, E) as e:
    f
except:
    g
else:
    h
finally:
    i
with (a as b, c as d,):
    e
with (a): b
with a, b as c: d
'''

MATCH = """\
match a, b:
    case [C(d, e=1), *f] | (g, *_) if h: pass
    case {"a": 1, **i}: pass
    case {b.c: _, -1: None}: pass
    case -1 | 1+2j | j.k | "l" "m" | True: pass
    case (n as o): pass
    case [p]: pass
    case q, r: pass
    case _: pass
"""


def difference(one: Any, other: Any, path: str = "", in_format: bool = False) -> str | None:
    """Where two trees differ, positions included, save those within f-strings, which the Pythons give differently."""
    if type(one) is not type(other):
        return f"{path}: {one!r} is not {other!r}"
    if isinstance(one, ast.AST):
        attributes = () if in_format else one._attributes
        inside = in_format or isinstance(one, ast.JoinedStr)
        pairs = [(name, inside) for name in one._fields] + [(name, in_format) for name in attributes]
        found = (difference(getattr(one, n, None), getattr(other, n, None), f"{path}.{n}", i) for n, i in pairs)
        return next(filter(None, found), None)
    if isinstance(one, list):
        if in_format:  # 3.12 gives empty texts
            one, other = ([v for v in side if getattr(v, "value", None) != ""] for side in (one, other))
        if len(one) != len(other):
            return f"{path}: {len(one)} items, not {len(other)}"
        found = (difference(a, b, f"{path}[{i}]", in_format) for i, (a, b) in enumerate(zip(one, other, strict=True)))
        return next(filter(None, found), None)
    return None if one == other else f"{path}: {one!r} != {other!r}"


def lowered(text: str) -> ast.Module:
    tree, _ = _deeply(lambda: _lowered(text))
    assert tree is not None
    return tree


@pytest.mark.parametrize("text", [EVERYTHING, EVERYTHING.replace("\n", "\r\n"), MATCH, "", "# only", "x", "\fx = 1\r"])
def test_the_tree_is_that_of_ast(text: str) -> None:
    assert difference(ast.parse(text), lowered(text)) is None


@pytest.mark.parametrize("name", ["dataclasses", "enum", "functools", "tokenize"])
def test_modules_of_the_standard_library(name: str) -> None:
    text = Path(ast.__file__).with_name(f"{name}.py").read_text("utf-8")
    assert difference(ast.parse(text), lowered(text)) is None


NEWER = [
    ((3, 11), "try:\n    pass\nexcept* E as e:\n    CALL\n"),
    ((3, 11), "x[*a, CALL]\n"),
    ((3, 11), "def f(*a: *Ts): CALL\n"),
    ((3, 12), "type X[T: int, *Ts, **P] = list[T]\nCALL\n"),
    ((3, 12), "class A[T](B):\n    CALL\n"),
    ((3, 12), "def f[T](a: T) -> T: CALL\n"),
    ((3, 12), "f'{d['k']} {CALL}'\n"),
    ((3, 12), "f'{\n    x  # why\n}' + CALL\n"),
    ((3, 13), "class A[T = int, *Ts = *B, **P = [int]]: CALL\n"),
    ((3, 14), "try:\n    pass\nexcept A, B:\n    CALL\n"),
    ((3, 14), "x = t'a {b!r:>{c}}' + CALL\n"),
]


@pytest.mark.parametrize(("version", "text"), NEWER)
def test_newer_syntax_is_read(version: tuple[int, int], text: str) -> None:
    source = Source(Path("a.py"), text.replace("CALL", "é(name)"))
    module = parse(source)
    assert [source.segment(call) for call in module.calls] == ["é(name)"]
    if sys.version_info >= version and "'" not in text:
        assert difference(ast.parse(source.text), lowered(source.text)) is None


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("x = 1\ny = f(1, 2\n", 2, 6, "'(' was never closed"),
        ("x = 1\nprint 'a'\n", 2, 1, "Missing parentheses"),
        ("x = 1\ny = 'a\0'\n", 2, 7, "a NUL byte"),
        ("f(a=1, 2)\n", 1, 9, "positional argument follows"),
        ("x = b'é'\n", 1, 0, "bytes can only contain ASCII"),
        ("if x:\n\ta\n        b\n", 3, 0, "inconsistent use of tabs"),
        ("def f(a=1, b): pass\n", 1, 12, ""),
        ("f" + "(" * 1000 + ")" * 1000, 1, 0, "too many nested parentheses"),
    ],
)
def test_what_is_no_python(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(SyntaxError) as caught:
        parse_with_libcst(text)
    assert caught.value.lineno == line
    assert caught.value.offset == column or not column or sys.version_info[:2] != (3, 11)
    assert message in caught.value.msg


FIXED_BOUND = pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="deeper than this Python itself can read")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(" + ".join(["x"] * 3000), marks=FIXED_BOUND),
        pytest.param("x" + ".f()" * 1500, marks=FIXED_BOUND),
        "-" * 1500 + "x",
        "x if y else " * 1000 + "z",
        "if a:\n  b\n" + "elif a:\n  b\n" * 1000,
        "x = [\n" + "  1,\n" * 100_000 + "]\n",
        "'" + "a" * 10_000_000 + "'",
    ],
    ids=["sum", "calls", "minus", "conditional", "elif", "lines", "string"],
)
def test_deep_and_long_programs_are_read(text: str) -> None:
    assert len(parse(Source(Path("a.py"), text)).tree.body) == 1


@pytest.mark.parametrize(
    "text", ["(" * 9999, "f'{" * 9999, "not " * 99999 + "x", "x" + "[0]" * 9999, "a" + "+a" * 9999]
)
def test_what_is_broken_and_deep_is_refused_in_time(text: str) -> None:
    with pytest.raises(SyntaxError):
        parse(Source(Path("a.py"), text + "\nprint 'old'\n"))
