"""Parameters, attributes and instances: what a value is that comes from another place than this function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from amplint import flow, torch_ops
from amplint.project import Definition, default_of, parameters
from amplint.tree import Module
from amplint.values import calls, expressions, lists, options
from amplint.values.dtype import Dtype, by_torch_name
from amplint.values.site import MAX_ALTERNATIVES, Given, Site, known, merged, without_none
from amplint.values.value import Alternatives, Argument, Frame, Value

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NO_TENSOR = frozenset("shape ndim device is_cuda requires_grad layout names grad_fn is_leaf itemsize nbytes".split())
_LIMITS = {
    Dtype.FLOAT16: {"max": 65504.0, "eps": 2.0**-10, "tiny": 2.0**-14},
    Dtype.BFLOAT16: {"max": 3.3895313892515355e38, "eps": 2.0**-7, "tiny": 2.0**-126},
    Dtype.FLOAT32: {"max": 3.4028234663852886e38, "eps": 2.0**-23, "tiny": 2.0**-126},
    Dtype.FLOAT64: {"max": 1.7976931348623157e308, "eps": 2.0**-52, "tiny": 2.0**-1022},
}


# -- parameters ------------------------------------------------------------------------------------------------


def parameter(site: Site, node: ast.arg) -> Alternatives:
    """What a parameter is in the site's frame: the call's argument, the default, or what known callers give."""
    frame = site.frame
    function = site.module.parent(site.module.parent(node) or node)
    use = _as_name(node)
    if function is not frame.function or not isinstance(function, (*_FUNCTIONS, ast.Lambda)):
        return site.unknown(use, node.arg)
    if node.arg in frame.arguments:
        return site.engine.of_argument(frame.arguments[node.arg])
    if _is_receiver(site.module, function, node):
        if frame.receiver:
            return (frame.receiver,)
        return site.engine.remember(  # one for all uses, so that what two of them read is the same
            ("own instance", node, frame), lambda: _own_instance(site, function, use), lambda: site.unknown(use)
        )
    default = default_of(function, node.arg)
    outer = site.at(site.module, site.engine.base(site.module, site.module.parents[function]))
    if frame.call is not None:
        if frame.open or default is None:
            return site.unknown(use, node.arg)
        return outer.of(default)
    is_constructor = getattr(function, "name", "") == "__init__"
    if (frame.receiver is None or is_constructor) and (given := _from_callers(site, function, node)):
        return given
    if instance := _annotated(site, node, use):
        return instance
    given_default = None if default is None else outer.argument(default)
    return (site.value(use, "parameter", dotted=node.arg, default=given_default),)


def _as_name(node: ast.arg) -> ast.expr:
    return ast.copy_location(ast.Name(id=node.arg, ctx=ast.Load()), node)


def _is_receiver(module: Module, function: ast.AST, node: ast.arg) -> bool:
    if not isinstance(function, _FUNCTIONS) or module.class_of(function) is None:
        return False
    if any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list):
        return False
    named = parameters(function)
    return bool(named) and named[0] is node


def _own_instance(site: Site, function: ast.AST, use: ast.expr) -> Alternatives:
    cls = site.module.class_of(function)
    assert cls is not None
    is_class = isinstance(function, _FUNCTIONS) and any(
        isinstance(d, ast.Name) and d.id == "classmethod" for d in function.decorator_list
    )
    op = "class" if is_class else "instance"
    return (site.value(use, op, definition=Definition(site.module, cls), dotted=cls.name),)


def _from_callers(site: Site, function: ast.AST, node: ast.arg) -> Alternatives:
    """The arguments that the calls known in this project give; () if there is none, or one cannot be told."""
    engine, hops = site.engine, site.frame.hops
    if hops == 0:
        return ()
    project, definition = engine.project, Definition(site.module, function)
    if len(project.calling_files(definition)) > MAX_ALTERNATIVES:
        return ()
    found: list[Value] = []
    for caller in project.callers(definition):
        outer = site.at(caller.module, engine.base(caller.module, caller.call, hops - 1))
        for callee in project.callees(caller.module, caller.call):
            if callee.function is not function:
                continue
            if (argument := callee.argument(node.arg)) is not None:
                found += outer.of(argument)
            elif (default := callee.default(node.arg)) is not None and not callee.open:
                found += site.at(site.module, engine.base(site.module, site.module.parents[function])).of(default)
            else:
                return ()
    return merged(found)


def _annotated(site: Site, node: ast.arg, use: ast.expr) -> Alternatives:
    """An instance of the class, of the project or of torch.nn, that annotates the parameter."""
    annotation = _one_type(node.annotation)
    if isinstance(annotation, ast.Name | ast.Attribute):
        rows = [
            row for name in site.module.names(annotation) if (row := torch_ops.by_module(calls.canonical_name(name)))
        ]
        if rows:
            return (site.value(use, "module", operator=rows[0].name, dotted=node.arg),)
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            annotation = ast.parse(annotation.value, mode="eval").body
        except SyntaxError:
            return ()
        classes = [d for d in _resolve_text(site, annotation) if isinstance(d.node, ast.ClassDef)]
    elif isinstance(annotation, ast.Name | ast.Attribute):
        classes = [d for d in site.engine.project.resolve(site.module, annotation) if isinstance(d.node, ast.ClassDef)]
    else:
        return ()
    return tuple(site.value(use, "instance", definition=d, dotted=getattr(d.node, "name", "")) for d in classes)


def _one_type(annotation: ast.expr | None) -> ast.expr | None:
    """The type in `Optional[T]` and `T | None`."""
    if isinstance(annotation, ast.Subscript) and getattr(annotation.value, "id", "") == "Optional":
        return annotation.slice
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.right, ast.Constant):
        return annotation.left
    return annotation


def _resolve_text(site: Site, annotation: ast.expr) -> tuple[Definition, ...]:
    if not isinstance(annotation, ast.Name):
        return ()
    bound = site.module.bindings(site.module.tree, annotation.id)
    return tuple(Definition(site.module, n) for n in bound if isinstance(n, ast.ClassDef))


# -- attributes ------------------------------------------------------------------------------------------------


def attribute(site: Site, node: ast.Attribute) -> Alternatives:
    """What `a.b` is: a torch name, a name of another file, an assignment in this function, a member of what a is."""
    if external := expressions.external_names(site, node):
        return external
    if site.module.names(node):
        found = site.engine.project.resolve(site.module, node)
        if values := merged(v for d in found for v in expressions.of_definition(site, d, node)):
            return values
    assigned, also_elsewhere = flow.attribute_definitions(site.module, node)
    here = [v for reaching in assigned for v in expressions.definition(site, reaching, node.attr)]
    if here and not also_elsewhere:
        return merged(here)
    members = merged(v for base in site.of(node.value) for v in member(site, node, base))
    if here:
        members = tuple(v for v in members if not (v.op == "unknown" and v.dotted == node.attr))
    return without_none(merged([*here, *members])) or site.unknown(node, node.attr)


def member(site: Site, node: ast.Attribute, base: Value) -> Alternatives:
    """What attribute `node.attr` of a value is."""
    attr = node.attr
    if base.op in ("instance", "class"):
        return of_instance(site, node, base)
    if base.op == "external":
        return (site.value(node, "external", dotted=f"{base.dotted}.{attr}"),)
    if found := options.attribute(site, node, attr, base):
        return found
    if base.op == "super":
        method = inherited(site, base, attr)
        return () if method is None else (site.value(node, "method", definition=method, owner=base.owner, dotted=attr),)
    if base.op in ("python", "setting"):
        return (site.value(node, "python"),)
    if base.op in ("module", "sequential"):
        if attr in ("weight", "bias", "running_mean", "running_var"):
            return (site.value(node, "weight", owner=base),)
        return site.unknown(node, attr)
    if base.op == "finfo":
        return _limit(site, node, base)
    if attr == "dtype":
        return (site.value(node, "dtype", arguments={"input": known((base,))}),)
    if attr in _NO_TENSOR:
        return (site.value(node, "python", dotted=attr),)
    if attr in ("values", "indices") and base.is_tensor_op:
        index = known((site.value(node, "constant", constant=int(attr == "indices")),))
        return (site.value(node, "getitem", arguments={"input": known((base,)), "index": index}),)
    if base.op == "constant":
        return (site.value(node, "python"),)
    row = torch_ops.by_method(attr)
    if row is not None and attr in ("T", "mT", "H", "mH", "data"):
        return (site.value(node, row.name, arguments={"input": known((base,))}),)
    return (site.value(node, "unknown", dotted=attr, arguments={"input": known((base,))}),)


def inherited(site: Site, base: Value, name: str) -> Definition | None:
    """The method that `super().name` finds: the next after this class in the receiver's order."""
    project, here, receiver = site.engine.project, base.definition, base.owner
    if here is None:
        return None
    order = project.mro(receiver.definition) if receiver and receiver.definition else ()
    order = order if here in order else project.mro(here)
    behind = order[order.index(here) + 1 :] if here in order else ()
    return next((method for cls in behind if (method := project.method(cls, name))), None)


def _limit(site: Site, node: ast.Attribute, finfo: Value) -> Alternatives:
    """`torch.finfo(x.dtype).max`: a number where the dtype is one."""
    dtypes = site.engine.named_dtypes(finfo.operand("dtype"))
    if len(dtypes) == 1 and (limits := _LIMITS.get(next(iter(dtypes)))):
        attr = "tiny" if node.attr == "smallest_normal" else node.attr
        limit = -limits["max"] if attr == "min" else limits.get(attr)
        if limit is not None:
            return (site.value(node, "constant", constant=limit, arguments=finfo.arguments, dotted="finfo"),)
    return (site.value(node, "python", dotted="finfo", arguments=finfo.arguments),)


# -- instances -------------------------------------------------------------------------------------------------


def of_instance(site: Site, node: ast.Attribute, instance: Value) -> Alternatives:
    """What `self.name` is: a method, a property, what the class's methods and body assign to it, a buffer."""
    cls, attr = instance.definition, node.attr
    assert cls is not None
    engine, project = site.engine, site.engine.project
    if attr == "apply" and instance.op == "class" and (forward := project.method(cls, "forward")):
        return (_applied(site, node, forward),)
    if method := project.method(cls, attr):
        if _is_property(method.node):
            return engine.returned(method_frame(site, method, instance, node))
        owner = None if _is_static(method.node) or instance.op == "class" else instance
        return (site.value(node, "method" if owner else "function", definition=method, owner=owner, dotted=attr),)
    found: list[Value] = []
    for target in project.attribute(cls, attr):
        found += _assigned(site, node, instance, target)
    for buffer in engine.buffers(cls).get(attr, ()):
        found.append(_registered(site, node, instance, buffer))
    found = [lists.grown_attribute(site, node, instance, v) if v.op == "sequential" else v for v in found]
    values = merged(owned(value, instance) for value in without_none(tuple(found)))
    return values or (site.value(node, "unknown", dotted=attr, owner=instance),)


def _applied(site: Site, node: ast.expr, forward: Definition) -> Value:
    """`Function.apply` of a torch.autograd.Function: its forward, on a context that torch gives."""
    function = known((site.value(node, "function", definition=forward, dotted="apply"),))
    return site.value(node, "partial", elements=(function, known(site.unknown(node, "ctx"))), dotted="apply")


def owned(value: Value, owner: Value) -> Value:
    """A module as held by another: it shares the holder's precision."""
    if owner.op == "class" or value.op not in ("module", "instance", "sequential", "modules", "weight"):
        return value
    if value.owner is owner or owner.op not in ("module", "instance", "sequential", "modules"):
        return value
    return value.engine.owned(value, owner)


def _assigned(site: Site, node: ast.Attribute, instance: Value, target: Definition) -> Iterator[Value]:
    reaching = flow.binding(target.module, target.node, node.attr)
    if is_field(target) and (given := field_given(site, instance, node.attr)):
        yield from given
        return
    frame = frame_of_target(site, target, instance, node)
    if not _is_open(site, target, frame):
        return
    yield from expressions.definition(site.at(target.module, frame), reaching, node.attr)


def is_field(target: Definition) -> bool:
    """Whether an attribute is bound in the body of its class."""
    function = target.module.function(target.node)
    return function is None or target.module.class_of(function) is None


def frame_of_target(site: Site, target: Definition, instance: Value, node: ast.expr) -> Frame:
    """The frame in which an attribute of `instance` is bound: that of the method, or around the class."""
    function = target.module.function(target.node)
    if function is None or is_field(target):
        return site.engine.base(target.module, target.node)
    return method_frame(site, Definition(target.module, function), instance, node)


def _is_open(site: Site, target: Definition, frame: Frame) -> bool:
    from amplint.values import conditions

    return conditions.feasible(site.at(target.module, frame), target.node)


def field_given(site: Site, instance: Value, attr: str) -> Alternatives:
    """The constructor's argument for a dataclass field."""
    cls = instance.definition
    if cls is None or instance.op != "instance" or site.engine.project.method(cls, "__init__"):
        return ()
    given = instance.arguments.get(attr)
    if given is None and instance.elements:
        fields = [
            f.target.id
            for d in reversed(site.engine.project.mro(cls))
            if isinstance(d.node, ast.ClassDef)
            for f in d.node.body
            if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)
        ]
        given = dict(zip(fields, instance.elements, strict=False)).get(attr)
    return () if given is None else site.engine.of_argument(given)


def _registered(site: Site, node: ast.expr, instance: Value, buffer: tuple[Module, ast.expr, Definition]) -> Value:
    module, expression, function = buffer
    frame = method_frame(site, function, instance, node)
    return site.value(node, "weight", arguments={"input": Argument(module, expression, frame)}, owner=instance)


def method_frame(site: Site, method: Definition, instance: Value, at: ast.expr) -> Frame:
    """The activation of a method of `instance` that is not entered by a call at hand; `__init__` by its constructor."""
    engine = site.engine
    key = ("method frame", method.node, instance)
    return engine.remember(
        key, lambda: _method_frame(site, method, instance), lambda: engine.base(method.module, method.node)
    )


def _method_frame(site: Site, method: Definition, instance: Value) -> Frame:
    engine, cls = site.engine, instance.definition
    assert cls is not None
    base = engine.base(method.module, method.node)
    if (
        getattr(method.node, "name", "") == "__init__"
        and isinstance(instance.node, ast.Call)
        and instance.op == "instance"
    ):
        top = engine.project.method(cls, "__init__")
        if top is not None:
            given = Given(instance.elements, instance.arguments, instance.open)
            frame = calls.frame_for(instance.engine.site(instance), instance.node, top, given, receiver=instance)
            found = _constructor_frame(engine_site=site, top=top, frame=frame, wanted=method, depth=4)
            if found is not None:
                return found
    return replace(base, receiver=instance, arguments={})


def _constructor_frame(
    engine_site: Site, top: Definition, frame: Frame, wanted: Definition, depth: int
) -> Frame | None:
    """The frame of an inherited `__init__`, entered by `super().__init__(…)`."""
    if top.node is wanted.node:
        return frame
    if depth == 0:
        return None
    site = engine_site.at(top.module, frame)
    for call in ast.walk(top.node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "__init__":
            for callee in site.of(call.func):
                if callee.op == "method" and callee.definition is not None:
                    given = Given.of_call(site, call)
                    inner = calls.frame_for(site, call, callee.definition, given, receiver=frame.receiver)
                    found = _constructor_frame(engine_site, callee.definition, inner, wanted, depth - 1)
                    if found is not None:
                        return found
    return None


def _is_property(function: ast.AST) -> bool:
    return isinstance(function, _FUNCTIONS) and any(
        (d.id if isinstance(d, ast.Name) else getattr(d, "attr", "")) in ("property", "cached_property")
        for d in function.decorator_list
    )


def _is_static(function: ast.AST) -> bool:
    return isinstance(function, _FUNCTIONS) and any(
        isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list
    )


def dtype_named(dotted: str) -> Dtype | None:
    """The dtype that `torch.float16` or the old `torch.cuda.HalfTensor` names."""
    root, _, last = dotted.rpartition(".")
    return by_torch_name(last) if root in ("torch", "torch.cuda") else None
