"""Which variables a later test or event still reads: what the others hold does not tell two states apart.

A backward pass over the statements of each function, loops in two rounds. Only the reads that matter to the protocol
count (`Interest.telling`), and where it is unclear whether a variable is read again, it is taken to be.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from amplint.tree import Module

_Names = frozenset[str]
_NONE: _Names = frozenset()


@dataclass(frozen=True, slots=True)
class _Loop:
    """Where `continue` and `break` lead to."""

    head: _Names
    after: _Names


class Liveness:
    """The variables of one file that are read later, by statement."""

    def __init__(self, module: Module, telling: Iterable[ast.AST]) -> None:
        """`telling` are the expressions whose variables matter."""
        self._module = module
        self._reads: defaultdict[ast.AST, set[str]] = defaultdict(set)
        self._elsewhere: defaultdict[ast.AST, set[str]] = defaultdict(set)
        """By function (or the file): its variables that functions within it read, at whatever time."""
        self._before: dict[ast.AST, _Names] = {}
        self._after: dict[ast.AST, _Names] = {}
        self._exits: list[_Names] = []
        """What is read where exceptions in the statements around lead to."""
        self._loops: list[_Loop] = []
        self._done: set[ast.AST] = set()
        for expression in telling:
            self._read(expression)

    def after(self, statement: ast.stmt) -> _Names:
        """The variables that may be read once a statement is over, before they are assigned again."""
        return self._within(statement, self._after)

    def around(self, node: ast.AST) -> _Names:
        """The variables that may be read in or after the statement of a node."""
        statement = self._module.statement(node)
        return self._within(statement, self._before) | self._within(statement, self._after)

    # -- inside --------------------------------------------------------------------------------------------------

    def _read(self, expression: ast.AST) -> None:
        module = self._module
        for node in ast.walk(expression):
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
                continue
            here = module.function(node) or module.tree
            found = module.lookup(node.id, node)
            scope = found[0] if found else here
            if scope is here:
                self._reads[module.statement(node)].add(node.id)
            else:
                self._elsewhere[scope].add(node.id)

    def _within(self, statement: ast.stmt, known: dict[ast.AST, _Names]) -> _Names:
        function = self._module.function(statement) or self._module.tree
        if function not in self._done:
            self._done.add(function)
            self._exits, self._loops = [], []
            self._block(function.body, _NONE)
        return known.get(statement, _NONE) | self._elsewhere[function]

    def _block(self, statements: list[ast.stmt], after: _Names) -> _Names:
        """What is live before the statements, of which `after` is live behind them."""
        for statement in reversed(statements):
            after = self._statement(statement, after)
        return after

    def _statement(self, statement: ast.stmt, after: _Names) -> _Names:
        after = after.union(*self._exits)
        self._after[statement] = self._after.get(statement, _NONE) | after
        before = self._live_before(statement, after) | self._reads.get(statement, _NONE)
        self._before[statement] = self._before.get(statement, _NONE) | before
        return before

    def _live_before(self, statement: ast.stmt, after: _Names) -> _Names:
        match statement:
            case ast.If(body=body, orelse=orelse):
                return self._block(body, after) | self._block(orelse, after)
            case ast.For(target=target) | ast.AsyncFor(target=target):
                return self._loop(statement, after, frozenset(_assigned(target)))
            case ast.While():
                return self._loop(statement, after, _NONE)
            case ast.With(body=body) | ast.AsyncWith(body=body):
                return self._block(body, after)
            case ast.Match(cases=cases):
                return after.union(*(self._block(case.body, after) for case in cases))
            case ast.Break() if self._loops:
                return self._loops[-1].after
            case ast.Continue() if self._loops:
                return self._loops[-1].head
            case ast.Return() | ast.Raise():
                return _NONE.union(*self._exits)
            case ast.Assign(targets=targets):
                return after.difference(*map(_assigned, targets))
            case ast.AnnAssign(target=target, value=ast.expr()):
                return after.difference(_assigned(target))
        if isinstance(statement, ast.Try) or type(statement).__name__ == "TryStar":
            return self._try(statement, after)  # type: ignore[arg-type]
        return after

    def _loop(self, loop: ast.For | ast.AsyncFor | ast.While, after: _Names, targets: _Names) -> _Names:
        left = self._block(loop.orelse, after) | after
        head = left | self._reads.get(loop, _NONE)
        for _ in range(2):
            self._loops.append(_Loop(head, after))
            head |= self._block(loop.body, head) - targets
            self._loops.pop()
        return head

    def _try(self, statement: ast.Try, after: _Names) -> _Names:
        ended = self._block(statement.finalbody, after)
        if statement.finalbody:  # whatever leaves the statement, runs it
            self._exits.append(ended)
        handled = ended.union(*(self._block(handler.body, ended) for handler in statement.handlers))
        passed = self._block(statement.orelse, ended)
        self._exits.append(handled)
        before = self._block(statement.body, passed)
        self._exits.pop()
        if statement.finalbody:
            self._exits.pop()
        return before


def _assigned(target: ast.expr) -> Iterator[str]:
    """The variables that an assignment to `target` surely binds anew."""
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _assigned(element.value if isinstance(element, ast.Starred) else element)
