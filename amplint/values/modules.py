"""torch.nn modules as values: what calling one gives, and the methods that hand back the module itself."""

from __future__ import annotations

import ast
from dataclasses import replace

from amplint import torch_ops
from amplint.torch_ops import Operation
from amplint.values import calls, expressions, objects
from amplint.values.dtype import Dtype
from amplint.values.site import Given, Site, known, merged
from amplint.values.value import Alternatives, Value

_SAME = frozenset(
    "cuda cpu to half float double bfloat16 eval train requires_grad_ type share_memory to_empty compile apply "
    "zero_grad xpu ipu".split()
)
_CASTS = {
    "half": Dtype.FLOAT16,
    "float": Dtype.FLOAT32,
    "double": Dtype.FLOAT64,
    "bfloat16": Dtype.BFLOAT16,
}

CONSTRUCTORS: dict[str, tuple[str, ...]] = {
    "softmax": ("dim",),
    "log_softmax": ("dim",),
    "softmin": ("dim",),
    "cosine_similarity": ("dim", "eps"),
    "pairwise_distance": ("p", "eps", "keepdim"),
    "layer_norm": ("normalized_shape", "eps", "elementwise_affine", "bias"),
    "rms_norm": ("normalized_shape", "eps"),
    "group_norm": ("num_groups", "num_channels", "eps"),
    "batch_norm": ("num_features", "eps", "momentum"),
    "instance_norm": ("num_features", "eps", "momentum"),
    "leaky_relu": ("negative_slope",),
    "hardtanh": ("min_val", "max_val"),
    "softplus": ("beta", "threshold"),
    "threshold": ("threshold", "value"),
    "flatten": ("start_dim", "end_dim"),
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "dropout3d"), ("p",)),
    "cross_entropy": ("weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing"),
    "nll_loss": ("weight", "size_average", "ignore_index", "reduce", "reduction"),
    "binary_cross_entropy": ("weight", "size_average", "reduce", "reduction"),
    "binary_cross_entropy_with_logits": ("weight", "size_average", "reduce", "reduction", "pos_weight"),
    "mse_loss": ("size_average", "reduce", "reduction"),
    "kl_div": ("size_average", "reduce", "reduction", "log_target"),
    "linear": ("in_features", "out_features", "bias"),
    "embedding": ("num_embeddings", "embedding_dim"),
}
"""Positional parameters of the constructors whose arguments matter, by operation."""


def made(site: Site, node: ast.expr, row: Operation, given: Given) -> Alternatives:
    """An instance of a torch.nn class, with the constructor's arguments by name."""
    bound = given.bind(CONSTRUCTORS.get(row.name, ()))
    return (site.value(node, "module", operator=row.name, arguments=bound),)


def call(site: Site, node: ast.expr, module: Value, given: Given) -> Alternatives:
    """What calling a module gives."""
    if module.op == "modules":
        return site.unknown(node)
    if module.op == "sequential":
        return _chain(site, node, module, given)
    row = torch_ops.by_name(module.operator)
    return site.unknown(node) if row is None else result(site, node, row, module, given)


def result(site: Site, node: ast.expr, row: Operation, module: Value, given: Given) -> Alternatives:
    """The operation of a module's class, on the call's arguments; `owner` is the module."""
    arguments = {**module.arguments, **given.bind(row.parameters)}
    value = site.value(node, row.name, arguments=arguments, owner=module)
    return (as_float32(site, node, value) if module.wrapped else value,)


def _chain(site: Site, node: ast.expr, sequential: Value, given: Given) -> Alternatives:
    """The layers of nn.Sequential, one after the other."""
    values: Alternatives = site.engine.of_argument(given.positional[0]) if given.positional else site.unknown(node)
    for layer in sequential.elements:
        layers = tuple(objects.owned(v, sequential) for v in site.engine.of_argument(layer))
        if isinstance(layer.node, ast.Starred):
            layers = tuple(objects.owned(v, sequential) for v in expressions.elements(site, layers))
        if not layers:
            values = site.unknown(node)
            continue
        given = Given((known(values),))
        if site.opened is not None:
            for each in layers:
                calls.apply(site, node, each, given)
        values = merged(v for each in layers for v in calls.apply(replace(site, opened=None), node, each, given))
    return values


def as_float32(site: Site, node: ast.expr, value: Value) -> Value:
    """The result of a forward that a framework wraps: it hands back float32."""
    if value.op == "tuple":
        cast = tuple(
            known(tuple(as_float32(site, node, v) for v in site.engine.of_argument(e))) for e in value.elements
        )
        return replace(value, elements=cast)
    return site.value(node, "float", arguments={"input": known((value,))}) if value.is_tensor_op else value


def method(site: Site, node: ast.Call, name: str, base: Value, given: Given) -> Alternatives | None:
    """The module itself, perhaps cast, for the methods that return it; None for other methods."""
    if name == "forward" and base.op != "instance":
        return calls.apply(site, node, base, given)
    if name in ("parameters", "state_dict", "named_parameters", "children", "modules", "buffers", "load_state_dict"):
        return (site.value(node, "python"),)
    if name not in _SAME or (base.definition and site.engine.project.method(base.definition, name)):
        return None
    if base.op == "instance" and not _is_module(site, base):
        return None
    precision = cast_of(site, name, given)
    return (base,) if precision is None else (replace(base, cast=precision),)


def cast_of(site: Site, name: str, given: Given) -> Dtype | None:
    """The dtype to which `.half()`, `.to(dtype)` and their like cast a module; None if they do not, or unknown."""
    if name in _CASTS:
        return _CASTS[name]
    if name not in ("to", "type"):
        return None
    for argument in (*given.positional, *given.keywords.values()):
        dtypes = site.engine.named_dtypes(site.engine.of_argument(argument))
        if len(dtypes) == 1 and Dtype.UNKNOWN not in dtypes:
            return next(iter(dtypes))
    return None


def _is_module(site: Site, instance: Value) -> bool:
    assert instance.definition is not None
    return bool(site.engine.project.base_names(instance.definition)) or bool(
        site.engine.project.method(instance.definition, "forward")
    )
