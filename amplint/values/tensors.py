"""Whether a value is a tensor of torch, where an operator or a method could as well be numpy's or Python's."""

from __future__ import annotations

import ast

from amplint.torch_ops import Kind
from amplint.values.value import Certainty, Value

_MODULES = ("instance", "module", "sequential", "modules")

_SHARED_METHODS = frozenset(
    (
        "all", "any", "argmax", "argmin", "argsort", "clip", "conj", "cumprod", "cumsum", "diagonal", "dot", "fill_",
        "flatten", "item", "max", "mean", "min", "nonzero", "prod", "ravel", "repeat", "reshape", "round", "sort",
        "squeeze", "std", "sum", "swapaxes", "take", "tolist", "trace", "transpose", "var", "view", "T", "real", "imag",
    )
)  # fmt: skip
"""Methods that numpy's arrays have too."""

_OTHER_TYPES = ("ndarray", "float", "int", "str")
_ALIKE = ("polars", "sympy")
"""Libraries whose objects have `sqrt`, `log`, `exp` and `pow` as methods."""

FORWARD = ("forward", "training_step", "validation_step", "test_step")
"""Methods of modules that are given data."""


def is_tensor(value: Value) -> Certainty:
    """ALWAYS for what a torch function or module gives, NEVER for numbers and other libraries' results.

    An operator or method is what its operands are.
    """
    if value.op == "weight" or (value.owner is not None and value.op != "unknown"):
        return Certainty.ALWAYS
    operation = value.operation if value.is_tensor_op else None
    if value.op == "parameter":
        return _is_tensor_parameter(value)
    if operation is None:
        plain = value.op in ("constant", "python", "tuple", "dict", "finfo", *_MODULES) or value.as_number() is not None
        return Certainty.NEVER if plain else Certainty.UNKNOWN
    if operation.result == "number":
        return Certainty.NEVER
    if operation.kind is Kind.CREATE or _is_torch_function(value) or _is_torch_method(value):
        return Certainty.ALWAYS
    engine = value.engine
    found = [engine.is_tensor(v) for name in operation.parameters for v in value.operand(name)]
    if Certainty.ALWAYS in found:
        return Certainty.ALWAYS
    return Certainty.NEVER if found and all(f is Certainty.NEVER for f in found) else Certainty.UNKNOWN


def _is_torch_function(value: Value) -> bool:
    """Whether the operation was called as a function of torch, not as a method or operator."""
    func = getattr(value.node, "func", None)
    return func is not None and any(name.startswith("torch.") for name in value.module.names(func))


def _is_torch_method(value: Value) -> bool:
    """Whether the operation was called as a method that only tensors have: `x.pow(2)`."""
    func = getattr(value.node, "func", None)
    if not isinstance(func, ast.Attribute) or value.module.names(func):
        return False
    return func.attr not in _SHARED_METHODS and not value.module.imports(*_ALIKE)


def _is_tensor_parameter(value: Value) -> Certainty:
    """By its annotation, or because a module's forward takes it."""
    if value.as_number() is not None:
        return Certainty.NEVER
    function = value.frame.function
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return Certainty.UNKNOWN
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    annotation = next((a.annotation for a in arguments if a.arg == value.dotted), None)
    names = "" if annotation is None else ast.unparse(annotation)
    is_other = any(word in names for word in _OTHER_TYPES)
    if "Tensor" in names:
        return Certainty.UNKNOWN if is_other else Certainty.ALWAYS
    if annotation is not None:
        return Certainty.NEVER if is_other else Certainty.UNKNOWN
    is_forward = function.name in FORWARD and value.module.class_of(function) is not None
    return Certainty.ALWAYS if is_forward else Certainty.UNKNOWN
