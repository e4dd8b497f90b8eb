"""The events of a training step, and the paths that they lie on."""

from __future__ import annotations

import ast
import enum
from dataclasses import dataclass

from amplint.project import CallSite
from amplint.protocol.symbols import Symbol
from amplint.tree import Module


class Kind(enum.Enum):
    """What happens. In brackets: `subject`."""

    BACKWARD = "backward"
    """Gradients are computed and added up [the loss]; `scaler` is None where the loss is not scaled."""
    UNSCALE = "unscale"
    """`scaler.unscale_(optimizer)`, or a framework's call that does it."""
    CLIP = "clip"
    """Gradients are limited, by norm or value, by any library or by hand [the parameters or gradients]."""
    READ = "read"
    """`.grad` is read [the `.grad` expression]. Not for comparisons with None."""
    WRITE = "write"
    """`.grad` is changed in place or assigned [the `.grad` expression]."""
    ZERO = "zero"
    """`zero_grad`, of an optimizer or of a model [the model]."""
    REDUCE = "reduce"
    """Gradients are reduced over processes by hand [the tensor]."""
    STEP = "step"
    """`scaler.step(optimizer)`, or `optimizer.step()` with `scaler` None. `closure` if one is passed."""
    UPDATE = "update"
    """`scaler.update()` [the new scale]."""
    CHECK = "check"
    """A finiteness test [what is tested]: isfinite, isnan, isinf."""
    DIFFERENTIATE = "differentiate"
    """`torch.autograd.grad` [the outputs]; `scaler` if they are scaled."""
    HOOK = "hook"
    """A hook that clips is registered on an optimizer, module or tensor."""
    SCALER = "scaler"
    """A GradScaler is constructed; `scaler` is it."""
    BRANCH = "branch"
    """A test decides how the path goes on [the test]; `taken` is its outcome. Assertions too."""
    ROUND = "round"
    """A loop begins its body; `node` is the loop."""


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """One thing that happens on a path. The same place can happen more than once: two rounds of a loop.

    `node` is the anchor: the call (the `.grad` expression of READ and WRITE; the test of BRANCH) in `module`.
    `scaler`, `optimizer` and `value` (what `subject` stands for) are comparable along and between paths.
    """

    kind: Kind
    node: ast.AST
    module: Module
    scaler: Symbol | None = None
    optimizer: Symbol | None = None
    subject: ast.expr | None = None
    value: Symbol | None = None
    taken: bool | None = None
    closure: ast.expr | None = None
    inert: bool = False
    """The scaler is known to be disabled here: its methods pass through (a scaled backward is a plain one)."""
    framework: str = ""
    """Who does it, if not torch: "accelerate", "fabric", "lightning", "deepspeed", "timm", "mmengine", …"""
    calls: tuple[CallSite, ...] = ()
    """The calls, outermost first, through which the path came into the function that `node` stands in."""

    @property
    def scaled(self) -> bool:
        """Whether this is a backward pass of a loss that an enabled scaler has scaled."""
        return self.kind is Kind.BACKWARD and self.scaler is not None and not self.inert


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """One feasible way through a training step or loop, with two rounds of each loop.

    A path that is not `complete` was left where another path is in the same state: what follows is that path's.
    Faults seen on its events are faults; but "nothing follows" must not be concluded from its end.
    """

    events: tuple[Event, ...]
    complete: bool = True

    def before(self, event: Event) -> tuple[Event, ...]:
        """The events ahead of `event`, oldest first."""
        return self.events[: self.events.index(event)]

    def after(self, event: Event) -> tuple[Event, ...]:
        """The events that follow `event`."""
        return self.events[self.events.index(event) + 1 :]
