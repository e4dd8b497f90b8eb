"""The gradient-scaling protocol: what happens along each feasible path of a training step.

A rule is a small automaton over `Protocol.paths(module)`:

    for path in context.protocol.paths(context.module):
        unscaled = set()
        for event in path.events:
            match event.kind:
                case Kind.UNSCALE if not event.inert: ...
                case Kind.UPDATE if not event.inert: unscaled.clear()

It reports only on events whose `module` is the judged one, each `node` once, and says how the path came there with
`Protocol.related`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amplint.protocol import ownership, parameters, places
from amplint.protocol.effects import BoundError
from amplint.protocol.entries import CLIMBS, Entry, entries, eventful
from amplint.protocol.evaluate import Evaluator
from amplint.protocol.events import Event, Kind, Path
from amplint.protocol.interest import Interests
from amplint.protocol.roles import is_of_step
from amplint.protocol.symbols import Symbol
from amplint.protocol.walk import Walk
from amplint.rule import Related
from amplint.tree import Module

if TYPE_CHECKING:
    from amplint.context import Options
    from amplint.project import Asked, Project

__all__ = ["Event", "Kind", "Path", "Protocol", "Symbol", "is_of_step"]


class Protocol:
    """The paths of a project's training steps, worked out once per entry point."""

    def __init__(self, project: Project, options: Options) -> None:
        self.project = project
        self.options = options
        self._evaluator = Evaluator(project)
        self._interests = Interests(project)
        self._walks: dict[Entry, tuple[_Walked, Asked]] = {}
        self._of: dict[Module, tuple[_Judged, Asked]] = {}

    def paths(self, module: Module) -> tuple[Path, ...]:
        """The paths with an event in `module`, from the outermost callers that lead there.

        Empty where a bound was hit (`limits` says so): a rule that sees some paths only cannot be silent rightly.
        """
        return self._judged(module).paths

    def limits(self, module: Module) -> tuple[tuple[ast.AST, str], ...]:
        """The functions of `module` that `paths` did not follow, each with the reason: too many paths, too deep."""
        return self._of[module][0].limits if module in self._of else ()

    def owners(self, path: Path, event: Event) -> frozenset[Symbol] | None:
        """The optimizers on `path` that hold the parameters which CLIP, READ, WRITE or ZERO concerns; None: unknown."""
        return ownership.owners(path, event)

    def optimizer_clips(self, optimizer: Symbol) -> bool:
        """Whether the optimizer limits its gradients or updates by itself (LAMB, ScaledAdam, a subclass that clips)."""
        return ownership.optimizer_clips(self.project, optimizer)

    def written(self, symbol: Symbol, module: Module, at: ast.AST) -> str | None:
        """How to write a scaler or optimizer at `at`: with the names, attributes and parameters at hand there.

        None: nothing there is known to be it.
        """
        events = (event for path in self.paths(module) for event in path.events)
        return places.written(symbol, events, module, at)

    def written_parameters(self, optimizer: Symbol, written: str, module: Module, at: ast.AST) -> str:
        """How to write the parameters of an optimizer (written `written` there) at `at`: `model.parameters()`."""
        return parameters.written_parameters(self.project, optimizer, written, module, at)

    def guard(self, backward: Event, event: Event) -> str | None:
        """The test, written for the place of `event`, under which its gradients are scaled; None: no test is needed.

        `scaler is not None` or `use_amp`, where the scaled backward pass stands under it and `event` does not.
        """
        return places.guard(backward, event)

    def related(self, path: Path, *events: Event) -> tuple[Related, ...]:
        """The places that lead to a finding, in the order they are passed, with the tests that decided on the way."""
        return places.related(path, events)

    # -- inside --------------------------------------------------------------------------------------------------

    def _judged(self, module: Module) -> _Judged:
        if module not in self._of:
            with self.project.recording() as recording:
                judged = self._judge(module)
            self._of[module] = judged, recording.asked
        judged, asked = self._of[module]
        self.project.rest_on(asked)
        return judged

    def _judge(self, module: Module) -> _Judged:
        found: dict[Entry, None] = {}
        limits: list[tuple[ast.AST, str]] = []
        for function in eventful(self.project, module):
            reason = ""
            for climb in CLIMBS:
                above = entries(self.project, function, climb)
                if above is None:
                    reason = "called from too many places"
                    continue
                reason = next((walked.bound for walked in map(self._walk, above) if walked.bound), "")
                if not reason:
                    found |= dict.fromkeys(above)
                    break
            if reason:
                limits.append((function.node, reason))
        paths = (path for entry in found for path in self._walk(entry).paths)
        return _Judged(tuple(p for p in paths if any(e.module is module for e in p.events)), tuple(limits))

    def _walk(self, entry: Entry) -> _Walked:
        if entry not in self._walks:
            with self.project.recording() as recording:
                walked = self._walk_anew(entry)
            self._walks[entry] = walked, recording.asked
        walked, asked = self._walks[entry]
        self.project.rest_on(asked)
        return walked

    def _walk_anew(self, entry: Entry) -> _Walked:
        walk = Walk(self.project, self._interests, self._evaluator)
        try:
            walk.run(entry.function, entry.receiver)
        except BoundError as error:
            return _Walked((), str(error))
        except RecursionError:
            return _Walked((), "nested too deep")
        return _Walked(tuple(walk.paths))


@dataclass(frozen=True, slots=True)
class _Walked:
    """What the walk from one entry gave; `bound` says why it was given up."""

    paths: tuple[Path, ...]
    bound: str = ""


@dataclass(frozen=True, slots=True)
class _Judged:
    """What is known of one file."""

    paths: tuple[Path, ...]
    limits: tuple[tuple[ast.AST, str], ...]
