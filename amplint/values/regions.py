"""The autocast state in which code runs, by the `with` blocks and decorators around it; and modules cast to half."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from amplint.project import Definition
from amplint.tree import Module
from amplint.values import calls, conditions, entered, modules, objects, spelled
from amplint.values.dtype import FLOATS, Dtype, Dtypes
from amplint.values.site import Given, Site
from amplint.values.value import Place, Region, RegionKind, Value, Where, where

if TYPE_CHECKING:
    from amplint.values.engine import Values

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
HALF_PRECISION = (16, "16", "16-mixed", "fp16")
"""What frameworks call float16 autocast."""
_BFLOAT16_PRECISION = ("bf16", "bf16-mixed")
_OF_TENSORS = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Subscript, ast.AugAssign)
"""What takes a tensor, so no module."""
_FULL_PRECISION_DECORATORS = ("force_fp32",)

CASTS = "casts"
"""The key of the casts of a whole project."""

OUTSIDE = Region(RegionKind.NONE)


def place(kind: RegionKind, module: Module, node: ast.AST, message: str, certain: bool = True) -> Region:
    """A region, and the place that makes it one."""
    return Region(kind, certain, (Place(module, node, message),))


@dataclass(frozen=True, slots=True)
class Casts:
    """Where a project casts modules to another dtype."""

    calls: tuple[Where, ...] = ()
    """The calls that do."""
    dtypes: Mapping[Where, Dtypes] = field(default_factory=dict)
    """What a module may be cast to, float16 among it, by the constructor call of the module, or by its class."""


class Regions:
    """The regions of one project, and the casts of its modules."""

    def __init__(self, engine: Values) -> None:
        self.engine = engine

    # -- lexical regions -----------------------------------------------------------------------------------------

    def at(self, site: Site, node: ast.AST) -> Region:
        """The autocast state in which `node` runs in the site's frame."""
        child: ast.AST = node
        for ancestor in site.module.ancestors(node):
            if isinstance(ancestor, ast.With | ast.AsyncWith) and child in ancestor.body:
                if (region := self._entered(site, node, ancestor)) is not None:
                    return region
                for item in reversed(ancestor.items):
                    if (region := self._of_item(site, ancestor, item.context_expr)) is not None:
                        return region
            elif (
                isinstance(ancestor, ast.FunctionDef | ast.AsyncFunctionDef) and child in ancestor.body
            ) or isinstance(ancestor, ast.Lambda):
                return self._entered(site, node, ancestor) or self._of_function(site, ancestor)
            child = ancestor
        if (region := self._entered(site, node, site.module.tree)) is not None:
            return region
        return site.frame.region if site.frame.function is None else OUTSIDE

    def _entered(self, site: Site, node: ast.AST, within: ast.AST) -> Region | None:
        """The region that a call in this block (a function, a file) has entered: before the node, or in all of it."""
        module = site.module
        function = within if node is within else module.function(node) or module.tree
        found = self._entries(module).get(function)
        for entry, certain in found.open_at(module, node) if found else ():
            if within not in module.ancestors(entry.call) or not conditions.feasible(site, entry.call):
                continue
            region = self._of_item(site, entry.call, entry.context)
            if region is not None:
                return region if certain else self._perhaps(site, entry.call, region)
        return None

    def _entries(self, module: Module) -> dict[ast.AST, entered.Entered]:
        return self.engine.remember(("entered", module.tree), lambda: entered.by_function(module), dict)

    def _perhaps(self, site: Site, at: ast.AST, region: Region) -> Region:
        """A region that may not be entered: float16 then, if it is so either way."""
        outer = self.at(site, at)
        return replace(outer if outer.is_float16 else region, certain=False)

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
            return place(RegionKind.DISABLED, site.module, decorator, "custom_fwd casts its inputs") if cast else None
        if last in _FULL_PRECISION_DECORATORS:
            return place(RegionKind.DISABLED, site.module, decorator, "runs in float32")
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
        found = [self._of_value(site, v) for v in values]
        regions = [region for region in found if region is not None]
        if not regions:
            return None
        kinds = {region.kind for region in regions}
        chosen = next((r for r in regions if r.is_float16), regions[0])
        certain = len(kinds) == 1 and len(regions) == len(found) and all(r.certain for r in regions)
        return replace(chosen, certain=certain)

    def _of_value(self, site: Site, value: Value) -> Region | None:
        if value.op == "instance" and value.definition is not None:
            return self._of_instance(site, value, value.definition)
        return self._of_autocast(site, value) if value.op == "autocast" else None

    def _of_instance(self, site: Site, value: Value, cls: Definition) -> Region | None:
        """The region that the `__enter__` of a class of the project leaves open."""
        method = self.engine.project.method(cls, "__enter__")
        if method is None:
            return None
        frame = objects.method_frame(site, method, value, value.node)
        return self._entered(site.at(method.module, frame), method.node, method.node)

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
            return self.of_framework(framework) or place(RegionKind.UNKNOWN, site.module, value.node, "", certain=False)
        certain = True
        enabled = {as_bool(v) for v in value.operand("enabled")} or {True}
        if enabled == {False}:
            return place(RegionKind.DISABLED, value.module, value.node, "autocast is disabled here")
        certain = enabled == {True}
        devices = {v.constant if v.op == "constant" else None for v in value.operand("device_type")}
        if value.dotted.startswith("torch.cpu") or devices == {"cpu"}:
            return place(RegionKind.CPU, value.module, value.node, "CPU autocast", certain)
        if devices and not all(isinstance(d, str) and d.startswith("cuda") for d in devices):
            certain = False
        kind, sure = _kind(self.engine.named_dtypes(value.operand("dtype")), value.open)
        return place(kind, value.module, value.node, f"{kind.value} is switched on here", certain and sure)

    def of_framework(self, framework: Value) -> Region | None:
        """The region of Accelerate's `mixed_precision` or Fabric's `precision`; None if it is off or not known."""
        for name in ("mixed_precision", "precision"):
            for value in framework.operand(name):
                if value.op == "constant" and value.constant in HALF_PRECISION:
                    return place(RegionKind.FLOAT16, framework.module, framework.node, f"{name} is float16")
                if value.op == "constant" and value.constant in _BFLOAT16_PRECISION:
                    return place(RegionKind.BFLOAT16, framework.module, framework.node, f"{name} is bfloat16")
        return None

    # -- modules in half -----------------------------------------------------------------------------------------

    def cast_of(self, value: Value) -> Dtypes | None:
        """The dtypes that a module made at this place is cast to somewhere; None if it is nowhere."""
        dtypes = self.casts().dtypes
        self.engine.project.note_half(value.module.source.path)
        if value.definition is not None:
            self.engine.project.note_half(value.definition.module.source.path)
        if not dtypes:
            return None
        found = dtypes.get(where(value.module, value.node))
        if found is None and value.op == "instance" and value.definition is not None:
            found = dtypes.get(where(value.definition.module, value.definition.node))
        return found

    def casts(self) -> Casts:
        """The casts of the project's modules, found once."""
        return self.engine.remember(CASTS, lambda: self._find_casts(), Casts)

    def modules_cast(self, module: Module, call: ast.Call) -> Iterator[Value]:
        """The modules that a call `….half()` casts."""
        assert isinstance(call.func, ast.Attribute)
        site = Site(self.engine, module, self.engine.base(module, call, hops=1))
        if _dtype_given(site, call) in FLOATS:
            yield from (v for v in site.of(call.func.value) if v.op in ("instance", "module", "sequential", "modules"))

    def _find_casts(self) -> Casts:
        calls: list[Where] = []
        found: dict[Where, set[Dtype]] = {}
        for module, call in self._may_cast():
            values = tuple(self.modules_cast(module, call))
            if values:
                calls.append(where(module, call))
            for value in values:
                if (made := _where_made(value, call)) is not None:
                    found.setdefault(made, set()).update(self._dtypes_cast_to(module, call))
        dtypes = {made: frozenset(possible) for made, possible in found.items() if Dtype.FLOAT16 in possible}
        return Casts(tuple(calls), dtypes)

    def _may_cast(self) -> Iterator[tuple[Module, ast.Call]]:
        """The calls `x.half()`, `x.to(dtype)` and the like whose x may be a module."""
        project = self.engine.project
        for module in project.modules(project.files_switching()):
            self.engine.release()
            for call in module.calls:
                func = call.func
                if not isinstance(func, ast.Attribute) or func.attr not in ("half", "to", "float", "bfloat16", "type"):
                    continue
                if func.attr in ("to", "type") and not any(_mentions_half(a) for a in _arguments(call)):
                    continue
                if _is_for_saving(module, call) or isinstance(module.parent(call), _OF_TENSORS):
                    continue
                if spelled.is_tensor(module, func.value):
                    continue
                if not self.engine.renew():
                    return
                yield module, call

    def _dtypes_cast_to(self, module: Module, call: ast.Call) -> Iterator[Dtype]:
        dtype = _dtype_given(Site(self.engine, module, self.engine.base(module, call, hops=1)), call)
        assert dtype is not None
        yield dtype
        if _is_conditional(module, call):
            yield Dtype.FLOAT32


def _dtype_given(site: Site, call: ast.Call) -> Dtype | None:
    assert isinstance(call.func, ast.Attribute)
    return modules.cast_of(site, call.func.attr, Given.of_call(site, call))


def _where_made(value: Value, cast: ast.Call) -> Where | None:
    """The constructor call of a module that is cast; its class, for `self.half()`."""
    if isinstance(value.node, ast.Call):
        return where(value.module, value.node)
    assert isinstance(cast.func, ast.Attribute)
    if value.definition is not None and last_name(cast.func.value) == "self":
        return where(value.definition.module, value.definition.node)
    return None


def _is_for_saving(module: Module, cast: ast.Call) -> bool:
    """Whether a module is cast for a checkpoint: `model.half().state_dict()`, `torch.save(model.half(), …)`."""
    for ancestor in module.ancestors(cast):
        if isinstance(ancestor, ast.stmt):
            return False
        if isinstance(ancestor, ast.Attribute) and ancestor.attr == "state_dict":
            return True
        if isinstance(ancestor, ast.Call) and last_name(ancestor.func) in ("save", "save_pretrained", "save_file"):
            return True
    return False


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


def as_bool(value: Value) -> bool | None:
    return value.constant if value.op == "constant" and isinstance(value.constant, bool) else None


def _is_context_manager(function: ast.AST) -> bool:
    return any(last_name(d) == "contextmanager" for d in getattr(function, "decorator_list", ()))


def _is_conditional(module: Module, call: ast.Call) -> bool:
    for ancestor in module.ancestors(call):
        if isinstance(ancestor, (*_FUNCTIONS, ast.ClassDef)):
            return False
        if isinstance(ancestor, ast.If | ast.IfExp):
            return True
    return False


def _mentions_half(node: ast.expr) -> bool:
    return any(
        (isinstance(n, ast.Attribute) and (n.attr in ("float16", "half") or n.attr.endswith("_dtype")))
        or (isinstance(n, ast.Name) and ("dtype" in n.id or n.id in ("float16", "half")))
        for n in ast.walk(node)
    )


def _arguments(call: ast.Call) -> Iterable[ast.expr]:
    return (*call.args, *(k.value for k in call.keywords))


def last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
