"""The frames through which half precision is known to reach a function.

They are followed from the functions that switch half precision on (`switches`), and from what frameworks call, down
the calls that are made in a float16 region or that hand a float16 tensor or module on. A project without such a place
is never followed.

What is kept for the whole project names functions by place, not by node (`Root`, `Where`), so that trees can be let go
of; the frames themselves are followed again, from the roots that lead to a function, when they are asked for.

Bounds: `_MAX_FRAMES` in all, `_MAX_PER_FUNCTION` for one function, `calls.MAX_DEPTH` calls deep.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from amplint.project import Definition
from amplint.tree import Module, Spot, spot
from amplint.values import defaults, expressions, objects, precision, spelled, switches
from amplint.values.calls import opened
from amplint.values.dtype import Dtype
from amplint.values.regions import HALF_PRECISION, OUTSIDE, as_bool, last_name, place
from amplint.values.site import Site
from amplint.values.value import Alternatives, Frame, Region, RegionKind, Value, Where, where

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
_WHOLE_FILE = (0, 0, 0, 0)
_OF_TRAINERS = ("Trainer", "TrainingArguments", "to_fp16")
"""Words of the files that may hold a framework's trainer."""
_STEPS = ("training_step", "validation_step", "test_step", "predict_step")
_COMPOSER = ("composer",)
_COMPOSER_STEPS = ("forward", "loss", "eval_forward")
_LIGHTNING = ("pytorch_lightning", "lightning", "lightning_fabric")


@dataclass(frozen=True, slots=True)
class Root:
    """Where half precision begins to spread."""

    kind: str
    """"function", or "cast": a call that casts a module, or "trainers": a file that may make a framework's trainer."""
    path: Path
    spot: Spot


class Frames:
    """The frames of one project."""

    LASTING = ("switching", "entering", "receiving", "leading", "reached", "summaries")
    """The keys of what is worked out once for a project, and holds no tree."""

    def __init__(self, engine: Values) -> None:
        self.engine = engine

    def frames(self, module: Module, node: ast.AST) -> tuple[Frame, ...]:
        """The frames, known to be in half precision or to be handed some, of the function around `node`."""
        function = self.engine.base(module, node).function
        if function is None:
            return ()
        self.engine.project.note_half(module.source.path)
        return self.engine.remember(("frames", function), lambda: tuple(self._of(module, function)), tuple)

    def reaches(self, module: Module, node: ast.AST) -> bool:
        """Whether half precision may reach the code at `node`: a frame does, or its function switches it on itself."""
        self.engine.project.note_half(module.source.path)
        reached = self._reached().get(module.source.path)
        if reached is None:
            return False
        functions: list[ast.AST] = [a for a in (node, *module.ancestors(node)) if isinstance(a, _FUNCTIONS)]
        return any(spot(around) in reached for around in functions or [module.tree])

    def reaches_file(self, path: Path) -> bool:
        """Whether half precision may reach some code of a file."""
        self.engine.project.note_half(path)
        return path in self._reached()

    def summaries(self) -> Mapping[Path, tuple[str, ...]]:
        """What is said of each file here and by the casts, in a word, so that it can be told whether it has changed."""
        return self.engine.remember("summaries", self._summarize, dict)

    def _summarize(self) -> dict[Path, tuple[str, ...]]:
        said: dict[Path, list[str]] = {}
        for path, spots in self._reached().items():
            said.setdefault(path, []).append(repr(sorted(spots)))
        for (path, at), roots in self._leading().items():
            said.setdefault(path, []).append(repr((at, roots)))
        for (path, at), dtypes in self.engine.regions.casts().dtypes.items():
            said.setdefault(path, []).append(repr((at, sorted(dtype.value for dtype in dtypes))))
        return {path: (hashlib.sha256("\n".join(words).encode()).hexdigest()[:16],) for path, words in said.items()}

    # -- what is known of the whole project ----------------------------------------------------------------------

    def _reached(self) -> Mapping[Path, frozenset[Spot]]:
        """The functions that half precision may reach, by file."""
        return self.engine.remember("reached", self._find_reached, dict)

    def _find_reached(self) -> dict[Path, frozenset[Spot]]:
        found: dict[Path, set[Spot]] = {path: set(what.functions) for path, what in self._switching().items()}
        for path, function in (*self._leading(), *self._entering(), *self._receiving()):
            found.setdefault(path, set()).add(function)
        return {path: frozenset(spots) for path, spots in found.items()}

    def _switching(self) -> Mapping[Path, switches.Switching]:
        """What each file does with half precision of its own making."""
        return self.engine.remember("switching", self._find_switching, dict)

    def _find_switching(self) -> dict[Path, switches.Switching]:
        project = self.engine.project
        found: dict[Path, switches.Switching] = {}
        for module in project.modules(project.files_switching()):
            self.engine.release()
            what = switches.switching(module)
            if what.functions:
                found[module.source.path] = what
        return found

    def _receiving(self) -> Mapping[Where, None]:
        """The functions that call one which returns float16."""
        return self.engine.remember("receiving", lambda: dict.fromkeys(self._find_receiving()), dict)

    def _find_receiving(self) -> Iterator[Where]:
        returning = [(path, function) for path, what in self._switching().items() for function in what.returning]
        for module, function in self._parts(returning[:_MAX_RETURNING]):
            if isinstance(function, _FUNCTIONS) and self._returns_half(module, function):
                for site in self.engine.project.callers(Definition(module, function)):
                    yield self._where_called(site.module, site.call)

    def _returns_half(self, module: Module, function: ast.AST) -> bool:
        alone = self.engine.base(module, function, hops=0)
        return any(map(self._holds_half, self.engine.returned(alone)))

    def _entering(self) -> Mapping[Where, None]:
        """The functions that enter a context which switches half precision on in another file."""
        return self.engine.remember("entering", lambda: dict.fromkeys(self._find_entering()), dict)

    def _find_entering(self) -> Iterator[Where]:
        contexts = [(path, context) for path, what in self._switching().items() for context in what.contexts]
        for module, context in self._parts(contexts[:_MAX_RETURNING]):
            for caller, call in self._made(Definition(module, context)):
                if caller is not module:
                    yield self._where_called(caller, call)

    def _made(self, context: Definition) -> Iterator[tuple[Module, ast.Call]]:
        """The calls of a function, or of a class."""
        project = self.engine.project
        if isinstance(context.node, _FUNCTIONS):
            yield from ((site.module, site.call) for site in project.callers(context))
        elif isinstance(context.node, ast.ClassDef):
            for site in project.calls_of(context.node.name):
                if context in project.resolve(site.module, site.call.func):
                    yield site.module, site.call

    def _parts(self, places: list[Where]) -> Iterator[tuple[Module, ast.AST]]:
        """The nodes at these places one after the other, each with a measure of work, until all of it is spent."""
        for path, at in places:
            if not self.engine.renew():
                return
            self.engine.release()
            module = self.engine.project.module(path)
            if module is not None and (node := module.at(at)) is not None:
                yield module, node

    def _where_called(self, module: Module, call: ast.Call) -> Where:
        return where(module, self.engine.base(module, call).function or module.tree)

    # -- following -----------------------------------------------------------------------------------------------

    def _of(self, module: Module, function: ast.AST) -> list[Frame]:
        found: dict[Frame, None] = {}
        for root in self._leading().get(where(module, function), ()):
            found |= dict.fromkeys(self._followed(root).get(function, ()))
        return list(found)[:_MAX_PER_FUNCTION]

    def _leading(self) -> Mapping[Where, tuple[Root, ...]]:
        """The roots from which half precision reaches a function."""
        return self.engine.remember("leading", self._find_leading, dict)

    def _find_leading(self) -> dict[Where, tuple[Root, ...]]:
        leading: dict[Where, list[Root]] = {}
        known: Counter[Where] = Counter()
        for root in dict.fromkeys(self._roots()):
            opened_by = Counter(
                where(frame.module, frame.function or frame.module.tree)
                for frames in self._follow(root, lambda at: known[at] < _MAX_PER_FUNCTION).values()
                for frame in frames
            )
            known.update(opened_by)
            for function in opened_by:
                leading.setdefault(function, []).append(root)
            if not self.engine.renew() or known.total() >= _MAX_FRAMES:
                break
            self.engine.release()
        return {at: tuple(roots) for at, roots in leading.items()}

    def _followed(self, root: Root) -> Mapping[ast.AST, list[Frame]]:
        """The frames that half precision opens from a root on, by function (or file)."""
        leading = self._leading()
        return self.engine.remember(
            ("followed", root), lambda: self._follow(root, lambda at: root in leading.get(at, ())), dict
        )

    def _follow(self, root: Root, is_wanted: Callable[[Where], bool]) -> dict[ast.AST, list[Frame]]:
        found: dict[ast.AST, list[Frame]] = {}
        queue = deque(frame for frame in self._starts(root) if self._is_alone(frame) or _note(found, frame, is_wanted))
        seen = set(queue)
        while queue and len(seen) < _MAX_FRAMES and self.engine.renew():
            for child in self._called(queue.popleft()):
                if child not in seen and self._is_half(child) and _note(found, child, is_wanted):
                    seen.add(child)
                    queue.append(child)
        return found

    def _is_alone(self, frame: Frame) -> bool:
        """Whether nothing is in half precision in a frame but what its function makes so."""
        return frame.call is None and frame.region is OUTSIDE and frame.receiver is None

    def _called(self, frame: Frame) -> Iterator[Frame]:
        """The frames that the calls of a function open."""
        function: ast.AST = frame.function or frame.module.tree
        calls = self._calls(frame.module, function)
        if self._is_alone(frame):
            switched = self._switching().get(frame.module.source.path)
            at = where(frame.module, function)
            if switched is not None and at not in self._entering() and at not in self._receiving():
                calls = [call for call in calls if spot(call) in switched.calls]
        site = Site(self.engine, frame.module, frame)
        for call in calls:
            if spelled.may_enter(self.engine.project, frame.module, call):
                key = ("opened", frame, call)
                yield from self.engine.remember(key, lambda c=call: opened(site, c), tuple)  # type: ignore[misc]

    def _calls(self, module: Module, function: ast.AST) -> list[ast.Call]:
        """The calls of a function, or of a file."""
        return [
            c
            for c in module.calls_within(function)
            if (self.engine.base(module, c).function or module.tree) is function
        ]

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

    def _roots(self) -> Iterator[Root]:
        """Where half precision begins to spread, those places first from which it surely does."""
        project, switching = self.engine.project, self._switching()
        for path in sorted({path for word in _OF_TRAINERS for path in project.files_using(word)}):
            yield Root("trainers", path, _WHOLE_FILE)
        for path, what in switching.items():
            yield from (Root("function", path, function) for function in what.functions if function in what.autocast)
        yield from (Root("cast", *call) for call in self.engine.regions.casts().calls)
        yield from (Root("function", *function) for function in (*self._entering(), *self._receiving()))
        for path, what in switching.items():
            yield from (Root("function", path, function) for function in what.functions)

    def _starts(self, root: Root) -> Iterator[Frame]:
        """The frames that a root opens."""
        module = self.engine.project.module(root.path)
        if module is None:
            return
        if root.kind == "trainers":
            yield from self._of_trainers(module)
            return
        node = module.at(root.spot)
        if root.kind == "function" and node is not None:
            yield self.engine.base(module, node)
        elif isinstance(node, ast.Call):
            for value in self.engine.regions.modules_cast(module, node):
                if isinstance(value.node, ast.Call) and Dtype.FLOAT16 in precision.module_precision(value):
                    yield from self._forwards(value)

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


def _note(found: dict[ast.AST, list[Frame]], frame: Frame, is_wanted: Callable[[Where], bool]) -> bool:
    """Keep a frame of a function; False if enough are known."""
    function = frame.function or frame.module.tree
    if len(found.get(function, ())) >= _MAX_PER_FUNCTION or not is_wanted(where(frame.module, function)):
        return False
    found.setdefault(function, []).append(frame)
    return True
