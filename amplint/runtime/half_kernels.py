"""float16 and bfloat16 arithmetic as CUDA does it, where the CPU's own kernels differ or are missing.

CUDA multiplies half matrices with float32 accumulation and one rounding at the end, and keeps the statistics of
normalizations in float32. The CPU has no half kernel at all for some operations. Here those run in float32 and
store their result in the dtype that CUDA would; everything else is left to torch.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

_HALVES = (torch.float16, torch.bfloat16)
_NO_CPU_KERNEL = re.compile(
    r"not implemented for '(Half|BFloat16)'|Unsupported dtype (Half|BFloat16)|MKL FFT doesn't support"
)
# CUDA has no half kernel for these either: the error is right.
_NO_CUDA_KERNEL = re.compile(r"linalg|cdist|pdist|ctc|lu_|cholesky|_eig|svd|qr")


def _overloads(*packets: str) -> frozenset[Any]:
    aten = torch.ops.aten
    found = [getattr(aten, packet) for packet in packets if hasattr(aten, packet)]
    overloads = [getattr(packet, name) for packet in found for name in packet.overloads()]
    return frozenset(o for o in overloads if not any(word in str(o).rpartition(".")[2] for word in ("out", "dtype")))


_PRODUCTS = _overloads(
    *("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot"),
    *("convolution", "convolution_overrideable", "convolution_backward"),
)
_NORMS = _overloads(
    *("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit"),
    *("_batch_norm_with_update", "native_layer_norm_backward", "native_group_norm_backward"),
    *("native_batch_norm_backward", "batch_norm_backward"),
)


class HalfKernels(TorchDispatchMode):
    """Runs half operations as CUDA would; `substituted` names those that the CPU has no half kernel for."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No need to hide each call from dynamo, which compiles nothing here: that would cost as much again."""
        return False

    def __init__(self) -> None:
        super().__init__()
        self.substituted: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        special = _SPECIAL.get(func)
        if special is not None:
            return special(func, args, kwargs)
        try:
            return func(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            if not _NO_CPU_KERNEL.search(str(error)) or _NO_CUDA_KERNEL.search(str(func)):
                raise
            result = _in_float32(func, args, kwargs)
            if result is NotImplemented:
                raise
            self.substituted.add(str(func))
            return result


def _up(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in _HALVES else value


def _product(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dtypes = {a.dtype for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()}
    if len(dtypes) != 1 or not dtypes <= set(_HALVES):
        return func(*args, **kwargs)  # not half, or dtypes that torch itself shall refuse
    half = dtypes.pop()
    result = func(*map(_up, args), **kwargs)
    if isinstance(result, tuple):
        return tuple(part if part is None else part.to(half) for part in result)
    return result.to(half)


def _norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    half = given["input"].dtype
    if half not in _HALVES:
        return func(*args, **kwargs)
    raised = [_up(value) for value in args]
    result = list(func(*raised, **kwargs))
    for name, original, up in zip(names, args, raised, strict=False):
        if name.startswith("running_") and original is not up and original is not None:
            original.copy_(up)
    result[0] = None if result[0] is None else result[0].to(half)
    if "backward" in func._schema.name:
        weight = given.get("weight")
        of_weight = half if weight is None else weight.dtype
        result[1:] = [None if part is None else part.to(of_weight) for part in result[1:]]
    return tuple(result)


def _in_float32(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operation on float32 copies, its result and the arguments it writes to rounded back."""
    halves: list[torch.dtype] = []

    def up(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype not in _HALVES:
            return tensor
        halves.append(tensor.dtype)
        return tensor.float()

    raised, raised_kwargs = tree_map_only(torch.Tensor, up, (args, kwargs))
    if not halves:
        return NotImplemented
    if raised_kwargs.get("dtype") in _HALVES:
        raised_kwargs["dtype"] = torch.float32
    result = func(*raised, **raised_kwargs)
    if func._schema.is_mutable:
        for argument, original, up_copy in zip(func._schema.arguments, args, raised, strict=False):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and isinstance(original, torch.Tensor) and original is not up_copy:
                original.copy_(up_copy)
        return args[0]
    return tree_map_only(torch.Tensor, lambda t: t.to(halves[0]) if t.dtype is torch.float32 else t, result)


_SPECIAL = {**dict.fromkeys(_PRODUCTS, _product), **dict.fromkeys(_NORMS, _norm)}
