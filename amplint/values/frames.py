"""The frames through which half precision is known to reach a function.

They are followed from the functions that switch half precision on (`switches`), and from what frameworks call, down
the calls that are made in a float16 region or that hand a float16 tensor or module on. A project without such a place
is never followed.

Bounds: `_MAX_FRAMES` in all, `_MAX_PER_FUNCTION` for one function, `calls.MAX_DEPTH` calls deep.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from amplint.project import Definition
from amplint.tree import Module
from amplint.values import defaults, expressions, objects, precision, switches
from amplint.values.calls import opened
from amplint.values.dtype import Dtype
from amplint.values.regions import HALF_PRECISION, OUTSIDE, as_bool, last_name, place
from amplint.values.site import Site
from amplint.values.value import Alternatives, Frame, Region, RegionKind, Value

if TYPE_CHECKING:
    from amplint.values.engine import Values

_MAX_FRAMES = 4000
_MAX_PER_FUNCTION = 8
_MAX_RETURNING = 150
"""So many functions are asked whether they return float16."""
_MAX_NESTED = 2
"""Tuples within tuples that are looked into. A list may even hold itself."""
_MAX_HELD = 8
"""So many items of one of them are looked at."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_Place = tuple[Path, int]
_STEPS = ("training_step", "validation_step", "test_step", "predict_step")
_COMPOSER = ("composer",)
_COMPOSER_STEPS = ("forward", "loss", "eval_forward")
_LIGHTNING = ("pytorch_lightning", "lightning", "lightning_fabric")


class Frames:
    """The frames of one project."""

    LASTING = ("frames", "reached", "reached files")
    """The keys of what is worked out once for a project. Frames hold on to the trees of their files."""

    def __init__(self, engine: Values) -> None:
        self.engine = engine

    def frames(self, module: Module, node: ast.AST) -> tuple[Frame, ...]:
        """The frames, known to be in half precision or to be handed some, of the function around `node`."""
        function = self.engine.base(module, node).function
        return tuple(self._frames().get(function, ())) if function is not None else ()

    def reaches(self, module: Module, node: ast.AST) -> bool:
        """Whether half precision may reach the code at `node`: a frame does, or its function switches it on itself."""
        functions: list[ast.AST] = [a for a in (node, *module.ancestors(node)) if isinstance(a, _FUNCTIONS)]
        return not self._reached().isdisjoint(_place(module, around) for around in functions or [module.tree])

    def reaches_file(self, path: Path) -> bool:
        """Whether half precision may reach some code of a file."""
        reached = self.engine.remember("reached files", lambda: frozenset(p for p, _ in self._reached()), frozenset)
        return path in reached

    def _reached(self) -> frozenset[_Place]:
        return self.engine.remember("reached", lambda: self._find_reached(), frozenset)

    def _find_reached(self) -> frozenset[_Place]:
        entered = [(frame.module, function) for function, frames in self._frames().items() for frame in frames[:1]]
        switching = [(module, f) for module, found in self._switching().items() for f in found.functions]
        return frozenset(_place(*each) for each in (*entered, *switching, *self._entering(), *self._receiving()))

    def _switching(self) -> dict[Module, switches.Switching]:
        """What each file does with half precision of its own making."""
        return self.engine.remember("switching", lambda: self._find_switching(), dict)

    def _find_switching(self) -> dict[Module, switches.Switching]:
        project = self.engine.project
        found = {module: switches.switching(module) for module in project.modules(project.files_switching())}
        return {module: what for module, what in found.items() if what.functions}

    def _receiving(self) -> dict[tuple[Module, ast.AST], None]:
        """The functions that call one which returns float16."""
        return self.engine.remember("receiving", lambda: dict.fromkeys(self._find_receiving()), dict)

    def _find_receiving(self) -> Iterator[tuple[Module, ast.AST]]:
        returning = [(m, f) for m, found in self._switching().items() for f in found.returning]
        for module, function in returning[:_MAX_RETURNING]:
            if not self.engine.renew():
                return
            if isinstance(function, _FUNCTIONS) and self._returns_half(module, function):
                for site in self.engine.project.callers(Definition(module, function)):
                    yield site.module, self.engine.base(site.module, site.call).function or site.module.tree

    def _returns_half(self, module: Module, function: ast.AST) -> bool:
        alone = self.engine.base(module, function, hops=0)
        return any(map(self._holds_half, self.engine.returned(alone)))

    def _entering(self) -> dict[tuple[Module, ast.AST], None]:
        """The functions that enter a context which switches half precision on in another file."""
        return self.engine.remember("entering", lambda: dict.fromkeys(self._find_entering()), dict)

    def _find_entering(self) -> Iterator[tuple[Module, ast.AST]]:
        contexts = [(m, c) for m, found in self._switching().items() for c in found.contexts]
        for module, context in contexts[:_MAX_RETURNING]:
            if not self.engine.renew():
                return
            for where, call in self._made(Definition(module, context)):
                if where is not module:
                    yield where, self.engine.base(where, call).function or where.tree

    def _made(self, context: Definition) -> Iterator[tuple[Module, ast.Call]]:
        """The calls of a function, or of a class."""
        project = self.engine.project
        if isinstance(context.node, _FUNCTIONS):
            yield from ((site.module, site.call) for site in project.callers(context))
        elif isinstance(context.node, ast.ClassDef):
            for module in project.modules(project.files_calling(context.node.name)):
                for call in module.calls:
                    if last_name(call.func) == context.node.name and context in project.resolve(module, call.func):
                        yield module, call

    def _frames(self) -> dict[ast.AST, list[Frame]]:
        return self.engine.remember("frames", lambda: self._follow(), dict)

    def _follow(self) -> dict[ast.AST, list[Frame]]:
        found: dict[ast.AST, list[Frame]] = {}
        queue = deque(frame for frame in dict.fromkeys(self._roots()) if self._is_alone(frame) or _note(found, frame))
        seen = set(queue)
        while queue and len(seen) < _MAX_FRAMES and self.engine.renew():
            for child in self._called(queue.popleft()):
                if child not in seen and self._is_half(child) and _note(found, child):
                    seen.add(child)
                    queue.append(child)
        return found

    def _is_alone(self, frame: Frame) -> bool:
        """Whether nothing is in half precision in a frame but what its function makes so."""
        return frame.call is None and frame.region is OUTSIDE and frame.receiver is None

    def _called(self, frame: Frame) -> Iterator[Frame]:
        """The frames that the calls of a function open."""
        function: ast.AST = frame.function or frame.module.tree
        calls = self._calls(frame.module).get(function, ())
        if self._is_alone(frame):
            switched = self._switching().get(frame.module)
            place = frame.module, function
            if switched is not None and place not in self._entering() and place not in self._receiving():
                calls = [call for call in calls if call in switched.calls]
        site = Site(self.engine, frame.module, frame)
        for call in calls:
            key = ("opened", frame, call)
            yield from self.engine.remember(key, lambda c=call: opened(site, c), tuple)  # type: ignore[misc]

    def _calls(self, module: Module) -> dict[ast.AST, list[ast.Call]]:
        """The calls of a file that may enter the project's code, by the function they stand in."""
        return self.engine.remember(("calls", module.tree), lambda: self._group_calls(module), dict)

    def _group_calls(self, module: Module) -> dict[ast.AST, list[ast.Call]]:
        grouped: dict[ast.AST, list[ast.Call]] = {}
        for call in module.calls:
            names = module.names(call.func) if isinstance(call.func, ast.Name | ast.Attribute) else ()
            if any(name.startswith("torch.") and "checkpoint" not in name for name in names):
                continue
            function = self.engine.base(module, call).function
            grouped.setdefault(function or module.tree, []).append(call)
        return grouped

    def _is_half(self, frame: Frame) -> bool:
        """Whether a frame runs in a float16 region or is handed something in float16."""
        if frame.region.is_float16 or (frame.receiver is not None and self._holds_half(frame.receiver)):
            return True
        values = (v for a in frame.arguments.values() for v in self.engine.of_argument(a))
        if any(self._holds_half(value) for value in values):
            return True
        if frame.call is None or frame.caller is None:
            return False
        return Dtype.FLOAT16 in defaults.at(self.engine, frame.caller.module, frame.call, frame.caller)

    def _holds_half(self, value: Value, depth: int = _MAX_NESTED) -> bool:
        if value.op in ("instance", "module", "sequential", "modules"):
            return value.wrapped is not None or Dtype.FLOAT16 in precision.module_precision(value)
        if value.op in ("tuple", "comprehension", "dict") or _sets_by_name(value):
            held = value.elements or tuple(value.arguments.values())
            inner = (v for e in held[:_MAX_HELD] for v in self.engine.of_argument(e)) if depth else ()
            return any(self._holds_half(v, depth - 1) for v in inner)
        return value.may_be_half

    def _roots(self) -> Iterator[Frame]:
        """The frames from which half precision spreads, those first from which it surely does."""
        engine, switching = self.engine, self._switching()
        for module in engine.project.modules_with("Trainer", "TrainingArguments", "to_fp16"):
            yield from self._of_trainers(module)
        for module, found in switching.items():
            yield from (engine.base(module, function) for function in found.functions if function in found.autocast)
        for _, _, value in engine.regions.casts():
            if isinstance(value.node, ast.Call) and Dtype.FLOAT16 in precision.module_precision(value):
                yield from self._forwards(value)
        for module, function in (*self._entering(), *self._receiving()):
            yield engine.base(module, function)
        for module, found in switching.items():
            yield from (engine.base(module, function) for function in found.functions)

    def _forwards(self, value: Value, depth: int = 3) -> Iterator[Frame]:
        """The forward of a module, entered from unknown code."""
        engine = self.engine
        if value.op == "instance" and value.definition is not None:
            for name in ("forward", "__call__"):
                if method := engine.project.method(value.definition, name):
                    frame = objects.method_frame(engine.site(value), method, value, value.node)
                    yield frame if value.wrapped is None else engine.in_region(frame, value.wrapped)
        elif value.op in ("sequential", "modules") and depth:
            for inner in expressions.elements(engine.site(value), (value,)):
                yield from self._forwards(inner, depth - 1)

    # -- frameworks ----------------------------------------------------------------------------------------------

    def _of_trainers(self, module: Module) -> Iterator[Frame]:
        """The Trainers of Lightning, Hugging Face and composer with float16 precision, and fastai's Learner."""
        for call in module.calls:
            name = last_name(call.func)
            if name == "Trainer" and (region := self._trainer_region(module, call, _LIGHTNING)) is not None:
                yield from self._steps(module, region)
            elif name == "Trainer" and (region := self._trainer_region(module, call, _COMPOSER)) is not None:
                yield from self._entered(self._argument_of(module, call, "model", 0), _COMPOSER_STEPS, region)
            elif name == "to_fp16" and isinstance(call.func, ast.Attribute):
                region = place(RegionKind.FLOAT16, module, call, "the model runs in float16")
                for where, made in self.engine.project.sources(module, call.func.value):
                    if isinstance(made, ast.Call) and last_name(made.func).lower().endswith("learner"):
                        yield from self._entered(self._argument_of(where, made, "model", 1), ("forward",), region)
            elif name.endswith("TrainingArguments") and (region := self._hf_region(module, call)) is not None:
                yield from self._models(region)

    def _entered(self, models: Alternatives, methods: tuple[str, ...], region: Region) -> Iterator[Frame]:
        """Methods of models that a framework calls in a region."""
        for value in models:
            for name in methods if value.definition is not None else ():
                if value.definition and (method := self.engine.project.method(value.definition, name)):
                    frame = objects.method_frame(self.engine.site(value), method, value, value.node)
                    yield self.engine.in_region(frame, region)

    def _trainer_region(self, module: Module, call: ast.Call, library: tuple[str, ...]) -> Region | None:
        if not any(n.partition(".")[0] in library for n in module.names(call.func)):
            return None
        site = Site(self.engine, module, self.engine.base(module, call))
        for keyword in call.keywords:
            if keyword.arg == "precision":
                values = site.of(keyword.value)
                if any(_names_half(v) for v in values):
                    return place(
                        RegionKind.FLOAT16, site.module, call, "precision is float16", certain=len(values) == 1
                    )
        return None

    def _steps(self, module: Module, region: Region) -> Iterator[Frame]:
        """The steps of the module that the Trainer fits; of all LightningModules, where that is not known."""
        fitted = [v for v in self._given_to(module, "fit", ("model",)) if v.definition is not None]
        models = tuple(fitted) or tuple(self._instances_of("LightningModule"))
        yield from self._entered(models, _STEPS, region)

    def _hf_region(self, module: Module, call: ast.Call) -> Region | None:
        site = Site(self.engine, module, self.engine.base(module, call))
        for keyword in call.keywords:
            if keyword.arg == "fp16":
                outcomes = {as_bool(v) for v in site.of(keyword.value)}
                if outcomes != {False} and outcomes != {None}:
                    certain = outcomes == {True}
                    return place(RegionKind.FLOAT16, site.module, call, "fp16 is on", certain=certain)
        return None

    def _models(self, region: Region) -> Iterator[Frame]:
        """The forward of the models that a Hugging Face Trainer is given."""
        found: list[Value] = []
        for module in self.engine.project.modules_with("Trainer"):
            for call in module.calls:
                if last_name(call.func).endswith("Trainer"):
                    found += self._argument_of(module, call, "model", 0)
        known = [v for v in found if v.definition is not None]
        for value in known or list(self._instances_of("PreTrainedModel")):
            for frame in self._forwards(value):
                yield self.engine.in_region(frame, region)

    def _given_to(self, module: Module, method: str, keywords: tuple[str, ...]) -> Iterator[Value]:
        for call in module.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr == method:
                yield from self._argument_of(module, call, keywords[0], 0)

    def _argument_of(self, module: Module, call: ast.Call, keyword: str, position: int) -> Alternatives:
        given = next((k.value for k in call.keywords if k.arg == keyword), None)
        if given is None and len(call.args) > position:
            given = call.args[position]
        if given is None:
            return ()
        return tuple(v for v in self.engine.of(module, given) if v.op == "instance")

    def _instances_of(self, base: str) -> Iterator[Value]:
        """One instance, made in unknown code, of each class of the project that derives from a base class."""
        project = self.engine.project
        for path in project.files_deriving(base):
            module = project.module(path)
            for cls in module.classes if module else ():
                definition = Definition(module, cls)  # type: ignore[arg-type]
                if any(name.rpartition(".")[2] == base for name in project.base_names(definition)):
                    yield self.engine.unmade(definition)


def _sets_by_name(value: Value) -> bool:
    """Whether it is a dict after `d["name"] = …`."""
    index = value.argument("index") if value.op == "setitem" else None
    return isinstance(index, ast.Constant) and isinstance(index.value, str)


def _names_half(value: Value) -> bool:
    """Whether a `precision=` is float16 autocast."""
    if value.op == "constant":
        return value.constant in (*HALF_PRECISION, "amp_fp16")
    return value.dotted.rpartition(".")[2] == "AMP_FP16"


def _place(module: Module, function: ast.AST) -> _Place:
    """A function (or module) by what stays when its file is forgotten and parsed again."""
    return module.source.path, getattr(function, "lineno", 0)


def _note(found: dict[ast.AST, list[Frame]], frame: Frame) -> bool:
    """Keep a frame of a function; False if enough are known."""
    held = found.setdefault(frame.function or frame.module.tree, [])
    if len(held) >= _MAX_PER_FUNCTION:
        return False
    held.append(frame)
    return True
