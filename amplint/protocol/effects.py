"""The effects of evaluating an expression: its events in Python's order, and the functions that its calls enter."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from amplint.project import Callee, CallSite, Definition, default_of, parameters
from amplint.protocol.evaluate import element
from amplint.protocol.events import Event, Kind
from amplint.protocol.recognise import changes_in_place, essence
from amplint.protocol.state import Frame, State
from amplint.protocol.symbols import NONE, Symbol

if TYPE_CHECKING:
    from amplint.protocol.walk import Walk

_MAX_DEPTH = 8
_MAX_CALLEES = 4
_ROUNDS = (1, 2)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class BoundError(Exception):
    """A function has too many paths, or too deep ones."""


class Effects:
    """Brings about the effects of expressions on the states of a walk."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk

    def bring_about(self, expression: ast.expr, states: list[State], frame: Frame) -> list[State]:
        """Bring about the events of evaluating `expression`, in Python's order."""
        if isinstance(expression, ast.Yield) and frame.on_yield is not None:
            states = self.bring_about(expression.value, states, frame) if expression.value is not None else states
            return frame.on_yield(states)
        interest = self.walk.interests.of(frame.module)
        if expression not in interest.nodes:
            if expression in interest.naming:
                for state in states:
                    self.walk.evaluator.symbol(expression, state, frame)
            return states
        match expression:
            case ast.Call():
                return self._call(expression, states, frame)
            case ast.Attribute(attr="grad"):
                return self._read(expression, self.bring_about(expression.value, states, frame), frame)
            case ast.BoolOp(op=op, values=values):
                return self._short_circuit(isinstance(op, ast.And), values, states, frame)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._conditional(test, body, orelse, states, frame)
            case ast.NamedExpr(value=value):
                states = self.bring_about(value, states, frame)
                for state in states:
                    self.walk.evaluator.symbol(expression, state, frame)
                return states
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehend(expression, states, frame)
            case ast.Lambda():
                return states
            case ast.Compare(left=ast.Attribute(attr="grad") as left, comparators=[ast.Constant(value=None)]):
                return self.bring_about(left.value, states, frame)
        for child in ast.iter_child_nodes(expression):
            if isinstance(child, ast.keyword):
                states = self.bring_about(child.value, states, frame)
            elif isinstance(child, ast.expr):
                states = self.bring_about(child, states, frame)
        return states

    def _read(self, expression: ast.Attribute, states: list[State], frame: Frame) -> list[State]:
        if not isinstance(expression.ctx, ast.Load):
            return states
        if changes_in_place(expression, frame.module):
            return states
        for state in states:
            value = self.walk.evaluator.symbol(expression, state, frame)
            event = Event(Kind.READ, expression, frame.module, subject=expression, value=value)
            self.walk.record(event, state, frame)
        return states

    def _call(self, call: ast.Call, states: list[State], frame: Frame) -> list[State]:
        if isinstance(call.func, ast.Attribute):
            states = self.bring_about(call.func.value, states, frame)
        elif not isinstance(call.func, ast.Name):
            states = self.bring_about(call.func, states, frame)
        for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
            states = self.bring_about(argument, states, frame)
        return [out for state in states for out in self._called(call, state, frame)]

    def _called(self, call: ast.Call, state: State, frame: Frame) -> list[State]:
        events = self.walk.recogniser.certain(call, state, frame)
        states = [state]
        if events is None:
            callees = self._callees(call, state, frame)[:_MAX_CALLEES]
            is_method = isinstance(call.func, ast.Attribute)
            function = NONE if is_method or not callees else self.walk.evaluator.symbol(call.func, state, frame)
            if function.kind == "choice" and (sides := self._sides(function, callees, frame)):
                return self._called_by_choice(function, sides, call, state, frame)
            callees = self._named(function, callees, frame) or callees
            if callees:
                entered = [state.copy() for _ in callees[1:]] + [state]
                return [out for c, s in zip(callees, entered, strict=False) for out in self.enter(c, call, s, frame)]
            if self.walk.project.callees(frame.module, call, frame.receiver):
                return states
            events = self.walk.recogniser.likely(call, state, frame)
        for event in events:
            if event.kind is Kind.STEP and event.closure is not None:
                states = [out for s in states for out in self._closure(event.closure, call, s, frame)]
            for reached in states:
                self.walk.record(event, reached, frame)
        return states

    def _sides(self, choice: Symbol, callees: list[Callee], frame: Frame) -> dict[bool, list[Callee]] | None:
        """The functions that `a if test else b` gives for each outcome; None if some callee is neither."""
        then, otherwise = (
            self._named(side, callees, frame) if isinstance(side, Symbol) else [] for side in choice.parts[1:]
        )
        sides = {True: then, False: otherwise}
        return sides if len(sides[True]) + len(sides[False]) >= len(callees) else None

    def _named(self, function: Symbol, callees: list[Callee], frame: Frame) -> list[Callee]:
        """Those of the callees that `function` is, or is the name of."""
        source = function.source
        if source is None:
            return []
        if isinstance(source, ast.Attribute):
            return [callee for callee in callees if getattr(callee.function, "name", "") == source.attr]
        named = self.walk.project.resolve(function.module or frame.module, source)
        nodes = {source, *(definition.node for definition in named)}
        return [callee for callee in callees if callee.function in nodes]

    def _called_by_choice(
        self, choice: Symbol, sides: dict[bool, list[Callee]], call: ast.Call, state: State, frame: Frame
    ) -> list[State]:
        """A call of `a if test else b`: of the one that the test chooses."""
        test = choice.parts[0]
        assert isinstance(test, Symbol)
        after: list[State] = []
        for outcome, branch in self.walk.outcomes(test, state):
            if not sides[outcome]:
                after.append(branch)
            for callee in sides[outcome]:
                after += self.enter(callee, call, branch.copy(), frame)
        return after

    def _callees(self, call: ast.Call, state: State, frame: Frame) -> list[Callee]:
        """The functions that a call may enter; on an object that the path has made, the method of its class alone."""
        callees = self.walk.interests.callees(frame.module, call, frame.receiver)
        if len(callees) < 2 or not isinstance(call.func, ast.Attribute):
            return callees
        made = self.walk.evaluator.symbol(call.func.value, state, frame)
        if made.kind != "new" or made.module is None or not isinstance(made.source, ast.Call):
            return callees
        classes = self.walk.project.classes_of(made.module, made.source.func)
        own = {self.walk.project.method(cls, call.func.attr) for cls in classes}
        return [callee for callee in callees if callee.definition in own] if classes else callees

    def _closure(self, closure: ast.expr, call: ast.Call, state: State, frame: Frame) -> list[State]:
        """The function that an optimizer's step calls."""
        for definition in self.walk.project.resolve(frame.module, closure):
            if isinstance(definition.node, _FUNCTIONS) and self.walk.interests.is_eventful(definition):
                return self.enter(Callee(definition), call, state, frame)
        return [state]

    def _short_circuit(self, is_and: bool, values: list[ast.expr], states: list[State], frame: Frame) -> list[State]:
        done: list[State] = []
        for index, value in enumerate(values):
            states = self.bring_about(value, states, frame)
            if not any(later in self.walk.interests.of(frame.module).nodes for later in values[index + 1 :]):
                break
            going: list[State] = []
            for state in states:
                symbol = self.walk.evaluator.symbol(value, state, frame)
                for outcome, branch in self.walk.outcomes(symbol, state):
                    (going if outcome is is_and else done).append(branch)
            states = going
        return self.walk.merged(done + states, frame, self.walk.live_around(values[0], frame))

    def _conditional(
        self, test: ast.expr, body: ast.expr, orelse: ast.expr, states: list[State], frame: Frame
    ) -> list[State]:
        after: list[State] = []
        for state in self.bring_about(test, states, frame):
            symbol = self.walk.evaluator.symbol(test, state, frame)
            if (
                body not in self.walk.interests.of(frame.module).nodes
                and orelse not in self.walk.interests.of(frame.module).nodes
            ):
                after.append(state)
                continue
            for outcome, branch in self.walk.outcomes(symbol, state):
                self.walk.branch(test, symbol, outcome, branch, frame)
                after += self.bring_about(body if outcome else orelse, [branch], frame)
        return after

    def _comprehend(
        self,
        expression: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp,
        states: list[State],
        frame: Frame,
    ) -> list[State]:
        states = self.bring_about(expression.generators[0].iter, states, frame)
        results = [expression.key, expression.value] if isinstance(expression, ast.DictComp) else [expression.elt]
        for number in _ROUNDS:
            for state in states:
                for generator in expression.generators:
                    iterable = self.walk.evaluator.symbol(generator.iter, state, frame)
                    self.walk.evaluator.bind(generator.target, element(iterable, number), state, frame)
            tests = [test for generator in expression.generators for test in generator.ifs]
            for part in (*tests, *results):
                states = self.bring_about(part, states, frame)
        return states

    # -- calls ---------------------------------------------------------------------------------------------------

    def enter(
        self,
        callee: Callee,
        call: ast.Call,
        state: State,
        frame: Frame,
        on_yield: Callable[[list[State]], list[State]] | None = None,
    ) -> list[State]:
        """Run a function from a call of it, and come back."""
        function = callee.function
        if frame.depth >= _MAX_DEPTH:
            raise BoundError("calls too deep")
        if any(running.function is function for running in frame.running()):
            return [state]
        is_constructor = isinstance(function, _FUNCTIONS) and function.name == "__init__" and callee.receiver is None
        instance = self._receiver(callee, call, state, frame) if not is_constructor else None
        if is_constructor:
            instance = self.walk.evaluator.symbol(call, state, frame)
        inner = self._frame(callee, call, frame)
        inner.on_yield = on_yield
        self._bind(callee, call, instance, state, frame, inner)
        self.walk.entered.add(callee.module)
        after: list[State] = []
        for left in self._body(function, [state], inner):
            if left.status != "raise":
                left.results[frame, call] = instance if is_constructor and instance is not None else left.result
                left.status = ""
            left.forget_frame(inner)
            after.append(left)
        by_result: dict[object, list[State]] = {}
        for left in after:
            by_result.setdefault(essence(left.results.get((frame, call), NONE)), []).append(left)
        live = self.walk.live_around(call, frame)
        return [kept for states in by_result.values() for kept in self.walk.merged(states, frame, live)]

    def _body(self, function: ast.AST, states: list[State], frame: Frame) -> list[State]:
        if isinstance(function, ast.Lambda):
            states = self.bring_about(function.body, states, frame)
            for state in states:
                state.result = self.walk.evaluator.symbol(function.body, state, frame)
            return states
        assert isinstance(function, _FUNCTIONS)
        for state in states:
            state.result = NONE
        return self.walk.block(function.body, states, frame)

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
        return self.walk.evaluator.symbol(receiver, state, frame)

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
                state.variables[inner, name] = self.walk.evaluator.symbol(argument, state, frame)
            elif argument is None and not callee.open and (default := default_of(callee.function, name)) is not None:
                state.variables[inner, name] = self.walk.evaluator.static(callee.module, default)

    def constructed(self, instance: Symbol, cls: Definition, method: ast.AST, states: list[State]) -> list[State]:
        """The states once `instance` was constructed: what its attributes hold."""
        init = self.walk.project.method(cls, "__init__")
        if init is None or init.node is method or not isinstance(init.node, _FUNCTIONS):
            return states
        frame = Frame(init.module, init.node, cls)
        for state in states:
            state.variables[frame, parameters(init.node)[0].arg] = instance
        after = [state for state in self.walk.block(init.node.body, states, frame) if state.status != "raise"]
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
        targets = self.walk.project.attribute(cls, name) if isinstance(name, str) else ()
        return any(target.module.function(target.node) not in (init.node, None) for target in targets)
