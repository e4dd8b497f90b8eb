"""Watches a training script that knows nothing of it, and ends it when it fails or has run long enough.

Seen are the loss at each backward, the parameters and buffers after each step, the steps that a GradScaler skips,
and its scale. A run fails by a non-finite loss, parameter or buffer, by more than `LONGEST_STREAK` skipped steps in
a row once the scale has settled, or by a scale below 1. Looking at parameters alone is not enough: with a scaler a
broken loss leaves them finite for ever, as no step is taken any more.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from amplint.runtime.frames import place, users_line
from amplint.runtime.verdict import Ending, Failure, FailureKind

LONGEST_STREAK = 10
_BACKWARDS_A_STEP = 64
"""A script is ended after so many backwards for each step allowed, if none of torch's optimizers ever stepped."""


class Ended(BaseException):
    """Raised inside the script to end it; no Exception, so that few scripts catch it."""


class Watcher:
    """Watches while its context is open; `failure` and the counts are there afterwards."""

    def __init__(
        self,
        *,
        steps: int = 200,
        seconds: float = math.inf,
        on_step: Callable[[Watcher, bool], None] | None = None,
        on_ignored: Callable[[], None] | None = None,
    ) -> None:
        """A watcher that ends the script after so many optimizer steps or seconds.

        `on_step` is called at the end of each step with whether it was taken (not skipped); `on_ignored` when the
        script has swallowed `Ended` and goes on.
        """
        self.limit = steps
        self.deadline = time.monotonic() + seconds
        self.on_step = on_step
        self.on_ignored = on_ignored
        self.ending = Ending.FINISHED
        self.failure: Failure | None = None
        self.skipped = 0
        self.last_loss: float | None = None
        self.scale: float | None = None
        self._attempts: dict[int, int] = {}
        self._backwards = 0
        self._streak = 0
        self._settled = False
        self._first_scale: float | None = None
        self._unscaled: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._last_unscaled: torch.Tensor | None = None
        self._inside_step = False
        self._swallowed = 0
        self._buffers: list[tuple[weakref.ref[torch.nn.Module], str]] = []
        self._never_finite: set[tuple[int, str]] = set()

    @property
    def steps(self) -> int:
        """Steps begun, of the optimizer that has most; skipped ones count. Without an optimizer: backwards."""
        return max(self._attempts.values(), default=self._backwards)

    @contextlib.contextmanager
    def watching(self) -> Iterator[Watcher]:
        """Hook into torch until the context ends."""
        scaler = torch.amp.GradScaler
        with contextlib.ExitStack() as stack:
            stack.callback(register_optimizer_step_pre_hook(self._before_optimizer_step).remove)
            stack.callback(register_optimizer_step_post_hook(self._after_optimizer_step).remove)
            self._wrap(stack, torch.autograd, "backward", self._backward)
            self._wrap(stack, scaler, "scale", self._scaler_scale)
            self._wrap(stack, scaler, "step", self._scaler_step)
            self._wrap(stack, scaler, "update", self._scaler_update)
            self._wrap(stack, torch.nn.Module, "register_buffer", self._register_buffer)
            yield self

    @staticmethod
    def _wrap(stack: contextlib.ExitStack, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return wrapper(original, *args, **kwargs)

        setattr(owner, name, wrapped)
        stack.callback(setattr, owner, name, original)

    # What the script calls

    def _backward(self, original: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if torch._C._current_autograd_node() is not None:  # a checkpoint that recomputes inside a backward
            return original(tensors, *args, **kwargs)
        self._end_if_due()
        loss = self._loss_of(tensors[0] if isinstance(tensors, list | tuple) and tensors else tensors)
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            with _unobserved():
                self.last_loss = float(loss.detach())
            if not math.isfinite(self.last_loss):
                self._fail(FailureKind.LOSS, f"the loss is {self.last_loss}")
        self._backwards += 1
        return original(tensors, *args, **kwargs)

    def _scaler_scale(self, original: Callable[..., Any], scaler: Any, outputs: Any) -> Any:
        result = original(scaler, outputs)
        if scaler.is_enabled() and isinstance(outputs, torch.Tensor):
            self._unscaled[result] = self._last_unscaled = outputs
        return result

    def _scaler_step(self, original: Callable[..., Any], scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not scaler.is_enabled():
            return original(scaler, optimizer, *args, **kwargs)
        self._begin_step(optimizer)
        self._inside_step = True
        try:
            result = original(scaler, optimizer, *args, **kwargs)
        finally:
            self._inside_step = False
        self._end_step(optimizer, taken=not _found_inf(scaler, optimizer))
        return result

    def _scaler_update(self, original: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> Any:
        if scaler.is_enabled() and self._first_scale is None:
            self._first_scale = float(scaler.get_scale())
        result = original(scaler, *args, **kwargs)
        if scaler.is_enabled():
            self.scale = float(scaler.get_scale())
            if self.scale < min(1.0, self._first_scale or 1.0):
                self._fail(FailureKind.SCALE, f"the gradient scale fell to {self.scale:g}")
        return result

    def _register_buffer(self, original: Callable[..., Any], module: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        result = original(module, name, *args, **kwargs)
        self._buffers.append((weakref.ref(module), name))
        return result

    def _before_optimizer_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._inside_step:
            self._begin_step(optimizer)

    def _after_optimizer_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._inside_step:
            self._end_step(optimizer, taken=True)

    def _loss_of(self, root: Any) -> Any:
        """The loss that a backward starts from: what was scaled, if `root` is that or was made of it since."""
        last, self._last_unscaled = self._last_unscaled, None
        if not isinstance(root, torch.Tensor):
            return root
        return self._unscaled.get(root, root if last is None else last)

    # Steps

    def _begin_step(self, optimizer: Any) -> None:
        self._end_if_due()
        self._attempts[id(optimizer)] = self._attempts.get(id(optimizer), 0) + 1

    def _end_step(self, optimizer: Any, taken: bool) -> None:
        self._last_unscaled = None
        if taken:
            self._settled, self._streak = True, 0
            self._check_parameters(optimizer)
        else:
            self.skipped += 1
            self._streak += 1
        self._check_buffers()
        if self._settled and self._streak > LONGEST_STREAK:
            message = f"the scaler skipped {self._streak} steps in a row: the gradients are never finite"
            self._fail(FailureKind.SKIPPED, message)
        if self.on_step:
            self.on_step(self, taken)

    def _check_parameters(self, optimizer: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        with _unobserved():
            bad = [parameter for parameter, finite in zip(parameters, _finite(parameters), strict=True) if not finite]
        if bad:
            names = [_name_of(parameter) or f"one of shape {tuple(parameter.shape)}" for parameter in bad[:3]]
            more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
            self._fail(FailureKind.PARAMETER, f"not finite after the step: {', '.join(names)}{more}")

    def _check_buffers(self) -> None:
        with _unobserved():
            alive = [(module, name) for reference, name in self._buffers if (module := reference()) is not None]
            found = [(module, name, module._buffers.get(name)) for module, name in alive]
            held = [(module, name, buffer) for module, name, buffer in found if buffer is not None]
            finite = _finite([buffer for _, _, buffer in held])
            bad = {(id(module), name): module for (module, name, _), good in zip(held, finite, strict=True) if not good}
        if self.steps == 1:
            self._never_finite |= bad.keys()  # such as a mask of -inf
        for (identity, name), module in bad.items():
            if (identity, name) not in self._never_finite:
                self._fail(FailureKind.BUFFER, f"not finite after the step: {name} of {type(module).__name__}")

    # The end

    def _end_if_due(self) -> None:
        if self.ending is not Ending.FINISHED:
            self._end(self.ending)
        limit = self.limit if self._attempts else self.limit * _BACKWARDS_A_STEP
        if self.steps >= limit:
            self._end(Ending.STEPS)
        if time.monotonic() > self.deadline:
            self._end(Ending.TIME)

    def _end(self, ending: Ending) -> None:
        if self.ending is not Ending.FINISHED:
            self._swallowed += 1
            if self._swallowed > 3 and self.on_ignored:
                self.on_ignored()
        self.ending = ending
        raise Ended

    def _fail(self, kind: FailureKind, message: str) -> None:
        filename, line, _ = users_line()
        # The loss comes before its step.
        step = self.steps + (kind is FailureKind.LOSS)
        self.failure = self.failure or Failure(kind, step, message, place(filename, line))
        self._end(Ending.FAILED)


@contextlib.contextmanager
def _unobserved() -> Iterator[None]:
    """Compute without the modes of the simulation and of the tracer, and without autograd."""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield


def _finite(tensors: list[torch.Tensor]) -> list[bool]:
    """Whether each is finite throughout; what is not a dense floating-point tensor counts as finite."""
    dense = [t for t in tensors if t.is_floating_point() and t.layout is torch.strided and t.numel() and not t.is_meta]
    if not dense:
        return [True] * len(tensors)
    norms = torch._foreach_norm([t.detach() for t in dense])
    suspicious = {id(t) for t, norm in zip(dense, norms, strict=True) if not math.isfinite(norm)}
    # A norm may overflow where no element is infinite.
    return [id(t) not in suspicious or bool(t.detach().isfinite().all()) for t in tensors]


def _found_inf(scaler: Any, optimizer: Any) -> bool:
    state = scaler._per_optimizer_states[id(optimizer)]
    with _unobserved():
        return any(float(found) > 0 for found in state["found_inf_per_device"].values())


def _name_of(parameter: torch.Tensor) -> str:
    """The longest name that any module knows it by; slow, for a failure only."""
    names = [
        name
        for module in gc.get_objects()
        if issubclass(type(module), torch.nn.Module)  # isinstance would ask proxies, which warn
        for name, value in module.named_parameters()
        if value is parameter
    ]
    return max(names, key=len, default="")
