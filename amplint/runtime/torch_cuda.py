"""What stands in for `torch.cuda`, and for the few other things in torch that want a driver."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from amplint.runtime import autocast
from amplint.runtime.device import CPU, CUDA, is_cuda

NAME = "simulated CUDA (CPU)"
_MEMORY = 16 << 30

_MISSING = object()


@contextlib.contextmanager
def replaced() -> Iterator[None]:
    """Put the stand-ins in place until the context ends."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in _replacements():
            _replace(stack, owner, name, value)
        yield


def _replace(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    before = vars(owner).get(name, _MISSING)
    if before is _MISSING:
        stack.callback(delattr, owner, name)
    else:
        stack.callback(setattr, owner, name, before)
    setattr(owner, name, value)


class _Handle:
    """A stream, event or context manager that has nothing to do."""

    device = CUDA
    device_type = "cuda"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> _Handle:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing()

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def elapsed_time(self, end: object) -> float:
        return 0.0

    def record_event(self, event: Any = None) -> Any:
        return event or _Handle()


class _GeneratorType(type):
    def __call__(cls, device: Any = "cpu") -> torch.Generator:
        on_cpu = is_cuda(device) or isinstance(device, int)
        return torch._C.Generator(CPU if on_cpu else device)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch._C.Generator)


class _Generator(metaclass=_GeneratorType):
    """`torch.Generator`, also for `device="cuda"`."""


def _nothing() -> Callable[..., None]:
    """A new function each time: dynamo keeps a map by identity."""
    return lambda *args, **kwargs: None


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    yield from _queries()
    yield from _streams()
    yield from _random()
    yield from _devices()
    yield from _data()
    if hasattr(torch, "accelerator"):
        yield from _accelerator(torch.accelerator)


def _queries() -> Iterator[tuple[Any, str, Any]]:
    cuda = torch.cuda
    properties = types.SimpleNamespace(
        name=NAME, major=8, minor=0, total_memory=_MEMORY, multi_processor_count=1, warp_size=32
    )
    answers = {
        "is_available": True,
        "is_initialized": True,
        "is_bf16_supported": True,
        "is_current_stream_capturing": False,
        "device_count": 1,
        "current_device": 0,
        "get_device_name": NAME,
        "get_device_capability": (8, 0),
        "get_device_properties": properties,
        "get_arch_list": ["sm_80"],
        "mem_get_info": (_MEMORY // 2, _MEMORY),
        "memory_stats": {},
        "memory_summary": "",
        "utilization": 0,
    }
    for name, value in answers.items():
        yield cuda, name, _constant(value)
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        yield cuda, name, _constant(0)
    for name in (
        *("synchronize", "empty_cache", "set_device", "init", "_lazy_init", "ipc_collect", "_sleep"),
        *("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_accumulated_memory_stats"),
        "set_per_process_memory_fraction",
    ):
        yield cuda, name, _nothing()
    yield torch.backends.cudnn, "is_acceptable", _constant(False)


def _streams() -> Iterator[tuple[Any, str, Any]]:
    cuda = torch.cuda
    for name in ("Event", "Stream", "stream", "device", "device_of"):
        yield cuda, name, type(name, (_Handle,), {})
    for name in ("current_stream", "default_stream"):
        yield cuda, name, lambda device=None: _Handle()
    yield cuda, "set_stream", _nothing()
    for name in ("range_push", "range_pop", "mark"):
        yield cuda.nvtx, name, _nothing()
    yield cuda.nvtx, "range", type("range", (_Handle,), {})


def _random() -> Iterator[tuple[Any, str, Any]]:
    cuda = torch.cuda

    def manual_seed(seed: int) -> None:
        torch.default_generator.manual_seed(int(seed))

    yield cuda, "manual_seed", manual_seed
    yield cuda, "manual_seed_all", lambda seed: manual_seed(seed)
    yield cuda, "seed", lambda: torch.default_generator.seed()
    yield cuda, "seed_all", lambda: torch.default_generator.seed()
    yield cuda, "initial_seed", lambda: torch.default_generator.initial_seed()
    yield cuda, "get_rng_state", lambda device="cuda": torch.get_rng_state()
    yield cuda, "set_rng_state", lambda new_state, device="cuda": torch.set_rng_state(new_state)
    yield cuda, "get_rng_state_all", lambda: [torch.get_rng_state()]
    yield cuda, "set_rng_state_all", lambda new_states: torch.set_rng_state(new_states[0])
    yield torch, "Generator", _Generator


def _devices() -> Iterator[tuple[Any, str, Any]]:
    for name in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Bool", "Byte"):
        yield torch.cuda, name + "Tensor", getattr(torch, name + "Tensor")

    parse = torch._C._nn._parse_to
    yield (
        torch._C._nn,
        "_parse_to",
        lambda *args, **kwargs: parse(*[CPU if type(a) is int else a for a in args], **kwargs),
    )

    set_default = torch.set_default_device
    yield torch, "set_default_device", lambda device: set_default(CPU if is_cuda(device) else device)

    clear = torch.clear_autocast_cache

    def clear_autocast_cache() -> None:
        autocast.clear_cache()
        clear()

    yield torch, "clear_autocast_cache", clear_autocast_cache
    yield torch.nn.DataParallel, "forward", lambda self, *args, **kwargs: self.module(*args, **kwargs)

    def compile_nothing(model: Any = None, **options: Any) -> Any:
        return model if model is not None else lambda function: function

    yield torch, "compile", compile_nothing
    yield torch.nn.Module, "compile", _nothing()


def _data() -> Iterator[tuple[Any, str, Any]]:
    load = torch.load

    def load_on_cpu(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if map_location is None or is_cuda(map_location):
            map_location = "cpu"
        return load(f, map_location, *args, **kwargs)

    yield torch, "load", load_on_cpu

    loader = torch.utils.data.DataLoader
    init = loader.__init__

    def in_this_process(self: Any, *args: Any, **kwargs: Any) -> None:
        """No worker processes, which would lack the simulation, and no pinning thread."""
        init(self, *args, **kwargs)
        object.__setattr__(self, "pin_memory", False)
        object.__setattr__(self, "num_workers", 0)

    yield loader, "__init__", in_this_process


def _accelerator(accelerator: Any) -> Iterator[tuple[Any, str, Any]]:
    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device_index": 0,
        "current_device_idx": 0,
        "get_device_capability": {},
        "get_memory_info": (_MEMORY // 2, _MEMORY),
        "memory_stats": {},
    }
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        answers[name] = 0
    doing_nothing = (
        *("synchronize", "set_stream", "set_device_index", "set_device_idx", "empty_cache"),
        *("reset_peak_memory_stats", "reset_accumulated_memory_stats"),
    )
    replacements = {name: _constant(value) for name, value in answers.items()}
    replacements |= {name: _nothing() for name in doing_nothing}
    replacements["current_accelerator"] = lambda *args, **kwargs: torch.device("cuda")
    replacements["current_stream"] = lambda device=None: _Handle()
    replacements["device_index"] = type("device_index", (_Handle,), {})
    for name, replacement in replacements.items():
        if hasattr(accelerator, name):  # it has grown with torch
            yield accelerator, name, replacement
