"""Runs a function symbolically along all its feasible paths: branches by tests, loops in two rounds, calls entered."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace

from amplint.project import Callee, CallSite, Definition, Project, default_of, parameters
from amplint.protocol.evaluate import Evaluator, element
from amplint.protocol.events import Event, Kind, Path
from amplint.protocol.facts import assume, compared, truth
from amplint.protocol.interest import Interests, has_jump, stores, telling_targets
from amplint.protocol.recognise import Recogniser, changes_in_place, scaler_in
from amplint.protocol.state import Frame, State
from amplint.protocol.symbols import NONE, TRUE, Symbol
from amplint.tree import Module

_MAX_DEPTH = 8
_MAX_STATES = 64
_MAX_WORK = 12_000
_MAX_LENGTH = 600
_MAX_PATHS = 500
_MAX_CALLEES = 4
_ROUNDS = (1, 2)
_MAX_ITEMS = 6
"""A loop over a list of up to so many known items has a round for each."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class BoundError(Exception):
    """A function has too many paths, or too deep ones."""


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
        self._work = 0

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
            states = self._constructed(instance, receiver, node, states)
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
        match statement:
            case ast.Expr(value=value):
                return self.effects(value, states, frame)
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
        states = self.effects(value, states, frame)
        for state in states:
            symbol = self.evaluator.symbol(value, state, frame)
            for target in targets:
                if event := self.recogniser.assigned(target, value, state, frame):
                    self._record(event, state, frame)
                self.evaluator.bind(target, symbol, state, frame)
        return states

    def _augment(self, statement: ast.AugAssign, states: list[State], frame: Frame) -> list[State]:
        states = self.effects(statement.value, states, frame)
        for state in states:
            if event := self.recogniser.assigned(statement.target, None, state, frame):
                self._record(event, state, frame)
            old = self.evaluator.symbol(statement.target, state, frame)
            added = self.evaluator.symbol(statement.value, state, frame)
            changed = Symbol("operation", (type(statement.op).__name__, old, added))
            self.evaluator.bind(statement.target, changed, state, frame)
        return states

    def _return(self, value: ast.expr | None, states: list[State], frame: Frame) -> list[State]:
        states = self.effects(value, states, frame) if value is not None else states
        for state in states:
            state.result = self.evaluator.symbol(value, state, frame) if value is not None else NONE
        return _left(states, "return")

    def _assert(self, test: ast.expr, states: list[State], frame: Frame) -> list[State]:
        going: list[State] = []
        for state in self.effects(test, states, frame):
            symbol = self.evaluator.symbol(test, state, frame)
            if assume(symbol, True, state.facts):
                self._branch(test, symbol, True, state, frame)
                going.append(state)
        return going

    def _if(self, statement: ast.If, states: list[State], frame: Frame) -> list[State]:
        states = self.effects(statement.test, states, frame)
        if not self._steers(statement, frame):
            return self._step_over(statement, states, frame)
        taken: dict[bool, list[State]] = {True: [], False: []}
        for state in states:
            symbol = self.evaluator.symbol(statement.test, state, frame)
            for outcome, branch in self._outcomes(symbol, state):
                self._branch(statement.test, symbol, outcome, branch, frame)
                taken[outcome].append(branch)
        after = self.block(statement.body, taken[True], frame) if taken[True] else []
        after += self.block(statement.orelse, taken[False], frame) if taken[False] else []
        return self._merged(after, frame)

    def _match(self, statement: ast.Match, states: list[State], frame: Frame) -> list[State]:
        states = self.effects(statement.subject, states, frame)
        after: list[State] = []
        for case in statement.cases:
            taken: list[State] = []
            left: list[State] = []
            for state in states:
                subject = self.evaluator.symbol(statement.subject, state, frame)
                symbol = self._pattern(case, subject, state, frame)
                for outcome, branch in self._outcomes(symbol, state):
                    self._branch(statement.subject, symbol, outcome, branch, frame)
                    (taken if outcome else left).append(branch)
            after += self.block(case.body, taken, frame) if taken else []
            states = left
        return self._merged(after + states, frame)

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
        states = self.effects(loop.iter, states, frame)
        if not self._matters(loop, frame):
            return self._step_over(loop, states, frame)
        left: list[State] = []
        for number in self._rounds(loop, states, frame):
            for state in states:
                iterable = self.evaluator.symbol(loop.iter, state, frame)
                self._begin_round(loop, number, state, frame)
                self.evaluator.bind(loop.target, element(iterable, number), state, frame)
            states = self._round(loop, states, left, frame)
        return self._merged([*self.block(loop.orelse, states, frame), *left], frame)

    def _rounds(self, loop: ast.For | ast.AsyncFor, states: list[State], frame: Frame) -> Iterable[int]:
        """Two rounds; one for each item where a list of a few is known."""
        iterables = [self.evaluator.symbol(loop.iter, state, frame) for state in states]
        lengths = {len(i.parts) - 1 if i.kind == "operation" and i.parts[0] == "display" else 0 for i in iterables}
        longest = max(lengths, default=0)
        return range(1, longest + 1) if 0 < longest <= _MAX_ITEMS and len(lengths) == 1 else _ROUNDS

    def _while(self, loop: ast.While, states: list[State], frame: Frame) -> list[State]:
        if not self._matters(loop, frame):
            return self._step_over(loop, self.effects(loop.test, states, frame), frame)
        left: list[State] = []
        for number in _ROUNDS:
            for state in states:
                self._begin_round(loop, number, state, frame)
            states = self.effects(loop.test, states, frame)
            for state in states:
                assume(self.evaluator.symbol(loop.test, state, frame), True, state.facts)
            states = self._round(loop, states, left, frame)
        if isinstance(loop.test, ast.Constant) and loop.test.value:
            for state in states:
                self._emit(state, complete=False)
            states = []
        return self._merged([*self.block(loop.orelse, states, frame), *left], frame)

    def _begin_round(self, loop: ast.AST, number: int, state: State, frame: Frame) -> None:
        outer = tuple(pair for pair in state.rounds if pair[0] is not loop)
        state.rounds = (*outer, (loop, number))
        self._record(Event(Kind.ROUND, loop, frame.module, round=number), state, frame)

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
        return self._merged(going, frame)

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
                return [out for state in states for out in self._enter(managers[0], call, state, frame, inside)]
        states = self.effects(call, states, frame)
        if entered.optional_vars is not None:
            for state in states:
                symbol = self.evaluator.symbol(call, state, frame)
                self.evaluator.bind(entered.optional_vars, symbol, state, frame)
        return self._with(statement, others, states, frame)

    def _try(self, statement: ast.Try, states: list[State], frame: Frame) -> list[State]:
        """Handlers run from where the body began: an exception in its midst is no step of the protocol."""
        before = [state.copy() for state in states] if statement.handlers else []
        after = self.block([*statement.body, *statement.orelse], states, frame)
        raised = [state for state in after if state.status == "raise"]
        if statement.handlers and raised:
            after = [state for state in after if state.status != "raise"]
            for state in raised:
                state.status = ""
            before += raised
        for handler in statement.handlers:
            if self._matters(handler, frame) or has_jump(handler):
                after += self.block(handler.body, [state.copy() for state in before], frame)
        if not after and raised:
            after = raised
        if statement.finalbody:
            after = self._finally(statement.finalbody, after, frame)
        return self._merged(after, frame)

    def _finally(self, body: list[ast.stmt], states: list[State], frame: Frame) -> list[State]:
        done: list[State] = []
        for state in states:
            status, state.status = state.status, ""
            for ended in self.block(body, [state], frame):
                ended.status = ended.status or status
                done.append(ended)
        return done

    # -- expressions ---------------------------------------------------------------------------------------------

    def effects(self, expression: ast.expr, states: list[State], frame: Frame) -> list[State]:
        """Bring about the events of evaluating `expression`, in Python's order."""
        if expression not in self.interests.of(frame.module).nodes:
            if isinstance(expression, ast.NamedExpr) or any(isinstance(n, ast.NamedExpr) for n in ast.walk(expression)):
                for state in states:
                    self.evaluator.symbol(expression, state, frame)
            return states
        match expression:
            case ast.Call():
                return self._call(expression, states, frame)
            case ast.Attribute(attr="grad"):
                return self._read(expression, self.effects(expression.value, states, frame), frame)
            case ast.BoolOp(op=op, values=values):
                return self._short_circuit(isinstance(op, ast.And), values, states, frame)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._conditional(test, body, orelse, states, frame)
            case ast.NamedExpr(value=value):
                states = self.effects(value, states, frame)
                for state in states:
                    self.evaluator.symbol(expression, state, frame)
                return states
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehend(expression, states, frame)
            case ast.Lambda():
                return states
            case ast.Compare(left=ast.Attribute(attr="grad") as left, comparators=[ast.Constant(value=None)]):
                return self.effects(left.value, states, frame)
            case ast.Yield(value=value) if frame.on_yield is not None:
                states = self.effects(value, states, frame) if value is not None else states
                return frame.on_yield(states)
        for child in ast.iter_child_nodes(expression):
            if isinstance(child, ast.keyword):
                states = self.effects(child.value, states, frame)
            elif isinstance(child, ast.expr):
                states = self.effects(child, states, frame)
        return states

    def _read(self, expression: ast.Attribute, states: list[State], frame: Frame) -> list[State]:
        if not isinstance(expression.ctx, ast.Load):
            return states
        if changes_in_place(expression, frame.module):
            return states
        for state in states:
            value = self.evaluator.symbol(expression, state, frame)
            event = Event(Kind.READ, expression, frame.module, subject=expression, value=value)
            self._record(event, state, frame)
        return states

    def _call(self, call: ast.Call, states: list[State], frame: Frame) -> list[State]:
        if isinstance(call.func, ast.Attribute):
            states = self.effects(call.func.value, states, frame)
        elif not isinstance(call.func, ast.Name):
            states = self.effects(call.func, states, frame)
        for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
            states = self.effects(argument, states, frame)
        return [out for state in states for out in self._called(call, state, frame)]

    def _called(self, call: ast.Call, state: State, frame: Frame) -> list[State]:
        events = self.recogniser.certain(call, state, frame)
        states = [state]
        if events is None:
            callees = self._callees(call, state, frame)[:_MAX_CALLEES]
            is_variable = len(callees) > 1 or (callees and isinstance(call.func, ast.Name))
            function = self.evaluator.symbol(call.func, state, frame) if is_variable else NONE
            if function.kind == "choice" and (sides := self._sides(function, callees, frame)):
                return self._called_by_choice(function, sides, call, state, frame)
            callees = [c for c in callees if c.function is function.source] or callees
            if callees:
                entered = [state.copy() for _ in callees[1:]] + [state]
                return [out for c, s in zip(callees, entered) for out in self._enter(c, call, s, frame)]
            if self.project.callees(frame.module, call, frame.receiver):
                return states
            events = self.recogniser.likely(call, state, frame)
        for event in events:
            if event.kind is Kind.STEP and event.closure is not None:
                states = [out for s in states for out in self._closure(event.closure, call, s, frame)]
            for reached in states:
                self._record(event, reached, frame)
        return states

    def _sides(self, choice: Symbol, callees: list[Callee], frame: Frame) -> dict[bool, list[Callee]] | None:
        """The functions that `a if test else b` gives for each outcome; None if some callee is neither."""
        sides: dict[bool, list[Callee]] = {}
        for outcome, side in zip((True, False), choice.parts[1:], strict=True):
            source = side.source if isinstance(side, Symbol) else None
            named = self.project.resolve(frame.module, source) if source is not None else ()
            nodes = {source, *(definition.node for definition in named)}
            sides[outcome] = [callee for callee in callees if callee.function in nodes]
        return sides if len(sides[True]) + len(sides[False]) >= len(callees) else None

    def _called_by_choice(
        self, choice: Symbol, sides: dict[bool, list[Callee]], call: ast.Call, state: State, frame: Frame
    ) -> list[State]:
        """A call of `a if test else b`: of the one that the test chooses."""
        test = choice.parts[0]
        assert isinstance(test, Symbol)
        after: list[State] = []
        for outcome, branch in self._outcomes(test, state):
            if not sides[outcome]:
                after.append(branch)
            for callee in sides[outcome]:
                after += self._enter(callee, call, branch.copy(), frame)
        return after

    def _callees(self, call: ast.Call, state: State, frame: Frame) -> list[Callee]:
        """The functions that a call may enter; on an object that the path has made, the method of its class alone."""
        callees = self.interests.callees(frame.module, call, frame.receiver)
        if len(callees) < 2 or not isinstance(call.func, ast.Attribute):
            return callees
        made = self.evaluator.symbol(call.func.value, state, frame)
        if made.kind != "new" or made.module is None or not isinstance(made.source, ast.Call):
            return callees
        classes = self.project.classes_of(made.module, made.source.func)
        own = {self.project.method(cls, call.func.attr) for cls in classes}
        return [callee for callee in callees if callee.definition in own] if classes else callees

    def _closure(self, closure: ast.expr, call: ast.Call, state: State, frame: Frame) -> list[State]:
        """The function that an optimizer's step calls."""
        for definition in self.project.resolve(frame.module, closure):
            if isinstance(definition.node, _FUNCTIONS) and self.interests.is_eventful(definition):
                return self._enter(Callee(definition), call, state, frame)
        return [state]

    def _short_circuit(self, is_and: bool, values: list[ast.expr], states: list[State], frame: Frame) -> list[State]:
        done: list[State] = []
        for index, value in enumerate(values):
            states = self.effects(value, states, frame)
            if not any(later in self.interests.of(frame.module).nodes for later in values[index + 1 :]):
                break
            going: list[State] = []
            for state in states:
                symbol = self.evaluator.symbol(value, state, frame)
                for outcome, branch in self._outcomes(symbol, state):
                    (going if outcome is is_and else done).append(branch)
            states = going
        return self._merged(done + states, frame)

    def _conditional(
        self, test: ast.expr, body: ast.expr, orelse: ast.expr, states: list[State], frame: Frame
    ) -> list[State]:
        after: list[State] = []
        for state in self.effects(test, states, frame):
            symbol = self.evaluator.symbol(test, state, frame)
            if (
                body not in self.interests.of(frame.module).nodes
                and orelse not in self.interests.of(frame.module).nodes
            ):
                after.append(state)
                continue
            for outcome, branch in self._outcomes(symbol, state):
                self._branch(test, symbol, outcome, branch, frame)
                after += self.effects(body if outcome else orelse, [branch], frame)
        return after

    def _comprehend(
        self,
        expression: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp,
        states: list[State],
        frame: Frame,
    ) -> list[State]:
        states = self.effects(expression.generators[0].iter, states, frame)
        results = [expression.key, expression.value] if isinstance(expression, ast.DictComp) else [expression.elt]
        for number in _ROUNDS:
            for state in states:
                for generator in expression.generators:
                    iterable = self.evaluator.symbol(generator.iter, state, frame)
                    self.evaluator.bind(generator.target, element(iterable, number), state, frame)
            tests = [test for generator in expression.generators for test in generator.ifs]
            for part in (*tests, *results):
                states = self.effects(part, states, frame)
        return states

    # -- calls ---------------------------------------------------------------------------------------------------

    def _enter(
        self,
        callee: Callee,
        call: ast.Call,
        state: State,
        frame: Frame,
        on_yield: object = None,
    ) -> list[State]:
        """Run a function from a call of it, and come back."""
        function = callee.function
        if frame.depth >= _MAX_DEPTH:
            raise BoundError("calls too deep")
        if _is_running(function, frame):
            return [state]
        is_constructor = isinstance(function, _FUNCTIONS) and function.name == "__init__" and callee.receiver is None
        instance = self._receiver(callee, call, state, frame) if not is_constructor else None
        if is_constructor:
            instance = self.evaluator.symbol(call, state, frame)
        inner = self._frame(callee, call, frame)
        inner.on_yield = on_yield  # type: ignore[assignment]
        self._bind(callee, call, instance, state, frame, inner)
        self.entered.add(callee.module)
        after: list[State] = []
        for left in self._body(function, [state], inner):
            if left.status != "raise":
                left.results[frame, call] = instance if is_constructor and instance is not None else left.result
                left.status = ""
            left.forget_frame(inner)
            after.append(left)
        by_result: dict[object, list[State]] = {}
        for left in after:
            by_result.setdefault(_essence(left.results.get((frame, call), NONE)), []).append(left)
        return [kept for states in by_result.values() for kept in self._merged(states, frame)]

    def _body(self, function: ast.AST, states: list[State], frame: Frame) -> list[State]:
        if isinstance(function, ast.Lambda):
            states = self.effects(function.body, states, frame)
            for state in states:
                state.result = self.evaluator.symbol(function.body, state, frame)
            return states
        assert isinstance(function, _FUNCTIONS)
        for state in states:
            state.result = NONE
        return self.block(function.body, states, frame)

    def _frame(self, callee: Callee, call: ast.Call, caller: Frame) -> Frame:
        enclosing = callee.module.function(callee.function)
        closure: Frame | None = caller
        while closure is not None and closure.function is not enclosing:
            closure = closure.caller
        return Frame(
            callee.module,
            callee.function,
            receiver=callee.cls or (caller.receiver if closure is not None else None),
            caller=caller,
            closure=closure if enclosing is not None else None,
            calls=(*caller.calls, CallSite(caller.module, call)),
        )

    def _receiver(self, callee: Callee, call: ast.Call, state: State, frame: Frame) -> Symbol | None:
        receiver = callee.receiver
        if receiver is None:
            return None
        if isinstance(receiver, ast.Call) and isinstance(receiver.func, ast.Name) and receiver.func.id == "super":
            running: Frame | None = frame
            while running is not None:
                arguments = getattr(running.function, "args", None)
                first = [*arguments.posonlyargs, *arguments.args][:1] if arguments is not None else []
                if first and (running, first[0].arg) in state.variables:
                    return state.variables[running, first[0].arg]
                running = running.closure
            return None
        if receiver not in frame.module.parents:
            return None
        return self.evaluator.symbol(receiver, state, frame)

    def _bind(
        self, callee: Callee, call: ast.Call, instance: Symbol | None, state: State, frame: Frame, inner: Frame
    ) -> None:
        """Give the parameters their arguments, or their defaults."""
        names = [parameter.arg for parameter in parameters(callee.function)]
        if instance is not None and names and names[0] not in callee.arguments:
            state.variables[inner, names[0]] = instance
        for name in names:
            argument = callee.argument(name)
            if argument is not None and argument in frame.module.parents:
                state.variables[inner, name] = self.evaluator.symbol(argument, state, frame)
            elif argument is None and not callee.open and (default := default_of(callee.function, name)) is not None:
                state.variables[inner, name] = self.evaluator.static(callee.module, default)

    def _constructed(self, instance: Symbol, cls: Definition, method: ast.AST, states: list[State]) -> list[State]:
        """The states once `instance` was constructed: what its attributes hold."""
        init = self.project.method(cls, "__init__")
        if init is None or init.node is method or not isinstance(init.node, _FUNCTIONS):
            return states
        frame = Frame(init.module, init.node, cls)
        for state in states:
            state.variables[frame, parameters(init.node)[0].arg] = instance
        after = [state for state in self.block(init.node.body, states, frame) if state.status != "raise"]
        for state in after:
            state.status = ""
            state.heap = {
                (base, name): value
                for (base, name), value in state.heap.items()
                if base != instance or not self._is_reassigned(cls, name, init)
            }
        return after or states

    def _is_reassigned(self, cls: Definition, name: object, init: Definition) -> bool:
        """Whether a method other than the constructor assigns the attribute: then nobody knows what it holds."""
        targets = self.project.attribute(cls, name) if isinstance(name, str) else ()
        return any(target.module.function(target.node) not in (init.node, None) for target in targets)

    # -- paths ---------------------------------------------------------------------------------------------------

    def _outcomes(self, symbol: Symbol, state: State) -> list[tuple[bool, State]]:
        """The outcomes a test can have, each with the state that goes on with it."""
        known = truth(symbol, state.facts)
        if known is not None:
            return [(known, state)]
        other = state.copy()
        outcomes = [(True, state)] if assume(symbol, True, state.facts) else []
        if assume(symbol, False, other.facts):
            outcomes.append((False, other))
        return outcomes

    def _branch(self, test: ast.expr, symbol: Symbol, taken: bool, state: State, frame: Frame) -> None:
        event = Event(Kind.BRANCH, test, frame.module, subject=test, value=symbol, taken=taken)
        self._record(event, state, frame)

    def _record(self, event: Event, state: State, frame: Frame) -> None:
        if state.trace is not None and state.trace.length >= _MAX_LENGTH:
            raise BoundError("paths too long")
        number = event.round or (state.rounds[-1][1] if state.rounds else 0)
        state.add(replace(event, calls=frame.calls, round=number))

    def _emit(self, state: State, *, complete: bool) -> None:
        events = state.trace.events() if state.trace is not None else ()
        key = (complete, *((event.kind, event.node, event.taken, event.optimizer, event.scaler) for event in events))
        if events and key not in self._seen:
            self._seen.add(key)
            self.paths.append(Path(events, complete))
            if len(self.paths) > _MAX_PATHS:
                raise BoundError("too many paths")

    def _merged(self, states: list[State], frame: Frame) -> list[State]:
        """One state of each kind that cannot be told apart from here on. The paths of the others end here.

        What only some of them know of tests is forgotten: nothing that happened hangs on it.
        """
        if len(states) < 2:
            return states
        kept: dict[object, State] = {}
        for state in states:
            signature = self._signature(state, frame)
            other = kept.setdefault(signature, state)
            if other is not state:
                self._emit(state, complete=False)
                other.facts = {fact: value for fact, value in other.facts.items() if state.facts.get(fact) is value}
        return list(kept.values())

    def _signature(self, state: State, frame: Frame) -> object:
        names = self.interests.of(frame.module).names
        return (
            state.status,
            state.pending,
            state.rounds,
            frozenset((key, _essence(value)) for key, value in state.variables.items() if key[1] in names),
            frozenset((k, _essence(v)) for k, v in state.heap.items() if not isinstance(k[1], str) or k[1] in names),
            _essence(state.result) if state.status == "return" else None,
        )

    # -- what may be stepped over --------------------------------------------------------------------------------

    def _matters(self, node: ast.AST, frame: Frame) -> bool:
        return node in self.interests.of(frame.module).nodes

    def _steers(self, statement: ast.If, frame: Frame) -> bool:
        """Whether the outcome of an `if` can matter: events, jumps, or variables that later tests read."""
        if has_jump(statement) or any(self._matters(child, frame) for child in (*statement.body, *statement.orelse)):
            return True
        return bool(self.interests.of(frame.module).names & telling_targets(statement))

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


def _essence(value: Symbol) -> object:
    """What of a variable's value can matter later: which object it is, whether it is scaled; not which number."""
    if value.kind in ("constant", "new", "name", "self", "attribute", "choice", "parameters"):
        return value
    if value.kind == "operation" and value.parts[0] == "display":
        return tuple(_essence(part) for part in value.parts[1:] if isinstance(part, Symbol))
    return scaler_in(value)


def _left(states: list[State], status: str) -> list[State]:
    for state in states:
        state.status = status
    return states


def _is_running(function: ast.AST, frame: Frame) -> bool:
    current: Frame | None = frame
    while current is not None:
        if current.function is function:
            return True
        current = current.caller
    return False
