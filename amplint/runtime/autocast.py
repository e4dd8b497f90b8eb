"""CUDA autocast's cast policy, applied to CPU tensors.

torch dispatches an operation to the kernels of the key AutocastCUDA only for CUDA tensors, and those kernels cast
only CUDA tensors. Here the key is made to take part for every tensor of this thread, and its kernels are replaced
by Python ones with the same policy; the state of `torch.autocast("cuda")` stays torch's own. What is listed comes
from the installed torch, the policy of each operation from `amplint.torch_ops`.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from amplint import torch_ops
from amplint.torch_ops import Cast

Kernel = Callable[..., Any]

_KEY = torch._C.DispatchKey.AutocastCUDA
_KEY_SET = torch._C.DispatchKeySet(_KEY)
_below_autocast = torch._C._ExcludeDispatchKeyGuard
_no_function_modes = torch._C.DisableTorchFunction
_CASTABLE = frozenset((torch.float16, torch.bfloat16, torch.float32))

# Listed only where torch is built with CUDA, as the cuDNN kernels that these call there.
_RECURRENT = tuple(
    f"{packet}.{overload}" for packet in ("lstm", "gru", "rnn_tanh", "rnn_relu") for overload in ("input", "data")
)

# Casts of leaf parameters, made once for each autocast region.
_cache: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}


class UnknownPolicyWarning(UserWarning):
    """The installed torch casts an operation under CUDA autocast that `amplint.torch_ops` does not know."""


def torch_version() -> torch_ops.Version:
    """The installed torch's major and minor version."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def listed() -> list[str]:
    """The overloads (`softmax.int`, `exp`) that the installed torch lists for CUDA autocast."""
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    return sorted({name.removeprefix("aten::") for name in registered} | set(_RECURRENT))


def policies() -> dict[str, Cast]:
    """The cast policy of each listed overload; warns of those that the table does not know."""
    by_packet = {packet: row for row in torch_ops.operations() for packet in row.aten}
    known: dict[str, Cast] = {}
    unknown = []
    for name in listed():
        row = by_packet.get(name.partition(".")[0])
        if row is None:
            unknown.append(name)
        else:
            known[name] = row.policy(torch_version())
    if unknown:
        message = (
            f"torch {torch.__version__} casts operations under CUDA autocast that amplint does not know: {unknown}"
        )
        warnings.warn(message, UnknownPolicyWarning, stacklevel=2)
    return known


@contextlib.contextmanager
def kernels_replaced() -> Iterator[None]:
    """Replace torch's AutocastCUDA kernels by those of this module, process-wide, until the context ends."""
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*verriding a previously registered kernel.*")
            for name, cast in policies().items():
                kernel = _kernel(name, cast)
                if kernel is not None:
                    library.impl(name, kernel, "AutocastCUDA")
        yield
    finally:
        clear_cache()
        library._destroy()


@contextlib.contextmanager
def key_included() -> Iterator[None]:
    """Let the AutocastCUDA kernels take part for every tensor of this thread, CPU tensors too."""
    before = torch._C._dispatch_tls_is_dispatch_key_included(_KEY)
    torch._C._dispatch_tls_set_dispatch_key_included(_KEY, True)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_included(_KEY, before)


def clear_cache() -> None:
    """Forget the casts of parameters, as torch does at the end of an outermost autocast region."""
    _cache.clear()


def _kernel(name: str, cast: Cast) -> Kernel | None:
    overload = _overload(name)
    if overload is None:
        return None
    if cast is Cast.BANNED:
        return _banned
    if cast is Cast.WIDEST:
        return _widest(overload)
    if cast is Cast.FLOAT32_UNLESS_DTYPE:
        kernel = _with_dtype(overload)
        if kernel is not None:
            return kernel
    return _casting(overload, lower=cast is Cast.FLOAT16)


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def _casting(overload: Any, lower: bool) -> Kernel:
    """All floating-point tensors to the region's dtype, or to float32."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _below_autocast(_KEY_SET), _no_function_modes():
            region = torch.get_autocast_dtype("cuda")
            to = region if lower else torch.float32
            return overload(
                *[_cast_all(value, to, region) for value in args],
                **{key: _cast_all(value, to, region) for key, value in kwargs.items()},
            )

    return kernel


def _with_dtype(overload: Any) -> Kernel | None:
    """Ask for `dtype=torch.float32` where the caller asks for none; None if the operation takes no dtype."""
    names = [argument.name for argument in overload._schema.arguments]
    if "dtype" not in names:
        return _with_appended_dtype(overload, names)
    position = names.index("dtype")
    keyword_only = overload._schema.arguments[position].kwarg_only

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _below_autocast(_KEY_SET), _no_function_modes():
            if args[0].dtype in _CASTABLE:
                if not keyword_only and len(args) > position:
                    if args[position] is None:
                        args = (*args[:position], torch.float32, *args[position + 1 :])
                elif kwargs.get("dtype") is None:
                    kwargs["dtype"] = torch.float32
            return overload(*args, **kwargs)

    return kernel


def _with_appended_dtype(overload: Any, names: list[str]) -> Kernel | None:
    """Call the overload of the same operation that takes a dtype besides, as `norm.ScalarOpt_dtype`."""
    packet = overload.overloadpacket
    siblings = [getattr(packet, name) for name in packet.overloads()]
    taking = [s for s in siblings if [argument.name for argument in s._schema.arguments] == [*names, "dtype"]]
    if not taking:
        return None
    defaults = {argument.name: argument.default_value for argument in overload._schema.arguments}

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _below_autocast(_KEY_SET), _no_function_modes():
            given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
            dtype = torch.float32 if args[0].dtype in _CASTABLE else args[0].dtype
            return taking[0](*given.values(), dtype=dtype)

    return kernel


def _widest(overload: Any) -> Kernel:
    """All floating-point tensors to float32 if one of them is, else to the region's dtype."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _below_autocast(_KEY_SET), _no_function_modes():
            region = torch.get_autocast_dtype("cuda")
            widest = region
            for tensor in _tensors([*args, *kwargs.values()]):
                if tensor.dtype not in _CASTABLE:
                    continue
                if torch.float32 in (widest, tensor.dtype):
                    widest = torch.float32
                elif tensor.dtype != region:
                    raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
            return overload(
                *[_cast_all(value, widest, region) for value in args],
                **{key: _cast_all(value, widest, region) for key, value in kwargs.items()},
            )

    return kernel


def _banned(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
        "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
        "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
        "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
        "safe to autocast."
    )


def _cast_all(value: Any, to: torch.dtype, region: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return _cast(value, to, region)
    if type(value) in (list, tuple):
        return type(value)(_cast_all(item, to, region) for item in value)
    return value


def _cast(tensor: torch.Tensor, to: torch.dtype, region: torch.dtype) -> torch.Tensor:
    dtype = tensor.dtype
    if dtype is to or dtype not in _CASTABLE:
        return tensor
    if to is not region or dtype is not torch.float32 or not _is_cached(tensor):
        return tensor.to(to)
    hit = _cache.get(id(tensor))
    if hit is not None and hit[0]() is tensor:
        return hit[1]
    cast = tensor.to(to)
    _cache[id(tensor)] = (weakref.ref(tensor), cast)
    return cast


def _is_cached(tensor: torch.Tensor) -> bool:
    return (
        tensor.requires_grad
        and tensor.is_leaf
        and not tensor._is_view()
        and torch.is_autocast_cache_enabled()
        and (_CACHES_UNDER_NO_GRAD or torch.is_grad_enabled())
    )


def _caches_under_no_grad() -> bool:
    """Whether this torch reuses a weight cast made under no_grad where gradients flow: a fault, mended by 2.13."""
    weight = torch.ones(1, 1, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            weight @ weight
        return not (weight @ weight).requires_grad


_CACHES_UNDER_NO_GRAD = _caches_under_no_grad()


def _tensors(values: list[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif type(value) in (list, tuple):
            yield from _tensors(list(value))
