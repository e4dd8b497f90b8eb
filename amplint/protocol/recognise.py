"""Which events a call is, whatever its spelling."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from amplint.project import Project
from amplint.protocol.evaluate import Evaluator, enabled_of
from amplint.protocol.events import Event, Kind
from amplint.protocol.facts import assume, compared, truth
from amplint.protocol.frameworks import Call, Framework
from amplint.protocol.roles import Roles, is_scaler_name, is_super, last_name
from amplint.protocol.state import Frame, State
from amplint.protocol.symbols import NONE, Symbol
from amplint.tree import Module

CHECKS = frozenset("isfinite isnan isinf isposinf isneginf all_finite is_finite".split())
HOOKS = frozenset(
    "register_hook register_step_pre_hook register_post_accumulate_grad_hook register_full_backward_hook "
    "register_optimizer_step_pre_hook".split()
)
REDUCTIONS = frozenset("all_reduce all_reduce_coalesced reduce allreduce allreduce_ reduce_scatter".split())
_CLIP = re.compile(r"clip_grad|^clip_gradients?$|^adaptive_clip|clip_grads?_|^clip_and_|gradient_clip(ping)?$")
_NO_CLIP = re.compile(r"^(get|set|make|create|build|maybe|add|has|is|should|need|parse|enable)_")
_IN_PLACE = re.compile(r"^(?!_).*[^_]_$")
_LIMITS = frozenset({"clamp", "clamp_", "clip", "clip_", "clamp_max_", "clamp_min_", "_foreach_clamp_max_", "renorm_"})
_SCALED_BY = re.compile(r"clip|coef|max_norm|total_norm")
_VIEWS = frozenset("detach view view_as flatten reshape ravel to float".split())
_WRITES = frozenset(
    "copy_ add_ sub_ mul_ div_ addcmul_ addcdiv_ lerp_ normal_ set_ neg_ masked_fill_ sign_ round_".split()
)

NAMES_OF_EVENTS = (
    CHECKS
    | HOOKS
    | REDUCTIONS
    | frozenset("backward unscale_ zero_grad manual_backward clip_gradients update_params unscale_gradients".split())
)


def is_clip_name(name: str) -> bool:
    """`clip_grad_norm_`, `dispatch_clip_grad`, `clip_gradients`: not `maybe_add_gradient_clipping`."""
    return bool(_CLIP.search(name)) and not _NO_CLIP.match(name)


class Recogniser:
    """Turns calls into events, in the light of what their receivers are."""

    def __init__(self, project: Project, evaluator: Evaluator) -> None:
        self.project = project
        self.evaluator = evaluator
        self.roles = Roles(project)

    def certain(self, call: ast.Call, state: State, frame: Frame) -> list[Event] | None:
        """The events of a call on a known scaler, optimizer or framework. They go before any function of that name."""
        name, receiver = _parts(call)
        dotted = frame.module.names(call.func)
        if any(is_scaler_name(d) for d in dotted):
            scaler = self.evaluator.symbol(call, state, frame)
            return [Event(Kind.SCALER, call, frame.module, scaler=scaler)]
        if any(d.endswith("autograd.grad") for d in dotted):
            return [self._differentiate(call, state, frame)]
        if any(d.endswith("autograd.backward") for d in dotted):
            return [self._backward(call, call.args[0] if call.args else None, state, frame)]
        if receiver is None:
            return self._framework_call(call, state, frame)
        held = self._held(receiver, state, frame)
        is_object = not dotted or held.kind == "new"  # an import may give one, too
        of_scaler = is_object and name in ("scale", "unscale_", "step", "update")
        if of_scaler and self.roles.is_scaler(held, receiver, frame.module):
            return self._scaler_call(name, call, held, state, frame)
        of_optimizer = name in ("step", "zero_grad") and not self._own_framework(receiver, state, frame)
        if of_optimizer and self.roles.is_optimizer(held, receiver, frame.module):
            return [self._optimizer_call(name, call, held, frame)]
        return self._framework_call(call, state, frame)

    def likely(self, call: ast.Call, state: State, frame: Frame) -> list[Event]:
        """The events of a call that enters no function of this project, by its name."""
        name, receiver = _parts(call)
        module = frame.module
        if name == "backward" and receiver is not None:
            return [self._backward(call, receiver, state, frame)]
        if is_clip_name(name):
            return self._clip(call, state, frame)
        if name == "zero_grad" and receiver is not None:
            value = self.evaluator.symbol(receiver, state, frame)
            return [Event(Kind.ZERO, call, module, subject=receiver, value=value)]
        if name in CHECKS:
            subject = call.args[0] if call.args else receiver
            tested = self.evaluator.symbol(subject, state, frame) if subject is not None else None
            return [Event(Kind.CHECK, call, module, subject=subject, value=tested)]
        if name in HOOKS and any("clip" in text or "clamp" in text for text in self._texts_of_functions(call, module)):
            held = self.evaluator.symbol(receiver, state, frame) if receiver is not None else None
            steps = held is not None and receiver is not None and self.roles.is_optimizer(held, receiver, module)
            return [Event(Kind.HOOK, call, module, optimizer=held if steps else None, subject=receiver, value=held)]
        if name in REDUCTIONS and call.args:
            value = self.evaluator.symbol(call.args[0], state, frame)
            if _is_of_gradients(value):
                return [Event(Kind.REDUCE, call, module, subject=call.args[0], value=value)]
        return list(self._on_gradients(call, state, frame))

    # -- scalers and optimizers ----------------------------------------------------------------------------------

    def _scaler_call(self, name: str, call: ast.Call, scaler: Symbol, state: State, frame: Frame) -> list[Event]:
        inert = not self.enable(scaler, state)
        first = _argument(call, 0, "optimizer")
        match name:
            case "unscale_":
                return [self._of_optimizer(Kind.UNSCALE, call, scaler, first, inert, state, frame)]
            case "step" if first is not None:
                closure = _argument(call, 1, "closure")
                return [self._of_optimizer(Kind.STEP, call, scaler, first, inert, state, frame, closure)]
            case "update":
                subject = _argument(call, 0, "new_scale")
                value = self.evaluator.symbol(subject, state, frame) if subject is not None else None
                return [
                    Event(Kind.UPDATE, call, frame.module, scaler=scaler, subject=subject, value=value, inert=inert)
                ]
        return []

    def _of_optimizer(
        self,
        kind: Kind,
        call: ast.Call,
        scaler: Symbol,
        optimizer: ast.expr | None,
        inert: bool,
        state: State,
        frame: Frame,
        closure: ast.expr | None = None,
    ) -> Event:
        symbol = self._held(optimizer, state, frame) if optimizer is not None else None
        return Event(
            kind, call, frame.module, scaler, symbol, subject=optimizer, value=symbol, inert=inert, closure=closure
        )

    def _optimizer_call(self, name: str, call: ast.Call, optimizer: Symbol, frame: Frame) -> Event:
        receiver = _parts(call)[1]
        if name == "zero_grad":
            return Event(Kind.ZERO, call, frame.module, optimizer=optimizer, subject=receiver, value=optimizer)
        closure = _argument(call, 0, "closure")
        return Event(
            Kind.STEP, call, frame.module, optimizer=optimizer, subject=receiver, value=optimizer, closure=closure
        )

    def _backward(self, call: ast.Call, loss: ast.expr | None, state: State, frame: Frame) -> Event:
        value = self.evaluator.symbol(loss, state, frame) if loss is not None else None
        scaler, by = scaler_in(value) if value is not None else (None, "")
        inert = scaler is not None and not by and not self.enable(scaler, state)
        return Event(Kind.BACKWARD, call, frame.module, scaler, subject=loss, value=value, inert=inert, framework=by)

    def enable(self, scaler: Symbol, state: State) -> bool:
        """Whether the scaler is enabled on this path; where that is open, the path goes on as if it were."""
        if scaler.kind in ("name", "attribute", "item", "element"):
            assume(compared("is", scaler, NONE), False, state.facts)
            assume(Symbol("call", ("is_enabled", scaler)), True, state.facts)
        enabled = enabled_of(scaler)
        if enabled is None:
            return True
        if truth(enabled, state.facts) is None:
            assume(enabled, True, state.facts)
        return bool(truth(enabled, state.facts))

    def _held(self, expression: ast.expr, state: State, frame: Frame) -> Symbol:
        return self._settled(self.evaluator.symbol(expression, state, frame), state)

    def _settled(self, symbol: Symbol, state: State) -> Symbol:
        """A conditional object, used as one: the side that is not None."""
        if symbol.kind == "choice":
            test, then, otherwise = symbol.parts
            assert isinstance(test, Symbol)
            assert isinstance(then, Symbol)
            assert isinstance(otherwise, Symbol)
            known = truth(test, state.facts)
            if known is None and (then.is_none or otherwise.is_none):
                known = otherwise.is_none
                assume(test, known, state.facts)
            if known is not None:
                return self._settled(then if known else otherwise, state)
        if symbol.kind == "any":
            sides = [part for part in symbol.parts if isinstance(part, Symbol) and not part.is_none]
            constructed = [side for side in sides if side.kind in ("new", "made")]
            return symbol if len(sides) != 1 else sides[0] if not constructed else constructed[0]
        return symbol

    # -- clips and gradients -------------------------------------------------------------------------------------

    def _clip(self, call: ast.Call, state: State, frame: Frame) -> list[Event]:
        name, receiver = _parts(call)
        by_method = receiver is not None and not frame.module.names(call.func)
        subject = _argument(call, 0, "parameters") or _argument(call, 0, "params")
        if by_method and name in ("clip_grad_norm_", "clip_grad_norm", "clip_gradients"):
            subject = receiver
        value = self.evaluator.symbol(subject, state, frame) if subject is not None else None
        limit = _argument(call, 0 if subject is receiver else 1, "max_norm") or _argument(call, 1, "clip_value")
        bound = self.evaluator.symbol(limit, state, frame) if limit is not None else None
        if bound is not None and (bound.is_none or _is_infinite(limit)):
            return [Event(Kind.READ, call, frame.module, subject=subject, value=value)]
        return [Event(Kind.CLIP, call, frame.module, subject=subject, value=value)]

    def _on_gradients(self, call: ast.Call, state: State, frame: Frame) -> Iterator[Event]:
        """Changes of `.grad` by methods and functions of torch."""
        name, receiver = _parts(call)
        is_function = receiver is None or bool(frame.module.names(call.func))
        subject = (call.args[0] if call.args else None) if is_function else receiver
        if subject is None or not (_IN_PLACE.match(name) or name.startswith("_foreach")):
            return
        value = self.evaluator.symbol(subject, state, frame)
        if not _is_gradient(value):
            return
        if name in ("zero_", "_foreach_zero_"):
            yield Event(Kind.ZERO, call, frame.module, subject=subject, value=value)
        elif name in _LIMITS or ("mul" in name and any(_is_coefficient(argument) for argument in call.args)):
            yield Event(Kind.CLIP, call, frame.module, subject=subject, value=value)
        elif name in _WRITES or name.startswith("_foreach"):
            kind = Kind.CLIP if is_clip_name(getattr(frame.function, "name", "")) else Kind.WRITE
            yield Event(kind, subject if not is_function else call, frame.module, subject=subject, value=value)

    def assigned(self, target: ast.expr, value: ast.expr | None, state: State, frame: Frame) -> Event | None:
        """The event of `target = value` where the target is a `.grad`; `value` None for an augmented assignment."""
        if not (isinstance(target, ast.Attribute) and target.attr == "grad"):
            if isinstance(target, ast.Attribute) and target.attr == "data":
                return self.assigned(target.value, value, state, frame)
            return None
        symbol = Symbol("attribute", (self.evaluator.symbol(target.value, state, frame), "grad"))
        if isinstance(value, ast.Constant) and value.value is None:
            return Event(Kind.ZERO, target, frame.module, subject=target, value=symbol)
        if isinstance(value, ast.Call) and _parts(value)[0] in _LIMITS:
            return Event(Kind.CLIP, value, frame.module, subject=target, value=symbol)
        if value is not None and _is_coefficient(value):
            return Event(Kind.CLIP, target, frame.module, subject=target, value=symbol)
        return Event(Kind.WRITE, target, frame.module, subject=target, value=symbol)

    def _differentiate(self, call: ast.Call, state: State, frame: Frame) -> Event:
        outputs = _argument(call, 0, "outputs")
        value = self.evaluator.symbol(outputs, state, frame) if outputs is not None else None
        scaler, by = scaler_in(value) if value is not None else (None, "")
        inert = scaler is not None and not self.enable(scaler, state)
        return Event(
            Kind.DIFFERENTIATE, call, frame.module, scaler, subject=outputs, value=value, inert=inert, framework=by
        )

    def _texts_of_functions(self, call: ast.Call, module: Module) -> Iterator[str]:
        for argument in call.args:
            yield ast.unparse(argument) if isinstance(argument, ast.Lambda) else last_name(argument)
            for definition in self.project.resolve(module, argument):
                if isinstance(definition.node, ast.FunctionDef):
                    yield ast.unparse(definition.node)

    # -- frameworks ----------------------------------------------------------------------------------------------

    def _own_framework(self, receiver: ast.expr, state: State, frame: Frame) -> bool:
        symbol = self.evaluator.symbol(receiver, state, frame)
        framework = self.roles.framework(symbol, receiver, frame.module, frame)
        return framework is not None and "step" in framework.calls

    def _framework_call(self, call: ast.Call, state: State, frame: Frame) -> list[Event] | None:
        name, receiver = _parts(call)
        holder = receiver if receiver is not None else call.func
        method = name if receiver is not None else "__call__"
        if isinstance(call.func, ast.Attribute) and frame.module.names(call.func):
            return None
        if is_super(receiver) and self.project.callees(frame.module, call, frame.receiver):
            return None
        symbol = self._held(holder, state, frame)
        framework = self.roles.framework(symbol, holder, frame.module, frame)
        if (framework is None or method not in framework.calls) and receiver is not None:
            method, holder = "__call__", call.func
            symbol = self._held(holder, state, frame)
            framework = self.roles.framework(symbol, holder, frame.module, frame)
        if framework is None or method not in framework.calls:
            return None
        return list(self._framework_events(framework, framework.calls[method], call, symbol, state, frame))

    def _framework_events(
        self, framework: Framework, convention: Call, call: ast.Call, scaler: Symbol, state: State, frame: Frame
    ) -> Iterator[Event]:
        def given(position: int | None, *names: str) -> tuple[ast.expr | None, Symbol | None]:
            expression = None if position is None else _argument(call, position, *names)
            return expression, self.evaluator.symbol(expression, state, frame) if expression is not None else None

        loss, loss_value = given(convention.loss, "loss")
        parameters, parameters_value = given(convention.parameters, "parameters", "module", "params")
        _, optimizer = given(convention.optimizer, "optimizer")
        for kind in convention.does:
            if framework.name == "timm" and not self._timm_does(kind, call, state, frame):
                continue
            subject, value = (loss, loss_value) if kind is Kind.BACKWARD else (parameters, parameters_value)
            yield Event(
                kind, call, frame.module, scaler, optimizer, subject=subject, value=value, framework=framework.name
            )

    def _timm_does(self, kind: Kind, call: ast.Call, state: State, frame: Frame) -> bool:
        """NativeScaler clips if told to, and steps unless `need_update=False`."""
        clip = _argument(call, 2, "clip_grad")
        update = _argument(call, 99, "need_update", "update_grad")
        if kind is Kind.CLIP:
            return clip is not None and truth(self.evaluator.symbol(clip, state, frame), state.facts) is not False
        if kind is not Kind.BACKWARD and update is not None:
            return truth(self.evaluator.symbol(update, state, frame), state.facts) is not False
        return True


def scaler_in(value: Symbol) -> tuple[Symbol | None, str]:
    """The scaler that a loss was multiplied by, through variables and sums, with the framework if it is not torch's."""
    match value.kind:
        case "call" if value.parts[0] == "scale" and isinstance(value.parts[1], Symbol):
            return value.parts[1], ""
        case "made" | "new" if isinstance(value.source, ast.Call):
            name, _ = _parts(value.source)
            if name == "scale_loss":
                return value, "apex"
            if name in ("sum", "mean", "stack", "cat"):
                return _first_scaler(value.parts[1:])
        case "element" | "item" | "operation" | "choice" | "any":
            return _first_scaler(value.parts)
    return None, ""


_ITSELF = object()


def essence(value: Symbol) -> object:
    """What of a variable's value can matter later: which object it is, whether it is scaled; not which number."""
    if value.essence is None:
        found = _essence(value)
        value.essence = _ITSELF if found is value else found  # else it would hold itself, and the trees it speaks of
    return value if value.essence is _ITSELF else value.essence


def _essence(value: Symbol) -> object:
    if value.kind in ("constant", "new", "name", "self", "attribute", "choice", "parameters"):
        return value
    if value.kind == "operation" and value.parts[0] == "display":
        return tuple(essence(part) for part in value.parts[1:] if isinstance(part, Symbol))
    return scaler_in(value)


def _first_scaler(parts: tuple[object, ...]) -> tuple[Symbol | None, str]:
    for part in parts:
        if isinstance(part, Symbol):
            found, by = scaler_in(part)
            if found is not None:
                return found, by
    return None, ""


def _is_gradient(value: Symbol) -> bool:
    """Whether a symbol is a `.grad`, an element of a list of them, or a view."""
    match value.kind:
        case "attribute":
            return value.parts[1] == "grad"
        case "element" | "item":
            return isinstance(value.parts[0], Symbol) and _is_gradient(value.parts[0])
        case "made" | "new" if isinstance(value.source, ast.Call) and _parts(value.source)[0] in _VIEWS:
            return len(value.parts) > 1 and isinstance(value.parts[1], Symbol) and _is_gradient(value.parts[1])
        case "operation" if value.parts[0] in ("each", "display"):
            return any(isinstance(part, Symbol) and _is_gradient(part) for part in value.parts[1:])
        case "choice":
            return any(isinstance(part, Symbol) and _is_gradient(part) for part in value.parts[1:])
    return False


def changes_in_place(gradient: ast.expr, module: Module) -> bool:
    """Whether a `.grad` expression is there to be changed: `p.grad.data.clamp_(…)`."""
    node: ast.AST = gradient
    parent = module.parent(node)
    while isinstance(parent, ast.Attribute) and parent.attr == "data":
        node, parent = parent, module.parent(parent)
    return isinstance(parent, ast.Attribute) and bool(_IN_PLACE.match(parent.attr) or parent.attr == "data")


def _is_of_gradients(value: Symbol) -> bool:
    """Whether a tensor is, or was made from, gradients."""
    return any(symbol.kind == "attribute" and symbol.parts[1] == "grad" for symbol in value.walk()) or any(
        re.search(r"(^|_)grads?(_|$)|gradient", str(part))
        for symbol in value.walk()
        if symbol.kind == "name"
        for part in symbol.parts[1:]
    )


def _is_coefficient(value: ast.expr) -> bool:
    """Whether a factor is a clipping coefficient: made from a norm and a limit."""
    return bool(_SCALED_BY.search(ast.unparse(value)))


def _is_infinite(limit: ast.expr | None) -> bool:
    return limit is not None and bool(
        re.fullmatch(r"float\(['\"]\+?inf(inity)?['\"]\)|\w+\.inf|inf", ast.unparse(limit))
    )


def _parts(call: ast.Call) -> tuple[str, ast.expr | None]:
    """The called name, and what it is called on."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr, call.func.value
    return call.func.id if isinstance(call.func, ast.Name) else "", None


def _argument(call: ast.Call, position: int, *names: str) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg in names:
            return keyword.value
    positional = call.args[: position + 1]
    if len(positional) > position and not any(isinstance(a, ast.Starred) for a in positional):
        return positional[position]
    return None
