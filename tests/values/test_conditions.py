"""Which branch of a helper runs is told by the constants that its caller hands on; where one is not, both may."""

from __future__ import annotations

import pytest

from tests.values.programs import Program

BOTH = {"log_softmax", "softmax"}


def chosen(test: str, call: str) -> set[str]:
    """The operations that `pick` can give, of which the test chooses one: log_softmax where it holds."""
    program = Program(
        f"""
        import torch
        from torch import nn

        class Config:
            soft = True

        def pick(x, flag=False, mode="soft", kind=None):
            if {test}:
                return torch.log_softmax(x, 1)
            return torch.softmax(x, 1)

        def use(x, y):
            half = x.half()
            return {call}
        """
    )
    return program.ops(call)


@pytest.mark.parametrize(
    ("test", "call", "holds"),
    [
        ("True", "pick(x)", True),
        ("0", "pick(x)", False),
        ("flag", "pick(x)", False),
        ("flag", "pick(x, True)", True),
        ("flag", "pick(x, y)", None),
        ("flag", "pick(x, nn.Linear(2, 2))", None),
        ("flag", "pick(x, len(y))", None),
        ("not flag", "pick(x)", True),
        ("not flag", "pick(x, y)", None),
        ("not not flag", "pick(x)", False),
        ("flag and mode", "pick(x)", False),
        ("flag and mode", "pick(x, True)", True),
        ("flag and mode", "pick(x, y)", None),
        ("flag or mode", "pick(x)", True),
        ("flag or mode", "pick(x, y)", True),
        ("flag or kind", "pick(x)", False),
        ("flag or kind", "pick(x, y)", None),
        ("mode == 'soft'", "pick(x)", True),
        ("mode == 'soft'", "pick(x, mode='hard')", False),
        ("mode == 'soft'", "pick(x, mode=y)", None),
        ("mode != 'soft'", "pick(x)", False),
        ("mode != 'soft'", "pick(x, mode='hard')", True),
        ("mode == kind", "pick(x)", None),
        ("len(mode) == 4", "pick(x)", None),
        ("'a' < mode == 'soft'", "pick(x)", None),
        ("mode > 'a'", "pick(x)", None),
        ("kind is None", "pick(x)", True),
        ("kind is None", "pick(x, kind=torch.exp(x))", None),
        ("kind is None", "pick(x, kind=nn.Linear(2, 2))", None),
        ("kind is None", "pick(x, kind=y)", None),
        ("kind is not None", "pick(x)", False),
        ("kind is not None", "pick(x, kind=3)", True),
        ("x.dtype == torch.float16", "pick(half)", True),
        ("x.dtype != torch.float16", "pick(half)", False),
        ("x.dtype in (torch.float16, torch.bfloat16)", "pick(half)", True),
        ("x.dtype not in (torch.float16, torch.bfloat16)", "pick(half)", False),
        ("x.dtype in (torch.float32, torch.float64)", "pick(half)", False),
        ("x.dtype == torch.float16", "pick(y)", None),
        ("x.dtype == kind", "pick(half)", None),
    ],
)
def test_a_test_chooses_the_branch(test: str, call: str, holds: bool | None) -> None:
    assert chosen(test, call) == (BOTH if holds is None else {"log_softmax"} if holds else {"softmax"})


@pytest.mark.parametrize(
    ("leaving", "flag", "expected"),
    [
        ("if flag: return torch.softmax(x, 1)", "False", {"log_softmax"}),
        ("if flag: return torch.softmax(x, 1)", "True", {"softmax"}),
        ("if flag: pass\n    else: return torch.softmax(x, 1)", "True", {"log_softmax"}),
        ("if flag: pass\n    else: return torch.softmax(x, 1)", "False", {"softmax"}),
        ("if flag: raise ValueError", "False", {"log_softmax"}),
        ("if flag: x = x + 1", "True", {"log_softmax"}),
    ],
)
def test_what_follows_a_branch_that_leaves(leaving: str, flag: str, expected: set[str]) -> None:
    program = Program(
        "import torch\n\n"
        f"def pick(x, flag):\n    {leaving}\n    return torch.log_softmax(x, 1)\n\n"
        f"def use(x):\n    return pick(x, {flag})\n"
    )
    assert program.ops(f"pick(x, {flag})") == expected


@pytest.mark.parametrize(
    ("made", "test", "holds"),
    [
        ("Net()", "self.soft", False),
        ("Net(True)", "self.soft", True),
        ("Net(soft=y)", "self.soft", None),
        ("Net()", "self.fixed", True),
        ("Net()", "self.copied", True),
        ("Net()", "self.act is None", None),
        ("Net()", "self.twice", None),
        ("Net()", "self.computed", None),
        ("Net()", "self.unknown", None),
        ("Net()", "Net.fixed", None),
        ("Net()", "len(self.act)", None),
    ],
)
def test_an_attribute_that_the_constructor_sets_chooses_the_branch(made: str, test: str, holds: bool | None) -> None:
    program = Program(
        f"""
        import torch
        from torch import nn

        class Net(nn.Module):
            fixed = True

            def __init__(self, soft=False):
                super().__init__()
                self.soft = soft
                self.act = nn.Softmax(1)
                flag = True
                self.copied = flag
                self.twice = True
                self.twice = False
                self.computed = len("abc")

            def forward(self, x):
                if {test}:
                    return torch.log_softmax(x, 1)
                return torch.softmax(x, 1)

        def use(x, y):
            net = {made}
            return net(x)
        """
    )
    assert program.ops("net(x)") == (BOTH if holds is None else {"log_softmax"} if holds else {"softmax"})


@pytest.mark.parametrize(
    ("configured", "holds"),
    [("Config()", False), ("Config(log=True)", True), ("Config(True)", True), ("Config(log=y)", None)],
)
def test_a_field_of_a_record_chooses_the_branch(configured: str, holds: bool | None) -> None:
    program = Program(
        f"""
        import torch
        from dataclasses import dataclass

        @dataclass
        class Config:
            log: bool = False

            def run(self, x):
                if self.log:
                    return torch.log_softmax(x, 1)
                return torch.softmax(x, 1)

        def use(x, y):
            return {configured}.run(x)
        """
    )
    assert program.ops(f"{configured}.run(x)") == (BOTH if holds is None else {"log_softmax"} if holds else {"softmax"})
