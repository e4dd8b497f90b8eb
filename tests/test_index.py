"""What a text tells without a parse."""

from __future__ import annotations

import pytest

from amplint import index


@pytest.mark.parametrize(
    ("text", "found", "not_found"),
    [
        ("loss = net(x)", {"net"}, {"x", "loss"}),
        ("loss = net (x)", {"net"}, {"x"}),
        ("trainer.step(a, b(c))", {"step", "b"}, {"trainer", "a", "c"}),
        ("from m import make as build\nbuild()", {"build", "make"}, {"m"}),
        ("größe(x)  # über", {"größe"}, {"x"}),
    ],
)
def test_called(text: str, found: set[str], not_found: set[str]) -> None:
    assert found <= index.called(text)
    assert not_found.isdisjoint(index.called(text))


@pytest.mark.parametrize(
    ("text", "found", "not_found"),
    [
        ("class Net(nn.Module):\n    x = f(y)", {"nn", "Module"}, {"y", "Net"}),
        ("class A(\n    B,\n    C,\n):", {"B", "C"}, set()),
        ("from m import Base as B\nclass A(B): pass", {"B", "Base"}, {"m"}),
        ("class A:\n    def f(self, x): pass", set(), {"self", "x"}),
    ],
)
def test_derived(text: str, found: set[str], not_found: set[str]) -> None:
    assert found <= index.derived(text)
    assert not_found.isdisjoint(index.derived(text))


def test_passed_names_stand_without_a_call() -> None:
    names = index.passed("register(step)\nlater = step2(x)\nself.hook = on_end")
    assert {"step", "later", "x", "hook", "on_end"} <= names
    assert names.isdisjoint({"register", "step2"})


@pytest.mark.parametrize("text", ["model.half()", "x.to(torch.float16)", "with autocast():", 'precision="16-mixed"'])
def test_half_precision_is_switched(text: str) -> None:
    assert index.switched(text)


@pytest.mark.parametrize("text", ["rotate_half(x)", "x.to(torch.bfloat16)", '"""Takes float16."""', "half = n // 2"])
def test_half_precision_is_not_switched(text: str) -> None:
    assert not index.switched(text)
