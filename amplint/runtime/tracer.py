"""Finds the operation that made the first non-finite tensor of finite ones, and the user's line it belongs to.

Looks at the result of every operation, so it is slow: a run is watched first, and traced only if it failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from amplint.runtime.frames import place, users_line
from amplint.runtime.verdict import BadTensor

# These hold what happened to be in memory, only look at their operand, or arrange it anew.
_SAY_NOTHING = frozenset(
    (
        *("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "resize_", "set_", "detach"),
        *("_unsafe_view", "view", "t", "transpose", "expand", "alias", "isfinite", "isnan", "isinf", "item"),
        *("_local_scalar_dense", "_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_"),
    )
)
# An infinity that these write was given to them as a constant: a mask, mostly.
_WRITE_CONSTANTS = frozenset(
    (
        *("masked_fill", "masked_fill_", "fill_", "full", "full_like", "where", "scalar_tensor", "lift_fresh"),
        *("constant_pad_nd", "index_put_", "new_full", "_to_copy"),
    )
)
# Where it is depends on the release.
_next_sequence_number = getattr(torch._C._autograd, "_get_sequence_nr", None) or torch.autograd._get_sequence_nr

_KEPT = 5
"""Of the bad tensors of one step, only the first few are of interest."""


class Tracer(TorchDispatchMode):
    """Traces while its context is open; the watcher says when a step ends."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No need to hide each call from dynamo, which compiles nothing here: that would cost as much again."""
        return False

    def __init__(self) -> None:
        super().__init__()
        self._step = 1
        self._this_step: list[BadTensor] = []
        self._absorbed: list[BadTensor] = []
        self._lines: dict[int, tuple[str, int, str]] = {}

    def end_step(self, taken: bool) -> None:
        """Forget what this step showed if it went well; keep it apart if the scaler skipped it."""
        if not taken and self._this_step:
            self._absorbed = self._this_step
        self._this_step = []
        self._step += 1
        self._lines.clear()

    def first(self, *, gradients: bool = True) -> BadTensor | None:
        """The first bad tensor of the step that failed, or else of the last step that was skipped.

        Without `gradients` those of backward passes do not count: a scaler may yet absorb them.
        """
        if gradients:
            events = self._this_step or self._absorbed
        else:
            events = [event for event in self._this_step if event.phase == "forward"]
        return events[0] if events else None

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        node = torch._C._current_autograd_node()
        if node is None:
            # Autograd has numbered the node of this operation already; the first to come is the node's own.
            self._lines.setdefault(_next_sequence_number() - 1, users_line())
        silent = name in _SAY_NOTHING or len(self._this_step) >= _KEPT
        written_to = func._schema.is_mutable and not silent
        before = _bad(_floats((args, kwargs))) if written_to else None
        result = func(*args, **kwargs)
        if silent:
            return result
        nan, inf = _bad(_floats(result))
        if nan or inf:
            had_nan, had_inf = before or _bad(_floats((args, kwargs)))
            born = not had_nan if nan else not (had_nan or had_inf)
            if born and (nan or name not in _WRITE_CONSTANTS):
                self._this_step.append(self._bad_tensor(name, node, "nan" if nan else "inf", (args, kwargs)))
        return result

    def _bad_tensor(self, name: str, node: Any, value: str, given: Any) -> BadTensor:
        filename, line, task = users_line()
        phase = task or "forward"
        if node is not None:
            phase = "backward"
            filename, line, _ = self._lines.get(node._sequence_nr(), (filename, line, task))
            name = f"{name} in {re.sub(r'[0-9]+$', '', node.name())}"
        tensors = list(_floats(given))
        return BadTensor(
            step=self._step,
            phase=phase,
            operation=name,
            value=value,
            dtypes=tuple(str(t.dtype).removeprefix("torch.") for t in tensors),
            shapes=tuple(tuple(t.shape) for t in tensors),
            place=place(filename, line),
        )


def _floats(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif type(value) in (list, tuple):
        for item in value:
            yield from _floats(item)
    elif type(value) is dict:
        for item in value.values():
            yield from _floats(item)


def _bad(tensors: Iterable[torch.Tensor]) -> tuple[bool, bool]:
    """(a NaN is in one of them, an infinity is)."""
    nan = inf = False
    for tensor in tensors:
        if tensor.numel() == 0 or tensor.layout is not torch.strided:
            continue
        # One cheap pass; a closer look only where it raises a suspicion.
        total = tensor.sum() if tensor.dtype is torch.float64 else tensor.sum(dtype=torch.float32)
        if not total.isfinite():
            nan = nan or bool(tensor.isnan().any())
            inf = inf or bool(tensor.isinf().any())
    return nan, inf
