"""Definitions that are told apart by the text, and parsed when a question comes to them."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import amplint
from amplint import sections
from amplint.source import Source
from amplint.tree import Module, parse, parse_in_sections, spot

OWN_FILES = sorted(Path(amplint.__file__).parent.rglob("*.py"))

PROGRAM = '''
import torch
from torch import nn


def scale(x):
    return x * 2


@torch.no_grad()
@torch.cuda.amp.autocast(
    dtype=torch.float16,
)
def run(model, x):
    return scale(model(x))


class Net(nn.Module):
    """A net.

def not_one():
    """

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(
        self,
        x,
    ):
        return self.head(x)


class Wide(Net):
    width = 4


if torch.cuda.is_available():
    def pick():
        return "cuda"
else:
    def pick():
        return "cpu"


async def fetch():
    return run


limit = scale(3)
def scale(x):
    return x
'''


@pytest.fixture(autouse=True)
def _divides_short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "_FEW", 0)


def in_sections(text: str = PROGRAM) -> Module:
    return parse_in_sections(Source(Path("main.py"), text))


def dump(module: Module) -> str:
    return ast.dump(module.tree, include_attributes=True)


def test_functions_and_classes_of_the_top_level_are_sections() -> None:
    assert [section.name for section in sections.divide(PROGRAM)] == ["scale", "run", "Wide", "fetch", "scale"]


@pytest.mark.parametrize(
    "text",
    [
        "def f():\r\n    return 1\r\n",
        "def f():\f\n    return 1\n",
        "def f():\n    global known\n    known = 1\n",
        'text = """\ndef f():\n    return 1\n"""\n',
        "text = '''\n@cached\nclass A:\n    pass\n'''\n",
    ],
)
def test_what_is_not_certainly_a_definition_is_left_to_the_rest(text: str) -> None:
    assert sections.divide(text) == []


@pytest.mark.parametrize("path", OWN_FILES, ids=lambda path: path.name)
def test_the_sections_of_a_file_make_up_its_tree(path: Path) -> None:
    text = path.read_text()
    module = in_sections(text)
    assert module.read_all()
    assert dump(module) == dump(parse(Source(path, text)))


@given(st.lists(st.sampled_from(sorted({section.name for section in sections.divide(PROGRAM)} | {"pick", "Net"}))))
def test_it_does_not_matter_what_is_asked_first(names: list[str]) -> None:
    module, whole = in_sections(), parse(Source(Path("main.py"), PROGRAM))
    for name in names:
        found = [spot(node) for node in module.bindings(module.tree, name)]
        assert found == [spot(node) for node in whole.bindings(whole.tree, name)]
    assert [spot(call) for call in module.calls] == [spot(call) for call in whole.calls]
    assert dump(module) == dump(whole)


def test_a_node_stays_the_same_when_more_is_parsed() -> None:
    module = in_sections()
    (wide,) = module.bindings(module.tree, "Wide")
    call = module.calls_of("scale")[0]
    module.read_all()
    assert wide in module.classes
    assert call in module.calls
    assert module.at(spot(wide)) is wide


def test_only_what_is_asked_for_is_parsed() -> None:
    module = in_sections()
    before = module.size
    assert module.bindings(module.tree, "torch")
    assert module.size == before
    module.bindings(module.tree, "Wide")
    assert before < module.size < len(PROGRAM)
    module.read_all()
    assert module.size == len(PROGRAM)


def test_calls_and_what_is_handed_on_are_found_in_sections_not_parsed_yet() -> None:
    assert [call.lineno for call in in_sections().calls_of("scale")] == [15, 51]
    assert [use.lineno for use in in_sections().handed_on("run")] == [48]
    assert [cls.name for cls in in_sections().classes_mentioning("Net")] == ["Net", "Wide"]


def test_a_place_is_found_again() -> None:
    whole = parse(Source(Path("main.py"), PROGRAM))
    for node in (whole.tree, *whole.functions, *whole.classes, *whole.calls):
        found = in_sections().at(spot(node))
        assert (type(found), spot(found)) == (type(node), spot(node))


def test_the_calls_of_a_function_are_not_those_of_its_inner_ones() -> None:
    text = textwrap.dedent("""
        def outer(x):
            def inner():
                return b(x)
            return a(lambda: c(inner()))
    """)
    module = in_sections(text)
    (outer,) = module.bindings(module.tree, "outer")
    names = [ast.unparse(call.func) for call in module.calls_within(outer)]
    assert names == ["a", "c", "inner"]


def test_an_error_in_one_definition_shows_when_all_are_asked_for() -> None:
    module = in_sections("def good():\n    return 1\n\n\ndef bad():\n    return 1 +\n")
    assert len(module.bindings(module.tree, "good")) == 1
    assert not module.read_all()
    assert [function.name for function in module.functions] == ["good"]


def test_what_is_known_of_a_file_with_an_error_does_not_depend_on_what_is_asked_first() -> None:
    text = "def good():\n    return 1\n\n\ndef bad():\n    return 1 +\n"
    one_by_one, at_once = in_sections(text), in_sections(text)
    (good,) = one_by_one.bindings(one_by_one.tree, "good")
    assert not at_once.read_all()
    assert at_once.at(spot(good)) is not None
    assert not one_by_one.bindings(one_by_one.tree, "bad")
    assert dump(one_by_one) == dump(at_once)


def test_a_class_that_derives_from_another_name_is_found() -> None:
    module = in_sections("from nets import Net as Base\n\n\nclass Wide(Base):\n    pass\n\n\nclass Other:\n    pass\n")
    assert "Wide" in [cls.name for cls in module.classes_mentioning("Net")]


def test_a_definition_in_the_syntax_of_a_newer_python_is_read() -> None:
    module = in_sections(
        "def plain():\n    return 1\n\n\ndef newer():\n    type Pair = tuple[int, int]\n    return 2\n"
    )
    (newer,) = module.bindings(module.tree, "newer")
    assert module.at(spot(newer)) is newer
    assert [function.name for function in module.functions] == ["plain", "newer"]


def test_a_text_that_is_divided_wrongly_is_parsed_as_a_whole() -> None:
    text = 'text = "\\\ndef f():\\\n"\n\n\ndef g():\n    return text\n'
    assert sections.divide(text) != []
    assert dump(in_sections(text)) == dump(parse(Source(Path("main.py"), text)))
