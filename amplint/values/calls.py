"""What a call gives: a torch operation, a module's result, an instance, or what a function of the project returns."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from amplint import torch_ops
from amplint.project import Definition
from amplint.torch_ops import Kind, Operation
from amplint.values import expressions, libraries, modules, objects, options
from amplint.values.site import Given, Site, known, merged
from amplint.values.value import Alternatives, Argument, Frame, Value

MAX_DEPTH = 10
"""How many calls deep functions are followed."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NO_TENSORS = frozenset(
    "super instance module sequential modules class external tuple dict comprehension python constant setting dtype "
    "finfo autocast function method partial".split()
)
_VARIADIC = ("size", "shape", "dims", "repeats")
_NOT_VARIADIC = ("full", "new_full", "normal", "randint", "broadcast_to")
_PAIRWISE = {"max": "maximum", "min": "minimum"}
_ALIASES = {"axis": "dim", "keepdims": "keepdim", "a_min": "min", "a_max": "max", "x": "input", "self": "input"}


def canonical_name(dotted: str) -> str:
    """The documented name of a torch object that was imported from where it is defined."""
    if dotted.startswith("torch.nn.modules."):
        return "torch.nn." + dotted.rpartition(".")[2]
    for alias, name in (("torch.functional.", "torch."), ("torch.nn.parameter.", "torch.nn.")):
        if dotted.startswith(alias):
            return name + dotted.removeprefix(alias)
    return dotted


def call(site: Site, node: ast.Call) -> Alternatives:
    """All that a call can give."""
    given = Given.of_call(site, node)
    func = node.func
    if isinstance(func, ast.Name) and func.id == "super" and not site.module.lookup("super", func):
        return _super(site, node)
    if isinstance(func, ast.Attribute) and not _is_dotted(site, func):
        values = _method_call(site, node, func, given)
    else:
        values = merged(v for callee in site.of(func) for v in apply(site, node, callee, given))
    return values if _is_known(values) or site.opened else _by_project(site, node, given) or values


def opened(site: Site, node: ast.Call) -> tuple[Frame, ...]:
    """The frames that a call opens, without what it returns, which may take far more work."""
    frames: list[Frame] = []
    call(replace(site, opened=frames), node)
    return tuple(dict.fromkeys(frames))


def _method_call(site: Site, node: ast.Call, func: ast.Attribute, given: Given) -> Alternatives:
    """What `base.name(…)` gives: one operation of all that is a tensor, and what the other bases give."""
    bases, row = site.of(func.value), torch_ops.by_method(func.attr)
    if row is None or not _fits(row, given):
        return merged(v for base in bases for v in method(site, node, func, base, given))
    tensors = tuple(base for base in bases if _may_be_tensor(site, node, func.attr, base, given))
    others = [v for base in bases if base not in tensors for v in method(site, node, func, base, given)]
    if not tensors:
        return merged(others)
    receiver = Argument(site.module, func.value, site.frame, None if len(tensors) == len(bases) else tensors)
    return merged([*operation(site, node, row, given.after((receiver,))), *others])


def _may_be_tensor(site: Site, node: ast.Call, name: str, base: Value, given: Given) -> bool:
    if base.op in _NO_TENSORS:
        return False
    return base.op != "unknown" or libraries.method(site, node, name, base, given) is None


def _is_dotted(site: Site, func: ast.Attribute) -> bool:
    """Whether the callee is a name of torch, or of another file of the project, and no method of a value."""
    if expressions.external_names(site, func):
        return True
    return bool(site.module.names(func)) and bool(site.engine.project.resolve(site.module, func))


def _is_known(values: Alternatives) -> bool:
    return not all(v.op == "unknown" for v in values)


def _by_project(site: Site, node: ast.Call, given: Given) -> Alternatives:
    """Calls that only the project's own linking finds: registries, callbacks in lists."""
    found: list[Value] = []
    for callee in site.engine.project.callees(site.module, node):
        if getattr(callee.function, "name", "") == "__init__" and callee.cls is not None:
            found += construct(site, node, callee.cls, given)
            continue
        receiver = None
        if callee.cls is not None and not _is_static(callee.function):
            receiver = site.value(node.func, "instance", definition=callee.cls)
        found += enter(site, node, callee.definition, given, receiver=receiver)
    return merged(found)


def _super(site: Site, node: ast.Call) -> Alternatives:
    cls = next((a for a in site.module.ancestors(node) if isinstance(a, ast.ClassDef)), None)
    if cls is None:
        return site.unknown(node)
    return (site.value(node, "super", definition=Definition(site.module, cls), owner=site.frame.receiver),)


# -- calling a value -------------------------------------------------------------------------------------------


def apply(site: Site, node: ast.expr, callee: Value, given: Given) -> Alternatives:
    """What calling `callee` gives; `node` stands for the call."""
    if callee.op == "external":
        return libraries.call(site, node, callee.dotted, given)
    if callee.op in ("function", "method") and callee.definition is not None:
        return enter(site, node, callee.definition, given, receiver=callee.owner)
    if callee.op == "class" and callee.definition is not None:
        return construct(site, node, callee.definition, given)
    if callee.op == "instance" and callee.definition is not None:
        return _call_instance(site, node, callee, given)
    if callee.op in ("module", "sequential", "modules"):
        return modules.call(site, node, callee, given)
    if callee.op == "partial":
        merged_given = Given(
            (*callee.elements[1:], *given.positional), {**callee.arguments, **given.keywords}, given.open or callee.open
        )
        functions = site.engine.of_argument(callee.elements[0])
        return merged(v for f in functions if f.op != "partial" for v in apply(site, node, f, merged_given))
    if callee.op == "python":
        return (site.value(node, "python"),)
    return (site.value(node, "unknown", dotted=callee.dotted, elements=given.positional, arguments=given.keywords),)


def _call_instance(site: Site, node: ast.expr, instance: Value, given: Given) -> Alternatives:
    project, cls = site.engine.project, instance.definition
    assert cls is not None
    for name in ("__call__", "forward"):
        if method := project.method(cls, name):
            values = enter(site, node, method, given, receiver=instance)
            return tuple(modules.as_float32(site, node, v) for v in values) if instance.wrapped else values
    for base in project.base_names(cls):
        if row := torch_ops.by_module(canonical_name(base)):
            return modules.result(site, node, row, instance, given)
    return site.unknown(node)


def construct(site: Site, node: ast.expr, cls: Definition, given: Given) -> Alternatives:
    """A new instance of a class of the project."""
    return (
        site.value(
            node,
            "instance",
            definition=cls,
            dotted=getattr(cls.node, "name", ""),
            elements=given.positional,
            arguments=given.keywords,
            open=given.open,
        ),
    )


# -- methods ---------------------------------------------------------------------------------------------------


def method(site: Site, node: ast.Call, func: ast.Attribute, base: Value, given: Given) -> Alternatives:
    """What `base.name(…)` gives."""
    name = func.attr
    if base.op == "super":
        return _super_method(site, node, name, base, given)
    is_module = base.op in ("instance", "module", "sequential", "modules")
    if is_module and (same := modules.method(site, node, name, base, given)) is not None:
        return same
    if base.op == "instance" and (special := libraries.own_framework(site, node, name, base, given)) is not None:
        return special
    if base.op in ("instance", "class", "external", "module", "sequential"):
        if base.op == "class" and name == "from_pretrained":
            return libraries.pretrained(site, node, base, given)
        callees = objects.member(site, func, base)
        return merged(v for callee in callees for v in apply(site, node, callee, given))
    if base.op in ("tuple", "dict", "comprehension"):
        return _container_method(site, node, name, base, given)
    if found := options.looked_up(site, node, name, base, given) or options.parsed(site, node, name, base):
        return found
    if base.op in ("python", "constant", "setting", "dtype", "finfo", "autocast"):
        return (site.value(node, "python"),)
    if base.op in ("function", "method", "partial"):
        return site.unknown(node, name)
    if base.op == "unknown" and (special := libraries.method(site, node, name, base, given)) is not None:
        return special
    return (site.value(node, "unknown", dotted=name, elements=given.positional, arguments=_with(base, given)),)


def _with(base: Value, given: Given) -> dict[str, Argument]:
    return {**given.keywords, "input": known((base,))}


def _fits(row: Operation, given: Given) -> bool:
    """Whether the arguments could be those of a tensor's method: `logger.log("x", 1)` is none of `log`."""
    if row.kind is not Kind.ELEMENTWISE:
        return True
    names = {*row.parameters, "out", "min", "max", "dim", "axis", "inplace", "dtype", "other"}
    return len(given.positional) < len(row.parameters) and set(given.keywords) <= names


def _super_method(site: Site, node: ast.Call, name: str, base: Value, given: Given) -> Alternatives:
    found = objects.inherited(site, base, name)
    if found is None or base.definition is None:
        return site.unknown(node, name)
    instance = base.owner or site.value(node, "instance", definition=base.definition)
    return enter(site, node, found, given, receiver=instance)


def _container_method(site: Site, node: ast.Call, name: str, base: Value, given: Given) -> Alternatives:
    if name in ("values", "copy") or (name == "items" and base.op == "dict"):
        if name == "copy":
            return (base,)
        inner = expressions.elements(site, (base,))
        if not inner:
            return site.unknown(node)
        element = known(inner)
        if name == "items":
            pair = (known((site.value(node, "python"),)), element)
            element = known((site.value(node, "tuple", elements=pair),))
        return (site.value(node, "comprehension", elements=(element,)),)
    if name in ("get", "pop", "setdefault") and base.op == "dict" and given.positional:
        return _dict_lookup(site, node, base, given)
    if name == "pop":
        return expressions.elements(site, (base,)) or site.unknown(node)
    return (site.value(node, "python"),)


def _dict_lookup(site: Site, node: ast.Call, base: Value, given: Given) -> Alternatives:
    """`known.get(key, default)`: the item; the default, where the dict holds no such key."""
    items = expressions.items(site, base, site.engine.of_argument(given.positional[0]))
    if items or len(given.positional) < 2:
        return items or site.unknown(node)
    default = given.positional[1]
    return options.setting(site, node, default) or site.engine.of_argument(default)


# -- operations ------------------------------------------------------------------------------------------------


def operation(site: Site, node: ast.expr, row: Operation, given: Given) -> Alternatives:
    """A torch operation with its arguments by the table's parameter names."""
    if row.name in _PAIRWISE and (pairwise := _pairwise(site, row, given)) is not None:
        row = pairwise
    if row.name == "to":
        bound = _to(site, given)
    else:
        keywords = {_alias(row, name): argument for name, argument in given.keywords.items()}
        bound = Given(_named(row, given), keywords, given.open).bind(row.parameters)
    return (site.value(node, row.name, arguments=bound, in_place=row.in_place),)


def _pairwise(site: Site, row: Operation, given: Given) -> Operation | None:
    """maximum, where `torch.max(a, b)` is given a second tensor."""
    second = given.positional[1] if len(given.positional) > 1 else given.keywords.get("other")
    values = site.engine.of_argument(second) if second is not None else ()
    is_tensor = bool(values) and all(v.is_tensor_op or v.op == "weight" for v in values)
    return torch_ops.by_name(_PAIRWISE[row.name]) if is_tensor else None


def _named(row: Operation, given: Given) -> tuple[Argument, ...]:
    """The positional arguments up to a variadic parameter, as in `torch.zeros(2, 3)`."""
    variadic = next((i for i, name in enumerate(row.parameters) if name in _VARIADIC), None)
    if variadic is None or row.name in _NOT_VARIADIC or len(given.positional) <= variadic + 1:
        return given.positional
    return given.positional[: variadic + 1]


def _alias(row: Operation, keyword: str) -> str:
    if keyword in row.parameters:
        return keyword
    alias = _ALIASES.get(keyword, keyword)
    return alias if alias in row.parameters else keyword


def _to(site: Site, given: Given) -> dict[str, Argument]:
    """`.to(…)` takes a dtype, a device, or a tensor to be like, in this order or another."""
    bound = {"input": given.positional[0], **given.keywords}
    for argument in given.positional[1:]:
        values = site.engine.of_argument(argument)
        if any(v.op == "dtype" or (v.op == "external" and objects.dtype_named(v.dotted)) for v in values):
            bound.setdefault("dtype", argument)
        elif all(v.is_tensor_op or v.op == "weight" for v in values):
            bound.setdefault("other", argument)
        elif not all(_is_device(v) for v in values):
            bound.setdefault("unclear", argument)
    return bound


def _is_device(value: Value) -> bool:
    return (
        value.op in ("python", "constant")
        or "device" in value.dotted
        or (value.op == "unknown" and value.dotted in ("gpu", "rank", "local_rank", "cuda"))
    )


# -- entering functions ----------------------------------------------------------------------------------------


def enter(
    site: Site, node: ast.expr, function: Definition, given: Given, *, receiver: Value | None = None
) -> Alternatives:
    """What a function of the project returns when it is called like this."""
    if site.frame.depth >= MAX_DEPTH or _is_recursive(site.frame, function.node):
        return site.unknown(node, getattr(function.node, "name", ""))
    frame = frame_for(site, node, function, given, receiver=receiver)
    if site.opened is not None:
        site.opened.append(frame)
        return site.unknown(node)
    return site.engine.returned(frame) or site.unknown(node, getattr(function.node, "name", ""))


def _is_recursive(frame: Frame, function: ast.AST) -> bool:
    current: Frame | None = frame
    seen = 0
    while current is not None:
        seen += current.function is function
        current = current.caller
    return seen > 1


def frame_for(
    site: Site, node: ast.expr, function: Definition, given: Given, *, receiver: Value | None = None
) -> Frame:
    """The activation of a function by the call `node` in the site's frame; always the same one for the same call."""
    key = ("frame", node, function.node, site.frame, receiver)
    return site.engine.remember(
        key,
        lambda: _frame_for(site, node, function, given, receiver),
        lambda: site.engine.base(function.module, function.node),
    )


def _frame_for(site: Site, node: ast.expr, function: Definition, given: Given, receiver: Value | None) -> Frame:
    region = site.engine.region(site.module, node, site.frame)
    if receiver is not None and receiver.wrapped is not None:
        region = receiver.wrapped
    return Frame(
        module=function.module,
        function=function.node,
        region=region,
        arguments=_cast(site, function, _bound(site, node, function.node, given, receiver is not None)),
        receiver=receiver,
        call=node if isinstance(node, ast.Call) else None,
        caller=site.frame,
        open=given.open,
        depth=site.frame.depth + 1,
        hops=site.frame.hops,
    )


def _cast(site: Site, function: Definition, arguments: dict[str, Argument]) -> dict[str, Argument]:
    """The arguments as `custom_fwd(cast_inputs=torch.float32)` hands them on."""
    decorators = getattr(function.node, "decorator_list", ())
    keywords = [k for d in decorators if isinstance(d, ast.Call) for k in d.keywords if k.arg == "cast_inputs"]
    if not keywords or not function.module.is_named(keywords[0].value, "torch.float32", "torch.float"):
        return arguments
    return {name: _as_float(site, argument) for name, argument in arguments.items()}


def _as_float(site: Site, argument: Argument) -> Argument:
    values = site.engine.of_argument(argument)
    if any(value.op in _NO_TENSORS for value in values):
        return argument
    return known((site.value(argument.node, "float", arguments={"input": argument}),))


def _bound(site: Site, node: ast.expr, function: ast.AST, given: Given, bound: bool) -> dict[str, Argument]:
    if not isinstance(function, (*_FUNCTIONS, ast.Lambda)):
        return {}
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    if bound and not _is_static(function) and names:
        names = names[1:]
    result = dict(zip(names, given.positional, strict=False))
    keyword_names = {*names, *(a.arg for a in arguments.kwonlyargs)}
    result.update({k: v for k, v in given.keywords.items() if k in keyword_names})
    if arguments.vararg and not given.open:
        rest = given.positional[len(names) :]
        result[arguments.vararg.arg] = known((site.value(node, "tuple", elements=rest),))
    if arguments.kwarg and not given.open:
        extra = {repr(k): v for k, v in given.keywords.items() if k not in keyword_names}
        result[arguments.kwarg.arg] = known((site.value(node, "dict", arguments=extra),))
    return result


def returned_expressions(function: ast.AST) -> Iterator[ast.expr]:
    """The expressions that a function returns; none for a generator."""
    if isinstance(function, ast.Lambda):
        yield function.body
        return
    stack: list[ast.AST] = list(getattr(function, "body", ()))
    found: list[ast.expr] = []
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return
        if isinstance(node, (*_FUNCTIONS, ast.Lambda, ast.ClassDef)):
            continue
        if isinstance(node, ast.Return) and node.value is not None:
            found.append(node.value)
        stack += ast.iter_child_nodes(node)
    yield from reversed(found)


def _is_static(function: ast.AST) -> bool:
    return isinstance(function, _FUNCTIONS) and any(
        isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list
    )
