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

_ANSWERS: dict[Any, Any] = {
    torch.Tensor.device.__get__: CUDA,
    torch.Tensor.is_cuda.__get__: True,
    torch.Tensor.is_cpu.__get__: False,
    torch.Tensor.get_device: 0,
    torch.Tensor.is_pinned: True,
}
_TO_CPU = (torch.Tensor.cpu, torch.Tensor.to)
_NOTHING_TO_DO = (torch.Tensor.pin_memory,)
# PackedSequence asks for lengths on the CPU and looks where they are.
_WANTS_THE_TRUTH = os.path.join("torch", "nn", "utils", "rnn.py")


def is_cuda(device: object) -> bool:
    """Whether a device argument (`"cuda:0"`, `torch.device("cuda")`) names CUDA; a bare index does not count."""
    if isinstance(device, torch.device):
        return str(device.type) == "cuda"
    return isinstance(device, str) and (device == "cuda" or device.startswith("cuda:"))


class CudaOnCpu(TorchFunctionMode):
    """Answers for the device of tensors, and turns CUDA device arguments into the CPU."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _ANSWERS:
            answer = _ANSWERS[func]
            if answer is CUDA and sys._getframe(1).f_code.co_filename.endswith(_WANTS_THE_TRUTH):
                return CPU
            return answer
        if func in _NOTHING_TO_DO:
            return args[0]
        if func is torch.device:
            return func(*args, **kwargs)
        if func is torch.Tensor.cuda:
            return _moved(args[0], args[0])
        if func is torch.Tensor.type:
            return _type(func, args, kwargs)
        if func in _TO_CPU:
            return _to(func, args, kwargs)
        return func(*_on_cpu(args), **_keywords_on_cpu(kwargs))


def _on_cpu(args: tuple[Any, ...]) -> tuple[Any, ...]:
    for argument in args:
        if type(argument) in (str, torch.device) and is_cuda(argument):
            return tuple(CPU if is_cuda(value) else value for value in args)
    return args


def _keywords_on_cpu(kwargs: dict[str, Any]) -> dict[str, Any]:
    device = kwargs.get("device")
    if is_cuda(device) or type(device) is int:
        kwargs = {**kwargs, "device": CPU}
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}
    return kwargs


def _to(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    leaving = func is torch.Tensor.cpu or "cpu" in map(_device_type, (*args[1:2], kwargs.get("device")))
    if len(args) > 1 and type(args[1]) is int:
        args = (args[0], CPU, *args[2:])
    result = func(*_on_cpu(args), **_keywords_on_cpu(kwargs))
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


def _type(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`Tensor.type`, whose names for CUDA tensors are of their own (`torch.cuda.FloatTensor`)."""
    if len(args) == 1 and not kwargs:
        return func(*args).replace("torch.", "torch.cuda.")
    if isinstance(args[1], str):
        args = (args[0], args[1].replace("torch.cuda.", "torch."), *args[2:])
    return func(*args, **kwargs)
