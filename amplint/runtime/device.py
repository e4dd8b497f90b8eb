"""The pretence that CPU tensors live on a CUDA device, as far as Python can see.

Device arguments that name CUDA mean the CPU here, and tensors answer that they are on `cuda:0`. C++ sees plain CPU
tensors throughout.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)

# PackedSequence asks for lengths on the CPU and looks where they are.
_WANTS_THE_TRUTH = os.path.join("torch", "nn", "utils", "rnn.py")

Arguments = tuple[Any, ...]
Keywords = dict[str, Any]


def is_cuda(device: object) -> bool:
    """Whether a device argument (`"cuda:0"`, `torch.device("cuda")`) names CUDA; a bare index does not count."""
    if isinstance(device, torch.device):
        return str(device.type) == "cuda"
    return isinstance(device, str) and (device == "cuda" or device.startswith("cuda:"))


class CudaOnCpu(TorchFunctionMode):
    """Answers for the device of tensors, and turns CUDA device arguments into the CPU."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Arguments = (), kwargs: Keywords | None = None
    ) -> Any:
        special = _SPECIAL.get(func)
        if special is not None:
            return special(func, args, kwargs or {})
        for argument in args:
            if type(argument) in _NAMES_A_DEVICE and is_cuda(argument):
                args = tuple(CPU if is_cuda(value) else value for value in args)
                break
        if kwargs:
            return func(*args, **_on_cpu(kwargs))
        return func(*args)


_NAMES_A_DEVICE = (str, torch.device)


def _on_cpu(kwargs: Keywords) -> Keywords:
    device = kwargs.get("device")
    if is_cuda(device) or type(device) is int:
        kwargs = {**kwargs, "device": CPU}
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}
    return kwargs


def _device(func: Callable[..., Any], args: Arguments, kwargs: Keywords) -> torch.device:
    asker = sys._getframe(2).f_code.co_filename
    return CPU if asker.endswith(_WANTS_THE_TRUTH) else CUDA


def _cuda(func: Callable[..., Any], args: Arguments, kwargs: Keywords) -> Any:
    return _moved(args[0], args[0])


def _to(func: Callable[..., Any], args: Arguments, kwargs: Keywords) -> Any:
    leaving = func is torch.Tensor.cpu or "cpu" in map(_device_type, (*args[1:2], kwargs.get("device")))
    if len(args) > 1 and (is_cuda(args[1]) or type(args[1]) is int):
        args = (args[0], CPU, *args[2:])
    result = func(*args, **_on_cpu(kwargs))
    if leaving and result is args[0]:
        return result.clone()
    return _moved(args[0], result)


def _moved(tensor: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """What a move gives: a copy where torch's would be one, so that writing to it leaves the data set alone."""
    if result is tensor and tensor._is_view() and not tensor.requires_grad:
        return tensor.clone()
    return result


def _device_type(device: object) -> str:
    if isinstance(device, torch.device):
        return str(device.type)
    return device if isinstance(device, str) else ""


def _type(func: Callable[..., Any], args: Arguments, kwargs: Keywords) -> Any:
    """`Tensor.type`, whose names for CUDA tensors are of their own (`torch.cuda.FloatTensor`)."""
    if len(args) == 1 and not kwargs:
        return func(*args).replace("torch.", "torch.cuda.")
    if len(args) > 1 and isinstance(args[1], str):
        args = (args[0], args[1].replace("torch.cuda.", "torch."), *args[2:])
    return func(*args, **kwargs)


def _as_given(func: Callable[..., Any], args: Arguments, kwargs: Keywords) -> Any:
    return func(*args, **kwargs)


_SPECIAL: dict[Any, Callable[[Callable[..., Any], Arguments, Keywords], Any]] = {
    torch.Tensor.device.__get__: _device,
    torch.Tensor.is_cuda.__get__: lambda func, args, kwargs: True,
    torch.Tensor.is_cpu.__get__: lambda func, args, kwargs: False,
    torch.Tensor.get_device: lambda func, args, kwargs: 0,
    torch.Tensor.is_pinned: lambda func, args, kwargs: True,
    torch.Tensor.pin_memory: lambda func, args, kwargs: args[0],
    torch.Tensor.cuda: _cuda,
    torch.Tensor.cpu: _to,
    torch.Tensor.to: _to,
    torch.Tensor.type: _type,
    torch.device: _as_given,
}
