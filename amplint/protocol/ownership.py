"""Which optimizer holds the parameters that a clip, a gradient or a zero_grad concerns."""

from __future__ import annotations

import ast
import re

from amplint.project import Definition, Project
from amplint.protocol.events import Event, Kind, Path
from amplint.protocol.frameworks import CLIPPING_ARGUMENTS, OPTIMIZERS_THAT_CLIP
from amplint.protocol.recognise import is_clip_name
from amplint.protocol.roles import last_name
from amplint.protocol.symbols import Symbol
from amplint.tree import Module

_TOKEN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_COMMON = frozenset(
    "optimizer optim opt optimizers optims model models net nets network parameters params self module modules the "
    "scaler grads grad parameter list ddp raw base".split()
)


def optimizers_on(path: Path) -> tuple[Symbol, ...]:
    """The optimizers that are stepped, unscaled or cleared on a path."""
    found = (event.optimizer for event in path.events if event.kind in (Kind.STEP, Kind.UNSCALE, Kind.ZERO))
    return tuple(dict.fromkeys(optimizer for optimizer in found if optimizer is not None))


def owners(path: Path, event: Event) -> frozenset[Symbol] | None:
    """The optimizers on `path` that hold the parameters of `event`; None if it cannot be told."""
    if event.value is None:
        return None
    optimizers = optimizers_on(path)
    held = frozenset(o for o in optimizers if any(s == o for s in event.value.walk()))
    if held:
        return held
    roots = _roots(event.value)
    held = frozenset(o for o in optimizers if any(_holds(o, root) for root in roots))
    if held or len(optimizers) == 1:
        return held or frozenset(optimizers)
    named = frozenset(o for o in optimizers if any(_tokens(o) & _tokens(root) for root in roots))
    return named if len(named) == 1 else None


def optimizer_clips(project: Project, optimizer: Symbol) -> bool:
    """Whether the optimizer limits its gradients or updates by itself."""
    if optimizer.kind in ("choice", "any"):
        sides = [part for part in optimizer.parts if isinstance(part, Symbol) and not part.is_none]
        return any(optimizer_clips(project, side) for side in sides)
    call, module = optimizer.source, optimizer.module
    if call is None or module is None:
        return False
    if optimizer.kind in ("new", "made") and isinstance(call, ast.Call):
        return _constructor_clips(project, module, call)
    made = (found for found in project.sources(module, call) if isinstance(found[1], ast.Call))
    return any(_constructor_clips(project, found_in, source) for found_in, source in made)


def _constructor_clips(project: Project, module: Module, call: ast.expr) -> bool:
    """Whether what a call makes is an optimizer that clips: by its class, its arguments, or who builds it."""
    assert isinstance(call, ast.Call)
    name = last_name(call.func)
    if name in OPTIMIZERS_THAT_CLIP or is_clip_name(name) or "clip" in name.lower():
        return True
    if any(keyword.arg in CLIPPING_ARGUMENTS for keyword in call.keywords):
        return True
    classes = project.classes_of(module, call.func)
    return any(_step_clips(project, cls) for cls in classes) or _factory_clips(project, module, call)


def _step_clips(project: Project, cls: Definition) -> bool:
    step = project.method(cls, "step")
    return step is not None and _mentions_clip(step)


def _factory_clips(project: Project, module: Module, call: ast.Call) -> bool:
    """Whether a function that builds the optimizer names clipping: it may wrap the class, as detectron2's does."""
    callees = [callee for callee in project.callees(module, call) if callee.cls is None]
    return any(_mentions_clip(callee.definition) for callee in callees)


def _mentions_clip(function: Definition) -> bool:
    words = (node for node in ast.walk(function.node) if isinstance(node, ast.Name | ast.Attribute))
    return any(
        is_clip_name(last_name(word)) or re.search(r"gradient_clipping|clip(ping)?_(grad|scale|norm)", last_name(word))
        for word in words
    )


def _roots(value: Symbol) -> tuple[Symbol, ...]:
    """The models, or lists of parameters, that an expression of parameters is about."""
    models = [s.parts[0] for s in value.walk() if s.kind == "parameters"]
    found = tuple(model for model in models if isinstance(model, Symbol))
    if found:
        return found
    while value.kind in ("attribute", "element", "item") and isinstance(value.parts[0], Symbol):
        if value.kind == "attribute" and value.parts[1] != "grad":
            break
        value = value.parts[0]
    return (value,)


def _holds(optimizer: Symbol, root: Symbol) -> bool:
    """Whether an optimizer was built from the model `root`, a model around it or a part of it, or the list `root`."""
    if optimizer.kind == "element" and root.kind == "element":
        return optimizer.parts[1] == root.parts[1]
    if optimizer.kind not in ("new", "made"):
        return False
    for symbol in optimizer.walk():
        if symbol.kind == "parameters" and isinstance(model := symbol.parts[0], Symbol):
            if _is_within(root, model) or _is_within(model, root):
                return True
        elif symbol == root and symbol.kind not in ("constant", "self"):
            return True
    return False


def _is_within(part: Symbol, whole: Symbol) -> bool:
    """Whether `part` is `whole`, an attribute of it, an element of an attribute …"""
    current: object = part
    while isinstance(current, Symbol):
        if current == whole:
            return True
        current = current.parts[0] if current.kind in ("attribute", "element", "item") else None
    return False


def _tokens(symbol: Symbol) -> frozenset[str]:
    """The telling words of an object's name: {"d"} of `self.optim_d`, {"disc"} and its initial of `disc`."""
    names = [str(part) for part in symbol.parts if isinstance(part, str)] if symbol.kind != "new" else []
    if symbol.source is not None:
        names.append(last_name(symbol.source))
    words = {word.lower() for name in names for word in _TOKEN.findall(name)} - _COMMON
    return frozenset(words | {word[0] for word in words})
