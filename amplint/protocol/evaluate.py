"""The symbol of an expression, without its effects."""

from __future__ import annotations

import ast
import itertools

from amplint.project import NOTHING, Asked, Definition, Project
from amplint.project.names import bound_value
from amplint.protocol.facts import chosen, compared, negated, truth
from amplint.protocol.state import Frame, State
from amplint.protocol.symbols import Symbol
from amplint.tree import Module

_DEPTH = 24
_PURE = frozenset(
    "len isinstance hasattr getattr get int float str abs min max is_enabled is_available is_bf16_supported "
    "is_initialized get_rank get_world_size is_main_process lower upper startswith endswith".split()
)
_SAME = frozenset(
    "bool to cuda cpu xpu train eval half float requires_grad_ compile script DataParallel "
    "DistributedDataParallel DDP FullyShardedDataParallel FSDP fully_shard convert_sync_batchnorm unwrap_model list "
    "tuple iter tqdm prepare setup_module".split()
)
"""Calls whose result is their receiver or first argument, as far as identity goes."""
_PARAMETERS = frozenset("parameters named_parameters trainable_parameters".split())
_OPERATORS: dict[type[ast.AST], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip


class Evaluator:
    """Gives expressions their symbols, in a state of a path or (`static`) independent of any."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._static: dict[ast.AST, tuple[Symbol, Asked]] = {}

    def symbol(self, expression: ast.expr, state: State, frame: Frame, depth: int = _DEPTH) -> Symbol:
        """What `expression` stands for in `state`. Binds the names of `:=`."""
        found = state.results.get((frame, expression))
        if found is None:
            found = self._evaluate(expression, state, frame, depth - 1) if depth else _opaque(expression, state, frame)
        if found.source is None:
            found = Symbol(found.kind, found.parts, source=expression, module=frame.module)
        return found

    def static(self, module: Module, expression: ast.expr) -> Symbol:
        """What `expression` stands for wherever it is run: names with one assignment are followed."""
        if expression not in self._static:
            frame = Frame(module, module.function(expression) or module.tree, static=True)
            self._static[expression] = _opaque(expression, State(), frame), NOTHING
            with self.project.recording() as recording:
                symbol = self.symbol(expression, State(), frame, _DEPTH // 2)
            self._static[expression] = symbol, recording.asked
        symbol, asked = self._static[expression]
        self.project.rest_on(asked)
        return symbol

    # -- by node -------------------------------------------------------------------------------------------------

    def _evaluate(self, expression: ast.expr, state: State, frame: Frame, depth: int) -> Symbol:
        match expression:
            case ast.Constant(value=value):
                return Symbol("constant", (value,)) if value is not Ellipsis else _opaque(expression, state, frame)
            case ast.Name():
                return self._name(expression, state, frame)
            case ast.Attribute(value=value, attr=attr):
                return self.attribute(self.symbol(value, state, frame, depth), attr, expression, state, frame)
            case ast.Subscript(value=value, slice=index):
                base = self.symbol(value, state, frame, depth)
                return item(base, self.symbol(index, state, frame, depth), state)
            case ast.Call():
                return self._call(expression, state, frame, depth)
            case ast.NamedExpr(target=target, value=value):
                bound = self.symbol(value, state, frame, depth)
                state.variables[frame, target.id] = bound
                return bound
            case ast.Await(value=value) | ast.Starred(value=value):
                return self.symbol(value, state, frame, depth)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                decided = self.symbol(test, state, frame, depth)
                outcome = truth(decided, state.facts)
                if outcome is not None:
                    return self.symbol(body if outcome else orelse, state, frame, depth)
                then, otherwise = (self.symbol(side, state, frame, depth) for side in (body, orelse))
                return chosen(decided, then, otherwise)
            case ast.BoolOp(op=op, values=values):
                kind = "all" if isinstance(op, ast.And) else "any"
                return _junction(kind, [self.symbol(value, state, frame, depth) for value in values])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return negated(self.symbol(operand, state, frame, depth))
            case ast.UnaryOp(op=op, operand=operand):
                inner = self.symbol(operand, state, frame, depth)
                if isinstance(op, ast.USub) and inner.kind == "constant" and isinstance(inner.parts[0], int | float):
                    return Symbol("constant", (-inner.parts[0],))
                return Symbol("operation", (type(op).__name__, inner))
            case ast.Compare():
                return self._compare(expression, state, frame, depth)
            case ast.BinOp(op=op, left=left, right=right):
                sides = [self.symbol(side, state, frame, depth) for side in (left, right)]
                changing = (state.round,) if isinstance(op, ast.Mod) else ()
                return Symbol("operation", (type(op).__name__, *sides, *changing))
            case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
                return Symbol("operation", ("display", *(self.symbol(e, state, frame, depth) for e in elements)))
            case ast.Dict(keys=keys, values=values):
                named = [(key, value) for key, value in zip(keys, values, strict=True) if key is not None]
                parts = (self.symbol(part, state, frame, depth) for pair in named for part in pair)
                return Symbol("operation", ("dict", *parts))
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                return self._comprehension(expression, state, frame, depth)
        return _opaque(expression, state, frame)

    def _name(self, name: ast.Name, state: State, frame: Frame) -> Symbol:
        current: Frame | None = frame
        while current is not None:
            if (current, name.id) in state.variables:
                return state.variables[current, name.id]
            current = current.closure
        found = frame.module.lookup(name.id, name)
        if found is None:
            return Symbol("name", (None, next(iter(frame.module.names(name)), name.id)))
        scope, bindings = found
        if cls := self._self_class(frame.module, bindings[0]):
            return Symbol("self", (cls,), source=name, module=frame.module)
        if len(bindings) == 1 and (frame.static or scope is not frame.function or isinstance(scope, ast.Module)):
            value = bound_value(frame.module, bindings[0])
            if value is not None:
                return self.static(frame.module, value)
            if dotted := frame.module.import_target(bindings[0], name.id):
                return self._imported(frame.module, name, dotted)
        return Symbol("name", (scope, name.id))

    def _self_class(self, module: Module, binding: ast.AST) -> ast.ClassDef | None:
        """The class of a method, if `binding` is its first parameter."""
        if not isinstance(binding, ast.arg) or not isinstance(arguments := module.parent(binding), ast.arguments):
            return None
        function = module.parent(arguments)
        is_first = [*arguments.posonlyargs, *arguments.args][:1] == [binding]
        return module.class_of(function) if function is not None and is_first else None

    def _imported(self, module: Module, name: ast.Name, dotted: str) -> Symbol:
        if (found := self._assigned_once(module, name)) is not None:
            return found
        definitions = self.project.resolve(module, name)
        return Symbol("name", (definitions[0].node if definitions else None, dotted))

    def _assigned_once(self, module: Module, expression: ast.expr) -> Symbol | None:
        """What a name of another file stands for, if one assignment gives it."""
        definitions = self.project.resolve(module, expression)
        if len(definitions) != 1 or not isinstance(definitions[0].node, ast.Name):
            return None
        value = bound_value(definitions[0].module, definitions[0].node)
        return None if value is None else self.static(definitions[0].module, value)

    def attribute(self, base: Symbol, attr: str, expression: ast.expr, state: State, frame: Frame) -> Symbol:
        """`base.attr` on this path."""
        if (base, attr) in state.heap:
            return state.heap[base, attr]
        if base.kind == "choice":
            test, then, otherwise = base.parts
            assert isinstance(test, Symbol)
            assert isinstance(then, Symbol)
            assert isinstance(otherwise, Symbol)
            known = truth(test, state.facts)
            side = then if known or (known is None and otherwise.is_none) else otherwise
            if known is not None or then.is_none or otherwise.is_none:
                return self.attribute(side, attr, expression, state, frame)
        if attr == "data" or (attr == "module" and base.kind != "name"):
            return base
        is_of_name = base.kind == "name" and isinstance(expression, ast.Attribute)
        if is_of_name and (found := self._assigned_once(frame.module, expression)) is not None:
            return found
        if constant := self._class_constant(base, attr, expression, frame):
            return constant
        if attr in ("sync_gradients", "is_gradient_accumulation_boundary"):
            return Symbol("attribute", (base, attr, state.round))
        return Symbol("attribute", (base, attr))

    def _class_constant(self, base: Symbol, attr: str, expression: ast.expr, frame: Frame) -> Symbol | None:
        """A class-level `name = constant` that nothing else in the class assigns."""
        for cls in self._classes(base, expression, frame):
            targets = self.project.attribute(cls, attr)
            if len(targets) != 1 or not isinstance(targets[0].node, ast.Name):
                continue
            field = isinstance(targets[0].module.parent(targets[0].node), ast.AnnAssign) and base.kind != "name"
            value = bound_value(targets[0].module, targets[0].node)
            if not field and isinstance(value, ast.Constant) and value.value is not Ellipsis:
                return Symbol("constant", (value.value,))
        return None

    def _classes(self, base: Symbol, expression: ast.expr, frame: Frame) -> tuple[Definition, ...]:
        if base.kind == "self" and base.module is not None:
            return (Definition(base.module, base.parts[0]),)  # type: ignore[arg-type]
        if base.kind == "new" and base.module is not None and isinstance(base.source, ast.Call):
            return self.project.classes_of(base.module, base.source.func)
        if base.kind == "name" and isinstance(expression, ast.Attribute):
            found = self.project.resolve(frame.module, expression.value)
            return tuple(definition for definition in found if isinstance(definition.node, ast.ClassDef))
        return ()

    def _call(self, call: ast.Call, state: State, frame: Frame, depth: int) -> Symbol:
        function = call.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        receiver = None
        if isinstance(function, ast.Attribute):
            receiver = self.symbol(function.value, state, frame, depth)
        arguments = [self.symbol(argument, state, frame, depth) for argument in call.args]
        keywords = [(k.arg, self.symbol(k.value, state, frame, depth)) for k in call.keywords]
        is_module_function = receiver is not None and bool(frame.module.names(function))
        if name in _PARAMETERS and receiver is not None:
            return Symbol("parameters", (receiver,))
        if name in _SAME:
            if arguments and (
                receiver is None or is_module_function or name.startswith(("prepare", "setup", "unwrap"))
            ):
                return arguments[0] if len(arguments) == 1 else Symbol("operation", ("display", *arguments))
            if receiver is not None and not arguments[1:] and name not in ("list", "tuple"):
                return receiver
        if name == "getattr" and receiver is None and (attr := _constant_string(call)):
            return self.attribute(arguments[0], attr, call, state, frame)
        if name == "get" and receiver is not None and arguments:
            return item(receiver, arguments[0], state)
        if name == "is_enabled" and receiver is not None and (enabled := enabled_of(receiver)):
            return enabled
        operands = (*arguments, *(value for _, value in keywords))
        if name in _PURE:
            return Symbol("call", (name, *((receiver,) if receiver else ()), *operands))
        if name == "scale" and receiver is not None:
            return Symbol("call", ("scale", receiver, *arguments))
        named = tuple(part for key, value in keywords for part in (key, value))
        creates = name[:1].isupper() or (not call.args and not call.keywords)
        if creates and not is_tensor_method(name):
            owner = (receiver,) if receiver is not None and not is_module_function else ()
            return Symbol("new", (call, *owner, *arguments, *named))
        origin = receiver if receiver is not None and not is_module_function else name
        return Symbol("made", (call, origin, *arguments, *named, state.round))

    def _compare(self, compare: ast.Compare, state: State, frame: Frame, depth: int) -> Symbol:
        operands = [self.symbol(part, state, frame, depth) for part in (compare.left, *compare.comparators)]
        pairs = zip(compare.ops, itertools.pairwise(operands), strict=True)
        steps = [compared(_OPERATORS[type(op)], left, right) for op, (left, right) in pairs]
        return steps[0] if len(steps) == 1 else _junction("all", steps)

    def _comprehension(
        self, expression: ast.ListComp | ast.GeneratorExp | ast.SetComp, state: State, frame: Frame, depth: int
    ) -> Symbol:
        inner = state.copy()
        for generator in expression.generators:
            iterable = self.symbol(generator.iter, inner, frame, depth)
            self.bind(generator.target, element(iterable, 0), inner, frame)
        return Symbol("operation", ("each", self.symbol(expression.elt, inner, frame, depth)))

    # -- binding -------------------------------------------------------------------------------------------------

    def bind(self, target: ast.expr, value: Symbol, state: State, frame: Frame) -> None:
        """Assign `value` to a target: a name, attribute, subscript, or a tuple of them."""
        if isinstance(target, ast.Name):
            owner: Frame | None = frame
            found = frame.module.lookup(target.id, target)
            if found and found[0] is not frame.function and frame.closure and found[0] is frame.closure.function:
                owner = frame.closure
            state.variables[owner or frame, target.id] = value
        elif isinstance(target, ast.Attribute):
            state.heap[self.symbol(target.value, state, frame), target.attr] = value
        elif isinstance(target, ast.Subscript):
            key = self.symbol(target.slice, state, frame)
            state.heap[self.symbol(target.value, state, frame), key] = value
        elif isinstance(target, ast.Tuple | ast.List):
            for index, part in enumerate(target.elts):
                self.bind(part, item(value, Symbol("constant", (index,)), state), state, frame)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, value, state, frame)


def item(base: Symbol, key: Symbol, state: State) -> Symbol:
    """`base[key]`."""
    if (base, key) in state.heap:
        return state.heap[base, key]
    if base.kind == "operation" and base.parts[0] == "display" and key.kind == "constant":
        index = key.parts[0]
        if isinstance(index, int) and -len(base.parts) < index < len(base.parts) - 1:
            found = base.parts[1:][index]
            assert isinstance(found, Symbol)
            return found
    if base.kind == "operation" and base.parts[0] == "dict":
        for known, value in zip(base.parts[1::2], base.parts[2::2], strict=False):
            if known == key and isinstance(value, Symbol):
                return value
    return Symbol("item", (base, key))


def element(iterable: Symbol, number: int) -> Symbol:
    """What a loop over `iterable` binds in its round `number`."""
    call = iterable.source if isinstance(iterable.source, ast.Call) else None
    if iterable.kind in ("made", "new", "call") and call is not None:
        operands = [part for part in iterable.parts[1:] if isinstance(part, Symbol) and part.kind != "round"]
        name = getattr(call.func, "id", getattr(call.func, "attr", ""))
        if name == "zip" and operands:
            return Symbol("operation", ("display", *(element(part, number) for part in operands)))
        if name == "enumerate" and operands:
            count = Symbol("element", (Symbol("call", ("count", operands[0])), number))
            return Symbol("operation", ("display", count, element(operands[0], number)))
        if name in ("reversed", "sorted", "values", "tqdm") and operands:
            return element(operands[0], number)
        if name == "items" and operands:
            key = Symbol("element", (Symbol("call", ("keys", operands[0])), number))
            return Symbol("operation", ("display", key, element(operands[0], number)))
    if iterable.kind == "parameters" and call is not None and getattr(call.func, "attr", "").startswith("named"):
        key = Symbol("element", (Symbol("call", ("keys", iterable)), number))
        return Symbol("operation", ("display", key, Symbol("element", (iterable, number))))
    if iterable.kind == "operation" and iterable.parts[0] == "display" and 0 < number < len(iterable.parts):
        found = iterable.parts[number]
        assert isinstance(found, Symbol)
        return found
    return Symbol("element", (iterable, number))


def enabled_of(scaler: Symbol) -> Symbol | None:
    """The `enabled` argument of a scaler's constructor; None if it has none (enabled) or is not known."""
    if scaler.kind not in ("new", "made"):
        return None
    for key, value in zip(scaler.parts, scaler.parts[1:], strict=False):
        if key == "enabled" and isinstance(value, Symbol):
            return value
    return None


def is_tensor_method(name: str) -> bool:
    """Methods without arguments whose result is a new value each time."""
    return name in ("item", "detach", "clone", "mean", "sum", "norm", "backward", "next", "read", "random", "time")


def _constant_string(call: ast.Call) -> str | None:
    """The name in `getattr(x, "name", …)`."""
    given = call.args[1] if len(call.args) > 1 else None
    return given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else None


def _junction(kind: str, operands: list[Symbol]) -> Symbol:
    decisive = kind == "any"
    kept: list[Symbol] = []
    for operand in operands:
        if operand.kind == "constant":
            if bool(operand.parts[0]) is decisive:
                return operand if not kept else Symbol(kind, (*kept, operand))
            continue
        kept.append(operand)
    if not kept:
        return operands[-1]
    return kept[0] if len(kept) == 1 else Symbol(kind, tuple(kept))


def _opaque(expression: ast.expr, state: State, frame: Frame) -> Symbol:
    return Symbol("opaque", (expression, state.round), source=expression, module=frame.module)
