"""Which objects are gradient scalers, which are optimizers: by construction, annotation, or how they are used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from amplint.project import Definition, Project
from amplint.protocol.frameworks import FRAMEWORKS, Framework, imports_any
from amplint.protocol.state import Frame
from amplint.protocol.symbols import Symbol
from amplint.tree import Module

_SCALER_NAME = re.compile(r"(^|_|\b)(grad_?|amp_?|loss_?)?scaler(s|_|\b|$)", re.IGNORECASE)
_OPTIMIZER_NAME = re.compile(r"optim|(^|_)opt(s|_|$|[A-Z0-9])|(^|_)(adamw?|sgd|lbfgs)$|Opt$|solver$")
_NO_OPTIMIZER_NAME = re.compile(r"sched|option|lr_|warmup", re.IGNORECASE)


class Roles:
    """The roles of objects. An object constructed as something else never has one."""

    def __init__(self, project: Project) -> None:
        self.project = project

    def is_scaler(self, symbol: Symbol, expression: ast.expr, module: Module) -> bool:
        """Whether the object, written `expression` here, is a torch GradScaler (or one derived from it)."""
        match symbol.kind:
            case "constant" | "parameters" | "self":
                return False
            case "choice" | "any":
                parts = [part for part in symbol.parts if isinstance(part, Symbol)]
                return any(self.is_scaler(part, expression, module) for part in parts[symbol.kind == "choice" :])
            case "new" | "made":
                return self._constructs_scaler(symbol)
        if self._annotated(symbol, "GradScaler"):
            return True
        if self.project.types(module, expression):
            return self._derives(self.project.types(module, expression), "GradScaler")
        return last_name(expression) in used_as_scaler(self.project, module) and self._is_not_another(
            module, expression
        )

    def is_optimizer(self, symbol: Symbol, expression: ast.expr, module: Module) -> bool:
        """Whether the object is an optimizer, of torch or any other maker."""
        if symbol.kind in ("new", "made") and isinstance(symbol.source, ast.Call) and symbol.module is not None:
            names = symbol.module.names(symbol.source.func) or (last_name(symbol.source.func),)
            if any(name.startswith("torch.optim.") and "lr_scheduler" not in name for name in names):
                return True
            classes = self.project.classes_of(symbol.module, symbol.source.func)
            if classes:
                return self.is_optimizer_class(classes)
            if any(_NO_OPTIMIZER_NAME.search(name) for name in names):
                return False
        if symbol.kind in ("self", "constant", "parameters"):
            return False
        if self._annotated(symbol, "Optimizer"):
            return True
        if (types := self.project.types(module, expression)) and self.is_optimizer_class(types):
            return True
        if types and not isinstance(expression, ast.Subscript):
            return False
        names = (last_name(expression), *(last_name(s.source) for s in symbol.walk() if s.source is not None))
        if any(name in used_as_optimizer(self.project, module) for name in names if name):
            return True
        return any(_OPTIMIZER_NAME.search(n) and not _NO_OPTIMIZER_NAME.search(n) for n in names if n)

    def is_optimizer_class(self, classes: tuple[Definition, ...]) -> bool:
        """Whether one of the classes derives from an optimizer."""
        return self._derives(classes, "Optimizer") or any(
            base.startswith("torch.optim.") for cls in classes for base in self.project.base_names(cls)
        )

    def framework(self, symbol: Symbol, expression: ast.expr, module: Module, frame: Frame) -> Framework | None:
        """The framework whose object `expression` is."""
        if (isinstance(expression, ast.Name) and expression.id == "self") or is_super(expression):
            bases = self.project.base_names(frame.receiver) if frame.receiver else frozenset()
            return next((f for f in FRAMEWORKS if f.bases and any(map(f.bases.search, bases))), None)
        for framework in FRAMEWORKS:
            names = self._constructors(symbol)
            if any(name == c or name.endswith(f".{c}") for name in names for c in framework.classes):
                return framework
            if names or self.project.types(module, expression):
                continue
            if any(self._annotated(symbol, c.rsplit(".", 1)[-1]) for c in framework.classes):
                return framework
            if framework.variables.search(last_name(expression)) and imports_any(module, *framework.imports):
                return framework
        return None

    # -- inside --------------------------------------------------------------------------------------------------

    def _constructors(self, symbol: Symbol) -> tuple[str, ...]:
        """The dotted names of the call that made the object."""
        if symbol.kind in ("choice", "any"):
            return tuple(n for part in symbol.parts if isinstance(part, Symbol) for n in self._constructors(part))
        if symbol.kind not in ("new", "made") or not isinstance(symbol.source, ast.Call) or symbol.module is None:
            return ()
        return symbol.module.names(symbol.source.func) or (last_name(symbol.source.func),)

    def _constructs_scaler(self, symbol: Symbol) -> bool:
        names = self._constructors(symbol)
        if any(is_scaler_name(name) for name in names):
            return True
        assert symbol.module is None or isinstance(symbol.source, ast.expr)
        if symbol.module is None or not isinstance(symbol.source, ast.Call):
            return False
        if self._derives(self.project.classes_of(symbol.module, symbol.source.func), "GradScaler"):
            return True
        if any("sklearn" in name for name in names) or names[0].rsplit(".", 1)[-1][:1].isupper():
            return False
        return bool(re.search(r"grad_?scaler|create_scaler|get_scaler|make_scaler", names[0], re.IGNORECASE))

    def _derives(self, classes: tuple[Definition, ...], base: str) -> bool:
        for cls in classes:
            if cls.node.name == base:  # type: ignore[attr-defined]
                return True
            if any(name.endswith(base) for name in self.project.base_names(cls)):
                return True
        return False

    def _annotated(self, symbol: Symbol, word: str) -> bool:
        """Whether the variable is annotated with a class that ends in `word`."""
        scope = symbol.parts[0] if symbol.kind == "name" else None
        if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        arguments = [*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs]
        annotation = next((a.annotation for a in arguments if a.arg == symbol.parts[1]), None)
        return annotation is not None and bool(re.search(rf"{word}\b", ast.unparse(annotation)))

    def _is_not_another(self, module: Module, expression: ast.expr) -> bool:
        """Whether nothing shows the variable to be some other library's scaler."""
        for found_in, source in self.project.sources(module, expression):
            if isinstance(source, ast.Call):
                names = found_in.names(source.func) or (last_name(source.func),)
                if not any(is_scaler_name(name) or "scaler" in name.lower() for name in names):
                    return False
                if any("sklearn" in name or name.rsplit(".", 1)[-1] in _OTHER_SCALERS for name in names):
                    return False
        return True


_OTHER_SCALERS = frozenset("StandardScaler MinMaxScaler RobustScaler MaxAbsScaler NativeScaler".split())


def is_scaler_name(dotted: str) -> bool:
    """`torch.amp.GradScaler`, `ShardedGradScaler`, `torch.cuda.amp.grad_scaler.GradScaler` …"""
    return dotted.rsplit(".", 1)[-1] in ("GradScaler", "ShardedGradScaler", "ShardedGradScalerWrapper")


def last_name(expression: ast.expr | None) -> str:
    """The name nearest to the object: `scaler` of `self.scaler`, `state["scaler"]`, `scalers[0]`, `get_scaler()`."""
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=str(key))):
            return key
        case ast.Subscript(value=value) | ast.Starred(value=value) | ast.NamedExpr(value=value):
            return last_name(value)
        case ast.Call(func=function):
            return last_name(function)
    return ""


def is_super(expression: ast.expr | None) -> bool:
    """Whether an expression is `super()`."""
    return isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name) and expression.func.id == "super"


def used_as_scaler(project: Project, module: Module) -> frozenset[str]:
    """The names of objects that a file uses as only a GradScaler can be: `X.unscale_(o)`, `X.scale(l).backward()`."""
    return project.remember(("scaler names", module.tree), lambda: frozenset(_used_as_scaler(module)), frozenset())


def used_as_optimizer(project: Project, module: Module) -> frozenset[str]:
    """The names of what this file hands to a scaler's step or unscale_, or builds with torch.optim."""
    return project.remember(
        ("optimizer names", module.tree), lambda: frozenset(_used_as_optimizer(module)), frozenset()
    )


def _used_as_scaler(module: Module) -> Iterator[str]:
    for call in module.calls:
        if not isinstance(call.func, ast.Attribute):
            continue
        name = last_name(call.func.value)
        if (
            call.func.attr == "unscale_"
            or (call.func.attr == "scale" and (_SCALER_NAME.search(name) or _is_backpropagated(module, call)))
            or (call.func.attr in ("step", "update", "get_scale") and _SCALER_NAME.search(name))
        ):
            yield name


def _is_backpropagated(module: Module, call: ast.Call) -> bool:
    parent = module.parent(call)
    return isinstance(parent, ast.Attribute) and parent.attr == "backward"


def _receivers(module: Module, method: str) -> set[str]:
    """The names of what a method without arguments is called on in this file."""
    return {
        last_name(call.func.value)
        for call in module.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == method and not call.args
    }


def _used_as_optimizer(module: Module) -> Iterator[str]:
    scalers = frozenset(_used_as_scaler(module))
    yield from _receivers(module, "zero_grad") & _receivers(module, "step")
    for call in module.calls:
        method = call.func if isinstance(call.func, ast.Attribute) else None
        if method and method.attr in ("step", "unscale_") and call.args and last_name(method.value) in scalers:
            yield last_name(call.args[0])
        if any(name.startswith("torch.optim.") and "lr_scheduler" not in name for name in module.names(call.func)):
            parent = module.parent(call)
            if isinstance(parent, ast.Assign):
                yield from (last_name(target) for target in parent.targets)


def is_of_step(expression: ast.AST) -> bool:
    """Whether an expression speaks of what a training step tests and reduces: a loss, gradients, their norm."""
    text = ast.unparse(expression).lower()
    return any(word in text for word in ("grad", "norm", "loss"))
