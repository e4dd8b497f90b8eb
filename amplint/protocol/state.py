"""Where an execution stands: the events so far, what variables hold, what is known of tests."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from amplint.project import CallSite, Definition
from amplint.protocol.events import Event, Kind
from amplint.protocol.facts import Facts
from amplint.protocol.symbols import NONE, Symbol
from amplint.tree import Function, Module


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """The events so far, newest first."""

    event: Event
    before: Trace | None
    length: int

    def events(self) -> tuple[Event, ...]:
        events: list[Event] = []
        trace: Trace | None = self
        while trace is not None:
            events.append(trace.event)
            trace = trace.before
        return tuple(reversed(events))


@dataclass(eq=False)
class Frame:
    """A function being run. `closure` is the frame of the function it is nested in, if that is running."""

    module: Module
    function: Function | ast.Lambda | ast.Module
    receiver: Definition | None = None
    caller: Frame | None = None
    closure: Frame | None = None
    calls: tuple[CallSite, ...] = ()
    static: bool = False
    """Not running: expressions are looked at out of order."""
    on_yield: Callable[[list[State]], list[State]] | None = None

    @property
    def depth(self) -> int:
        return len(self.calls)

    def running(self) -> Iterator[Frame]:
        """This frame and those that it was called from."""
        frame: Frame | None = self
        while frame is not None:
            yield frame
            frame = frame.caller


Variable = tuple[Frame, str]
Pending = tuple[object, ...]


@dataclass(slots=True, eq=False)
class State:
    """One path's state. `status` tells how the statement before was left: "", break, continue, return, raise."""

    trace: Trace | None = None
    variables: dict[Variable, Symbol] = field(default_factory=dict)
    heap: dict[tuple[Symbol, object], Symbol] = field(default_factory=dict)
    facts: Facts = field(default_factory=dict)
    results: dict[tuple[Frame, ast.AST], Symbol] = field(default_factory=dict)
    rounds: tuple[tuple[ast.AST, int], ...] = ()
    status: str = ""
    result: Symbol = NONE
    pending: tuple[Pending, ...] = ()
    """The events that still matter: those since the last update of their scaler, and what it left scaled, each once."""

    def copy(self) -> State:
        return replace(
            self,
            variables=dict(self.variables),
            heap=dict(self.heap),
            facts=dict(self.facts),
            results=dict(self.results),
        )

    def add(self, event: Event) -> None:
        """Append an event to the trace."""
        self.trace = Trace(event, self.trace, self.trace.length + 1 if self.trace else 1)
        if event.kind in _UNREMEMBERED:
            return
        if event.kind is Kind.UPDATE and not event.inert:
            scaled = self._still_scaled(event.scaler)
            self.pending = tuple(p for p in self.pending if p in scaled or p[2] not in (event.scaler, None))
            return
        if event.kind is Kind.UNSCALE and not event.inert and self._has_unscaled(event):
            self.pending = tuple(dict.fromkeys((*self.pending, _RAISED)))
        item: Pending = (event.kind, event.node, event.scaler, event.optimizer, event.inert)
        if item not in self.pending:
            self.pending = (*self.pending, item)

    def _still_scaled(self, scaler: Symbol | None) -> tuple[Pending, ...]:
        """The backward passes whose gradients are neither unscaled nor cleared: an update leaves them scaled."""
        found: tuple[Pending, ...] = ()
        for item in self.pending:
            kind, _, by, _, inert = item
            if kind is Kind.BACKWARD and by == scaler and not inert:
                found = (*found, item)
            elif kind is Kind.ZERO or (kind in (Kind.UNSCALE, Kind.STEP) and by == scaler and not inert):
                found = ()
        return found

    def _has_unscaled(self, event: Event) -> bool:
        """Whether the optimizer of an `unscale_` was unscaled since the last update, so that this one raises."""
        before = [(kind, scaler, optimizer) for kind, _, scaler, optimizer, inert in self.pending if not inert]
        return any((kind, event.scaler, event.optimizer) in before for kind in (Kind.UNSCALE, Kind.STEP))

    def keep_common(self, other: State) -> None:
        """Keep of what is known of tests only what `other` knows as well."""
        self.facts = {fact: value for fact, value in self.facts.items() if other.facts.get(fact) is value}

    @property
    def round(self) -> Symbol:
        """A symbol of its own in each round of the loops around."""
        parts = tuple(part for loop_round in self.rounds for part in loop_round)
        return Symbol("round", parts)

    def forget_frame(self, frame: Frame) -> None:
        """Drop the variables of a function that was left."""
        self.variables = {key: value for key, value in self.variables.items() if key[0] is not frame}
        self.results = {key: value for key, value in self.results.items() if key[0] is not frame}

    def forget_round(self, loop: ast.AST, bound: Symbol | None) -> None:
        """Drop what is known of tests on values of this round of `loop`, whose target held `bound`."""
        elements = bound.elements if bound is not None else frozenset()
        self.facts = {fact: value for fact, value in self.facts.items() if not _is_of(fact, loop, elements)}


_RAISED: Pending = (Kind.UNSCALE, None, "raised", None, True)
"""No update makes this forgotten: what comes after is not run, so this path stands for no other."""

_UNREMEMBERED = frozenset({Kind.BRANCH, Kind.ROUND, Kind.CHECK, Kind.READ, Kind.SCALER, Kind.DIFFERENTIATE})


def _is_of(fact: Symbol, loop: ast.AST, elements: frozenset[Symbol]) -> bool:
    return loop in fact.loops or not elements.isdisjoint(fact.elements)
