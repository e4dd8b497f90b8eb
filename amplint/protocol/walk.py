"""Runs a function symbolically along all its feasible paths: branches by tests, loops in two rounds, calls entered."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable
from dataclasses import replace

from amplint.project import Definition, Project
from amplint.protocol.effects import BoundError, Effects
from amplint.protocol.evaluate import Evaluator, element
from amplint.protocol.events import Event, Kind, Path
from amplint.protocol.exceptions import Failures, failures
from amplint.protocol.facts import assume, compared, truth
from amplint.protocol.interest import Interests, has_jump, stores, telling_targets
from amplint.protocol.recognise import Recogniser, essence
from amplint.protocol.roles import last_name
from amplint.protocol.state import Frame, State
from amplint.protocol.symbols import NONE, TRUE, Symbol
from amplint.tree import Module

_MAX_STATES = 160
_MAX_WORK = 12_000
_MAX_LENGTH = 600
_MAX_PATHS = 500
_ROUNDS = (1, 2)
_MAX_ITEMS = 6
"""A loop over a list of up to so many known items has a round for each."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Walk:
    """The walk from one entry point. `paths` fills with what it finds."""

    def __init__(self, project: Project, interests: Interests, evaluator: Evaluator) -> None:
        self.project = project
        self.interests = interests
        self.evaluator = evaluator
        self.recogniser = Recogniser(project, evaluator)
        self.paths: list[Path] = []
        self.entered: set[Module] = set()
        self._seen: set[tuple[object, ...]] = set()
        self._trials: list[tuple[Failures, dict[object, State]]] = []
        """The `try` statements being run: where their bodies may fail, and the states that an exception was left in."""
        self._work = 0

    @property
    def effects_of(self) -> Effects:
        """What expressions bring about. Made anew: kept, it would hold this walk, and all trees that it has seen."""
        return Effects(self)

    def run(self, entry: Definition, receiver: Definition | None) -> None:
        """Walk a function (as a method of `receiver`, once that is constructed) or a whole module.

        Raises BoundError when there is too much to walk.
        """
        module, node = entry.module, entry.node
        assert isinstance(node, (*_FUNCTIONS, ast.Module))
        states = [State()]
        frame = Frame(module, node, receiver)
        self.entered.add(module)
        if receiver is not None and isinstance(node, _FUNCTIONS):
            instance = Symbol("self", (receiver.node,), module=receiver.module)
            states = self.effects_of.constructed(instance, receiver, node, states)
            if bound := [*node.args.posonlyargs, *node.args.args][:1]:
                for state in states:
                    state.variables[frame, bound[0].arg] = instance
        for state in self.block(node.body, states, frame):
            self._emit(state, complete=True)

    # -- statements ----------------------------------------------------------------------------------------------

    def block(self, statements: Iterable[ast.stmt], states: list[State], frame: Frame) -> list[State]:
        """Run statements one after the other; states that left by a jump come out as they are."""
        gone: list[State] = []
        for statement in statements:
            states = self.statement(statement, states, frame)
            gone += [state for state in states if state.status]
            states = [state for state in states if not state.status]
            if not states:
                break
        return gone + states

    def statement(self, statement: ast.stmt, states: list[State], frame: Frame) -> list[State]:
        """Run one statement from each of `states`."""
        self._work += len(states)
        if self._work > _MAX_WORK or len(states) > _MAX_STATES:
            raise BoundError("too many paths")
        if not self._trials:
            return self._run(statement, states, frame)
        for failing, caught in self._trials:
            if statement in failing.before:
                self._catch(states, caught, frame)
        after = self._run(statement, states, frame)
        for failing, caught in self._trials:
            if statement in failing.after:
                self._catch(after, caught, frame)
        return after

    def _run(self, statement: ast.stmt, states: list[State], frame: Frame) -> list[State]:
        match statement:
            case ast.Expr(value=value):
                return self.effects_of.bring_about(value, states, frame)
            case ast.Assign(targets=targets, value=value):
                return self._assign(targets, value, states, frame)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                return self._assign([target], value, states, frame)
            case ast.AugAssign():
                return self._augment(statement, states, frame)
            case ast.If():
                return self._if(statement, states, frame)
            case ast.For() | ast.AsyncFor():
                return self._for(statement, states, frame)
            case ast.While():
                return self._while(statement, states, frame)
            case ast.With() | ast.AsyncWith():
                return self._with(statement, list(statement.items), states, frame)
            case ast.Try():
                return self._try(statement, states, frame)
            case ast.Match():
                return self._match(statement, states, frame)
            case ast.Return(value=value):
                return self._return(value, states, frame)
            case ast.Raise():
                return _left(states, "raise")
            case ast.Break():
                return _left(states, "break")
            case ast.Continue():
                return _left(states, "continue")
            case ast.Assert(test=test):
                return self._assert(test, states, frame)
        if type(statement).__name__ == "TryStar":
            return self._try(statement, states, frame)  # type: ignore[arg-type]
        return states

    def _assign(self, targets: list[ast.expr], value: ast.expr, states: list[State], frame: Frame) -> list[State]:
        states = self.effects_of.bring_about(value, states, frame)
        for state in states:
            symbol = self.evaluator.symbol(value, state, frame)
            for target in targets:
                if event := self.recogniser.assigned(target, value, state, frame):
                    self.record(event, state, frame)
                self.evaluator.bind(target, symbol, state, frame)
        return states

    def _augment(self, statement: ast.AugAssign, states: list[State], frame: Frame) -> list[State]:
        states = self.effects_of.bring_about(statement.value, states, frame)
        for state in states:
            if event := self.recogniser.assigned(statement.target, None, state, frame):
                self.record(event, state, frame)
            old = self.evaluator.symbol(statement.target, state, frame)
            added = self.evaluator.symbol(statement.value, state, frame)
            changed = Symbol("operation", (type(statement.op).__name__, old, added))
            self.evaluator.bind(statement.target, changed, state, frame)
        return states

    def _return(self, value: ast.expr | None, states: list[State], frame: Frame) -> list[State]:
        states = self.effects_of.bring_about(value, states, frame) if value is not None else states
        for state in states:
            state.result = self.evaluator.symbol(value, state, frame) if value is not None else NONE
        return _left(states, "return")

    def _assert(self, test: ast.expr, states: list[State], frame: Frame) -> list[State]:
        going: list[State] = []
        for state in self.effects_of.bring_about(test, states, frame):
            symbol = self.evaluator.symbol(test, state, frame)
            if assume(symbol, True, state.facts):
                self.branch(test, symbol, True, state, frame)
                going.append(state)
        return going

    def _if(self, statement: ast.If, states: list[State], frame: Frame) -> list[State]:
        states = self.effects_of.bring_about(statement.test, states, frame)
        if not self._steers(statement, frame):
            return self._step_over_if(statement, states, frame)
        taken: dict[bool, list[State]] = {True: [], False: []}
        for state in states:
            symbol = self.evaluator.symbol(statement.test, state, frame)
            for outcome, branch in self.outcomes(symbol, state):
                self.branch(statement.test, symbol, outcome, branch, frame)
                taken[outcome].append(branch)
        after = self.block(statement.body, taken[True], frame) if taken[True] else []
        after += self.block(statement.orelse, taken[False], frame) if taken[False] else []
        return self.merged(after, frame, self.live_after(statement, frame))

    def _match(self, statement: ast.Match, states: list[State], frame: Frame) -> list[State]:
        states = self.effects_of.bring_about(statement.subject, states, frame)
        after: list[State] = []
        for case in statement.cases:
            taken: list[State] = []
            left: list[State] = []
            for state in states:
                subject = self.evaluator.symbol(statement.subject, state, frame)
                symbol = self._pattern(case, subject, state, frame)
                for outcome, branch in self.outcomes(symbol, state):
                    self.branch(statement.subject, symbol, outcome, branch, frame)
                    (taken if outcome else left).append(branch)
            after += self.block(case.body, taken, frame) if taken else []
            states = left
        return self.merged(after + states, frame, self.live_after(statement, frame))

    def _pattern(self, case: ast.match_case, subject: Symbol, state: State, frame: Frame) -> Symbol:
        tests = []
        alternatives = case.pattern.patterns if isinstance(case.pattern, ast.MatchOr) else [case.pattern]
        for pattern in alternatives:
            if isinstance(pattern, ast.MatchValue):
                tests.append(compared("==", subject, self.evaluator.symbol(pattern.value, state, frame)))
            elif isinstance(pattern, ast.MatchSingleton):
                tests.append(compared("is", subject, Symbol("constant", (pattern.value,))))
            elif isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
                tests.append(TRUE)
            else:
                tests.append(Symbol("opaque", (pattern, state.round)))
        whole = tests[0] if len(tests) == 1 else Symbol("any", tuple(tests))
        if case.guard is None:
            return whole
        return Symbol("all", (whole, self.evaluator.symbol(case.guard, state, frame)))

    def _for(self, loop: ast.For | ast.AsyncFor, states: list[State], frame: Frame) -> list[State]:
        states = self.effects_of.bring_about(loop.iter, states, frame)
        if not self._matters(loop, frame):
            return self._step_over(loop, states, frame)
        left: list[State] = []
        for number in self._rounds(loop, states, frame):
            for state in states:
                iterable = self.evaluator.symbol(loop.iter, state, frame)
                self._begin_round(loop, number, state, frame)
                self.evaluator.bind(loop.target, element(iterable, number), state, frame)
            states = self._round(loop, states, left, frame)
        left += self.block(loop.orelse, states, frame)
        return self.merged(left, frame, self.live_after(loop, frame))

    def _rounds(self, loop: ast.For | ast.AsyncFor, states: list[State], frame: Frame) -> Iterable[int]:
        """Two rounds; one for each item where a list of a few is known."""
        iterables = [self.evaluator.symbol(loop.iter, state, frame) for state in states]
        lengths = {len(i.parts) - 1 if i.kind == "operation" and i.parts[0] == "display" else 0 for i in iterables}
        longest = max(lengths, default=0)
        return range(1, longest + 1) if 0 < longest <= _MAX_ITEMS and len(lengths) == 1 else _ROUNDS

    def _while(self, loop: ast.While, states: list[State], frame: Frame) -> list[State]:
        if not self._matters(loop, frame):
            return self._step_over(loop, self.effects_of.bring_about(loop.test, states, frame), frame)
        left: list[State] = []
        for number in _ROUNDS:
            for state in states:
                self._begin_round(loop, number, state, frame)
            states = self.effects_of.bring_about(loop.test, states, frame)
            for state in states:
                assume(self.evaluator.symbol(loop.test, state, frame), True, state.facts)
            states = self._round(loop, states, left, frame)
        if isinstance(loop.test, ast.Constant) and loop.test.value:
            for state in states:
                self._emit(state, complete=False)
            states = []
        left += self.block(loop.orelse, states, frame)
        return self.merged(left, frame, self.live_after(loop, frame))

    def _begin_round(self, loop: ast.AST, number: int, state: State, frame: Frame) -> None:
        outer = tuple(pair for pair in state.rounds if pair[0] is not loop)
        state.rounds = (*outer, (loop, number))
        self.record(Event(Kind.ROUND, loop, frame.module), state, frame)

    def _round(
        self, loop: ast.For | ast.AsyncFor | ast.While, states: list[State], left: list[State], frame: Frame
    ) -> list[State]:
        """One round of the body. States that leave the loop go to `left`; gives those at its end."""
        going: list[State] = []
        for state in self.block(loop.body, states, frame):
            number = dict(state.rounds).get(loop, 0)
            bound = None
            if not isinstance(loop, ast.While):
                bound = element(self.evaluator.symbol(loop.iter, state, frame), number)
            state.forget_round(loop, bound)
            state.rounds = tuple(pair for pair in state.rounds if pair[0] is not loop)
            if state.status in ("", "continue"):
                state.status = ""
                going.append(state)
            else:
                state.status = "" if state.status == "break" else state.status
                left.append(state)
        return self.merged(going, frame, self.live_around(loop, frame))

    def _with(
        self, statement: ast.With | ast.AsyncWith, items: list[ast.withitem], states: list[State], frame: Frame
    ) -> list[State]:
        if not items:
            return self.block(statement.body, states, frame)
        entered, *others = items
        call = entered.context_expr
        if isinstance(call, ast.Call):
            managers = [
                callee
                for callee in self.interests.callees(frame.module, call, frame.receiver)
                if any(isinstance(node, ast.Yield) for node in ast.walk(callee.function))
            ]
            if managers:
                inside = lambda reached: self._with(statement, others, reached, frame)  # noqa: E731
                return [
                    out for state in states for out in self.effects_of.enter(managers[0], call, state, frame, inside)
                ]
        states = self.effects_of.bring_about(call, states, frame)
        if entered.optional_vars is not None:
            for state in states:
                symbol = self.evaluator.symbol(call, state, frame)
                self.evaluator.bind(entered.optional_vars, symbol, state, frame)
        return self._with(statement, others, states, frame)

    def _try(self, statement: ast.Try, states: list[State], frame: Frame) -> list[State]:
        """Handlers run from where an exception may have left the body, and from where it raises one itself."""
        failing = failures(statement, frame.module, self.interests.of(frame.module).nodes)
        caught: dict[object, State] = {}
        if not failing:
            self._catch(states, caught, frame)
        outside = {pair for state in states for pair in state.rounds}
        self._trials.append((failing if statement.handlers else Failures(), caught))
        after = self.block(statement.body, states, frame)
        self._trials.pop()
        raised = [state for state in after if state.status == "raise"] if statement.handlers else []
        for state in raised:
            state.status = ""
            self._catch([state], caught, frame)
        done = [state for state in after if state.status]
        after = done + self.block(statement.orelse, [s for s in after if not s.status and s not in raised], frame)
        for handler in statement.handlers:
            if failing or raised or self._matters(handler, frame) or has_jump(handler):
                begun = [state.copy() for state in caught.values()]
                for state in begun:
                    state.rounds = tuple(pair for pair in state.rounds if pair in outside)
                after += self.block(handler.body, begun, frame)
        if statement.finalbody:
            after = self._finally(statement.finalbody, after, frame)
        return self.merged(after, frame, self.live_after(statement, frame))

    def _catch(self, states: list[State], caught: dict[object, State], frame: Frame) -> None:
        """Keep a copy of the states that an exception may be raised in, one of each kind."""
        names = self.interests.of(frame.module).names
        for state in states:
            if state.status:
                continue
            signature = self._signature(state, frame, names)
            if signature in caught:
                caught[signature].keep_common(state)
            else:
                caught[signature] = state.copy()

    def _finally(self, body: list[ast.stmt], states: list[State], frame: Frame) -> list[State]:
        done: list[State] = []
        for state in states:
            status, state.status = state.status, ""
            for ended in self.block(body, [state], frame):
                ended.status = ended.status or status
                done.append(ended)
        return done

    # -- paths ---------------------------------------------------------------------------------------------------

    def outcomes(self, symbol: Symbol, state: State) -> list[tuple[bool, State]]:
        """The outcomes a test can have, each with the state that goes on with it."""
        known = truth(symbol, state.facts)
        if known is not None:
            return [(known, state)]
        other = state.copy()
        outcomes = [(True, state)] if assume(symbol, True, state.facts) else []
        if assume(symbol, False, other.facts):
            outcomes.append((False, other))
        return outcomes

    def branch(self, test: ast.expr, symbol: Symbol, taken: bool, state: State, frame: Frame) -> None:
        event = Event(Kind.BRANCH, test, frame.module, subject=test, value=symbol, taken=taken)
        self.record(event, state, frame)

    def record(self, event: Event, state: State, frame: Frame) -> None:
        if state.trace is not None and state.trace.length >= _MAX_LENGTH:
            raise BoundError("paths too long")
        state.add(replace(event, calls=frame.calls))

    def _emit(self, state: State, *, complete: bool) -> None:
        events = state.trace.events() if state.trace is not None else ()
        happened = (event for event in events if event.kind not in (Kind.BRANCH, Kind.ROUND))
        key = (complete, *((event.kind, event.node, event.optimizer, event.scaler) for event in happened))
        if events and key not in self._seen:
            self._seen.add(key)
            self.paths.append(Path(events, complete))
            if len(self.paths) > _MAX_PATHS:
                raise BoundError("too many paths")

    def merged(self, states: list[State], frame: Frame, live: Collection[str]) -> list[State]:
        """One state of each kind that cannot be told apart from here on. The paths of the others end here.

        `live` are the variables of the frame that may still be read, where no jump has left the way. What only some
        states know of tests is forgotten: nothing that happened hangs on it.
        """
        if len(states) < 2:
            return states
        kept: dict[object, State] = {}
        names = self.interests.of(frame.module).names
        for state in states:
            signature = self._signature(state, frame, names if state.status else live)
            other = kept.setdefault(signature, state)
            if other is not state:
                self._emit(state, complete=False)
                other.keep_common(state)
        return list(kept.values())

    def live_after(self, statement: ast.stmt, frame: Frame) -> Collection[str]:
        """The variables of the frame that may be read once a statement of it is over."""
        return self.interests.of(frame.module).liveness(frame.module).after(statement)

    def live_around(self, node: ast.AST, frame: Frame) -> Collection[str]:
        """The variables of the frame that may be read in or after the statement of a node."""
        interest = self.interests.of(frame.module)
        if isinstance(frame.function, ast.Lambda):
            return interest.names
        return interest.liveness(frame.module).around(node)

    def _signature(self, state: State, frame: Frame, live: Collection[str]) -> object:
        """What tells a state apart: of the variables of `frame` those that are `live`, of others all that matter."""
        variables = (
            (key, essence(value))
            for key, value in state.variables.items()
            if key[1] in (live if key[0] is frame else self.interests.of(key[0].module).names)
        )
        attributes = [self.interests.of(module).names for module in {each.module for each in frame.running()}]
        heap = (
            (key, essence(value))
            for key, value in state.heap.items()
            if not isinstance(key[1], str) or any(key[1] in names for names in attributes)
        )
        return (
            state.status,
            state.pending,
            state.rounds,
            frozenset(variables),
            frozenset(heap),
            essence(state.result) if state.status == "return" else None,
        )

    # -- what may be stepped over --------------------------------------------------------------------------------

    def _matters(self, node: ast.AST, frame: Frame) -> bool:
        return node in self.interests.of(frame.module).nodes

    def _steers(self, statement: ast.If, frame: Frame) -> bool:
        """Whether the outcome of an `if` can matter: events, jumps, or variables that later tests read."""
        if has_jump(statement) or any(self._matters(child, frame) for child in (*statement.body, *statement.orelse)):
            return True
        live = self.live_after(statement, frame)
        names = self.interests.of(frame.module).names
        return any(
            name in live if isinstance(target, ast.Name) else name in names
            for target in telling_targets(statement)
            if (name := last_name(target))
        )

    def _step_over_if(self, statement: ast.If, states: list[State], frame: Frame) -> list[State]:
        """Pass an `if` without events; what it assigns is kept where its test does not hold."""
        names = self.interests.of(frame.module).names
        if statement.orelse or not any(last_name(node) in names for node in stores(statement)):
            return self._step_over(statement, states, frame)
        passed = [s for s in states if truth(self.evaluator.symbol(statement.test, s, frame), s.facts) is not False]
        self._step_over(statement, passed, frame)
        return states

    def _step_over(self, statement: ast.stmt, states: list[State], frame: Frame) -> list[State]:
        """Pass a statement without events: what it assigns is unknown afterwards."""
        for state in states:
            for node in stores(statement):
                if isinstance(node, ast.Name):
                    state.variables[frame, node.id] = Symbol("opaque", (statement, node.id, state.round))
                else:
                    base = self.evaluator.symbol(node.value, state, frame)
                    state.heap[base, node.attr] = Symbol("opaque", (statement, node.attr, state.round))
        return states


def _left(states: list[State], status: str) -> list[State]:
    for state in states:
        state.status = status
    return states
