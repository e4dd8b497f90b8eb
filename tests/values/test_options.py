"""Numbers that a configuration gives: options, lookups with a default, records; and items of dicts."""

from __future__ import annotations

import pytest

from amplint.values import Dtype
from tests.values.programs import Program

HEAD = """
import argparse
from types import SimpleNamespace

def options():
    parser = argparse.ArgumentParser()
    group = parser.add_argument_group("loss")
    group.add_argument("-e", "--norm-eps", type=float, default=1e-8)
    group.add_argument("--floor", dest="lowest", type=float, default=1e-10)
    group.add_argument("--name", default="adam")
    group.add_argument("--rate", type=float)
    return parser.parse_args()

ITEMS = {"eps": 1e-8, "inner": {"eps": 1e-9}}
RECORD = SimpleNamespace(eps=1e-8)
"""


@pytest.mark.parametrize(
    ("expression", "number"),
    [
        ("options().norm_eps", 1e-8),
        ("options().lowest", 1e-10),
        ("float(options().norm_eps)", 1e-8),
        ("cfg.get('eps', 1e-8)", 1e-8),
        ("cfg.model.get('eps', 1e-8)", 1e-8),
        ("cfg.pop('eps', -1e9)", -1e9),
        ("getattr(cfg, 'eps', 1e-8)", 1e-8),
        ("cfg.inner.get('eps', ITEMS['eps'])", 1e-8),
    ],
)
def test_a_default_may_be_set_otherwise(expression: str, number: float) -> None:
    (value,) = Program(f"{HEAD}\ndef f(cfg):\n    return {expression}\n").of(expression)
    assert (value.op, value.as_number(), value.dtypes) == ("setting", number, {Dtype.NUMBER})
    assert value.interval.lower < 0 < value.interval.upper


@pytest.mark.parametrize(
    "expression",
    [
        "ITEMS['eps']",
        "ITEMS.get('eps')",
        "ITEMS.get('eps', 1e-5)",
        "RECORD.eps",
        "getattr(RECORD, 'eps', 1e-5)",
    ],
)
def test_what_a_display_holds_is_the_constant(expression: str) -> None:
    (value,) = Program(f"{HEAD}\ndef f(cfg):\n    return {expression}\n").of(expression)
    assert (value.op, value.as_number()) == ("constant", 1e-8)


@pytest.mark.parametrize(
    "expression",
    [
        "options().name",
        "options().rate",
        "options().unheard_of",
        "cfg.get('eps')",
        "cfg.get('eps', None)",
        "cfg.get('loss', 0.0)",
        "cfg.get('eps', 'small')",
        "cfg.eps",
        "cfg['eps']",
        "ITEMS['other']",
        "ITEMS.get('other')",
    ],
)
def test_no_number(expression: str) -> None:
    program = Program(f"{HEAD}\ndef f(cfg):\n    return {expression}\n")
    assert all(value.as_number() is None for value in program.of(expression))


def test_options_of_another_file() -> None:
    program = Program(
        """
        import argparse
        from common import add_options

        def main():
            parser = argparse.ArgumentParser()
            add_options(parser)
            args, rest = parser.parse_known_args()
            work(args)

        def work(args):
            return args.eps
        """,
        common="""
        def add_options(parser):
            parser.add_argument("--eps", type=float, default=1e-8)
        """,
    )
    (value,) = program.of("args.eps")
    assert (value.op, value.as_number()) == ("setting", 1e-8)


def test_all_defaults_of_an_option_count() -> None:
    program = Program(
        """
        import argparse

        parser = argparse.ArgumentParser()
        commands = parser.add_subparsers()
        commands.add_parser("fast").add_argument("--eps", type=float, default=1e-8)
        commands.add_parser("sure").add_argument("--eps", type=float, default=1e-4)
        args = parser.parse_args()
        print(args.eps)
        """
    )
    assert [value.as_number() for value in program.of("args.eps")] == [1e-8, 1e-4]


def test_items_of_dicts_that_are_set_one_by_one() -> None:
    program = Program(
        """
        import torch

        def f(x, batch):
            d = {"a": torch.exp(x)}
            d["b"] = torch.log(x)
            batch["c"] = torch.sqrt(x)
            e = dict(a=torch.tanh(x))
            return d["a"], d["b"], d["z"], batch["c"], batch["d"], e["a"]
        """
    )
    assert program.ops('d["a"]') == {"exp"}
    assert program.ops('d["b"]') == {"log"}
    assert program.ops('d["z"]') == {"unknown"}
    assert program.ops('batch["c"]') == {"sqrt"}
    assert program.ops('batch["d"]') == {"unknown"}
    assert program.ops('e["a"]') == {"tanh"}
