"""Where code runs in half precision: autocast regions, modules cast to half, frameworks; and from which calls.

Lexically by the `with` blocks and decorators around a node; dynamically by the *frames* through which it is entered.
Frames are followed from the places that switch half precision on, down the calls that are made in a float16 region
or that hand a float16 tensor or module on. A project without such a place is never followed.

Bounds: `_MAX_FRAMES` in all, `_MAX_PER_FUNCTION` for one function, `calls.MAX_DEPTH` calls deep.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from amplint.project import Definition
from amplint.tree import Module
from amplint.values import calls, expressions, modules, objects, precision
from amplint.values.dtype import FLOATS, Dtype, Dtypes
from amplint.values.site import Given, Site
from amplint.values.value import Alternatives, Frame, Place, Region, RegionKind, Value

if TYPE_CHECKING:
    from amplint.values.engine import Values

_MAX_FRAMES = 4000
_MAX_PER_FUNCTION = 8
_SWITCHES = ("autocast", "half", "float16", "fp16", "precision")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_STEPS = ("training_step", "validation_step", "test_step", "predict_step")
_LIGHTNING = ("pytorch_lightning", "lightning", "lightning_fabric")
_HALF_PRECISION = (16, "16", "16-mixed", "fp16")
_BFLOAT16_PRECISION = ("bf16", "bf16-mixed")
_FULL_PRECISION_DECORATORS = ("force_fp32",)

OUTSIDE = Region(RegionKind.NONE)


class Regions:
    """The regions and frames of one project."""

    def __init__(self, engine: Values) -> None:
        self.engine = engine
        self.entered: dict[tuple[Frame, ast.expr], list[Frame]] = {}
        """The frames that evaluating a call in a frame has opened, kept by `calls`."""

    # -- lexical regions -----------------------------------------------------------------------------------------

    def at(self, site: Site, node: ast.AST) -> Region:
        """The autocast state in which `node` runs in the site's frame."""
        child: ast.AST = node
        for ancestor in site.module.ancestors(node):
            if isinstance(ancestor, ast.With | ast.AsyncWith) and child in ancestor.body:
                for item in reversed(ancestor.items):
                    if (region := self._of_item(site, ancestor, item.context_expr)) is not None:
                        return region
            elif isinstance(ancestor, ast.FunctionDef | ast.AsyncFunctionDef) and child in ancestor.body:
                return self._of_function(site, ancestor)
            elif isinstance(ancestor, ast.Lambda):
                return self._of_function(site, ancestor)
            child = ancestor
        return site.frame.region if site.frame.function is None else OUTSIDE

    def _of_function(self, site: Site, function: ast.AST) -> Region:
        """The state in which a function's body runs: its decorators', else the one it is entered in."""
        for decorator in getattr(function, "decorator_list", ()):
            if (region := self._of_decorator(site, decorator)) is not None:
                return region
        return site.frame.region if site.frame.function is function else OUTSIDE

    def _of_decorator(self, site: Site, decorator: ast.expr) -> Region | None:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if not isinstance(called, ast.Name | ast.Attribute):
            return None
        names = site.module.names(called)
        last = (
            names[0].rpartition(".")[2] if names else (called.attr if isinstance(called, ast.Attribute) else called.id)
        )
        if last == "custom_fwd" and isinstance(decorator, ast.Call):
            cast = any(k.arg == "cast_inputs" for k in decorator.keywords)
            return self._region(RegionKind.DISABLED, site, decorator, "custom_fwd casts its inputs") if cast else None
        if last in _FULL_PRECISION_DECORATORS:
            return self._region(RegionKind.DISABLED, site, decorator, "runs in float32")
        if "autocast" not in last and not isinstance(decorator, ast.Call):
            return None
        outer = site.at(site.module, self.engine.base(site.module, site.module.tree))
        if isinstance(decorator, ast.Call):
            return self._of_context(outer, decorator)
        for callee in outer.of(decorator):
            for value in calls.apply(outer, decorator, callee, Given()):
                if value.op == "autocast":
                    return self._of_autocast(outer, value)
        return None

    def _of_item(self, site: Site, statement: ast.AST, context: ast.expr) -> Region | None:
        region = self._of_context(site, context)
        if region is None or region.kind is not RegionKind.DISABLED or region.certain:
            return region
        outer = self.at(site, statement)
        return replace(outer, certain=False) if outer.is_float16 else region

    def _of_context(self, site: Site, context: ast.expr) -> Region | None:
        """The region that a context manager opens; None if it leaves autocast as it is."""
        if isinstance(context, ast.Call) and (inner := self._of_generator(site, context)) is not None:
            return inner
        values = site.of(context)
        found = [self._of_autocast(site, v) if v.op == "autocast" else None for v in values]
        regions = [region for region in found if region is not None]
        if not regions:
            return None
        kinds = {region.kind for region in regions}
        chosen = next((r for r in regions if r.is_float16), regions[0])
        certain = len(kinds) == 1 and len(regions) == len(found) and all(r.certain for r in regions)
        return replace(chosen, certain=certain)

    def _of_generator(self, site: Site, call: ast.Call) -> Region | None:
        """The region at the `yield` of a function that is a context manager."""
        if not isinstance(call.func, ast.Name | ast.Attribute):
            return None
        for callee in site.of(call.func):
            function = callee.definition.node if callee.definition and callee.op in ("function", "method") else None
            if function is None or not _is_context_manager(function) or callee.definition is None:
                continue
            frame = calls.frame_for(site, call, callee.definition, Given.of_call(site, call), receiver=callee.owner)
            inner = site.at(callee.definition.module, frame)
            regions = [self.at(inner, node) for node in ast.walk(function) if isinstance(node, ast.Yield)]
            switched = [r for r in regions if r is not frame.region and r.kind is not RegionKind.NONE]
            if switched:
                chosen = next((r for r in switched if r.is_float16), switched[0])
                return replace(chosen, certain=len(switched) == len(regions) and all(r.certain for r in switched))
        return None

    def _of_autocast(self, site: Site, value: Value) -> Region:
        if value.arguments.get("framework") is not None:
            framework = value.operand("framework")[0]
            return self.of_framework(framework) or self._region(RegionKind.UNKNOWN, site, value.node, "", certain=False)
        certain = True
        enabled = {_as_bool(v) for v in value.operand("enabled")} or {True}
        if enabled == {False}:
            return self._place(RegionKind.DISABLED, value, "autocast is disabled here")
        certain = enabled == {True}
        devices = {v.constant if v.op == "constant" else None for v in value.operand("device_type")}
        if value.dotted.startswith("torch.cpu") or devices == {"cpu"}:
            return self._place(RegionKind.CPU, value, "CPU autocast", certain)
        if devices and not all(isinstance(d, str) and d.startswith("cuda") for d in devices):
            certain = False
        kind, sure = _kind(self.engine.named_dtypes(value.operand("dtype")), value.open)
        return self._place(kind, value, f"{kind.value} is switched on here", certain and sure)

    def _place(self, kind: RegionKind, value: Value, message: str, certain: bool = True) -> Region:
        return Region(kind, certain, (Place(value.module, value.node, message),))

    def _region(self, kind: RegionKind, site: Site, node: ast.AST, message: str, certain: bool = True) -> Region:
        return Region(kind, certain, (Place(site.module, node, message),))

    def of_framework(self, framework: Value) -> Region | None:
        """The region of Accelerate's `mixed_precision` or Fabric's `precision`; None if it is off or not known."""
        for name in ("mixed_precision", "precision"):
            for value in framework.operand(name):
                if value.op == "constant" and value.constant in _HALF_PRECISION:
                    return self._place(RegionKind.FLOAT16, framework, f"{name} is float16")
                if value.op == "constant" and value.constant in _BFLOAT16_PRECISION:
                    return self._place(RegionKind.BFLOAT16, framework, f"{name} is bfloat16")
        return None

    # -- modules in half -----------------------------------------------------------------------------------------

    def cast_of(self, value: Value) -> Dtypes | None:
        """The dtypes that a module made at this place is cast to somewhere; None if it is nowhere."""
        marks = self._marks()
        found = marks.get(value.node)
        if found is None and value.op == "instance" and value.definition is not None:
            found = marks.get(value.definition.node)
        return found

    def _marks(self) -> dict[ast.AST, Dtypes]:
        return self.engine.remember("casts", lambda: self._find_marks(), dict)

    def _find_marks(self) -> dict[ast.AST, Dtypes]:
        """By the constructor call of a module (its class, for `self.half()`): the dtypes it is cast to."""
        marks: dict[ast.AST, set[Dtype]] = {}
        for site, call, value in self._casts():
            assert isinstance(call.func, ast.Attribute)
            dtype = modules.cast_of(site, call.func.attr, Given.of_call(site, call))
            if dtype not in FLOATS or dtype is None:
                continue
            key: ast.AST = value.node
            if not isinstance(key, ast.Call):
                if (
                    value.definition is None
                    or not isinstance(call.func.value, ast.Name)
                    or call.func.value.id != "self"
                ):
                    continue
                key = value.definition.node
            possible = marks.setdefault(key, set())
            possible.add(dtype)
            if _is_conditional(site.module, call):
                possible.add(Dtype.FLOAT32)
        return {node: frozenset(dtypes) for node, dtypes in marks.items() if Dtype.FLOAT16 in dtypes}

    def _casts(self) -> Iterator[tuple[Site, ast.Call, Value]]:
        """The calls that cast a module, with the module."""
        for module in self.engine.project.modules_with("half", "float16", "fp16"):
            for call in module.calls:
                func = call.func
                if not isinstance(func, ast.Attribute) or func.attr not in ("half", "to", "float", "bfloat16", "type"):
                    continue
                if func.attr in ("to", "type") and not any(_mentions_half(a) for a in _arguments(call)):
                    continue
                site = Site(self.engine, module, self.engine.base(module, call))
                for value in site.of(func.value):
                    if value.op in ("instance", "module", "sequential", "modules"):
                        yield site, call, value

    # -- frames --------------------------------------------------------------------------------------------------

    def frames(self, module: Module, node: ast.AST) -> tuple[Frame, ...]:
        """The frames, known to be in half precision or to be handed some, of the function around `node`."""
        function = self.engine.base(module, node).function
        return tuple(self._frames().get(function, ())) if function is not None else ()

    def _frames(self) -> dict[ast.AST, list[Frame]]:
        return self.engine.remember("frames", lambda: self._follow(), dict)

    def _follow(self) -> dict[ast.AST, list[Frame]]:
        found: dict[ast.AST, list[Frame]] = {}
        queue = list(self._roots())
        for frame in queue:
            if frame.call is None and frame.region is not OUTSIDE or frame.receiver is not None:
                _note(found, frame)
        seen = set(queue)
        while queue and len(seen) < _MAX_FRAMES:
            frame = queue.pop(0)
            for child in self._called(frame):
                if child not in seen and self._is_half(child) and _note(found, child):
                    seen.add(child)
                    queue.append(child)
        return found

    def _called(self, frame: Frame) -> Iterator[Frame]:
        """The frames that the calls of a function open."""
        function: ast.AST = frame.function or frame.module.tree
        for call in self._calls(frame.module).get(function, ()):
            self.engine.of(frame.module, call, frame)
            yield from self.entered.get((frame, call), ())

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
        return any(self._holds_half(value) for value in values)

    def _holds_half(self, value: Value) -> bool:
        if value.op in ("instance", "module", "sequential", "modules"):
            return value.wrapped is not None or Dtype.FLOAT16 in precision.module_precision(value)
        if value.op in ("tuple", "comprehension"):
            return any(self._holds_half(v) for e in value.elements[:8] for v in self.engine.of_argument(e))
        return value.may_be_half

    def _roots(self) -> Iterator[Frame]:
        """The frames from which half precision spreads."""
        switching = list(self.engine.project.modules_with(*_SWITCHES))
        for module in switching:
            if not _switches(module):
                continue
            yield self.engine.base(module, module.tree)
            for function in module.functions:
                yield self.engine.base(module, function)
        for _, _, value in self._casts():
            if isinstance(value.node, ast.Call) and Dtype.FLOAT16 in precision.module_precision(value):
                yield from self._forwards(value)
        for module in switching:
            yield from self._of_trainers(module)

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
        """Lightning's and Hugging Face's Trainer with float16 precision."""
        for call in module.calls:
            name = _last_name(call.func)
            if name == "Trainer" and (region := self._lightning_region(module, call)) is not None:
                yield from self._steps(module, region)
            elif name.endswith("TrainingArguments") and (region := self._hf_region(module, call)) is not None:
                yield from self._models(region)

    def _lightning_region(self, module: Module, call: ast.Call) -> Region | None:
        if not any(n.partition(".")[0] in _LIGHTNING for n in module.names(call.func)):
            return None
        site = Site(self.engine, module, self.engine.base(module, call))
        for keyword in call.keywords:
            if keyword.arg == "precision":
                values = site.of(keyword.value)
                if any(v.op == "constant" and v.constant in _HALF_PRECISION for v in values):
                    return self._region(
                        RegionKind.FLOAT16, site, call, "precision is float16", certain=len(values) == 1
                    )
        return None

    def _steps(self, module: Module, region: Region) -> Iterator[Frame]:
        """The steps of the module that the Trainer fits; of all LightningModules, where that is not known."""
        fitted = [v for v in self._given_to(module, "fit", ("model",)) if v.definition is not None]
        for value in fitted or list(self._instances_of("LightningModule")):
            assert value.definition is not None
            for name in _STEPS:
                if method := self.engine.project.method(value.definition, name):
                    frame = objects.method_frame(self.engine.site(value), method, value, value.node)
                    yield self.engine.in_region(frame, region)

    def _hf_region(self, module: Module, call: ast.Call) -> Region | None:
        site = Site(self.engine, module, self.engine.base(module, call))
        for keyword in call.keywords:
            if keyword.arg == "fp16":
                outcomes = {_as_bool(v) for v in site.of(keyword.value)}
                if outcomes != {False} and outcomes != {None}:
                    certain = outcomes == {True}
                    return self._region(RegionKind.FLOAT16, site, call, "fp16 is on", certain=certain)
        return None

    def _models(self, region: Region) -> Iterator[Frame]:
        """The forward of the models that a Hugging Face Trainer is given."""
        found: list[Value] = []
        for module in self.engine.project.modules_with("Trainer"):
            for call in module.calls:
                if _last_name(call.func).endswith("Trainer"):
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


def _note(found: dict[ast.AST, list[Frame]], frame: Frame) -> bool:
    """Keep a frame of a function; False if enough are known."""
    held = found.setdefault(frame.function or frame.module.tree, [])
    if len(held) >= _MAX_PER_FUNCTION:
        return False
    held.append(frame)
    return True


def _kind(dtypes: Dtypes, is_open: bool) -> tuple[RegionKind, bool]:
    """The kind of CUDA autocast region that a dtype argument gives, and whether it is certain."""
    if not dtypes:
        return (RegionKind.UNKNOWN, False) if is_open else (RegionKind.FLOAT16, True)
    if Dtype.FLOAT16 in dtypes:
        return RegionKind.FLOAT16, len(dtypes) == 1
    if Dtype.UNKNOWN in dtypes:
        return RegionKind.UNKNOWN, False
    if Dtype.BFLOAT16 in dtypes:
        return RegionKind.BFLOAT16, len(dtypes) == 1
    return RegionKind.DISABLED, True


def _as_bool(value: Value) -> bool | None:
    return value.constant if value.op == "constant" and isinstance(value.constant, bool) else None


def _is_context_manager(function: ast.AST) -> bool:
    return any(_last_name(d) == "contextmanager" for d in getattr(function, "decorator_list", ()))


def _is_conditional(module: Module, call: ast.Call) -> bool:
    for ancestor in module.ancestors(call):
        if isinstance(ancestor, (*_FUNCTIONS, ast.ClassDef)):
            return False
        if isinstance(ancestor, ast.If | ast.IfExp):
            return True
    return False


def _mentions_half(node: ast.expr) -> bool:
    return any(
        (isinstance(n, ast.Attribute) and n.attr in ("float16", "half", "dtype"))
        or (isinstance(n, ast.Name) and ("dtype" in n.id or n.id in ("float16", "half")))
        for n in ast.walk(node)
    )


def _arguments(call: ast.Call) -> Iterable[ast.expr]:
    return (*call.args, *(k.value for k in call.keywords))


def _switches(module: Module) -> bool:
    """Whether a file really switches half precision on, beyond naming it."""
    if any(_last_name(c.func) in ("autocast", "half", "Accelerator", "Fabric") for c in module.calls):
        return True
    if any(
        _last_name(d.func if isinstance(d, ast.Call) else d) == "autocast"
        for f in module.functions
        for d in f.decorator_list
    ):
        return True
    return any(
        (isinstance(n, ast.Attribute) and n.attr in ("float16", "half", "autocast"))
        or (isinstance(n, ast.Constant) and n.value in ("fp16", "float16"))
        for n in module.parents
    )


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
