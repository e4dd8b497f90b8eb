"""Which training framework owns the GradScaler of a step, whether it runs in float16, and how it is written there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from amplint import scaling
from amplint.context import Context
from amplint.edit import argument
from amplint.project import Definition
from amplint.protocol import Event
from amplint.protocol.frameworks import FRAMEWORKS
from amplint.tree import Function, Module

_CONSTRUCTORS = {
    "accelerate": frozenset(["accelerate.Accelerator", "accelerate.accelerator.Accelerator"]),
    "fabric": frozenset(
        ["lightning.Fabric", "lightning.fabric.Fabric", "lightning_fabric.Fabric", "lightning.fabric.fabric.Fabric"]
    ),
}
_TRANSFORMERS_TRAINER = next(f.bases for f in FRAMEWORKS if f.name == "transformers" and f.bases)
_ARGUMENTS = ("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig", "DPOConfig")
_PREPARES = ("prepare", "prepare_optimizer", "prepare_model", "setup", "setup_module", "setup_optimizers")
_PRECISION = {"accelerate": "mixed_precision", "fabric": "precision"}
_GRAD_SCALERS = frozenset(
    "torch.amp.GradScaler torch.cuda.amp.GradScaler torch.amp.grad_scaler.GradScaler "
    "torch.cuda.amp.grad_scaler.GradScaler".split()
)


@dataclass(frozen=True, slots=True)
class Owner:
    """The framework that scales a step's loss; `text` is how its object is written there, None if it cannot be."""

    framework: str
    text: str | None


@dataclass(frozen=True, slots=True)
class Constructed:
    """A framework's object that a file makes: the call, and what it is assigned to."""

    framework: str
    call: ast.Call
    target: ast.expr


@dataclass(frozen=True, slots=True)
class ScalerBeside:
    """A GradScaler made by hand where a framework has its own."""

    framework: str
    constructor: ast.Call


def is_float16(context: Context, event: Event) -> bool | None:
    """Whether a framework's event happens in float16; None where its object was told a precision that is not known.

    False also where nothing was said of the precision.
    """
    if event.framework == "lightning":
        return _lightning_float16(context, event.module, event.node)
    if is_in_transformers_trainer(context, event):
        return _transformers_float16(context)
    source = event.scaler.source if event.scaler else None
    if event.framework == "deepspeed":
        return _deepspeed_float16(event)
    if event.framework == "mmengine":
        made = isinstance(source, ast.Call) and event.scaler is not None and event.scaler.module is not None
        return made and scaling.called(source).startswith("Amp")  # type: ignore[arg-type]
    told = scaling.in_float16(event)
    if told is None and not _says_precision(event.framework, source):
        return False
    return told


def owner_of_step(context: Context, step: Event) -> Owner | None:
    """The framework, known to run in float16, whose optimizer a plain-looking step is."""
    if step.framework in ("deepspeed", "mmengine"):
        return Owner(step.framework, written(context, step, step.node)) if is_float16(context, step) else None
    module = context.module
    if step.framework or step.module is not module or step.subject is None:
        return None
    if _is_manual_lightning(context, module, step.node) and _lightning_float16(context, module, step.node):
        return Owner("lightning", "self")
    optimizer = ast.unparse(step.subject)
    for made in _constructed(module):
        told = argument(made.call, _PRECISION[made.framework])
        if not _is_float16_constant(told) or not _is_in_reach(module, made.target, step.node):
            continue
        if optimizer in _prepared(module, ast.unparse(made.target)):
            return Owner(made.framework, ast.unparse(made.target))
    return None


def is_in_transformers_trainer(context: Context, event: Event) -> bool:
    """Whether an event happens in a method of a class derived from the Trainer of transformers."""
    cls = _class(event.module, event.node)
    bases = context.project.base_names(Definition(event.module, cls)) if cls is not None else frozenset()
    return any(map(_TRANSFORMERS_TRAINER.search, bases))


def is_left_to_transformers(context: Context, backward: Event) -> bool:
    """Whether a plain backward pass stands in a Trainer's own step, whose gradients the Trainer unscales afterwards."""
    function = scaling.function_of(backward)
    is_step = function is not None and function.name == "training_step"
    return is_step and is_in_transformers_trainer(context, backward) and _transformers_float16(context)


def written(context: Context, event: Event, at: ast.AST) -> str | None:
    """How the framework's object of an event is written at `at`: as there, in the same function."""
    call, module = event.node, context.module
    if event.module is not module or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    base = call.func.value
    is_attribute = isinstance(base, ast.Attribute)
    if module.function(at) is not module.function(call) and not (is_attribute and _class(module, at) is not None):
        return None
    return ast.unparse(base)


def scalers_beside(context: Context) -> Iterator[ScalerBeside]:
    """The enabled GradScalers that a file makes where a framework in float16 has its own."""
    module = context.module
    owners = [
        made for made in _constructed(module) if _is_float16_constant(argument(made.call, _PRECISION[made.framework]))
    ]
    for call in module.calls:
        if not _GRAD_SCALERS.intersection(module.names(call.func)) or _is_disabled(call) or not _drives(module, call):
            continue
        owner = next((made for made in owners if _is_in_reach(module, made.target, call)), None)
        if owner is not None:
            yield ScalerBeside(owner.framework, call)
        elif _is_lightning(context, module, call) and _trains_in_float16(context, module, call):
            yield ScalerBeside("lightning", call)


# -- inside ----------------------------------------------------------------------------------------------------------


def _says_precision(framework: str, source: ast.expr | None) -> bool:
    return isinstance(source, ast.Call) and argument(source, _PRECISION.get(framework, "precision")) is not None


def _is_float16_constant(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value in (16, "16", "16-mixed", "fp16")


def _is_disabled(call: ast.Call) -> bool:
    enabled = argument(call, "enabled")
    return isinstance(enabled, ast.Constant) and enabled.value is False


def _constructed(module: Module) -> Iterator[Constructed]:
    for call in module.calls:
        names = module.names(call.func)
        framework = next((f for f, known in _CONSTRUCTORS.items() if known.intersection(names)), None)
        parent = module.parent(call)
        if framework and isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name | ast.Attribute):
            yield Constructed(framework, call, parent.targets[0])


def _is_in_reach(module: Module, target: ast.expr, node: ast.AST) -> bool:
    """Whether what was assigned to `target` is what the same words mean at `node`."""
    if isinstance(target, ast.Attribute):
        return _class(module, target) is not None and _class(module, target) is _class(module, node)
    assert isinstance(target, ast.Name)
    found = module.lookup(target.id, node)
    return found is not None and target in found[1]


def _class(module: Module, node: ast.AST) -> ast.ClassDef | None:
    return next((a for a in module.ancestors(node) if isinstance(a, ast.ClassDef)), None)


def _prepared(module: Module, owner: str) -> set[str]:
    """What a framework's object has prepared, as written: the targets of `owner.prepare(...)`."""
    found: set[str] = set()
    for call in module.calls:
        func = call.func
        if not isinstance(func, ast.Attribute) or func.attr not in _PREPARES or ast.unparse(func.value) != owner:
            continue
        parent = module.parent(call)
        for target in parent.targets if isinstance(parent, ast.Assign) else ():
            elements = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
            found |= {ast.unparse(element) for element in elements}
    return found


def _drives(module: Module, constructor: ast.Call) -> bool:
    """Whether a scaler, in the file that makes it, scales a loss."""
    parent = module.parent(constructor)
    targets = [ast.unparse(target) for target in parent.targets] if isinstance(parent, ast.Assign) else []
    return any(
        isinstance(call.func, ast.Attribute) and call.func.attr == "scale" and ast.unparse(call.func.value) in targets
        for call in module.calls
    )


# -- Lightning and DeepSpeed -----------------------------------------------------------------------------------------


def _is_lightning(context: Context, module: Module, node: ast.AST) -> bool:
    cls = _class(module, node)
    if cls is None:
        return False
    bases = context.project.base_names(Definition(module, cls))
    return any(base.rpartition(".")[2] == "LightningModule" for base in bases)


def _is_manual_lightning(context: Context, module: Module, node: ast.AST) -> bool:
    cls = _class(module, node)
    return cls is not None and _is_lightning(context, module, node) and "automatic_optimization" in ast.unparse(cls)


def _lightning_float16(context: Context, module: Module, node: ast.AST) -> bool:
    """Whether the step runs under a Trainer of this project with float16 precision."""
    return any(frame.region.is_float16 for frame in context.values.frames(module, node))


def _trains_in_float16(context: Context, module: Module, node: ast.AST) -> bool:
    cls = _class(module, node)
    steps: list[Function] = [f for f in module.functions if f.name == "training_step" and _class(module, f) is cls]
    return any(_lightning_float16(context, module, step.body[0]) for step in steps)


def _transformers_float16(context: Context) -> bool:
    """Whether the project says `TrainingArguments(fp16=True)`."""
    made = (site.call for name in _ARGUMENTS for site in context.project.calls_of(name))
    return any(isinstance(flag := argument(call, "fp16"), ast.Constant) and flag.value is True for call in made)


def _deepspeed_float16(event: Event) -> bool | None:
    """What the dict says that the engine was initialized with; None if it is not in the file."""
    symbol = event.scaler
    source = next((s.source for s in symbol.walk() if isinstance(s.source, ast.Call)), None) if symbol else None
    if source is None or symbol is None:
        return None
    config = argument(source, "config") or argument(source, "config_params")
    module = event.module
    if isinstance(config, ast.Name) and (found := module.lookup(config.id, source)) and len(found[1]) == 1:
        parent = module.parent(found[1][0])
        config = parent.value if isinstance(parent, ast.Assign) else config
    if not isinstance(config, ast.Dict):
        return None
    return _enabled(_entry(config, "fp16"))


def _enabled(section: ast.expr | None) -> bool:
    enabled = _entry(section, "enabled") if isinstance(section, ast.Dict) else None
    return isinstance(enabled, ast.Constant) and bool(enabled.value)


def _entry(mapping: ast.Dict, key: str) -> ast.expr | None:
    for name, value in zip(mapping.keys, mapping.values, strict=True):
        if isinstance(name, ast.Constant) and name.value == key:
            return value
    return None
