"""Whether a value is a tensor of torch, where an operator or a method could as well be numpy's or Python's."""

from __future__ import annotations

from amplint.torch_ops import Kind
from amplint.values.value import Certainty, Value

_MODULES = ("instance", "module", "sequential", "modules")


def is_tensor(value: Value) -> Certainty:
    """ALWAYS for what a torch function or module gives, NEVER for numbers and other libraries' results.

    An operator or method is what its operands are.
    """
    if value.op == "weight" or value.owner is not None:
        return Certainty.ALWAYS
    operation = value.operation if value.is_tensor_op else None
    if operation is None:
        plain = value.op in ("constant", "python", "tuple", "dict", "finfo", *_MODULES) or value.as_number() is not None
        return Certainty.NEVER if plain else Certainty.UNKNOWN
    if operation.result == "number":
        return Certainty.NEVER
    if operation.kind is Kind.CREATE or _is_torch_function(value):
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
