"""Text surgery: each case is a program, what is done to it, and the exact text that comes out."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from amplint import edit
from amplint.rule import Edit
from amplint.source import Source, apply_edits
from amplint.tree import Module, parse


def module_of(text: str) -> Module:
    return parse(Source(Path("main.py"), text))


def applied(text: str, change: Callable[[Module], Iterable[Edit]]) -> str:
    """The text after `change`, which must still be Python."""
    result = apply_edits(text, change(module_of(text)))
    ast.parse(result)
    return result


def call(module: Module, name: str) -> ast.Call:
    """The first call of something whose text ends in `name`."""
    return next(node for node in module.calls if module.source.segment(node.func).endswith(name))


def statement(module: Module, start: str) -> ast.stmt:
    """The first statement whose text starts so."""
    found = [node for node in ast.walk(module.tree) if isinstance(node, ast.stmt)]
    return next(node for node in found if module.source.segment(node).startswith(start))


def expression(module: Module, text: str) -> ast.expr:
    found = [node for node in ast.walk(module.tree) if isinstance(node, ast.expr)]
    return next(node for node in found if module.source.segment(node) == text)


# -- expressions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "least", "expected"),
    [
        ("a - b", edit.Precedence.UNARY, "(a - b)"),
        ("a - b", edit.Precedence.SUM, "a - b"),
        ("(a - b)", edit.Precedence.ATOM, "(a - b)"),
        ("(a) - (b)", edit.Precedence.ATOM, "((a) - (b))"),
        ("(a), (b)", edit.Precedence.LAMBDA, "((a), (b))"),
        ("(a, b)", edit.Precedence.ATOM, "(a, b)"),
        ("f(x)[0].y", edit.Precedence.ATOM, "f(x)[0].y"),
        ("1", edit.Precedence.ATOM, "(1)"),
        ("-x", edit.Precedence.POWER, "(-x)"),
        ("x if y else z", edit.Precedence.OR, "(x if y else z)"),
        ("lambda: x", edit.Precedence.LAMBDA, "lambda: x"),
        ("a\n+ b", edit.Precedence.TUPLE, "(a\n+ b)"),
        ("f(a,\n  b)", edit.Precedence.ATOM, "f(a,\n  b)"),
        ("(x := 1)", edit.Precedence.ATOM, "(x := 1)"),
        ("yield x", edit.Precedence.LAMBDA, "(yield x)"),
    ],
)
def test_operand(text: str, least: edit.Precedence, expected: str) -> None:
    assert edit.operand(text, least) == expected


@pytest.mark.parametrize(
    ("text", "old", "new", "expected"),
    [
        ("y = -x\n", "x", "a - b", "y = -(a - b)\n"),
        ("y = x * 2\n", "x", "a - b", "y = (a - b) * 2\n"),
        ("y = 2 - x\n", "x", "a - b", "y = 2 - (a - b)\n"),
        ("y = x - 2\n", "x", "a - b", "y = a - b - 2\n"),
        ("y = x ** 2\n", "x", "-a", "y = (-a) ** 2\n"),
        ("y = 2 ** x\n", "x", "-a", "y = 2 ** -a\n"),
        ("y = x.sum()\n", "x", "a + b", "y = (a + b).sum()\n"),
        ("f(x, 1)\n", "x", "a, b", "f((a, b), 1)\n"),
        ("y = (x) * 2\n", "x", "a - b", "y = (a - b) * 2\n"),
        ("y = not x\n", "x", "a or b", "y = not (a or b)\n"),
        ("y = [i for i in x]\n", "x", "a if b else c", "y = [i for i in (a if b else c)]\n"),
        ("y = x[0]\n", "x", "-a", "y = (-a)[0]\n"),
    ],
)
def test_replace_keeps_the_reading(text: str, old: str, new: str, expected: str) -> None:
    assert applied(text, lambda m: [edit.replace(m, expression(m, old), new)]) == expected


@pytest.mark.parametrize(
    ("text", "old", "new", "expected"),
    [
        ("return_ = (x)\n", "x", "y", "return_ = y\n"),
        ("def f():\n    return(x)\n", "x", "y", "def f():\n    return y\n"),
        ("y = 0 if(x)else 1\n", "x", "z", "y = 0 if z else 1\n"),
        ("y = ((x)) * 2\n", "x", "a + b", "y = (a + b) * 2\n"),
        ("y = f((x))\n", "x", "z", "y = f(z)\n"),
        ("y = f(x)\n", "x", "z", "y = f(z)\n"),
        ("y = (  # why\n    x\n)\n", "x", "z", "y = z\n"),
        ("class A(B): pass\n", "B", "C", "class A(C): pass\n"),
        ("f(x)\n(a + b).sum()\n", "a + b", "g(a)", "f(x)\ng(a).sum()\n"),
        ("y = '(' + (x) + ')'\n", "x", "z", "y = '(' + z + ')'\n"),
    ],
)
def test_replace_with_its_own_parentheses(text: str, old: str, new: str, expected: str) -> None:
    assert applied(text, lambda m: [edit.replace(m, expression(m, old), new, parentheses=True)]) == expected


# -- inserting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "lines", "expected"),
    [
        ("step()\n", ["a()"], "a()\nstep()\n"),
        (
            "if x:\n    # lead\n    # more\n    step()\n",
            ["a()"],
            "if x:\n    a()\n    # lead\n    # more\n    step()\n",
        ),
        ("b()\n\n# lead\nstep()\n", ["a()"], "b()\n\na()\n# lead\nstep()\n"),
        ("# %%\nstep()\n", ["a()"], "# %%\na()\nstep()\n"),
        ("b()  # not leading\nstep()\n", ["a()"], "b()  # not leading\na()\nstep()\n"),
        ("if x:\n    b()\n    # deeper\nstep()\n", ["a()"], "if x:\n    b()\n    # deeper\na()\nstep()\n"),
        ("b(); step(); c()\n", ["a()"], "b(); a(); step(); c()\n"),
        ("if x: step()\n", ["a()", "b()"], "if x: a(); b(); step()\n"),
        ("if x: b(); step()  # c\n", ["if y:", "    a()"], "if x:\n    b()\n    if y:\n        a()\n    step()  # c\n"),
        ("b(); step()\n", ["if y:", "    a()"], "b()\nif y:\n    a()\nstep()\n"),
        ("step(); b()\n", ["if y:", "    a()"], "if y:\n    a()\nstep(); b()\n"),
        ("if x:\r\n\tstep()\r\n", ["if y:", "    a()"], "if x:\r\n\tif y:\r\n\t\ta()\r\n\tstep()\r\n"),
        ("if x:\n  step()", ["if y:", "    a()"], "if x:\n  if y:\n    a()\n  step()"),
        ("if x:\n    b()\n\f    step()\n", ["a()"], "if x:\n    b()\n    a()\n\f    step()\n"),
        ('"""\n  # text\n"""\nstep()\n', ["a()"], '"""\n  # text\n"""\na()\nstep()\n'),
    ],
)
def test_insert_before(text: str, lines: list[str], expected: str) -> None:
    assert applied(text, lambda m: edit.insert_before(m, statement(m, "step"), lines)) == expected


def test_insert_before_below_comments() -> None:
    text = "# lead\nstep()\n"
    changed = applied(text, lambda m: edit.insert_before(m, statement(m, "step"), ["a()"], above_comments=False))
    assert changed == "# lead\na()\nstep()\n"


def test_insert_before_decorators() -> None:
    text = "@d\n@e(1)\ndef step(): ...\n"
    assert applied(text, lambda m: edit.insert_before(m, m.functions[0], ["a()"])) == "a()\n" + text


def test_insert_before_elif_goes_before_its_if() -> None:
    text = "if a:\n    pass\nelif b:\n    pass\n"
    changed = applied(text, lambda m: edit.insert_before(m, m.tree.body[0].orelse[0], ["c()"]))  # type: ignore[attr-defined]
    assert changed == "c()\n" + text


@pytest.mark.parametrize(
    ("text", "lines", "expected"),
    [
        ("step()\n", ["a()"], "step()\na()\n"),
        ("step()  # c\nb()\n", ["a()"], "step()  # c\na()\nb()\n"),
        ("if x:\n    step()", ["a()", "b()"], "if x:\n    step()\n    a()\n    b()"),
        ("step(); b()\n", ["a()"], "step(); a(); b()\n"),
        ("b(); step()\nc()\n", ["a()"], "b(); step()\na()\nc()\n"),
        ("if x: step()\nelse: b()\n", ["a()"], "if x: step(); a()\nelse: b()\n"),
        ("if x: step()  # c\n", ["if y:", "    a()"], "if x:\n    step()  # c\n    if y:\n        a()\n"),
        ("step(\n    1,\n)\n", ["a()"], "step(\n    1,\n)\na()\n"),
        ("if x:\r\n\tstep()\r\n", ["a()"], "if x:\r\n\tstep()\r\n\ta()\r\n"),
    ],
)
def test_insert_after(text: str, lines: list[str], expected: str) -> None:
    assert applied(text, lambda m: edit.insert_after(m, statement(m, "step"), lines)) == expected


def test_insert_after_a_block_and_its_last_comment() -> None:
    text = "for x in y:\n    b()\n    # of the loop\n# of the rest\nc()\n"
    changed = applied(text, lambda m: edit.insert_after(m, m.tree.body[0], ["a()"]))
    assert changed == "for x in y:\n    b()\n    # of the loop\na()\n# of the rest\nc()\n"


# -- removing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a()\nstep()  # gone\nb()\n", "a()\nb()\n"),
        ("if x:\n    step()  # gone\nb()\n", "if x:\n    pass\nb()\n"),
        ("if x:\n    # stays\n    step()\n", "if x:\n    # stays\n    pass\n"),
        ("a(); step(); b()\n", "a(); b()\n"),
        ("step(); b()  # stays\n", "b()  # stays\n"),
        ("a(); step()  # stays\n", "a()  # stays\n"),
        ("a(); step();\n", "a();\n"),
        ("if x: step()\n", "if x: pass\n"),
        ("if x: a(); step()\n", "if x: a()\n"),
        ("a()\nstep()", "a()"),
        ("a()\r\nstep()", "a()"),
        ("step()\n", ""),
        ("a()\nstep(\n    1,  # one\n)\nb()\n", "a()\nb()\n"),
        ('a()\nstep("""\nb()\n""")\nc()\n', "a()\nc()\n"),
        ("a()\nstep(1) \\\n    + 2\nc()\n", "a()\nc()\n"),
    ],
)
def test_remove(text: str, expected: str) -> None:
    assert applied(text, lambda m: edit.remove_statement(m, statement(m, "step"))) == expected


def test_remove_several_of_a_line_and_a_block() -> None:
    text = "a(); b(); c(); d()\nif x:\n    e()\n    f()\n"
    body = ["b()", "c()", "e()", "f()"]
    changed = applied(text, lambda m: edit.remove_statements(m, [statement(m, name) for name in body]))
    assert changed == "a(); d()\nif x:\n    pass\n"
    changed = applied(text, lambda m: edit.remove_statements(m, [statement(m, name) for name in ("a()", "b()", "d()")]))
    assert changed == "c()\nif x:\n    e()\n    f()\n"


# -- moving ----------------------------------------------------------------------------------------------------------


def test_move_out_of_a_block_with_its_comment() -> None:
    text = "with x:\n    a()\n    # scaled\n    step()\nb()\n"
    changed = applied(text, lambda m: edit.move_after(m, [statement(m, "step")], m.tree.body[0]))
    assert changed == "with x:\n    a()\n# scaled\nstep()\nb()\n"


def test_move_at_the_end_of_a_file_without_newline() -> None:
    text = "with x:\n    a()\n    step()"
    changed = applied(text, lambda m: edit.move_after(m, [statement(m, "step")], m.tree.body[0]))
    assert changed == "with x:\n    a()\nstep()"


def test_move_under_a_guard_keeps_strings() -> None:
    text = 'step("""\n  text\n""",\n     1)\nother()\nif x:\n\tlast()\n'
    moved = ["step", "other"]
    changed = applied(text, lambda m: edit.move_before(m, [statement(m, s) for s in moved], statement(m, "last")))
    assert changed == 'if x:\n\tstep("""\n  text\n""",\n\t     1)\n\tother()\n\tlast()\n'


def test_move_past_the_next_statement() -> None:
    text = "a()\nstep()\nb()\n"
    assert (
        applied(text, lambda m: edit.move_before(m, [statement(m, "step")], statement(m, "a"))) == "step()\na()\nb()\n"
    )
    assert (
        applied(text, lambda m: edit.move_after(m, [statement(m, "step")], statement(m, "b"))) == "a()\nb()\nstep()\n"
    )


def test_move_within_a_line() -> None:
    text = "a(); step(); b()\nif x: c()\n"
    assert (
        applied(text, lambda m: edit.move_after(m, [statement(m, "step")], statement(m, "c")))
        == "a(); b()\nif x: c(); step()\n"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a()\n# lead\nstep()\nb()\n", "a()\nif x:\n    # lead\n    step()\nb()\n"),
        ("a(); step(); b()\n", "a()\nif x:\n    step()\nb()\n"),
        ("if y: step()\n", "if y:\n    if x:\n        step()\n"),
        ('if y:\n\tstep("""\n""")\n', 'if y:\n\tif x:\n\t\tstep("""\n""")\n'),
    ],
)
def test_nest(text: str, expected: str) -> None:
    assert applied(text, lambda m: edit.nest(m, [statement(m, "step")], "if x:")) == expected


# -- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f()\n", "f(eps=1)\n"),
        ("f(a)\n", "f(a, eps=1)\n"),
        ("f(a,)\n", "f(a, eps=1,)\n"),
        ("f(a, **k)\n", "f(a, **k, eps=1)\n"),
        ("f(a, eps=(2 + 3))\n", "f(a, eps=1)\n"),
        ("f(x for x in y)\n", "f((x for x in y), eps=1)\n"),
        ("f(\n    a,  # first\n    b,  # second\n)\n", "f(\n    a,  # first\n    b,  # second\n    eps=1,\n)\n"),
        ("f(\n    a,\n    b  # second\n)\n", "f(\n    a,\n    b,  # second\n    eps=1\n)\n"),
        ("f(a,\n  b)\n", "f(a,\n  b, eps=1)\n"),
        ("f(\n    a, b\n)\n", "f(\n    a, b, eps=1\n)\n"),
    ],
)
def test_set_argument(text: str, expected: str) -> None:
    assert applied(text, lambda m: edit.set_argument(m, call(m, "f"), "eps", "1")) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f()\n", 'f("cuda")\n'),
        ("f(a)\n", 'f("cuda", a)\n'),
        ("f((a), b)\n", 'f("cuda", (a), b)\n'),
        ("f(**k)\n", 'f("cuda", **k)\n'),
        ("f(\n    a,\n)\n", 'f(\n    "cuda",\n    a,\n)\n'),
        ("f(x for x in y)\n", 'f("cuda", (x for x in y))\n'),
        ("f(  # c\n)\n", 'f(  # c\n"cuda")\n'),
    ],
)
def test_prepend_argument(text: str, expected: str) -> None:
    assert applied(text, lambda m: edit.prepend_argument(m, call(m, "f"), '"cuda"')) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f(a, eps=1)\n", "f(a)\n"),
        ("f(eps=1, b=2)\n", "f(b=2)\n"),
        ("f(eps=(1),)\n", "f()\n"),
        ("f(a, eps=1, b=2)\n", "f(a, b=2)\n"),
        ("f(\n    a,\n    eps=1,  # tiny\n    b=2,\n)\n", "f(\n    a,\n    b=2,\n)\n"),
        ("f(\n    a,\n    eps=1\n)\n", "f(\n    a,\n)\n"),
    ],
)
def test_remove_argument(text: str, expected: str) -> None:
    assert applied(text, lambda m: edit.remove_argument(m, call(m, "f"), "eps")) == expected


def test_remove_a_positional_argument() -> None:
    assert (
        applied("f(a, 2.0, True)\n", lambda m: edit.remove_argument(m, call(m, "f"), call(m, "f").args[2]))
        == "f(a, 2.0)\n"
    )


def test_name_an_argument() -> None:
    assert applied("f(1, (use))\n", lambda m: edit.name_argument(m, call(m, "f"), 1, "on")) == "f(1, on=(use))\n"


def test_append_to_a_dict() -> None:
    text = 'save({\n    "a": 1,\n    **rest,\n})\n'
    changed = applied(text, lambda m: edit.append_item(m, call(m, "save").args[0], '"s": 2'))  # type: ignore[arg-type]
    assert changed == 'save({\n    "a": 1,\n    **rest,\n    "s": 2,\n})\n'
    changed = applied('save({"a": 1})\n', lambda m: edit.append_item(m, call(m, "save").args[0], '"s": 2'))  # type: ignore[arg-type]
    assert changed == 'save({"a": 1, "s": 2})\n'


# -- imports ---------------------------------------------------------------------------------------------------------

SOFTPLUS = "torch.nn.functional.softplus"


@pytest.mark.parametrize(
    ("text", "dotted", "spelling", "imports"),
    [
        ("import torch.nn.functional as fn\n", SOFTPLUS, "fn.softplus", ""),
        ("import torch as th\n", SOFTPLUS, "th.nn.functional.softplus", ""),
        ("from torch import nn\n", SOFTPLUS, "nn.functional.softplus", ""),
        ("from torch.nn.functional import *\n", SOFTPLUS, "softplus", ""),
        (
            "from torch import log, softmax\n",
            "torch.log_softmax",
            "log_softmax",
            "from torch import log, log_softmax, softmax\n",
        ),
        (
            "from torch import softmax, log\n",
            "torch.log_softmax",
            "log_softmax",
            "from torch import softmax, log, log_softmax\n",
        ),
        (
            "from torch import (\n    log,  # l\n    sqrt,\n)\n",
            "torch.tanh",
            "tanh",
            "from torch import (\n    log,  # l\n    sqrt,\n    tanh,\n)\n",
        ),
        (
            "from torch import Tensor\ntanh = 1\n",
            "torch.tanh",
            "torch.tanh",
            "import torch\nfrom torch import Tensor\ntanh = 1\n",
        ),
        (
            "from torch import Tensor\n",
            SOFTPLUS,
            "F.softplus",
            "import torch.nn.functional as F\nfrom torch import Tensor\n",
        ),
        ("import torch\n", "math.log", "math.log", "import math\n\nimport torch\n"),
        (
            '"""Doc."""\nimport os\nimport sys\nimport torch\n',
            "math.log",
            "math.log",
            '"""Doc."""\nimport math\nimport os\nimport sys\nimport torch\n',
        ),
        ("import math as m\n", "math.log", "m.log", ""),
        ('"""Doc."""\n', "math.log", "math.log", '"""Doc."""\n\nimport math\n'),
        ("#!/usr/bin/python\n", "math.log", "math.log", "#!/usr/bin/python\nimport math\n\n"),
        (
            "from __future__ import annotations\n",
            "math.log",
            "math.log",
            "from __future__ import annotations\n\nimport math\n",
        ),
        (
            "import numpy\r\nF = 1\r\n",
            SOFTPLUS,
            "torch.nn.functional.softplus",
            "import numpy\r\nimport torch\r\nF = 1\r\n",
        ),
        (
            "import numpy\ntorch = F = 1\n",
            SOFTPLUS,
            "_torch.nn.functional.softplus",
            "import numpy\nimport torch as _torch\ntorch = F = 1\n",
        ),
    ],
)
def test_add_import(text: str, dotted: str, spelling: str, imports: str) -> None:
    module = module_of(text + "use()\n")
    found, edits = edit.add_import(module, dotted, module.tree.body[-1])
    assert found == spelling
    assert apply_edits(module.source.text, edits) == (imports or text) + "use()\n"


# -- what a fix leaves unused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "removed", "kept", "expected"),
    [
        ("p = torch.softmax(x, 1)\nreturn torch.log(p)", "torch.log(p)", "", ["p = torch.softmax(x, 1)"]),
        ("p: int = x.softmax(1)\nreturn torch.log(p)", "torch.log(p)", "", ["p: int = x.softmax(1)"]),
        ("z = x * 2\np = z.softmax(1)\nreturn torch.log(p)", "torch.log(p)", "z", ["p = z.softmax(1)"]),
        ("z = x * 2\np = z.exp()\nreturn torch.log(p)", "torch.log(p)", "", ["z = x * 2", "p = z.exp()"]),
        ("p = torch.softmax(x, 1)\nreturn torch.log(p), p", "torch.log(p)", "", []),
        ("p = torch.softmax(x, 1)\ng = lambda: p\nreturn torch.log(p)", "torch.log(p)", "", []),
        ("p = torch.softmax(x, 1)\nself.p = p\nreturn torch.log(p)", "torch.log(p)", "", []),
        ("p = self.net(x)\nreturn torch.log(p)", "torch.log(p)", "", []),
        ("p = x.exp_()\nreturn torch.log(p)", "torch.log(p)", "", []),
        ("p, q = x, y\nreturn torch.log(p)", "torch.log(p)", "", []),
        ("p = torch.softmax(x, 1)\np += 1\nreturn torch.log(p)", "torch.log(p)", "", []),
        ("global p\np = torch.softmax(x, 1)\nreturn torch.log(p)", "torch.log(p)", "", []),
        ("p = torch.softmax(x, 1)\nprint(locals())\nreturn torch.log(p)", "torch.log(p)", "", []),
        ("return torch.log(x)", "torch.log(x)", "", []),
        ("p = x.exp()\np = p / p.sum()\nreturn p", "p / p.sum()", "", ["p = x.exp()"]),
        ("p = x.exp()\nif y:\n    p = p / p.sum()\nreturn p", "p / p.sum()", "", []),
    ],
)
def test_unused_after(body: str, removed: str, kept: str, expected: list[str]) -> None:
    module = module_of("import torch\ndef f(self, x, y):\n" + "".join(f"    {line}\n" for line in body.splitlines()))
    repeated = [node.func.value for node in module.calls if isinstance(node.func, ast.Attribute)] if kept else []
    found = edit.unused_after(module, [expression(module, removed)], [n for n in repeated if ast.unparse(n) == kept])
    assert [module.source.segment(statement) for statement in found] == expected


def test_unused_after_a_long_chain() -> None:
    chain = "".join(f"    {'yx'[n % 2]} = torch.exp({'xy'[n % 2]})\n" for n in range(3000))
    module = module_of(f"import torch\ndef f(x):\n{chain}    return torch.log(x)\n")
    begun = time.process_time()
    found = edit.unused_after(module, [expression(module, "torch.log(x)")])
    assert len(found) == 3000
    assert time.process_time() - begun < 5
