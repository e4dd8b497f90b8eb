"""The value analysis' face: `Values`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from amplint import flow, torch_ops
from amplint.context import Options
from amplint.nodes import kind_of
from amplint.project import Definition, Project
from amplint.tree import Module
from amplint.values import (
    calls,
    conditions,
    expressions,
    frames,
    gradients,
    objects,
    peeling,
    precision,
    ranges,
    regions,
    tensors,
)
from amplint.values.dtype import Dtype, Dtypes, by_torch_name
from amplint.values.interval import Interval
from amplint.values.memo import Memo
from amplint.values.site import Site, merged
from amplint.values.value import Alternatives, Argument, Certainty, Frame, Peeled, Region, RegionKind, Value

T = TypeVar("T")

_CALLABLES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LASTING = {*frames.Frames.LASTING, regions.CASTS}
"""The keys of what is worked out once, even if the analysis is trimmed."""
_ANYWHERE = Region(RegionKind.UNKNOWN, certain=False)


class Values:
    """What the expressions of a project can be. All answers are remembered and bounded in depth and work."""

    def __init__(self, project: Project, options: Options) -> None:
        self.project = project
        self.options = options
        self.regions = regions.Regions(self)
        self.frame_index = frames.Frames(self)
        self._memo = Memo(project, _LASTING)
        self._may_release = False
        self._bases: dict[tuple[ast.AST, int], Frame] = {}
        self._nodes: dict[Module, dict[type[ast.AST], list[ast.AST]]] = {}

    # -- what an expression can be -------------------------------------------------------------------------------

    def of(self, module: Module, node: ast.expr, frame: Frame | None = None) -> Alternatives:
        """All things that an expression can be; without a frame, as entered from the calls known in the project."""
        where = self.base(module, node) if frame is None else frame
        site = Site(self, module, where)
        return self.remember(
            ("value", node, where),
            lambda: expressions.recognise(site, node) or site.unknown(node),
            lambda: site.unknown(node),
        )

    def of_argument(self, argument: Argument) -> Alternatives:
        """All values of an operand."""
        if argument.values is not None:
            return argument.values
        return self.of(argument.module, argument.node, argument.frame)

    def operations(self, module: Module, *names: str, half: bool = False) -> Iterator[Value]:
        """The expressions of a file that are one of these operations, in any spelling, in source order.

        An expression that is one of them only in some of its alternatives is yielded for those.
        `half`: only those which half precision may reach (far fewer, so much faster).
        """
        wanted = frozenset(names)
        for node in self._candidates(module, wanted, half):
            for value in self._operation(module, node):
                if value.op in wanted and value.node is node and value.module is module:
                    yield value

    def peel(self, values: Alternatives, through: Collection[str]) -> tuple[Peeled, ...]:
        """What is left of each alternative when layers of these kinds are taken off; see `peeling.KINDS`."""
        return peeling.peel(values, frozenset(through))

    def same(self, a: Value, b: Value) -> bool:
        """Whether two values are certainly the same tensor (or equal ones: pure operations of the same operands)."""
        return peeling.same(a, b)

    def same_all(self, a: Alternatives, b: Alternatives) -> bool:
        """Whether two operands are certainly the same: one value each, or the very same alternatives."""
        if len(a) == len(b) == 1:
            return self.same(a[0], b[0])
        return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=False))

    # -- numbers, dtypes, intervals ------------------------------------------------------------------------------

    def number(self, values: Alternatives) -> float | None:
        """The one number that all the values are; None otherwise."""
        numbers = {value.as_number() for value in values}
        return next(iter(numbers)) if len(numbers) == 1 else None

    def as_number(self, value: Value) -> float | None:
        return ranges.number(value)

    def dtypes(self, value: Value) -> Dtypes:
        found = self.remember(("dtypes", value), lambda: precision.dtypes(value), lambda: frozenset[Dtype]())
        return found or frozenset({Dtype.UNKNOWN})

    def dtypes_of(self, values: Iterable[Value]) -> Dtypes:
        """The dtypes of all alternatives; inside a loop that needs itself, those found elsewhere."""
        found: set[Dtype] = set()
        for value in values:
            key = ("dtypes", value)
            found |= self.remember(key, lambda v=value: precision.dtypes(v), lambda: frozenset[Dtype]())  # type: ignore[misc]
        return frozenset(found)

    def precision(self, module: Value) -> Dtypes:
        """The dtypes that the parameters of a module or instance can have."""
        return precision.module_precision(module)

    def interval(self, value: Value) -> Interval:
        return self.remember(("interval", value), lambda: ranges.interval(value), Interval)

    def interval_of(self, values: Alternatives) -> Interval:
        """The interval that holds all alternatives."""
        found: Interval | None = None
        for value in values:
            found = value.interval if found is None else found.union(value.interval)
        return Interval() if found is None else found

    def named_dtypes(self, values: Alternatives) -> Dtypes:
        """The dtypes that dtype expressions name: `torch.float16`, `x.dtype`, `"fp16"`; unknown for what is unclear."""
        found: set[Dtype] = set()
        for value in values:
            if value.op == "external" and (dtype := objects.dtype_named(value.dotted)):
                found.add(dtype)
            elif value.op == "dtype":
                found |= self.dtypes_of(value.operand("input"))
            elif value.op == "constant" and isinstance(value.constant, str):
                found.add(by_torch_name(value.constant.removeprefix("torch.").removeprefix("cuda.")) or Dtype.UNKNOWN)
            elif not (value.op == "constant" and value.constant is None):
                found.add(Dtype.UNKNOWN)
        return frozenset(found)

    # -- regions and frames --------------------------------------------------------------------------------------

    def region(self, module: Module, node: ast.AST, frame: Frame | None = None) -> Region:
        """The autocast state in which `node` runs in a frame."""
        where = self.base(module, node) if frame is None else frame
        key = ("region", node, where)
        return self.remember(key, lambda: self.regions.at(Site(self, module, where), node), lambda: regions.OUTSIDE)

    def frames(self, module: Module, node: ast.AST) -> tuple[Frame, ...]:
        """The known ways in which half precision reaches the function around `node`, and its base frame (last).

        Where there are such ways, it is not known in which region the code runs in the base frame.
        """
        half, base = self.frame_index.frames(module, node), self.base(module, node)
        return (*half, self.in_region(base, _ANYWHERE)) if half else (base,)

    def reaches(self, path: Path) -> bool:
        """Whether half precision may reach some code of a file. To be asked before any of its values is."""
        with self.releasing():
            return self.frame_index.reaches_file(path)

    def seen(self, value: Value) -> tuple[Value, ...]:
        """The value as it is in each frame of `frames`, for a value of a base frame (others are returned alone)."""
        if value.frame is not self.base(value.module, value.node):
            return (value,)
        found = [v for f in self.frames(value.module, value.node) for v in self._in_frame(value, f)]
        return tuple(v for v in dict.fromkeys(found) if v.op == value.op)

    def _in_frame(self, value: Value, frame: Frame) -> Alternatives:
        if isinstance(getattr(value.node, "ctx", None), ast.Store):
            return expressions.assigned(Site(self, value.module, frame), value.node)
        return self.of(value.module, value.node, frame)

    def half(self, value: Value) -> Certainty:
        """Whether the value is float16, over all known ways to reach it.

        ALWAYS: in each frame through which half precision comes; MAY: in some, or as one of several dtypes.
        """
        seen = [v.dtypes for v in self.seen(value)]
        reached = [d for d in seen[:-1] if d] if len(seen) > 1 else seen
        if all(d == {Dtype.FLOAT16} for d in reached):
            return Certainty.ALWAYS
        if any(Dtype.FLOAT16 in d for d in seen):
            return Certainty.MAY
        return Certainty.UNKNOWN if any(Dtype.UNKNOWN in d for d in seen) else Certainty.NEVER

    def gradients(self, value: Value) -> bool:
        """Whether a gradient may flow through the value: not under no_grad in every way there, nor from constants."""
        return gradients.flow((value,))

    def is_tensor(self, value: Value) -> Certainty:
        """Whether the value is a torch tensor. UNKNOWN where what it is made of may be numpy's or Python's."""
        return self.remember(("tensor", value), lambda: tensors.is_tensor(value), lambda: Certainty.UNKNOWN)

    def base(self, module: Module, node: ast.AST, hops: int = 3) -> Frame:
        """The frame of the function around `node` (or that is `node`) when it is not known where it was called."""
        function = self._callable(module, node)
        key = (function or module.tree, hops)
        if key not in self._bases:
            self._bases[key] = Frame(module, function, regions.OUTSIDE, hops=hops)
        return self._bases[key]

    def frame_of(self, module: Module, node: ast.AST, frame: Frame) -> Frame:
        """The frame in which a definition that `frame` can see was made: its own, or one around it."""
        function = self._callable(module, module.parents.get(node, node) if isinstance(node, _CALLABLES) else node)
        current: Frame | None = frame
        while current is not None:
            if current.function is function and current.module is module:
                return current
            current = current.caller
        return self.base(module, function or module.tree, frame.hops)

    def half_in(self, path: Path) -> tuple[str, ...]:
        """All that half precision of the whole project comes to in one file, in a word; nothing where it is nothing."""
        with self.releasing():
            return self.frame_index.summaries().get(path, ())

    # -- for the recognisers -------------------------------------------------------------------------------------

    def site(self, value: Value) -> Site:
        """Where a value was made."""
        return Site(self, value.module, value.frame)

    def remember(self, key: Hashable, answer: Callable[[], T], bottom: Callable[[], T]) -> T:
        return self._memo.remember(key, answer, bottom)

    @contextmanager
    def releasing(self) -> Iterator[None]:
        """Within the block, trees may be let go of between the parts of a question that is many in one: nobody around
        holds on to a value."""
        before, self._may_release = self._may_release, True
        try:
            yield
        finally:
            self._may_release = before

    def release(self) -> None:
        """Between two parts of a question that is many in one: let go of trees where they have become many."""
        if self._may_release and self.project.trim(self.remembered):
            self.trim()

    def renew(self) -> bool:
        """Give the question being answered, which is many in one, its measure of work again; False if it had enough."""
        return self._memo.renew()

    def returned(self, frame: Frame) -> Alternatives:
        """What a function returns in a frame; () for a generator, or nothing."""
        return self.remember(("returned", frame), lambda: self._returned(frame), tuple)

    def owned(self, value: Value, owner: Value) -> Value:
        """The value as an attribute of `owner`."""
        return self.remember(("owned", value, owner), lambda: replace(value, owner=owner), lambda: value)

    def wrapped(self, value: Value, region: Region) -> Value:
        """A module whose forward a framework runs in `region`."""
        return self.remember(("wrapped", value, region), lambda: replace(value, wrapped=region), lambda: value)

    def in_region(self, frame: Frame, region: Region) -> Frame:
        """The same frame, entered in another region."""
        return self.remember(("in region", frame, region), lambda: replace(frame, region=region), lambda: frame)

    def unmade(self, cls: Definition) -> Value:
        """An instance of a class that unknown code makes."""
        node = ast.Name(id=getattr(cls.node, "name", ""), ctx=ast.Load(), lineno=1, col_offset=0)
        site = Site(self, cls.module, self.base(cls.module, cls.module.tree))
        key = ("unmade", cls.node)
        return self.remember(
            key,
            lambda: site.value(node, "instance", definition=cls),
            lambda: site.value(node, "instance", definition=cls),
        )

    def framework_region(self, framework: Value) -> Region | None:
        """The region in which an Accelerator or Fabric runs the forward of what it prepares."""
        return self.regions.of_framework(framework)

    def buffers(self, cls: Definition) -> dict[str, list[tuple[Module, ast.expr, Definition]]]:
        """The tensors that a class registers as buffers or parameters, by name, with the registering function."""
        return self.remember(("buffers", cls.node), lambda: self._buffers(cls), dict)

    @property
    def remembered(self) -> int:
        """How many answers are held."""
        return len(self._memo)

    def abandon(self) -> None:
        """Forget what was being worked out when the work was interrupted, and all that is no answer for good."""
        self._memo.abandon()
        self.trim()

    def trim(self) -> None:
        """Forget what was worked out, but for what is done once for the whole project."""
        self._memo.forget()
        self._bases.clear()
        self._nodes.clear()

    # -- inside --------------------------------------------------------------------------------------------------

    def _returned(self, frame: Frame) -> Alternatives:
        if frame.function is None:
            return ()
        site = Site(self, frame.module, frame)
        function = frame.function
        key = ("returned expressions", function)
        found = self.remember(key, lambda: tuple(calls.returned_expressions(function)), lambda: ())
        feasible = (e for e in found if conditions.feasible(site, e))
        return merged(value for expression in feasible for value in site.of(expression))

    def _buffers(self, cls: Definition) -> dict[str, list[tuple[Module, ast.expr, Definition]]]:
        found: dict[str, list[tuple[Module, ast.expr, Definition]]] = {}
        for base in self.project.mro(cls):
            for node in self._registrations(base.module):
                name, function = node.args[0], base.module.function(node)
                if function is None or base.module.class_of(function) is not base.node:
                    continue
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    entry = (base.module, node.args[1], Definition(base.module, function))
                    found.setdefault(name.value, []).append(entry)
        return found

    def _registrations(self, module: Module) -> tuple[ast.Call, ...]:
        """The calls of a file that register a buffer or a parameter."""
        key = ("registrations", module.tree)
        return self.remember(
            key,
            lambda: tuple(c for c in module.calls_of("register_buffer", "register_parameter") if len(c.args) >= 2),
            tuple,
        )

    def _callable(self, module: Module, node: ast.AST) -> ast.AST | None:
        """The function or lambda whose activation evaluates `node`."""
        if isinstance(node, _CALLABLES):
            return node
        child: ast.AST = node
        for ancestor in module.ancestors(node):
            if isinstance(ancestor, ast.Lambda):
                return ancestor
            if isinstance(ancestor, ast.FunctionDef | ast.AsyncFunctionDef) and _runs_within(ancestor, child):
                return ancestor
            child = ancestor
        return None

    def nodes(self, module: Module, kind: type[ast.AST]) -> list[ast.AST]:
        """All nodes of one kind in a file, in the order of the walk."""
        if module not in self._nodes:
            by_kind: dict[type[ast.AST], list[ast.AST]] = {}
            for node in module.nodes:
                by_kind.setdefault(kind_of(node), []).append(node)
            self._nodes[module] = by_kind  # only now: a file's time may run out before
        return self._nodes[module].get(kind, [])

    def _operation(self, module: Module, node: ast.expr) -> Alternatives:
        """What an expression is; for the target of an assignment, what the assignment makes of it."""
        if isinstance(getattr(node, "ctx", None), ast.Store):
            return expressions.assigned(Site(self, module, self.base(module, node)), node)
        return self.of(module, node)

    def _candidates(self, module: Module, wanted: Collection[str], half: bool) -> Iterator[ast.expr]:
        rows = [row for row in torch_ops.operations() if row.name in wanted]
        spelled = {s.rpartition(".")[2] for row in rows for s in (*row.functions, *row.methods)}
        spelled |= {f"{s}_" for s in spelled}
        instances = any(row.modules for row in rows)
        for call in module.calls:
            if half and not self.frame_index.reaches(module, call):
                continue
            if _takes_other_arguments(module, call):
                continue
            if _last_name(call.func) in spelled or self._may_be_alias(module, call, spelled, instances):
                yield call
        if any(row.operators for row in rows):
            symbols = {symbol for row in rows for symbol in row.operators}
            for kind in expressions.node_kinds(symbols):
                for node in self.nodes(module, kind):
                    if half and not self.frame_index.reaches(module, node):
                        continue
                    if isinstance(node, ast.AugAssign):
                        yield node.target
                    elif isinstance(node, ast.expr):
                        yield node

    def _may_be_alias(self, module: Module, call: ast.Call, spelled: Collection[str], instances: bool) -> bool:
        """Whether the callee is a name for one of the operations, or perhaps a module instance."""
        func = call.func
        if isinstance(func, ast.Name | ast.Attribute):
            names = module.names(func)
            if names:
                return any(name.rpartition(".")[2] in spelled for name in names)
        if isinstance(func, ast.Attribute):
            return instances and not torch_ops.by_method(func.attr)
        if isinstance(func, ast.Name):
            found = module.lookup(func.id, func)
            if found is None or any(isinstance(n, (*_CALLABLES, ast.ClassDef)) for n in found[1]):
                return False
            return instances or any(_is_partial(flow.binding(module, node).value) for node in found[1])
        return instances


def _is_partial(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and _last_name(value.func) == "partial"


def _takes_other_arguments(module: Module, call: ast.Call) -> bool:
    """Whether `x.name(…)` is given more than a tensor's method of that name takes: `logger.log(values)`."""
    row = torch_ops.by_method(call.func.attr) if isinstance(call.func, ast.Attribute) else None
    if row is None or row.kind is not torch_ops.Kind.ELEMENTWISE or len(call.args) < len(row.parameters):
        return False
    return not module.names(call.func)


def _runs_within(function: ast.FunctionDef | ast.AsyncFunctionDef, child: ast.AST) -> bool:
    return child not in function.decorator_list and child is not function.returns


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
