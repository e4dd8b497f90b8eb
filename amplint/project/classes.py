"""Classes across files: bases, methods, attributes, and which classes an expression may be an instance of."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from amplint.project.definitions import Definition, default_of
from amplint.project.names import bound_value, identity
from amplint.tree import Module

if TYPE_CHECKING:
    from amplint.project import Project

T = TypeVar("T")
Ask: TypeAlias = Callable[[Module, ast.expr], Iterable[T]]

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

_MANY_DERIVING = 24
"""The subclasses of a class that more files derive from are those of a library: any method may be overridden."""
_MANY_FILES = 8
"""What a function that more files call is given says nothing about a parameter of it."""

_SAME_OBJECT = frozenset(
    "to cuda cpu xpu half float bfloat16 double train eval requires_grad_ apply share_memory to_empty type "
    "compile merge_and_unload".split()
)
"""Methods of nn.Module that return the module."""

_WRAPPERS = frozenset(
    "DistributedDataParallel DataParallel FullyShardedDataParallel FSDP DDP compile script convert_sync_batchnorm "
    "deepcopy copy prepare prepare_model prepare_optimizer setup setup_module auto_model unwrap_model fully_shard "
    "convert_syncbn_model DDP_fairscale".split()
)
"""Functions that return their first argument, wrapped but used alike."""


def mro(project: Project, cls: Definition) -> tuple[Definition, ...]:
    """Depth first, each class after all that derive from it: C3 for the hierarchies met in practice."""
    return project.remember(("mro", cls.node), lambda: _mro(project, cls), (cls,))


def bases(project: Project, cls: Definition) -> tuple[Definition, ...]:
    assert isinstance(cls.node, ast.ClassDef)
    return tuple(
        found
        for base in cls.node.bases
        for found in project.resolve(cls.module, _unsubscripted(base))
        if isinstance(found.node, ast.ClassDef) and found.node is not cls.node
    )


def base_names(project: Project, cls: Definition) -> frozenset[str]:
    """The dotted names of all direct and indirect bases, as imported."""
    names: set[str] = set()
    for ancestor in project.mro(cls):
        assert isinstance(ancestor.node, ast.ClassDef)
        for base in ancestor.node.bases:
            names.update(ancestor.module.names(_unsubscripted(base)))
    return frozenset(names)


def class_member(project: Project, cls: Definition, name: str) -> Definition | None:
    """The last definition of `name` in the body of the class or of the nearest base."""
    for ancestor in project.mro(cls):
        for binding in reversed(ancestor.module.bindings(ancestor.node, name)):
            if isinstance(binding, (*_FUNCTIONS, ast.ClassDef)):
                return Definition(ancestor.module, binding)
            value = bound_value(ancestor.module, binding)
            for found in project.resolve(ancestor.module, value) if value is not None else ():
                if isinstance(found.node, (*_FUNCTIONS, ast.ClassDef)):
                    return found
    return None


def subclasses(project: Project, cls: Definition) -> tuple[Definition, ...]:
    return project.remember(("subclasses", cls.node), lambda: _subclasses(project, cls), ())


def attribute(project: Project, cls: Definition, name: str) -> tuple[Definition, ...]:
    """Where `self.name` is bound along the MRO: `self.name` targets in methods, class-level targets."""
    found: list[Definition] = []
    for ancestor in project.mro(cls):
        module = ancestor.module
        found += [Definition(module, target) for target in self_targets(ancestor, module.named(name))]
        found += [Definition(module, b) for b in module.bindings(ancestor.node, name) if isinstance(b, ast.Name)]
    return tuple(found)


def self_targets(cls: Definition, targets: Iterable[ast.AST]) -> Iterator[ast.Attribute]:
    """Those nodes of a class's file that are targets `self.name` in its methods."""
    for node in targets:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            methods = (a for a in cls.module.ancestors(node) if isinstance(a, _FUNCTIONS))
            if any(cls.module.class_of(m) is cls.node and _receiver(m) == node.value.id for m in methods):
                yield node


def types(project: Project, module: Module, expression: ast.expr) -> tuple[Definition, ...]:
    """The classes of this project that `expression` may be an instance of."""
    key = ("types", identity(module, expression), project.hops)
    return project.remember(key, lambda: tuple(dict.fromkeys(_types(project, module, expression))), ())


def elements(
    project: Project, module: Module, expression: ast.expr, depth: int = 4
) -> Iterator[tuple[Module, ast.expr]]:
    """The expressions that iterating over or indexing `expression` may give; `x = list(x)` is followed a few times."""
    if depth == 0:
        return
    for found_in, value in project.sources(module, expression):
        if isinstance(value, ast.List | ast.Tuple | ast.Set):
            yield from ((found_in, element) for element in value.elts)
        elif isinstance(value, ast.ListComp | ast.GeneratorExp | ast.SetComp):
            yield found_in, value.elt
        elif isinstance(value, ast.Dict):
            yield from ((found_in, element) for element in value.values)
        elif isinstance(value, ast.DictComp):
            yield found_in, value.value
        elif isinstance(value, ast.Call) and value.args and _last_name(value.func) in _CONTAINERS:
            yield from elements(project, found_in, value.args[0], depth - 1)


_CONTAINERS = frozenset("ModuleList ModuleDict Sequential list tuple dict reversed sorted set".split())


def sources(project: Project, module: Module, expression: ast.expr) -> Iterator[tuple[Module, ast.expr]]:
    """The expressions whose value `expression` may hold, through names, attributes, conditionals and parameters.

    An expression that is not a variable is its own source.
    """
    if isinstance(expression, ast.IfExp):
        for branch in (expression.body, expression.orelse):
            yield from project.sources(module, branch)
    elif isinstance(expression, ast.BoolOp):
        for branch in expression.values:
            yield from project.sources(module, branch)
    elif isinstance(expression, ast.NamedExpr):
        yield from project.sources(module, expression.value)
    elif isinstance(expression, ast.Name | ast.Attribute):
        for definition in variables(project, module, expression):
            yield from through(project, definition, project.sources)
    else:
        yield module, expression


def variables(project: Project, module: Module, expression: ast.Name | ast.Attribute) -> Iterator[Definition]:
    """The bindings of a variable: targets, parameters, attributes of its object's class."""
    if isinstance(expression, ast.Name):
        found = module.lookup(expression.id, expression)
        for binding in found[1] if found else ():
            if isinstance(binding, ast.Name | ast.arg):
                yield Definition(module, binding)
    elif isinstance(expression.value, ast.Name | ast.Attribute | ast.Call):
        for cls in project.types(module, expression.value):
            yield from project.attribute(cls, expression.attr)
    for definition in project.resolve(module, expression):
        if isinstance(definition.node, ast.Name) and definition.module is not module:
            yield definition


def through(project: Project, definition: Definition, ask: Ask[T]) -> list[T]:
    """What `ask` answers about each expression that a variable's binding gives it.

    A parameter has its default and the arguments of its callers; those are asked about with one hop fewer.
    """
    module, node = definition.module, definition.node
    if not isinstance(node, ast.arg):
        value = bound_value(module, node)
        return list(ask(module, value)) if value is not None else []
    function = module.parent(module.parent(node) or node)
    if not isinstance(function, _FUNCTIONS):
        return []
    default = default_of(function, node.arg)
    found = list(ask(module, default)) if default else []
    if project.hops == 0 or len(project.calling_files(Definition(module, function))) > _MANY_FILES:
        return found
    sites = project.callers(Definition(module, function))
    with project.one_hop():
        for site in sites:
            for callee in project.callees(site.module, site.call):
                if callee.function is function and (argument := callee.argument(node.arg)):
                    found += ask(site.module, argument)
    return found


def _types(project: Project, module: Module, expression: ast.expr) -> Iterator[Definition]:
    if isinstance(expression, ast.Call):
        yield from _types_of_call(project, module, expression)
    elif isinstance(expression, ast.IfExp):
        yield from (t for part in (expression.body, expression.orelse) for t in project.types(module, part))
    elif isinstance(expression, ast.BoolOp):
        yield from (t for part in expression.values for t in project.types(module, part))
    elif isinstance(expression, ast.NamedExpr | ast.Await):
        yield from project.types(module, expression.value)
    elif isinstance(expression, ast.Subscript):
        for found_in, element in elements(project, module, expression.value):
            yield from project.types(found_in, element)
    elif isinstance(expression, ast.Name | ast.Attribute):
        for definition in variables(project, module, expression):
            yield from _types_of_binding(project, definition)
        if isinstance(expression, ast.Attribute) and expression.attr == "module":
            yield from project.types(module, expression.value)


def _types_of_call(project: Project, module: Module, call: ast.Call) -> Iterator[Definition]:
    name = _last_name(call.func)
    if isinstance(call.func, ast.Attribute) and call.func.attr in _SAME_OBJECT:
        yield from project.types(module, call.func.value)
    if name in _WRAPPERS and call.args:
        yield from project.types(module, call.args[0])
    yield from project.classes_of(module, call.func)
    for callee in project.callees(module, call):
        if callee.cls is None or getattr(callee.function, "name", "") != "__init__":
            yield from _returned(project, callee.definition)


def _returned(project: Project, function: Definition) -> Iterator[Definition]:
    node = function.node
    if not isinstance(node, _FUNCTIONS):
        return
    if node.returns is not None and (annotated := tuple(_annotated(project, function.module, node.returns))):
        yield from annotated
        return
    for inner in ast.walk(node):
        if isinstance(inner, ast.Return) and inner.value is not None and function.module.function(inner) is node:
            yield from project.types(function.module, inner.value)


def _types_of_binding(project: Project, definition: Definition) -> Iterator[Definition]:
    module, node = definition.module, definition.node
    parent = module.parent(node)
    if isinstance(node, ast.arg):
        yield from _types_of_parameter(project, module, node)
    elif isinstance(parent, ast.AnnAssign):
        found = tuple(project.types(module, parent.value)) if parent.value is not None else ()
        yield from found or _annotated(project, module, parent.annotation)
    elif (value := bound_value(module, node)) is not None:
        yield from project.types(module, value)
    elif isinstance(parent, ast.For | ast.AsyncFor | ast.comprehension) and parent.target is node:
        for found_in, element in elements(project, module, parent.iter):
            yield from project.types(found_in, element)
    elif isinstance(parent, ast.withitem):
        yield from project.types(module, parent.context_expr)
    elif isinstance(parent, ast.Tuple | ast.List) and isinstance(assign := module.parent(parent), ast.Assign):
        yield from _types_of_element(project, module, assign.value, [t is node for t in parent.elts].index(True))


def _types_of_element(project: Project, module: Module, value: ast.expr, position: int) -> Iterator[Definition]:
    """The types of one element of an unpacked call: `model, optimizer = accelerator.prepare(model, optimizer)`."""
    if not isinstance(value, ast.Call):
        return
    if _last_name(value.func) in _WRAPPERS and position < len(value.args):
        yield from project.types(module, value.args[position])
        return
    for callee in project.callees(module, value):
        for inner in ast.walk(callee.function):
            returned = inner.value if isinstance(inner, ast.Return) else None
            if isinstance(returned, ast.Tuple) and position < len(returned.elts):
                yield from project.types(callee.module, returned.elts[position])


def _types_of_parameter(project: Project, module: Module, parameter: ast.arg) -> Iterator[Definition]:
    function = module.parent(module.parent(parameter) or parameter)
    if not isinstance(function, _FUNCTIONS):
        return
    cls = module.class_of(function)
    if cls is not None and parameter.arg == _receiver(function):
        yield Definition(module, cls)
        return
    if parameter.annotation is not None:
        annotated = tuple(_annotated(project, module, parameter.annotation))
        if annotated:
            yield from annotated
            return
    yield from through(project, Definition(module, parameter), project.types)


def _annotated(project: Project, module: Module, annotation: ast.expr) -> Iterator[Definition]:
    """The classes of an annotation: `T`, `"T"`, `Optional[T]`, `T | None`."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        for name in annotation.value.replace("|", " ").replace("[", " ").replace("]", " ").split():
            if found := module.lookup(name.split(".")[0], annotation):
                yield from _classes(_named(project, module, found[1], name))
    elif isinstance(annotation, ast.BinOp):
        yield from _annotated(project, module, annotation.left)
        yield from _annotated(project, module, annotation.right)
    elif isinstance(annotation, ast.Subscript):
        if _last_name(annotation.value) in ("Optional", "Union", "Annotated", "Final", "ClassVar"):
            inner = annotation.slice
            for part in inner.elts if isinstance(inner, ast.Tuple) else [inner]:
                yield from _annotated(project, module, part)
    else:
        yield from _classes(project.resolve(module, annotation))


def _named(project: Project, module: Module, bindings: list[ast.AST], name: str) -> Iterator[Definition]:
    root, _, rest = name.partition(".")
    for binding in bindings:
        if isinstance(binding, ast.ClassDef) and not rest:
            yield Definition(module, binding)
        elif target := module.import_target(binding, root):
            yield from project.resolve(module, f"{target}.{rest}" if rest else target)


def _classes(definitions: Iterable[Definition]) -> Iterator[Definition]:
    return (definition for definition in definitions if isinstance(definition.node, ast.ClassDef))


def _mro(project: Project, cls: Definition) -> tuple[Definition, ...]:
    order = [cls]
    for base in bases(project, cls):
        order += project.mro(base)
    return tuple(reversed(dict.fromkeys(reversed(order))))


def _subclasses(project: Project, cls: Definition) -> tuple[Definition, ...]:
    assert isinstance(cls.node, ast.ClassDef)
    found: list[Definition] = []
    paths = project.files_deriving(cls.node.name)
    if len(paths) > _MANY_DERIVING:
        return ()
    for path in paths:
        module = project.module(path)
        for node in module.classes_mentioning(cls.node.name) if module else ():
            derived = Definition(module, node)  # type: ignore[arg-type]
            if cls in bases(project, derived):
                found += [derived, *project.subclasses(derived)]
    return tuple(dict.fromkeys(found))


def _receiver(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str | None:
    """The name of `self`: the first parameter of a method that is not static."""
    positional = [*function.args.posonlyargs, *function.args.args]
    static = any(_last_name(decorator) == "staticmethod" for decorator in function.decorator_list)
    return positional[0].arg if positional and not static else None


def _unsubscripted(base: ast.expr) -> ast.expr:
    """`Generic` of `Generic[T]`."""
    return base.value if isinstance(base, ast.Subscript) else base


def _last_name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""
