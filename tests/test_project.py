"""Names, classes and calls linked across the files of little projects."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from amplint.budget import OutOfTimeError
from amplint.project import Definition, Project
from amplint.source import Source
from amplint.tree import Module

ROOT = Path("/program")


def project(**files: str) -> Project:
    """A project of files given as `pkg__mod="…"` for `pkg/mod.py`."""
    sources = {}
    for name, text in files.items():
        path = ROOT / f"{name.replace('__', '/').replace('/init', '/__init__')}.py"
        sources[path] = Source(path, textwrap.dedent(text))
    return Project(sources, sources.__getitem__)


def module(linked: Project, name: str = "main") -> Module:
    found = linked.whole(ROOT / f"{name}.py")
    assert found is not None
    return found


def call(where: Module, text: str) -> ast.Call:
    """The call of `where` that is written `text`."""
    return next(node for node in where.calls if where.source.segment(node) == text)


def callees(linked: Project, where: Module, text: str) -> list[str]:
    found = linked.callees(where, call(where, text))
    return [f"{callee.module.source.path.stem}.{callee.module.qualname(callee.function)}" for callee in found]


def test_resolves_imports_reexports_and_stars() -> None:
    linked = project(
        main="""
            from pkg import thing, helper as h
            from pkg.deep.inner import *
            import pkg.deep.inner as inner
            thing(); h(); starred(); inner.starred()
        """,
        pkg__init="from .core import thing\nfrom .deep.inner import starred as helper\n",
        pkg__core="def thing(): ...\n",
        pkg__deep__init="",
        pkg__deep__inner="def starred(): ...\n",
    )
    main = module(linked)
    assert callees(linked, main, "thing()") == ["core.thing"]
    for spelling in ("h()", "starred()", "inner.starred()"):
        assert callees(linked, main, spelling) == ["inner.starred"]


def test_a_reexport_beats_the_submodule_of_the_same_name() -> None:
    linked = project(
        main="from pkg import loss\nloss()\n", pkg__init="from .loss import loss\n", pkg__loss="def loss(): ...\n"
    )
    assert callees(linked, module(linked), "loss()") == ["loss.loss"]


def test_what_is_not_of_the_project_is_unknown() -> None:
    linked = project(
        main="import torch\nfrom elsewhere import f\ntorch.relu(1); f(); unbound()\n", torch="def relu(x): ...\n"
    )
    main = module(linked)
    for text in ("torch.relu(1)", "f()", "unbound()"):
        assert callees(linked, main, text) == []


def test_an_import_that_two_files_could_be_is_neither() -> None:
    linked = project(main="from tools import f\nf()\n", a__x__tools="def f(): ...\n", b__y__tools="def f(): ...\n")
    assert callees(linked, module(linked), "f()") == []


def test_methods_are_found_through_bases_in_other_files() -> None:
    linked = project(
        main="""
            from base import Base

            class Child(Base):
                def step(self):
                    self.shared()
                    super().step()

            Child().step()
        """,
        base="class Base:\n    def shared(self): ...\n    def step(self): ...\n",
    )
    main = module(linked)
    assert callees(linked, main, "self.shared()") == ["base.Base.shared"]
    assert callees(linked, main, "super().step()") == ["base.Base.step"]
    assert callees(linked, main, "Child().step()") == ["main.Child.step"]


def test_self_calls_reach_overrides_in_subclasses_unless_the_receiver_is_known() -> None:
    linked = project(
        main="""
            class Base:
                def run(self):
                    self.hook()
                def hook(self): ...
        """,
        child="from main import Base\nclass Child(Base):\n    def hook(self): ...\n",
    )
    main = module(linked)
    hook = call(main, "self.hook()")
    assert {found.module.qualname(found.function) for found in linked.callees(main, hook)} == {
        "Base.hook",
        "Child.hook",
    }
    child = Definition(module(linked, "child"), module(linked, "child").classes[0])
    (known,) = linked.callees(main, hook, receiver=child)
    assert known.module.qualname(known.function) == "Child.hook"


@pytest.mark.parametrize(
    "made",
    [
        "Net()",
        "Net().cuda()",
        "DistributedDataParallel(Net())",
        "DistributedDataParallel(Net()).module",
        "torch.compile(Net())",
        "net if net else Net()",
        "net or Net()",
        "(other := Net())",
        "[Net(), None][0]",
        "{'a': Net()}['a']",
        "torch.nn.ModuleList([Net() for _ in range(2)])[0]",
        "{k: Net() for k in net}['a']",
        "build()",
        "annotated()",
        "Holder().net",
        "Holder().made",
    ],
)
def test_an_instance_is_known_by_its_constructor(made: str) -> None:
    linked = project(
        main=f"""
            import torch
            from torch.nn.parallel import DistributedDataParallel
            from net import Net
            from typing import Optional

            def build():
                return Net()

            def annotated() -> Optional[Net]:
                return torch.load("model.pt")

            class Holder:
                net: Net
                made: "Net | None" = None

            def train(net):
                model = {made}
                model.forward(1)
        """,
        net="import torch\nclass Net(torch.nn.Module):\n    def forward(self, x): ...\n",
    )
    assert callees(linked, module(linked), "model.forward(1)") == ["net.Net.forward"]


@pytest.mark.parametrize(
    "line",
    [
        "for model in [Net()]:",
        "for model in (Net() for _ in net):",
        "with Net() as model:",
        "model, other = accelerator.prepare(Net(), net)\n    if True:",
        "model, other = pair()\n    if True:",
        "model: Net = net.load()\n    if True:",
    ],
)
def test_an_instance_is_known_by_how_its_variable_is_bound(line: str) -> None:
    linked = project(
        main=f"""
import torch
from net import Net

def pair():
    return Net(), 1

def train(net, accelerator):
    {line}
        model.forward(1)
""",
        net="import torch\nclass Net(torch.nn.Module):\n    def forward(self, x): ...\n",
    )
    assert callees(linked, module(linked), "model.forward(1)") == ["net.Net.forward"]


@pytest.mark.parametrize(
    "annotation",
    [
        "Net",
        "'Net'",
        "'net.Net'",
        "Optional[Net]",
        "Union[int, Net]",
        "Net | None",
        "'Net | None'",
        "typing.Final[Net]",
    ],
)
def test_an_instance_is_known_by_the_annotation_of_its_parameter(annotation: str) -> None:
    linked = project(
        main=f"""
            import net
            import typing
            from net import Net
            from typing import Optional, Union

            def train(model: {annotation}):
                model.forward(1)
        """,
        net="import torch\nclass Net(torch.nn.Module):\n    def forward(self, x): ...\n",
    )
    assert callees(linked, module(linked), "model.forward(1)") == ["net.Net.forward"]


def test_a_parameter_is_known_by_annotation_or_by_what_callers_pass() -> None:
    linked = project(
        main="""
            from engine import Engine

            def annotated(engine: "Engine | None"):
                engine.step()

            def passed(it):
                it.step()

            def main():
                passed(it=Engine())
        """,
        engine="class Engine:\n    def step(self): ...\n",
    )
    assert callees(linked, module(linked), "engine.step()") == ["engine.Engine.step"]
    assert callees(linked, module(linked), "it.step()") == ["engine.Engine.step"]


def test_attributes_partials_dicts_and_lists_are_followed() -> None:
    linked = project(
        main="""
            from functools import partial
            def work(a, b): ...
            class Owner:
                def __init__(self, name):
                    self.call = partial(work, 1)
                    self.kind = {"x": work}[name]
                    self.hooks = [Hook(), Hook()]
                def run(self):
                    self.call(2)
                    self.kind(3, 4)
                    for hook in self.hooks:
                        hook.fire(5)
            class Hook:
                def fire(self, x): ...
        """
    )
    main = module(linked)
    (bound,) = linked.callees(main, call(main, "self.call(2)"))
    assert {name: ast.unparse(value) for name, value in bound.arguments.items()} == {"a": "1", "b": "2"}
    assert callees(linked, main, "self.kind(3, 4)") == ["main.work"]
    assert callees(linked, main, "hook.fire(5)") == ["main.Hook.fire"]


def test_arguments_meet_parameters() -> None:
    linked = project(main="def f(a, b=2, *, c=3): ...\nf(1, c=4)\nf(*args)\n")
    main = module(linked)
    (plain,) = linked.callees(main, call(main, "f(1, c=4)"))
    assert ast.unparse(plain.argument("a")) == "1"  # type: ignore[arg-type]
    assert plain.argument("b") is None
    assert not plain.open
    assert ast.unparse(plain.default("b")) == "2"  # type: ignore[arg-type]
    (starred,) = linked.callees(main, call(main, "f(*args)"))
    assert starred.open
    assert starred.arguments == {}


def test_callers_are_confirmed_across_files() -> None:
    linked = project(
        main="class A:\n    def step(self): ...\nclass B:\n    def step(self): ...\n",
        one="from main import A\ndef f():\n    A().step()\n",
        two="from main import B\ndef g(b: B):\n    b.step()\n",
    )
    main = module(linked)
    steps = {main.qualname(function): function for function in main.functions}
    for name, file in (("A.step", "one"), ("B.step", "two")):
        (site,) = linked.callers(Definition(main, steps[name]))
        assert site.module.source.path.stem == file


def test_calls_in_a_circle_end() -> None:
    linked = project(main="def f(x):\n    x.go()\n    g(x)\ndef g(y):\n    f(y)\nx = x.y(x)\nx.z()\n")
    main = module(linked)
    assert callees(linked, main, "x.go()") == []
    assert callees(linked, main, "g(x)") == ["main.g"]
    assert callees(linked, main, "x.z()") == []


def test_nothing_is_parsed_that_is_not_asked_for() -> None:
    sources = {
        ROOT / name: Source(ROOT / name, text) for name, text in {"main.py": "f()\n", "bad.py": "def (:\n"}.items()
    }
    read: list[Path] = []

    def reader(path: Path) -> Source:
        read.append(path)
        if path not in sources:
            raise FileNotFoundError(path)
        return sources[path]

    linked = Project(sources, reader)
    assert read == []
    assert linked.module(ROOT / "main.py") is not None
    assert read == [ROOT / "main.py"]
    assert linked.module(ROOT / "bad.py") is None
    assert linked.module(ROOT / "absent.py") is None


def test_an_index_whose_making_was_interrupted_is_made_anew() -> None:
    sources = {
        ROOT / name: Source(ROOT / name, text)
        for name, text in {"a.py": "import main\nmain.f()\n", "b.py": "import main\nmain.f()\n", "main.py": ""}.items()
    }
    interrupted: list[Path] = []

    def reader(path: Path) -> Source:
        if path.stem == "b" and len(interrupted) < 2:
            interrupted.append(path)
            raise OutOfTimeError
        return sources[path]

    linked = Project(sources, reader)
    with pytest.raises(OutOfTimeError):
        linked.files_calling("f")
    with pytest.raises(OutOfTimeError):
        linked.files_importing(ROOT / "main.py")
    assert linked.files_calling("f") == (ROOT / "a.py", ROOT / "b.py")
    assert linked.files_importing(ROOT / "main.py") == {ROOT / "a.py", ROOT / "b.py"}


def test_answers_tell_what_they_rest_on_also_when_remembered() -> None:
    linked = project(main="from other import f\nf()\n", other="def f(): ...\n")
    main = module(linked)
    for _ in range(2):
        with linked.recording() as recording:
            assert callees(linked, main, "f()") == ["other.f"]
        asked = recording.asked.questions()
        assert ("module", str(ROOT / "other.py")) in asked
        assert any(question[0] == "files_of" and question[1] == "other" for question in asked)


def test_a_changed_file_is_found_by_its_new_names() -> None:
    texts = {"a.py": "f(1)\n", "b.py": "import a\ng(h)\n", "c.py": "f(2)\n"}
    paths = {name: Path("/p") / name for name in texts}
    project = Project(paths.values(), lambda path: Source.from_bytes(path, texts[path.name].encode()))
    assert project.files_calling("f") == (paths["a.py"], paths["c.py"])
    assert project.files_importing(paths["c.py"]) == frozenset()
    texts["b.py"] = "import c\nf(h)\n"
    project.forget(paths["b.py"])
    assert project.files_calling("f") == (paths["a.py"], paths["b.py"], paths["c.py"])
    assert project.files_importing(paths["c.py"]) == {paths["b.py"]}
