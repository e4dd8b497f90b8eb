"""What the float16 rules share: where a cast goes, what becomes of a value, and what reaches a place in float16."""

from __future__ import annotations

import ast
import textwrap

import pytest

from amplint import half, uses
from amplint.context import Analyses, Context, Options
from amplint.project import Project
from amplint.registry import all_rules
from amplint.source import Source
from amplint.tree import Module, parse
from amplint.uses import Role
from amplint.values import Dtype
from tests.programs import MAIN, ROOT, fixed

HALF, FULL = {Dtype.FLOAT16}, {Dtype.FLOAT32}


def module(text: str) -> Module:
    return parse(Source(ROOT / MAIN, textwrap.dedent(text)))


def expression(found: Module, text: str) -> ast.expr:
    """The first expression of a file that is spelled `text`."""
    return next(n for n in found.parents if isinstance(n, ast.expr) and found.source.segment(n) == text)


def dtypes(text: str, wanted: str) -> set[Dtype]:
    """The dtypes of an expression in all known ways to reach it."""
    source = Source(ROOT / MAIN, textwrap.dedent(text))
    project = Project([source.path], {source.path: source}.__getitem__)
    context = Context(project.whole(source.path) or module(""), Analyses(project, Options()))
    (value,) = context.values.of(context.module, expression(context.module, wanted))
    *reached, outside = context.values.seen(value)
    return {dtype for seen in reached or [outside] for dtype in seen.dtypes}


@pytest.mark.parametrize(
    ("text", "operand", "expected"),
    [
        ("x + 1", "x", "x.float() + 1"),
        ("a - b + 1", "a - b", "(a - b).float() + 1"),
        ("(a - b) + 1", "a - b", "(a - b).float() + 1"),
        ("-a + 1", "-a", "(-a).float() + 1"),
        ("f(a - b, c)", "a - b", "f((a - b).float(), c)"),
        ("f((a - b), c)", "a - b", "f((a - b).float(), c)"),
        ("a[0].b(c) + 1", "a[0].b(c)", "a[0].b(c).float() + 1"),
        ("(a\n - b  # why\n) + 1", "a\n - b", "(a\n - b  # why\n).float() + 1"),
    ],
)
def test_a_cast_binds_to_the_whole_operand(text: str, operand: str, expected: str) -> None:
    found = module(text)
    for edit in sorted(half.upcast(found, expression(found, operand)), reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    assert text == expected


@pytest.mark.parametrize(
    ("body", "role"),
    [
        ("return a / (x + e)", Role.DENOMINATOR),
        ("return a / torch.sqrt(x + e)", Role.DENOMINATOR),
        ("return a * torch.rsqrt(x + e)", Role.DENOMINATOR),
        ("return (x + e) ** -0.5", Role.DENOMINATOR),
        ("return (x + e).unsqueeze(1).reciprocal()", Role.DENOMINATOR),
        ("return torch.div(a, x + e)", Role.DENOMINATOR),
        ("d = x + e\n    d = d * 2\n    return a / d", Role.DENOMINATOR),
        ("return torch.log(x + e)", Role.OTHER),
        ("return (x + e).log() / a", Role.OTHER),
        ("return (x + e) ** 2", Role.OTHER),
        ("return (x + e) > a", Role.OTHER),
        ("d = x + e\n    return d.log()", Role.OTHER),
        ("return x + e", Role.UNKNOWN),
        ("return helper(x + e)", Role.UNKNOWN),
        ("return (x + e) / a", Role.UNKNOWN),
    ],
)
def test_what_becomes_of_a_value(body: str, role: Role) -> None:
    found = module(f"import torch\ndef f(a, x, e):\n    {body}\n")
    assert uses.use(found, expression(found, "x + e")).role is role


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        pytest.param(
            """
            import torch
            def f(layer: torch.nn.Linear, x):
                with torch.autocast("cuda"):
                    return layer(x)
            """,
            HALF,
            id="a parameter annotated with a class of torch.nn",
        ),
        pytest.param(
            """
            import torch
            def f(layer: torch.nn.Linear, x, amp):
                with torch.autocast("cuda", enabled=amp):
                    h = layer(x)
                    layer(x)
                    return torch.log(layer(x))
            """,
            HALF | FULL,
            id="a region behind a flag",
        ),
        pytest.param(
            """
            import torch
            def save(path):
                model = torch.nn.Linear(2, 2)
                torch.save(model.half().state_dict(), path)
                layer = model
                return layer(x)
            """,
            FULL,
            id="a cast for a checkpoint",
        ),
        pytest.param(
            """
            import torch
            def f(layer, x):
                layer = torch.nn.Linear(2, 2)
                x = x.type(torch.cuda.HalfTensor)
                layer = torch.relu
                return layer(x)
            """,
            HALF,
            id="an old tensor type",
        ),
    ],
)
def test_dtype_of_a_call(program: str, expected: set[Dtype]) -> None:
    assert dtypes(program, "layer(x)") == expected


def test_a_function_on_the_float32_list_gives_float32_whatever_the_flag() -> None:
    program = """
    import torch
    def f(layer: torch.nn.Linear, x, amp):
        with torch.autocast("cuda", enabled=amp):
            return torch.log(layer(x))
    """
    assert dtypes(program, "torch.log(layer(x))") == FULL


def test_custom_fwd_casts_what_a_function_is_applied_to() -> None:
    program = """
    import torch
    from torch.amp import custom_fwd

    class Exp(torch.autograd.Function):
        @staticmethod
        @custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx, x):
            return torch.exp(x)

    exponential = Exp.apply

    def f(layer: torch.nn.Linear, z):
        with torch.autocast("cuda"):
            return exponential(layer(z))
    """
    assert dtypes(program, "exponential(layer(z))") == FULL
    assert dtypes(program, "layer(z)") == HALF


def test_a_branch_by_dtype_is_taken() -> None:
    program = """
    import torch
    def f(layer: torch.nn.Linear, z):
        with torch.autocast("cuda"):
            h = layer(z)
            y = h.float() if h.dtype in (torch.float16, torch.bfloat16) else h
            return y + 0
    """
    assert dtypes(program, "y + 0") == FULL


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        ("h * g + 1e-8", "((h * g).float() + 1e-4).to(h.dtype)"),
        ("1e-8 + h", "(1e-4 + h.float()).to(h.dtype)"),
        ("1e-8 + h * g", "(1e-4 + (h * g).float()).to(h.dtype)"),
    ],
)
def test_a_cast_of_an_operand_and_one_of_the_whole_may_begin_or_end_together(total: str, expected: str) -> None:
    rule = next(rule for rule in all_rules() if rule.code == "AMP301")
    program = "import torch\n\n\ndef f(z, w):\n    h, g = z.half(), w.half()\n    total = {}\n    return h / total\n"
    assert fixed(rule, {MAIN: program.format(total)}) == program.format(expected)
