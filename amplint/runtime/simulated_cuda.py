"""An unmodified script written for CUDA, on CPU tensors, under CUDA autocast's cast policy.

    with simulated_cuda():
        model = Net().cuda()
        with torch.autocast("cuda"): ...

Autograd, GradScaler, optimizers and the state of autocast are torch's own. Not covered: CUDA graphs, Triton and
custom CUDA operations, real `torch.compile`, several devices, distributed training, cuDNN's own rounding.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from amplint.runtime import autocast, torch_cuda
from amplint.runtime.device import CudaOnCpu
from amplint.runtime.half_kernels import HalfKernels


@contextlib.contextmanager
def simulated_cuda(half_kernels: bool = True) -> Iterator[HalfKernels]:
    """Pretend to have one CUDA device until the context ends; torch is restored then, also after an exception.

    The pretence is process-wide, and covers threads started meanwhile. `half_kernels=False` keeps the CPU's own
    float16 kernels, which round where CUDA does not, and are slow. Yields the half kernels, which know what they
    had to substitute.
    """
    _import_dynamo()
    half = HalfKernels()
    with contextlib.ExitStack() as stack:
        stack.enter_context(autocast.kernels_replaced())
        stack.enter_context(_threads_covered(half_kernels))
        stack.enter_context(torch_cuda.replaced())
        stack.enter_context(_this_thread(half if half_kernels else None))
        yield half


def _import_dynamo() -> None:
    """It must see the real `torch.cuda` before that is replaced."""
    with contextlib.suppress(ImportError):
        import torch._dynamo  # noqa: F401


@contextlib.contextmanager
def _this_thread(half: HalfKernels | None) -> Iterator[None]:
    with autocast.key_included(), half or contextlib.nullcontext(), CudaOnCpu():
        yield


@contextlib.contextmanager
def _threads_covered(half_kernels: bool) -> Iterator[None]:
    """Dispatch keys and modes belong to a thread: enter them in each new one."""
    run = threading.Thread.run

    def covered(self: threading.Thread) -> None:
        with _this_thread(HalfKernels() if half_kernels else None):
            run(self)

    threading.Thread.run = covered  # type: ignore[method-assign]
    try:
        yield
    finally:
        threading.Thread.run = run  # type: ignore[method-assign]
