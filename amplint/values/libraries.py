"""Calls of names outside the project: torch, builtins, functools, and libraries whose results are no tensors."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace

from amplint import torch_ops
from amplint.values import calls, expressions, lists, modules, objects, options
from amplint.values.dtype import Dtype
from amplint.values.site import Given, Site, known, merged
from amplint.values.value import Alternatives, Argument, Place, Region, RegionKind, Value

_NOT_TENSORS = frozenset(
    "numpy np math cmath random os time json logging scipy sklearn pandas polars sympy jax tensorflow cv2 PIL wandb re "
    "sys statistics collections itertools string pathlib warnings argparse subprocess datetime decimal fractions "
    "matplotlib tqdm".split()
)
"""Libraries whose results are no torch tensors."""

_PASS = frozenset(
    "torch.compile torch.jit.script torch.jit.trace torch.nn.DataParallel torch.nn.parallel.DataParallel "
    "torch.nn.parallel.DistributedDataParallel torch.distributed.fsdp.FullyShardedDataParallel "
    "torch.nn.utils.spectral_norm torch.nn.utils.weight_norm torch.nn.utils.parametrizations.weight_norm "
    "torch.nn.utils.parametrizations.spectral_norm "
    "copy.deepcopy copy.copy builtins.list builtins.tuple builtins.reversed builtins.sorted builtins.iter "
    "builtins.next tqdm.tqdm torch.autograd.Variable".split()
)
"""What gives its first argument back, as far as values go."""

_NUMBERS = frozenset(f"builtins.{name}" for name in "float int len round bool str hash id ord".split())
_AUTOCAST = {
    "torch.autocast": ("device_type", "dtype", "enabled", "cache_enabled"),
    "torch.amp.autocast": ("device_type", "dtype", "enabled", "cache_enabled"),
    "torch.amp.autocast_mode.autocast": ("device_type", "dtype", "enabled", "cache_enabled"),
    "torch.cuda.amp.autocast": ("enabled", "dtype", "cache_enabled"),
    "torch.cuda.amp.autocast_mode.autocast": ("enabled", "dtype", "cache_enabled"),
    "torch.cpu.amp.autocast": ("enabled", "dtype", "cache_enabled"),
}
_WRAPPED = ("instance", "module", "sequential", "unknown", "parameter")
"""What may be a model that a framework wraps."""
_FRAMEWORK_FILES = (("accelerate", "accelerator.py"), ("fabric", "fabric.py"))
"""Where the classes Accelerator and Fabric are defined."""
_CHECKPOINTS = ("torch.utils.checkpoint.checkpoint", "torch.nn.parallel.data_parallel")
"""What calls its first argument with the others."""


def call(site: Site, node: ast.expr, dotted: str, given: Given) -> Alternatives:
    """What calling the dotted name gives."""
    if row := torch_ops.by_function(dotted):
        return calls.operation(site, node, row, given)
    if dotted.startswith("torch.Tensor.") and (row := torch_ops.by_method(dotted.removeprefix("torch.Tensor."))):
        return calls.operation(site, node, row, given)
    if row := torch_ops.by_module(dotted):
        return modules.made(site, node, row, given)
    if dotted in _AUTOCAST:
        return (site.value(node, "autocast", arguments=given.bind(_AUTOCAST[dotted]), dotted=dotted, open=given.open),)
    if dotted in ("torch.nn.Sequential", "torch.nn.ModuleList", "torch.nn.ModuleDict"):
        return _container(site, node, dotted, given)
    if dotted in ("torch.nn.Parameter", "torch.nn.Buffer") and (given.positional or "data" in given.keywords):
        data = given.positional[0] if given.positional else given.keywords["data"]
        return (site.value(node, "weight", arguments={"input": data}),)
    if dotted in ("torch.finfo", "torch.iinfo") and given.positional:
        return (site.value(node, "finfo", arguments={"dtype": given.positional[0]}),)
    if dotted == "functools.partial" and given.positional:
        return (
            site.value(node, "partial", elements=given.positional, arguments=dict(given.keywords), open=given.open),
        )
    if dotted in _CHECKPOINTS and given.positional:
        functions = site.engine.of_argument(given.positional[0])
        inputs = 1 if dotted.endswith("data_parallel") else len(given.positional)
        inner = Given(given.positional[1 : 1 + inputs], {}, given.open)
        return merged(v for f in functions for v in calls.apply(site, node, f, inner))
    if dotted == "apex.amp.initialize":
        return _initialized(site, node, given.bind(("models", "optimizers", "enabled", "opt_level")))
    if dotted in _PASS and given.positional:
        return _passed(site, node, dotted, given.positional[0])
    if dotted.startswith(("einops.rearrange", "einops.repeat")) and given.positional:
        return (site.value(node, "reshape", arguments={"input": given.positional[0]}),)
    if dotted.startswith("builtins."):
        return _builtin(site, node, dotted, given)
    if dotted.partition(".")[0] in _NOT_TENSORS:
        return (site.value(node, "python", dotted=dotted, elements=given.positional, arguments=given.keywords),)
    if dotted.endswith(".from_pretrained"):
        return pretrained(site, node, None, given)
    return (
        site.value(
            node, "unknown", dotted=dotted, elements=given.positional, arguments=dict(given.keywords), open=given.open
        ),
    )


def _container(site: Site, node: ast.expr, dotted: str, given: Given) -> Alternatives:
    elements = given.positional
    if isinstance(node, ast.Call):
        elements = tuple(layer for argument in node.args for layer in _unpacked(site, argument))
    op = "sequential" if dotted.endswith("Sequential") else "modules"
    if len(elements) == 1 and not isinstance(elements[0].node, ast.Starred):
        elements = _held(site, op, elements[0])
    if op == "sequential":
        elements = (*elements, *lists.grown(site, node))
    return (site.value(node, op, elements=elements),)


def _held(site: Site, op: str, only: Argument) -> tuple[Argument, ...]:
    """The layers of a container that is given one thing: a display of layers, or for nn.Sequential a layer."""
    values = site.engine.of_argument(only)
    if len(values) == 1:
        inner = values[0]
        if inner.op == "tuple" or (inner.op == "comprehension" and op == "modules"):
            return inner.elements
        if inner.op == "dict":
            return tuple(inner.arguments.values())
        if inner.dotted == "collections.OrderedDict":
            return _ordered(site, inner.elements[0]) if inner.elements else ()
    return (only,) if op == "sequential" else ()


def _unpacked(site: Site, node: ast.expr) -> tuple[Argument, ...]:
    """An argument, or the layers of a list that is unpacked into arguments."""
    listed = lists.layers(site, node.value) if isinstance(node, ast.Starred) else None
    return (site.argument(node),) if listed is None else listed


def _ordered(site: Site, pairs: Argument) -> tuple[Argument, ...]:
    """The layers of `OrderedDict([("name", layer), …])`."""
    layers: list[Argument] = []
    for value in site.engine.of_argument(pairs):
        if value.op == "dict":
            layers += value.arguments.values()
        elif value.op in ("tuple", "comprehension"):
            layers += [_layer_of(site, pair) for pair in value.elements]
        else:
            layers.append(known(site.unknown(pairs.node)))
    return tuple(layers)


def _layer_of(site: Site, pair: Argument) -> Argument:
    inner = site.engine.of_argument(pair)
    is_pair = len(inner) == 1 and inner[0].op == "tuple" and len(inner[0].elements) == 2
    return inner[0].elements[1] if is_pair else known(site.unknown(pair.node))


def _passed(site: Site, node: ast.expr, dotted: str, first: Argument) -> Alternatives:
    values = site.engine.of_argument(first)
    if dotted == "builtins.next":
        return expressions.elements(site, values) or site.unknown(node)
    if dotted.startswith("copy."):
        return tuple(replace(v, node=node) if v.op in ("instance", "module", "sequential") else v for v in values)
    return values


def _builtin(site: Site, node: ast.expr, dotted: str, given: Given) -> Alternatives:
    if dotted == "builtins.abs" and given.positional:
        row = torch_ops.by_name("abs")
        assert row is not None
        return calls.operation(site, node, row, given)
    if dotted == "builtins.float" and len(given.positional) == 1:
        values = site.engine.of_argument(given.positional[0])
        if all(v.op == "constant" and isinstance(v.constant, str) for v in values):
            return tuple(site.value(node, "constant", constant=_as_float(v.constant)) for v in values)
        if all(v.as_number() is not None for v in values):
            return values
    if dotted == "builtins.pow" and len(given.positional) == 2:
        row = torch_ops.by_name("pow")
        assert row is not None
        return calls.operation(site, node, row, given)
    if dotted == "builtins.getattr" and len(given.positional) >= 2:
        return _getattr(site, node, given)
    if dotted == "builtins.dict" and given.keywords and not given.positional and not given.open:
        return (site.value(node, "dict", arguments={repr(name): item for name, item in given.keywords.items()}),)
    if dotted in ("builtins.zip", "builtins.enumerate", "builtins.range", "builtins.map"):
        return (site.value(node, "python", dotted=dotted, elements=given.positional),)
    if dotted in ("builtins.max", "builtins.min", "builtins.sum") and len(given.positional) == 1:
        return (site.value(node, "unknown", dotted=dotted, elements=given.positional),)
    if dotted in _NUMBERS or dotted.rpartition(".")[2] in (
        "max",
        "min",
        "isinstance",
        "hasattr",
        "dict",
        "set",
        "type",
    ):
        return (site.value(node, "python", dotted="number"),)
    return site.unknown(node, dotted)


def _as_float(text: object) -> float:
    try:
        return float(str(text))
    except ValueError:
        return 0.0


def _getattr(site: Site, node: ast.expr, given: Given) -> Alternatives:
    names = site.engine.of_argument(given.positional[1])
    found: list[Value] = []
    for value in names:
        if value.op != "constant" or not isinstance(value.constant, str):
            return site.unknown(node)
        attribute = ast.copy_location(ast.Attribute(given.positional[0].node, value.constant, ast.Load()), node)
        for base in site.engine.of_argument(given.positional[0]):
            if base.op == "external":
                found.append(
                    site.value(node, "external", dotted=calls.canonical_name(f"{base.dotted}.{value.constant}"))
                )
            else:
                found += objects.member(site, attribute, base)
    if len(given.positional) > 2:
        default = given.positional[2]
        if settings := options.setting(site, node, default):
            is_known = bool(found) and all(v.op not in ("unknown", "python") for v in found)
            return merged(found) if is_known else settings
        found += site.engine.of_argument(default)
    return merged(found) or site.unknown(node)


def pretrained(site: Site, node: ast.expr, cls: Value | None, given: Given) -> Alternatives:
    """`Class.from_pretrained(…, torch_dtype=…)`: an instance in that precision."""
    dtype = given.keywords.get("torch_dtype") or given.keywords.get("dtype")
    dtypes = site.engine.named_dtypes(site.engine.of_argument(dtype)) if dtype else frozenset()
    precision = next(iter(dtypes)) if len(dtypes) == 1 else Dtype.UNKNOWN if dtype else None
    if cls is not None and cls.definition is not None:
        return (site.value(node, "instance", definition=cls.definition, dotted=cls.dotted, open=True, cast=precision),)
    return (site.value(node, "unknown", dotted="from_pretrained", cast=precision, arguments=given.keywords),)


def method(site: Site, node: ast.Call, name: str, base: Value, given: Given) -> Alternatives | None:
    """Methods of library objects that matter: Accelerate's and Fabric's `prepare`, `setup`, `autocast`."""
    if name in ("prepare", "setup", "setup_module") and base.dotted.rpartition(".")[2] in ("Accelerator", "Fabric"):
        return _prepared(site, node, base, given)
    if name == "autocast" and base.dotted.rpartition(".")[2] in ("Accelerator", "Fabric"):
        return (site.value(node, "autocast", arguments={"framework": known((base,))}, dotted=base.dotted),)
    if (
        base.op == "unknown"
        and (base.cast or base.dotted == "from_pretrained")
        and name in ("cuda", "to", "eval", "train", "half", "float")
    ):
        cast = modules.cast_of(site, name, given)
        return (base,) if cast is None else (replace(base, cast=cast),)
    return None


def _initialized(site: Site, node: ast.expr, given: Mapping[str, Argument]) -> Alternatives:
    """apex's `amp.initialize(model, optimizer)`: the model, whose forward runs in the precision of `opt_level`."""
    engine = site.engine
    levels = {v.constant for name in ("opt_level",) if name in given for v in engine.of_argument(given[name])} or {"O1"}
    enabled = {v.constant for v in engine.of_argument(given["enabled"])} if "enabled" in given else {True}
    models = engine.of_argument(given["models"]) if "models" in given else site.unknown(node)
    if levels != {"O0"} and enabled != {False}:
        models = tuple(_at_level(site, node, model, levels) for model in models)
    if "optimizers" not in given:
        return models
    return (site.value(node, "tuple", elements=(known(models), given["optimizers"])),)


def _at_level(site: Site, node: ast.expr, model: Value, levels: set[object]) -> Value:
    """O1 runs functions as autocast does; O2 and O3 cast the model and its inputs. All give float32 here."""
    if model.op == "tuple":
        inner = (
            known(tuple(_at_level(site, node, v, levels) for v in site.engine.of_argument(e))) for e in model.elements
        )
        return replace(model, elements=tuple(inner))
    if model.op not in _WRAPPED:
        return model
    if levels <= {"O2", "O3"}:
        return site.engine.wrapped(replace(model, cast=Dtype.FLOAT16), Region(RegionKind.NONE))
    why = Place(site.module, node, "apex runs the model in float16")
    return site.engine.wrapped(model, Region(RegionKind.FLOAT16, certain=levels == {"O1"}, why=(why,)))


def own_framework(site: Site, node: ast.Call, name: str, base: Value, given: Given) -> Alternatives | None:
    """The same methods of Accelerate's and Fabric's classes where their own repository is what is judged."""
    cls = base.definition
    is_own = cls is not None and cls.module.source.path.parts[-2:] in _FRAMEWORK_FILES
    return method(site, node, name, base, given) if is_own else None


def _prepared(site: Site, node: ast.Call, framework: Value, given: Given) -> Alternatives:
    region = site.engine.framework_region(framework)
    parts = []
    for argument in given.positional:
        values = site.engine.of_argument(argument)
        wrapped = tuple(
            site.engine.wrapped(v, region) if region is not None and v.op in _WRAPPED else v for v in values
        )
        parts.append(known(wrapped))
    if len(parts) == 1:
        return site.engine.of_argument(parts[0])
    return (site.value(node, "tuple", elements=tuple(parts)),)
