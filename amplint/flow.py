"""Reaching definitions on the `ast`: which assignments a use of a name can see.

Demand-driven and for one name at a time: one forward pass over the function follows that name alone, through
branches, loops (with their back edge), try, with and match. Each definition carries the tests under which it was
made, so that one made under `if flag:` does not reach a use under `if not flag:`.

Bounds: a pass is linear in the statements of the scope, each loop body being passed twice down to `_MAX_LOOP_DEPTH`
(deeper ones once, with all their definitions).
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from amplint.tree import Module

_MAX_LOOP_DEPTH = 3
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class How(enum.Enum):
    """How a definition gives its name a value."""

    ASSIGN = "is the value"
    ELEMENT = "is an element of the value"
    AUGMENTED = "is changed by an operator"
    IN_PLACE = "is changed by a call on it"
    ITEM = "has an item assigned"
    LOOP = "is an element of each turn of the value"
    WITH = "is what the context manager gives"
    PARAMETER = "is a parameter"
    IMPORT = "is imported"
    DEFINITION = "is a function or class"
    UNBOUND = "has no value yet in this function"
    UNKNOWN = "is not known"


@dataclass(frozen=True, slots=True)
class Reaching:
    """One definition. `value` is the expression it comes from; `path` the tuple positions down to it (-1: unknown)."""

    node: ast.AST
    how: How
    value: ast.expr | None = None
    path: tuple[int, ...] = ()


Fact: TypeAlias = tuple[str, str, bool]
"""A test that held (True) or did not: (expression, constant it is compared with or "", outcome)."""

Facts: TypeAlias = frozenset[Fact]
States: TypeAlias = dict[Reaching, Facts]
"""The definitions that arrive at a point, each with the tests that held on every way it came. Empty: not reachable."""


def definitions(module: Module, use: ast.Name) -> tuple[Reaching, ...]:
    """The definitions that can reach a load of a name; () for a builtin, a star import or an unbound name.

    A name of an outer scope can be any of its definitions there, since the code may run at any time.
    """
    found = module.lookup(use.id, use)
    if found is None:
        return ()
    scope, bound = found
    if isinstance(scope, _COMPREHENSIONS) or not _runs_in(module, use, scope):
        return tuple(dict.fromkeys(binding(module, node, use.id) for node in bound))
    reached = _passes(module).uses_of_name(scope, use.id).get(use)
    return () if reached is None else tuple(reaching for reaching in reached if reaching.how is not How.UNBOUND)


def attribute_definitions(module: Module, use: ast.Attribute) -> tuple[tuple[Reaching, ...], bool]:
    """The definitions of `name.attr` in the same function that can reach a load of it.

    The flag says whether the value can also come from outside, so that the class's other assignments count too.
    """
    if not isinstance(use.value, ast.Name):
        return (), True
    scope = module.scope(use)
    while isinstance(scope, _COMPREHENSIONS):
        scope = module.scope(scope)
    reached = _passes(module).uses_of_attribute(scope, use.value.id, use.attr).get(use)
    if reached is None:
        return (), True
    inside = tuple(reaching for reaching in reached if reaching.how is not How.UNBOUND)
    return inside, len(inside) < len(reached)


def binding(module: Module, node: ast.AST, name: str = "") -> Reaching:
    """What the node that binds a name (a stored Name or Attribute, an argument, an alias, a definition) gives it."""
    if isinstance(node, ast.arg):
        return Reaching(node, How.PARAMETER)
    if isinstance(node, ast.alias):
        return Reaching(node, How.IMPORT)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return Reaching(node, How.DEFINITION)
    path: list[int] = []
    child, parent = node, module.parent(node)
    while isinstance(parent, ast.Tuple | ast.List | ast.Starred):
        if isinstance(parent, ast.Starred):
            path.append(-1)
        else:
            position = next(i for i, element in enumerate(parent.elts) if element is child)
            starred = any(isinstance(element, ast.Starred) for element in parent.elts[:position])
            path.append(position - len(parent.elts) if starred else position)
        child, parent = parent, module.parent(parent)
    steps = tuple(reversed(path))
    if isinstance(parent, ast.Assign | ast.AnnAssign | ast.NamedExpr):
        if parent.value is None:
            return Reaching(node, How.UNKNOWN)
        return _assigned(node, parent.value, steps)
    if isinstance(parent, ast.AugAssign):
        return Reaching(node, How.AUGMENTED)
    if isinstance(parent, ast.For | ast.AsyncFor | ast.comprehension):
        return Reaching(node, How.LOOP, parent.iter, steps)
    if isinstance(parent, ast.withitem):
        return Reaching(node, How.WITH, parent.context_expr, steps)
    return Reaching(node, How.UNKNOWN)


def facts_at(module: Module, node: ast.AST) -> Facts:
    """The tests that hold at `node` because of the branches it stands in, within its function."""
    facts: set[Fact] = set()
    child: ast.AST = node
    for ancestor in module.ancestors(node):
        if isinstance(ancestor, (*_FUNCTIONS, ast.ClassDef)):
            break
        if isinstance(ancestor, ast.If | ast.While | ast.IfExp) and child is not ancestor.test:
            facts |= _facts(ancestor.test, _in_body(ancestor, child))
        child = ancestor
    return frozenset(facts)


def exclude_each_other(module: Module, a: ast.AST, b: ast.AST) -> bool:
    """Whether two places of one function cannot both run: they stand under opposite outcomes of an unchanged test."""
    scope = module.function(a)
    if scope is None or module.function(b) is not scope:
        return False
    passes = _passes(module)
    mine, others = (
        {f for f in facts_at(module, node) if all(passes.is_stable(scope, name) for name in _names_in(f[0]))}
        for node in (a, b)
    )
    return contradict(mine, others)


def branches_around(module: Module, node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    """(test, outcome) of each if, while and conditional expression around `node` in its function, innermost first."""
    child: ast.AST = node
    for ancestor in module.ancestors(node):
        if isinstance(ancestor, (*_FUNCTIONS, ast.ClassDef)):
            return
        if isinstance(ancestor, ast.If | ast.While | ast.IfExp) and child is not ancestor.test:
            yield ancestor.test, _in_body(ancestor, child)
        child = ancestor


def contradict(facts: Iterable[Fact], others: Iterable[Fact]) -> bool:
    """Whether the two sets of tests cannot hold together."""
    mine = set(facts)
    for expression, constant, outcome in others:
        if (expression, constant, not outcome) in mine:
            return True
        if constant and outcome and any(e == expression and c and c != constant and o for e, c, o in mine):
            return True
    return False


# -- passes ----------------------------------------------------------------------------------------------------


class _Passes:
    """The memo of one module: the passes done, and where each name occurs."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.memo: dict[tuple[ast.AST, str, str, int], dict[ast.AST, States]] = {}
        self.stable: dict[tuple[ast.AST, str], bool] = {}
        self.bound: dict[ast.AST, frozenset[str]] = {}
        self.facts: dict[tuple[ast.AST, ast.expr, bool], Facts] = {}

    def uses_of_name(self, scope: ast.AST, name: str) -> dict[ast.AST, States]:
        key = (scope, name, "", self._revision(scope))
        if key not in self.memo:
            nodes: list[ast.AST] = [
                node
                for node in self.module.named(name)
                if isinstance(node, ast.Name) and (found := self.module.lookup(name, node)) and found[0] is scope
            ]
            nodes += [node for node in self.module.bindings(scope, name) if not isinstance(node, ast.Name)]
            self.memo[key] = _Pass(self, scope, name, nodes).run()
        return self.memo[key]

    def uses_of_attribute(self, scope: ast.AST, name: str, attribute: str) -> dict[ast.AST, States]:
        key = (scope, name, attribute, self._revision(scope))
        if key not in self.memo:
            nodes = [n for n in self._attributes(name, attribute) if _runs_in(self.module, n, scope)]
            stored = any(isinstance(node.ctx, ast.Store) for node in nodes)
            self.memo[key] = _Pass(self, scope, name, list(nodes), attribute).run() if stored else {}
        return self.memo[key]

    def bound_in(self, loop: ast.AST) -> frozenset[str]:
        """The names that a loop binds."""
        if loop not in self.bound:
            stores = (n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
            self.bound[loop] = frozenset(stores)
        return self.bound[loop]

    def stable_facts(self, scope: ast.AST, test: ast.expr, outcome: bool) -> Facts:
        """What a test's outcome says of names that keep their value throughout `scope`."""
        key = (scope, test, outcome)
        if key not in self.facts:
            self.facts[key] = frozenset(
                fact for fact in _facts(test, outcome) if all(self.is_stable(scope, n) for n in _names_in(fact[0]))
            )
        return self.facts[key]

    def is_stable(self, scope: ast.AST, name: str) -> bool:
        """Whether `name` (or `self.x`) has one value throughout `scope`: bound at most once, and not in a loop."""
        key = (scope, name)
        if key not in self.stable:
            self.stable[key] = self._is_stable(scope, name)
        return self.stable[key]

    def _is_stable(self, scope: ast.AST, name: str) -> bool:
        root, _, attribute = name.partition(".")
        bound = self.module.bindings(scope, root)
        if len(bound) > 1 or any(_in_loop(self.module, node, scope) for node in bound):
            return False
        if not attribute:
            return True
        stores = [n for n in self._attributes(root, attribute) if isinstance(n.ctx, ast.Store)]
        return not any(_runs_in(self.module, node, scope) for node in stores)

    def _attributes(self, name: str, attribute: str) -> list[ast.Attribute]:
        """The places of `name.attribute`."""
        return [
            node
            for node in self.module.named(attribute)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
        ]

    def _revision(self, scope: ast.AST) -> int:
        """The names of a whole file may come to stand in more places; a function is parsed as a whole."""
        return self.module.revision if scope is self.module.tree else 0


def _passes(module: Module) -> _Passes:
    return module.keep(_Passes, lambda: _Passes(module))


class _Pass:
    """One name (or `name.attribute`) followed through one scope."""

    def __init__(
        self, passes: _Passes, scope: ast.AST, name: str, occurrences: list[ast.AST], attribute: str = ""
    ) -> None:
        self.passes = passes
        self.module = passes.module
        self.scope = scope
        self.name = name
        self.attribute = attribute
        self.uses: dict[ast.AST, States] = {}
        self.marked: dict[ast.AST, list[ast.AST]] = {}
        self.breaks: list[States] = []
        self.continues: list[States] = []
        self._mark(occurrences)

    def run(self) -> dict[ast.AST, States]:
        states: States = {Reaching(self.scope, How.UNBOUND): frozenset()}
        if isinstance(self.scope, (*_FUNCTIONS,)) and not self.attribute:
            arguments = [n for n in self.module.bindings(self.scope, self.name) if isinstance(n, ast.arg)]
            states = {binding(self.module, node): frozenset[Fact]() for node in arguments} or states
        if isinstance(self.scope, ast.Lambda):
            self._expression(self.scope.body, states)
        else:
            self._block(self.scope.body, states)  # type: ignore[attr-defined]
        return self.uses

    def _mark(self, occurrences: list[ast.AST]) -> None:
        """Note, for each statement of the scope, the occurrences that its own expressions hold."""
        for node in occurrences:
            current: ast.AST | None = node
            first = True
            while current is not None and current is not self.scope:
                if isinstance(current, ast.stmt | ast.ExceptHandler | ast.match_case):
                    held = self.marked.setdefault(current, [])
                    if first:
                        held.append(node)
                        first = False
                current = self.module.parent(current)
        for held in self.marked.values():
            held.sort(key=_evaluation_order(self.module))

    # -- statements --------------------------------------------------------------------------------------------

    def _block(self, statements: list[ast.stmt], states: States) -> States:
        for statement in statements:
            states = self._statement(statement, states)
        return states

    def _statement(self, node: ast.stmt, states: States) -> States:
        if isinstance(node, ast.If):
            return self._if(node, states)
        if isinstance(node, ast.Return | ast.Raise):
            self._own(node, states)
            return {}
        if isinstance(node, ast.Break | ast.Continue):
            targets = self.breaks if isinstance(node, ast.Break) else self.continues
            if targets:
                targets[-1].update(states)
            return {}
        if isinstance(node, ast.With | ast.AsyncWith):
            return self._block(node.body, self._own(node, states))
        if node not in self.marked:
            return states
        if isinstance(node, ast.For | ast.AsyncFor | ast.While):
            return self._loop(node, states)
        if isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            return self._try(node, states)  # type: ignore[arg-type]
        if isinstance(node, ast.Match):
            return self._match(node, states)
        return self._own(node, states)

    def _if(self, node: ast.If, states: States) -> States:
        states = self._own(node, states)
        then = self._block(node.body, self._assume(states, node.test, True))
        other = self._block(node.orelse, self._assume(states, node.test, False))
        return _join(then, other)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, states: States) -> States:
        entry = states
        if not isinstance(node, ast.While):
            entry = self._own(node, states, stores=False)
        deep = len(self.breaks) >= _MAX_LOOP_DEPTH
        head = _join(entry, self._all_stores(node)) if deep else entry
        end, left = self._turn(node, head)
        if not deep:
            head = _join(entry, self._forget(end, node))
            end, left = self._turn(node, head)
        after = _join(head, self._forget(end, node))
        if isinstance(node, ast.While):
            forever = isinstance(node.test, ast.Constant) and bool(node.test.value)
            after = {} if forever else self._assume(self._own(node, after), node.test, False)
        return _join(self._block(node.orelse, after), left)

    def _turn(self, node: ast.For | ast.AsyncFor | ast.While, states: States) -> tuple[States, States]:
        """The states at the end of one turn of the loop, and those that leave it by break."""
        self.breaks.append({})
        self.continues.append({})
        if isinstance(node, ast.While):
            states = self._assume(self._own(node, states), node.test, True)
        else:
            states = self._own(node, states, loads=False)
        end = _join(self._block(node.body, states), self.continues.pop())
        return end, self.breaks.pop()

    def _try(self, node: ast.Try, states: States) -> States:
        body = self._block(node.body, states)
        caught = _join(states, self._all_stores(*node.body), body)
        ends = [self._block(node.orelse, body)]
        for handler in node.handlers:
            ends.append(self._block(handler.body, self._own(handler, caught)))
        joined = _join(*ends)
        return self._block(node.finalbody, joined or caught) if node.finalbody else joined

    def _match(self, node: ast.Match, states: States) -> States:
        states = self._own(node, states)
        ends, complete = [], False
        for case in node.cases:
            ends.append(self._block(case.body, self._own(case, states)))
            complete = complete or (isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None)
        return _join(*ends) if complete else _join(states, *ends)

    # -- expressions -------------------------------------------------------------------------------------------

    def _own(self, node: ast.AST, states: States, *, loads: bool = True, stores: bool = True) -> States:
        """Record the loads of a statement's own expressions and apply its stores."""
        for occurrence in self.marked.get(node, ()):
            if self._is_store(occurrence):
                if stores:
                    states = self._store(occurrence, states)
            elif loads:
                self._use(occurrence, states)
                if stores and (changed := self._changed_in_place(occurrence)) is not None:
                    states = {changed: _common(states)} if states else {}
        return states

    def _expression(self, root: ast.AST, states: States) -> None:
        for node in ast.walk(root):
            if isinstance(node, ast.Name) and node.id == self.name:
                self._use(node, states)

    def _use(self, node: ast.AST, states: States) -> None:
        self.uses[node] = _join(self.uses.get(node, {}), states)

    def _is_store(self, node: ast.AST) -> bool:
        return not (isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load))

    def _store(self, node: ast.AST, states: States) -> States:
        if not states:
            return {}
        reaching = binding(self.module, node, self.name)
        if reaching.how is How.AUGMENTED:
            self._use(node, states)
        facts, value = _common(states), reaching.value
        if reaching.how is not How.ASSIGN or not isinstance(value, ast.IfExp):
            return {reaching: facts}
        arms = ((value.body, True), (value.orelse, False))
        return {
            Reaching(node, How.ASSIGN, arm): facts | self._stable_facts(value.test, outcome) for arm, outcome in arms
        }

    def _changed_in_place(self, node: ast.AST) -> Reaching | None:
        """The definition that `x.clamp_(0)` as a statement, or `x[i] = y`, makes of a load of x."""
        parent = self.module.parent(node)
        if isinstance(parent, ast.Subscript) and parent.value is node and isinstance(parent.ctx, ast.Store):
            return Reaching(parent, How.ITEM)
        if not (isinstance(parent, ast.Attribute) and parent.attr.endswith("_") and not parent.attr.endswith("__")):
            return None
        call = self.module.parent(parent)
        while isinstance(call, ast.Call | ast.Attribute):
            outer = self.module.parent(call)
            if isinstance(outer, ast.Expr) and isinstance(call, ast.Call):
                return Reaching(call, How.IN_PLACE, call)
            if not isinstance(outer, ast.Call | ast.Attribute):
                return None
            call = outer
        return None

    def _all_stores(self, *roots: ast.AST) -> States:
        """Every definition made inside `roots`, with no tests: what an exception or a deep loop may let through."""
        states: States = {}
        for root in roots:
            for statement, held in self.marked.items():
                if statement is root or any(ancestor is root for ancestor in self.module.ancestors(statement)):
                    for node in held:
                        if self._is_store(node):
                            states[binding(self.module, node, self.name)] = frozenset()
        return states

    # -- tests -------------------------------------------------------------------------------------------------

    def _assume(self, states: States, test: ast.expr, outcome: bool) -> States:
        """The states that agree with the outcome of a test, with that outcome noted."""
        if isinstance(test, ast.Constant):
            return states if bool(test.value) is outcome else {}
        facts = self._stable_facts(test, outcome)
        if not facts:
            return states
        return {reaching: held | facts for reaching, held in states.items() if not contradict(held, facts)}

    def _stable_facts(self, test: ast.expr, outcome: bool) -> Facts:
        return self.passes.stable_facts(self.scope, test, outcome)

    def _forget(self, states: States, loop: ast.AST) -> States:
        """Tests on names that the loop binds say nothing about its next turn."""
        if not any(states.values()):
            return states
        bound = self.passes.bound_in(loop)
        return {
            reaching: frozenset(f for f in facts if not bound & {n.partition(".")[0] for n in _names_in(f[0])})
            for reaching, facts in states.items()
        }


# -- tests as facts --------------------------------------------------------------------------------------------


def _facts(test: ast.expr, outcome: bool) -> Facts:
    """What the outcome of a test says, as facts on its atoms."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _facts(test.operand, not outcome)
    if isinstance(test, ast.BoolOp):
        if isinstance(test.op, ast.And) is outcome:
            return frozenset().union(*(_facts(value, outcome) for value in test.values))
        return frozenset()
    if isinstance(test, ast.NamedExpr):
        return frozenset()
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        operator, right = test.ops[0], test.comparators[0]
        if isinstance(operator, ast.Eq | ast.NotEq | ast.Is | ast.IsNot) and isinstance(right, ast.Constant):
            return _comparison(test.left, right, isinstance(operator, ast.Eq | ast.Is) is outcome)
    if _plain(test):
        text = ast.unparse(test)
        none: Facts = frozenset({(text, "None", False)}) if outcome else frozenset()
        return frozenset({(text, "", outcome)}) | none
    return frozenset()


def _comparison(left: ast.expr, right: ast.Constant, equal: bool) -> Facts:
    if not _plain(left):
        return frozenset()
    text, constant = ast.unparse(left), repr(right.value)
    if isinstance(right.value, bool):
        return frozenset({(text, "", right.value is equal)})
    falsy: Facts = frozenset({(text, "", False)}) if equal and right.value is None else frozenset()
    return frozenset({(text, constant, equal)}) | falsy


def _plain(test: ast.expr) -> bool:
    """Whether evaluating a test twice gives the same: names, attributes, constants, comparisons of them."""
    return all(
        isinstance(
            node,
            ast.Name | ast.Attribute | ast.Constant | ast.Compare | ast.cmpop | ast.expr_context | ast.BoolOp
            | ast.boolop | ast.UnaryOp | ast.unaryop | ast.Subscript | ast.Tuple | ast.List,
        )
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _PURE)
        for node in ast.walk(test)
    )  # fmt: skip


_PURE = ("isinstance", "hasattr", "callable", "len", "getattr")


@lru_cache(maxsize=4096)
def _names_in(expression: str) -> tuple[str, ...]:
    """The names, and attributes of names, that a fact's expression reads."""
    names: list[str] = []
    for node in ast.walk(ast.parse(expression, mode="eval")):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names.append(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.Name):
            names.append(node.id)
    return tuple(names)


# -- helpers ---------------------------------------------------------------------------------------------------


def _assigned(node: ast.AST, value: ast.expr, path: tuple[int, ...]) -> Reaching:
    """Follow a tuple target into a tuple display, as far as both are written out."""
    while path and isinstance(value, ast.Tuple | ast.List) and not any(isinstance(e, ast.Starred) for e in value.elts):
        if not -len(value.elts) <= path[0] < len(value.elts):
            break
        value, path = value.elts[path[0]], path[1:]
    return Reaching(node, How.ELEMENT if path else How.ASSIGN, value, path)


def _in_body(node: ast.If | ast.While | ast.IfExp, child: ast.AST) -> bool:
    if isinstance(node, ast.IfExp):
        return child is node.body
    return any(statement is child for statement in node.body)


def _runs_in(module: Module, node: ast.AST, scope: ast.AST) -> bool:
    """Whether code at `node` runs as part of `scope`'s own body (comprehensions do, nested functions do not)."""
    current: ast.AST = module.scope(node)
    while isinstance(current, _COMPREHENSIONS):
        current = module.scope(current)
    return current is scope


def _in_loop(module: Module, node: ast.AST, scope: ast.AST) -> bool:
    for ancestor in module.ancestors(node):
        if ancestor is scope:
            return False
        if isinstance(ancestor, ast.For | ast.AsyncFor | ast.While):
            return True
    return False


def _evaluation_order(module: Module) -> Callable[[ast.AST], tuple[int, int, int]]:
    """Loads come before the stores of their statement; walrus stores count where they stand."""

    def key(node: ast.AST) -> tuple[int, int, int]:
        parent = module.parent(node)
        walrus = isinstance(parent, ast.NamedExpr) and parent.target is node
        load = isinstance(getattr(node, "ctx", None), ast.Load)
        line, column = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
        if isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store) and parent.value is node:
            return (1, line, column)
        return (0 if load or walrus else 2, line, column)

    return key


def _join(*branches: States) -> States:
    """The union of the definitions; of the tests, those that held on every way."""
    joined: States = {}
    for states in branches:
        for reaching, facts in states.items():
            joined[reaching] = joined[reaching] & facts if reaching in joined else facts
    return joined


def _common(states: States) -> Facts:
    """The tests that hold at a point: those that all its definitions carry."""
    return frozenset.intersection(*states.values())
