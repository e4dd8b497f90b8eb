"""What an expression is: its canonical operation, whatever the spelling."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amplint import flow, torch_ops
from amplint.flow import How, Reaching
from amplint.project import Definition
from amplint.values import calls, conditions, lists, objects
from amplint.values.site import Given, Site, known, merged
from amplint.values.value import Alternatives, Argument, Value

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
}
_MAX_UNPACKED = 6
"""Lists within lists that are unpacked."""
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_UNARY: dict[type[ast.unaryop], str] = {ast.USub: "-tensor", ast.UAdd: "+tensor", ast.Invert: "~tensor"}


def recognise(site: Site, node: ast.expr) -> Alternatives:
    """All that `node` can be in the site's frame."""
    if isinstance(node, ast.Constant):
        return (site.value(node, "constant", constant=node.value),)
    if isinstance(node, ast.Name):
        return name(site, node)
    if isinstance(node, ast.Attribute):
        return objects.attribute(site, node)
    if isinstance(node, ast.Call):
        return calls.call(site, node)
    if isinstance(node, ast.BinOp):
        return _binary(site, node, node.op, node.left, node.right)
    if isinstance(node, ast.UnaryOp):
        return _unary(site, node)
    if isinstance(node, ast.Compare):
        return _compare(site, node)
    if isinstance(node, ast.Subscript):
        return _subscript(site, node)
    if isinstance(node, ast.IfExp):
        arms = ((node.body, True), (node.orelse, False))
        outcome = conditions.truth(site, node.test)
        return merged(v for arm, when in arms if outcome in (None, when) for v in site.of(arm))
    if isinstance(node, ast.BoolOp):
        return merged(v for part in node.values for v in site.of(part))
    if isinstance(node, ast.NamedExpr | ast.Await | ast.Starred):
        return site.of(node.value)
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return _display(site, node)
    if isinstance(node, ast.Dict):
        return _dict(site, node)
    if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp):
        return (site.value(node, "comprehension", elements=(site.argument(node.elt),)),)
    if isinstance(node, ast.DictComp):
        return (site.value(node, "comprehension", elements=(site.argument(node.value),)),)
    if isinstance(node, ast.Lambda):
        return (site.value(node, "function", definition=Definition(site.module, node)),)
    if isinstance(node, ast.JoinedStr):
        return (site.value(node, "python"),)
    return site.unknown(node)


# -- names -----------------------------------------------------------------------------------------------------


def name(site: Site, node: ast.Name) -> Alternatives:
    """What a name stands for: an import, or each definition that reaches it and is feasible in this frame."""
    if external := external_names(site, node):
        return external
    found = merged(
        value
        for reaching in flow.definitions(site.module, node)
        if conditions.feasible(site, reaching.value or reaching.node)
        for value in definition(site, reaching, node.id)
    )
    if found:
        return found
    if site.module.lookup(node.id, node) is None:
        if defined := tuple(of_definition(site, d, node) for d in site.engine.project.resolve(site.module, node)):
            return merged(v for values in defined for v in values)
        return (site.value(node, "external", dotted=f"builtins.{node.id}"),)
    return site.unknown(node, node.id)


def external_names(site: Site, node: ast.Name | ast.Attribute) -> Alternatives:
    """The torch names that a dotted expression stands for."""
    names = [calls.canonical_name(n) for n in site.module.names(node) if n.startswith(("torch.", "functools."))]
    return tuple(site.value(node, "external", dotted=n) for n in dict.fromkeys(names))


def of_definition(site: Site, found: Definition, node: ast.expr) -> Alternatives:
    """The values of a definition of this project."""
    if isinstance(found.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return (site.value(node, "function", definition=found, dotted=getattr(found.node, "name", "")),)
    if isinstance(found.node, ast.ClassDef):
        return (site.value(node, "class", definition=found, dotted=found.node.name),)
    if isinstance(found.node, ast.Name):
        other = site.at(found.module, site.engine.base(found.module, found.node))
        return definition(other, flow.binding(found.module, found.node), found.node.id)
    return site.unknown(node)


def definition(site: Site, reaching: Reaching, name: str) -> Alternatives:
    """The values that one reaching definition gives."""
    node, value = reaching.node, reaching.value
    site = site.at(site.module, site.engine.frame_of(site.module, node, site.frame))
    if reaching.how is How.ASSIGN and value is not None:
        return site.of(value)
    if reaching.how is How.ELEMENT and value is not None:
        return select(site, site.of(value), reaching.path)
    if reaching.how is How.PARAMETER and isinstance(node, ast.arg):
        return objects.parameter(site, node)
    if reaching.how is How.DEFINITION:
        return of_definition(site, Definition(site.module, node), _named(node, name))
    if reaching.how is How.IMPORT:
        return _imported(site, node, name)
    if reaching.how is How.AUGMENTED and isinstance(node, ast.expr):
        return assigned(site, node)
    if reaching.how is How.IN_PLACE and value is not None:
        return site.of(value)
    if reaching.how is How.ITEM and isinstance(node, ast.Subscript):
        return assigned(site, node)
    if reaching.how is How.LOOP and value is not None:
        return select(site, elements(site, site.of(value)), reaching.path)
    if reaching.how is How.WITH and value is not None:
        return _entered(site, value)
    return site.unknown(_named(node, name), name)


def _named(node: ast.AST, name: str) -> ast.expr:
    """A node that stands for a definition in a Value: itself, where it is an expression."""
    if isinstance(node, ast.expr):
        return node
    return ast.Name(
        id=name, ctx=ast.Load(), lineno=getattr(node, "lineno", 1), col_offset=0, end_lineno=1, end_col_offset=0
    )


def _imported(site: Site, alias: ast.AST, name: str) -> Alternatives:
    dotted = site.module.import_target(alias, name) or name
    node = _named(alias, name)
    found = merged(v for d in site.engine.project.resolve(site.module, dotted) for v in of_definition(site, d, node))
    return found or (site.value(node, "external", dotted=calls.canonical_name(dotted)),)


def assigned(site: Site, target: ast.expr) -> Alternatives:
    """What `target += value` or `x[i] = value` makes of its target; () for other targets."""
    statement = site.module.parent(target)
    if isinstance(statement, ast.AugAssign):
        key = ("augmented", target, site.frame)
        return site.engine.remember(key, lambda: _augmented(site, statement), tuple)
    if isinstance(target, ast.Subscript):
        key = ("item set", target, site.frame)
        return site.engine.remember(key, lambda: (_item_set(site, target),), tuple)
    return ()


def _augmented(site: Site, node: ast.AugAssign) -> Alternatives:
    assert isinstance(node.target, ast.expr)
    return _binary(site, node.target, node.op, node.target, node.value, in_place=True)


def _item_set(site: Site, target: ast.Subscript) -> Value:
    statement = site.module.statement(target)
    arguments = {"input": site.argument(target.value), "index": site.argument(target.slice)}
    if isinstance(statement, ast.Assign | ast.AugAssign):
        arguments["value"] = site.argument(statement.value)
    return site.value(target, "setitem", arguments=arguments, in_place=True)


def _entered(site: Site, context: ast.expr) -> Alternatives:
    """`with f() as x`: most context managers of this kind give themselves."""
    return site.unknown(context)


# -- elements --------------------------------------------------------------------------------------------------


def elements(site: Site, containers: Alternatives, depth: int = _MAX_UNPACKED) -> Alternatives:
    """What iterating over the containers gives. A list may unpack itself: `x = [*x, y]`, so the depth is bounded."""
    return merged(value for container in containers for value in _elements(site, container, depth))


def _elements(site: Site, container: Value, depth: int) -> Iterator[Value]:
    if depth == 0:
        yield from site.unknown(container.node)
    elif container.op in ("tuple", "comprehension", "modules", "sequential") and container.elements:
        for element in container.elements:
            values = site.engine.of_argument(element)
            if isinstance(element.node, ast.Starred):
                values = elements(site, values, depth - 1)
            yield from (objects.owned(v, container) for v in values)
    elif container.op == "dict":
        for element in container.arguments.values():
            yield from site.engine.of_argument(element)
    elif container.dotted in ("builtins.zip", "builtins.enumerate"):
        parts = [elements(site, site.engine.of_argument(e), depth - 1) for e in container.elements]
        if container.dotted.endswith("enumerate"):
            parts = [(site.value(container.node, "python", dotted="number"),), *parts[:1]]
        parts = [part or site.unknown(container.node) for part in parts]
        yield site.value(container.node, "tuple", elements=tuple(known(part) for part in parts))
    elif container.dotted == "builtins.range":
        yield site.value(container.node, "python", dotted="number")
    elif container.op == "python":
        yield site.value(container.node, "python")
    elif container.is_tensor_op:
        yield site.value(container.node, "getitem", arguments={"input": known((container,))})
    else:
        yield site.value(container.node, "unknown", arguments={"input": known((container,))})


def select(site: Site, values: Alternatives, path: tuple[int, ...]) -> Alternatives:
    """The element of each value at a path of positions, as tuple unpacking takes it."""
    for step in path:
        values = merged(v for value in values for v in _element(site, value, step))
    return values


def _element(site: Site, value: Value, step: int) -> Alternatives:
    if value.op in ("tuple", "sequential", "modules"):
        is_written_out = not any(isinstance(e.node, ast.Starred) for e in value.elements)
        if is_written_out and -len(value.elements) <= step < len(value.elements):
            return tuple(objects.owned(v, value) for v in site.engine.of_argument(value.elements[step]))
        return _elements_or_unknown(site, value)
    if value.op == "comprehension":
        return _elements_or_unknown(site, value)
    if value.op == "python":
        return (site.value(value.node, "python"),)
    if value.is_tensor_op:
        index = known((site.value(value.node, "constant", constant=step),))
        return (site.value(value.node, "getitem", arguments={"input": known((value,)), "index": index}),)
    return (site.value(value.node, "unknown", arguments={"input": known((value,))}, constant=step),)


def _elements_or_unknown(site: Site, value: Value) -> Alternatives:
    return elements(site, (value,)) or site.unknown(value.node)


def _subscript(site: Site, node: ast.Subscript) -> Alternatives:
    return merged(v for container in site.of(node.value) for v in _item(site, node, container))


def _item(site: Site, node: ast.Subscript, container: Value) -> Alternatives:
    if container.op in ("tuple", "sequential", "modules", "comprehension"):
        keys = site.of(node.slice)
        if len(keys) == 1 and keys[0].op == "constant" and isinstance(keys[0].constant, int):
            return _element(site, container, keys[0].constant)
        return _elements_or_unknown(site, container)
    if container.op == "dict":
        return _dict_item(site, node, container)
    if container.op == "setitem" and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return _item_after_setting(site, node, container, node.slice.value)
    if container.op in ("python", "constant", "setting"):
        return (site.value(node, "python"),)
    if container.op in ("instance", "class", "external", "function"):
        return site.unknown(node)
    arguments = {"input": known((container,)), "index": site.argument(node.slice)}
    op = "getitem" if not isinstance(node.slice, ast.Constant) or not isinstance(node.slice.value, str) else "unknown"
    return (site.value(node, op, arguments=arguments),)


def _item_after_setting(site: Site, node: ast.Subscript, container: Value, key: str) -> Alternatives:
    """An item by a string, so of a dict, after `d[…] = value`: that, or what was there before under another key."""
    keys = container.operand("index")
    if len(keys) != 1 or keys[0].op != "constant":
        return site.unknown(node)
    if keys[0].constant == key:
        return container.operand("value") or site.unknown(node)
    return site.engine.remember(  # in a loop the container may be its own input
        ("item before", container, node, site.frame),
        lambda: merged(v for before in container.operand("input") for v in _item(site, node, before)),
        lambda: site.unknown(node),
    )


def _dict_item(site: Site, node: ast.Subscript, container: Value) -> Alternatives:
    return items(site, container, site.of(node.slice)) or site.unknown(node)


def items(site: Site, container: Value, keys: Alternatives) -> Alternatives:
    """The items of a dict under the keys; any of them, where those, or the dict's own, are not known."""
    if any(key.op != "constant" for key in keys):
        return elements(site, (container,))
    found = [container.arguments.get(repr(key.constant)) for key in keys]
    if not all(found) and any(label.startswith("?") for label in container.arguments):
        return elements(site, (container,))
    return merged(v for argument in found if argument for v in site.engine.of_argument(argument))


def _display(site: Site, node: ast.Tuple | ast.List | ast.Set) -> Alternatives:
    elements = tuple(site.argument(e) for e in node.elts)
    if isinstance(node, ast.List) and (appended := lists.appended(site, node)):
        return (site.value(node, "comprehension", elements=(*elements, *appended)),)
    return (site.value(node, "tuple", elements=elements),)


def _dict(site: Site, node: ast.Dict) -> Alternatives:
    items: dict[str, Argument] = {}
    for key, value in zip(node.keys, node.values, strict=False):
        label = repr(key.value) if isinstance(key, ast.Constant) else f"?{len(items)}"
        items[label] = site.argument(value)
    return (site.value(node, "dict", arguments=items),)


# -- operators -------------------------------------------------------------------------------------------------


def _binary(
    site: Site, node: ast.expr, op: ast.operator, left: ast.expr, right: ast.expr, *, in_place: bool = False
) -> Alternatives:
    """Not folded where the operands are constants: `Value.as_number` computes when asked."""
    row = torch_ops.by_operator(_BINARY[type(op)]) if type(op) in _BINARY else None
    if row is None:
        return (site.value(node, "python"),)
    if isinstance(op, ast.Add) and isinstance(left, ast.List | ast.Tuple) and isinstance(right, ast.List | ast.Tuple):
        return (site.value(node, "tuple", elements=tuple(site.argument(e) for e in (*left.elts, *right.elts))),)
    arguments = Given((site.argument(left), site.argument(right))).bind(row.parameters)
    return (site.value(node, row.name, arguments=arguments, in_place=in_place),)


def _unary(site: Site, node: ast.UnaryOp) -> Alternatives:
    if isinstance(node.op, ast.Not):
        return (site.value(node, "python"),)
    if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        number = node.operand.value
        if isinstance(number, int | float):
            return (site.value(node, "constant", constant=-number),)
    row = torch_ops.by_operator(_UNARY[type(node.op)])
    assert row is not None
    return (site.value(node, row.name, arguments={row.parameters[0]: site.argument(node.operand)}),)


def _compare(site: Site, node: ast.Compare) -> Alternatives:
    symbol = _COMPARE.get(type(node.ops[0])) if len(node.ops) == 1 else None
    row = torch_ops.by_operator(symbol) if symbol else None
    if row is None:
        return (site.value(node, "python"),)
    arguments = Given((site.argument(node.left), site.argument(node.comparators[0]))).bind(row.parameters)
    return (site.value(node, row.name, arguments=arguments),)


def node_kinds(symbols: set[str]) -> tuple[type[ast.AST], ...]:
    """The kinds of nodes that spell one of torch_ops' operator symbols."""
    kinds: list[type[ast.AST]] = []
    if symbols & set(_BINARY.values()):
        kinds += [ast.BinOp, ast.AugAssign]
    if symbols & set(_COMPARE.values()):
        kinds.append(ast.Compare)
    if symbols & set(_UNARY.values()):
        kinds.append(ast.UnaryOp)
    if symbols & {"[]", "[]="}:
        kinds.append(ast.Subscript)
    return tuple(kinds)
