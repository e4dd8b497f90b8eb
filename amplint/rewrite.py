"""The fix that puts one expression in the place of another, built from parts of the program.

A part may come from an earlier statement (`p = x.sigmoid()` far above `log(p)`): it moves only if nothing between the
two changes what it reads, and the local that it leaves without a reader goes.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator

from amplint.context import Context
from amplint.edit import (
    Precedence,
    add_import,
    insert_before,
    is_effect_free,
    layout,
    remove_statements,
    replace,
    segment,
    unused_after,
)
from amplint.flow import How, definitions
from amplint.rule import Edit, Fix, Safety
from amplint.tree import Module

_MAX_LOCALS = 3
"""A part is looked for through so many locals."""

_ACTIVATIONS = ("softmax", "log_softmax", "sigmoid", "logsigmoid", "tanh", "softplus", "relu")


class UnmovableError(Exception):
    """A part cannot be written elsewhere: it stands in another function, or what it reads may change in between."""


def first_possible(*attempts: Callable[[], Fix]) -> Fix | None:
    """The first fix that can be made; None if all attempts raise UnmovableError."""
    for attempt in attempts:
        with contextlib.suppress(UnmovableError):
            return attempt()
    return None


class Rewrite:
    """Collects a fix: what is replaced at `at`, by which parts of the program, with which imports.

    `local`: the name of a new local for a part with calls that must not be made twice; "" for none.
    """

    def __init__(self, context: Context, at: ast.expr, *, local: str = "") -> None:
        self.context = context
        self.module = context.module
        self.at = at
        self.local = local
        self._replaced: list[tuple[ast.expr, str]] = []
        self._kept: list[ast.expr] = []
        self._edits: list[Edit] = []
        self._split: list[ast.stmt] = []

    def text(self, node: ast.expr | None, least: Precedence = Precedence.LAMBDA) -> str:
        """The text of `node` as it can be written at the anchor. Raises UnmovableError; also where there is no node."""
        if node is None or not _is_within_reach(self.module, node, self.at):
            raise UnmovableError("unknown" if node is None else ast.unparse(node))
        if self.local and not _is_within(self.module, node, self.at) and not is_effect_free(self.module, node):
            return self._made_local(node)
        self._kept.append(node)
        if least <= Precedence.LAMBDA and isinstance(node, ast.BinOp | ast.UnaryOp | ast.Call | ast.Name):
            return self.module.source.segment(node)  # an argument, which may run over lines as it is
        return segment(self.module, node, least)

    def keyword(self, name: str, node: ast.expr | None) -> str:
        """`name=…` with the text of `node`; nothing if there is no such argument."""
        return "" if node is None else f"{name}={self.text(node)}"

    def name(self, dotted: str) -> str:
        """How `dotted` is written at the anchor; the fix imports it if it must."""
        spelling, edits = add_import(self.module, dotted, self.at)
        self.also(*edits)
        return spelling

    def call(self, dotted: str, *arguments: str) -> str:
        """A call of `dotted` with the arguments that are not empty."""
        return f"{self.name(dotted)}({', '.join(argument for argument in arguments if argument)})"

    def replace(self, node: ast.expr, text: str) -> None:
        """Put `text` in the place of `node`. Raises UnmovableError for what changes a tensor in place."""
        if isinstance(getattr(node, "ctx", None), ast.Store) or _changed_in_place(node) is not None:
            raise UnmovableError("in place")
        self._replaced.append((node, text))

    def also(self, *edits: Edit) -> None:
        """Further edits that belong to the fix."""
        self._edits += [edit for edit in edits if edit not in self._edits]

    def rename_called(self, call: ast.Call, name: str) -> None:
        """Call another function of the same module (`F.old(…)` to `F.new(…)`); `name` is the new dotted name."""
        if isinstance(call.func, ast.Attribute):
            prefix = self.module.source.segment(call.func.value)
            self.also(replace(self.module, call.func, f"{prefix}.{name.rpartition('.')[2]}"))
        else:
            self.also(replace(self.module, call.func, self.name(name)))

    def put(self, text: str, core: ast.expr, expression: ast.expr) -> bool:
        """Where `expression` reads `core`, directly or through locals, let it read `text`.

        Returns whether it is direct. Raises UnmovableError if it is neither.
        """
        if core is expression or _is_within(self.module, core, expression):
            self.replace(core, text)
            return True
        found = False
        for name in list(_loads(expression)):
            value = self._assigned(name)
            inner = None if value is None else self._reading(value, core, text)
            if inner is not None:
                self.replace(name, inner)
                found = True
        if not found:
            raise UnmovableError(ast.unparse(core))
        return False

    def through(self, node: ast.expr, below: ast.expr, text: str) -> str:
        """The text of `node` at the anchor, with `text` in the place of `below`, which it reads once, maybe as a local.

        Raises UnmovableError if `node` cannot be written at the anchor, or reads `below` more often or not at all.
        """
        if not is_movable(self.module, node, self.at):
            raise UnmovableError(ast.unparse(node))
        if _is_within(self.module, below, node):
            return self._substituted(node, below, text)
        names = [name for name in _loads(node) if self._assigned(name) is below]
        if len(names) != 1:
            raise UnmovableError(ast.unparse(below))
        return self._substituted(node, names[0], text)

    def fix(self, message: str, safety: Safety) -> Fix:
        """The fix. Raises UnmovableError if a comment would be lost, a call made twice, or a part may have changed."""
        if self._loses_comment() or self._loses_effect():
            raise UnmovableError("a comment, or a change in place, stands between the parts")
        removed = self.unused()
        if any(statement in removed for statement in self._split):
            raise UnmovableError("a local is made of what goes")
        if any(_may_change(self.module, node, self.at, removed) for node in self._kept):
            raise UnmovableError("what a part reads may change")
        calls = [node for node in self._kept if not is_effect_free(self.module, node)]
        if len(calls) > len(set(calls)) or not all(self._goes(node, removed) for node in calls):
            raise UnmovableError("a call would be made twice")
        edits = [
            replace(self.module, node, text, parentheses=self._sheds_parentheses(node)) for node, text in self._replaced
        ]
        return Fix(message, safety, tuple(sorted([*edits, *self._edits, *remove_statements(self.module, removed)])))

    def unused(self) -> list[ast.stmt]:
        """The locals that go because nothing reads them any more."""
        return unused_after(self.module, self._roots(), self._kept, is_pure=self._has_no_other_effect)

    def _roots(self) -> list[ast.expr]:
        return [node for node, _ in self._replaced]

    def _made_local(self, node: ast.expr) -> str:
        """The name of a new local that holds `node`, bound before the statement that holds it now."""
        statement, text = self.module.statement(node), self.module.source.segment(node)
        is_taken = self.module.lookup(self.local, self.at) is not None
        if is_taken or not isinstance(statement, ast.Assign) or len(text.splitlines()) > 1:
            raise UnmovableError("no place for a local")
        self._split.append(statement)
        self.also(*insert_before(self.module, statement, [f"{self.local} = {text}"]))
        self.also(replace(self.module, node, self.local))
        return self.local

    def _has_no_other_effect(self, module: Module, value: ast.expr) -> bool:
        """Whether all effects of `value` come from parts of it that the new text repeats."""
        return is_effect_free(module, value, self._kept, self._is_activation)

    def _is_activation(self, call: ast.Call) -> bool:
        """Whether a call is one of a torch.nn module without state: `self.softmax(x)`."""
        values = self.context.values.of(self.module, call)
        return all(value.op in _ACTIVATIONS and value.module is self.module for value in values)

    def _goes(self, node: ast.expr, removed: list[ast.stmt]) -> bool:
        """Whether the place that `node` stands in now is replaced or removed."""
        gone = [*self._roots(), *removed]
        return any(a is g for a in (node, *self.module.ancestors(node)) for g in gone)

    def _assigned(self, name: ast.Name) -> ast.expr | None:
        """The value of the one assignment that `name` reads, if it can be written at the anchor."""
        reaching = definitions(self.module, name)
        value = reaching[0].value if len(reaching) == 1 and reaching[0].how is How.ASSIGN else None
        return value if value is not None and _is_within_reach(self.module, value, self.at) else None

    def _reading(self, value: ast.expr, core: ast.expr, text: str, depth: int = _MAX_LOCALS) -> str | None:
        """The text of `value` with `text` where it reads `core`, directly or through one local after another."""
        if core is value or _is_within(self.module, core, value):
            return self._substituted(value, core, text)
        for name in _loads(value) if depth else ():
            assigned = self._assigned(name)
            inner = None if assigned is None else self._reading(assigned, core, text, depth - 1)
            if inner is not None:
                return self._substituted(value, name, inner)
        return None

    def _substituted(self, value: ast.expr, core: ast.expr, text: str) -> str:
        """The text of `value` with `text` in the place of `core`."""
        self._kept += _apart_from(self.module, core, value)
        if core is value:
            return text
        start, _ = self.module.source.span(value)
        edit = replace(self.module, core, text)
        own = self.module.source.segment(value)
        return f"{own[: edit.start - start]}{edit.text}{own[edit.end - start :]}"

    def _sheds_parentheses(self, node: ast.expr) -> bool:
        """Whether the parentheses around an operation go with it: those on its own line, not those that lay it out."""
        place = layout(self.module)
        start, end = place.span(node, parentheses=True)
        return not isinstance(node, ast.Call | ast.Name) and not set("\r\n") & set(place.text[start:end])

    def _loses_effect(self) -> bool:
        """Whether something that is replaced changes a tensor in place."""
        nodes = (node for root in self._roots() for node in _walk_apart_from(root, self._kept))
        return any(_changed_in_place(node) is not None for node in nodes)

    def _loses_comment(self) -> bool:
        place = layout(self.module)
        kept = [place.span(node) for node in self._kept]
        spans = [place.span(node) for node in self._roots()]
        offsets = (offset for start, end in spans for offset in range(start, end) if place.text[offset] == "#")
        return any(
            place.mask[offset] == " " and not any(low <= offset < high for low, high in kept) for offset in offsets
        )


def _walk_apart_from(root: ast.AST, parts: list[ast.expr]) -> Iterator[ast.AST]:
    """The nodes of `root` that belong to none of `parts`."""
    stack = [root]
    while stack:
        node = stack.pop()
        if not any(node is part for part in parts):
            yield node
            stack += ast.iter_child_nodes(node)


def _loads(expression: ast.expr) -> Iterator[ast.Name]:
    for node in ast.walk(expression):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node


def _apart_from(module: Module, core: ast.expr, root: ast.expr) -> list[ast.expr]:
    """The largest parts of `root` that neither hold `core` nor belong to it."""
    path: list[ast.AST] = [core]
    while path[-1] is not root:
        path.append(module.parents[path[-1]])
    return [
        child
        for node in path[1:]
        for child in ast.iter_child_nodes(node)
        if isinstance(child, ast.expr) and not any(child is step for step in path)
    ]


def is_movable(module: Module, node: ast.expr, at: ast.expr) -> bool:
    """Whether `node`, evaluated at `at`, is certainly what it is in its own place."""
    return _is_within_reach(module, node, at) and not _may_change(module, node, at, [])


def _is_within_reach(module: Module, node: ast.expr, at: ast.expr) -> bool:
    """Whether `node` is part of `at`, or stands before it in the same function and sees the same variables."""
    if node is at or _is_within(module, node, at):
        return True
    if module.parents.get(node) is None or module.function(node) is not module.function(at):
        return False
    if not _precedes(node, at) or any(isinstance(n, ast.NamedExpr | ast.Await | ast.Yield) for n in ast.walk(node)):
        return False
    return all(_is_same_variable(module, name, at) for name in ast.walk(node) if isinstance(name, ast.Name))


def _is_same_variable(module: Module, name: ast.Name, at: ast.expr) -> bool:
    here, there = module.lookup(name.id, name), module.lookup(name.id, at)
    return here is there if here is None or there is None else here[0] is there[0]


def _may_change(module: Module, node: ast.expr, at: ast.expr, removed: list[ast.stmt]) -> bool:
    """Whether what `node` reads can change before `at`, by other statements than those `removed`."""
    if node is at or _is_within(module, node, at):
        return False
    body = module.function(at) or module.tree
    return any(
        _lies_between(module, change, node, at)
        for read in _reads(node)
        for change in _changes(body, ast.unparse(read))
        if not any(_is_within(module, change, statement) for statement in removed)
    )


def _reads(node: ast.expr) -> Iterator[ast.Name | ast.Attribute]:
    """The names and attribute chains that an expression reads: `x`, `self.scale`."""
    for child in ast.walk(node):
        if isinstance(child, ast.Name) or (isinstance(child, ast.Attribute) and _root(child) is not None):
            yield child


def _root(node: ast.expr) -> ast.Name | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def _changes(body: ast.AST, text: str) -> Iterator[ast.expr]:
    """The places in `body` that bind, assign or change in place the name or attribute chain `text`."""
    last = text.rpartition(".")[2]
    for node in ast.walk(body):
        if (isinstance(node, ast.Name) and node.id == last) or (isinstance(node, ast.Attribute) and node.attr == last):
            if not isinstance(node.ctx, ast.Load) and ast.unparse(node) == text:
                yield node
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            if _target(node) == text:
                yield node
        elif isinstance(node, ast.Call) and _changed_in_place(node) == text:
            yield node


def _target(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    return ast.unparse(node)


def _changed_in_place(node: ast.AST) -> str | None:
    """What a call such as `x.clamp_(0)` changes; None for anything else."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    method = node.func.attr
    return ast.unparse(node.func.value) if method.endswith("_") and not method.endswith("__") else None


def _lies_between(module: Module, change: ast.expr, start: ast.expr, end: ast.expr) -> bool:
    """Whether `change` can take effect after `start` was evaluated and before `end` is."""
    if module.statement(change) is module.statement(start) or (_precedes(start, change) and _precedes(change, end)):
        return True
    loops = [a for a in module.ancestors(change) if isinstance(a, ast.For | ast.AsyncFor | ast.While)]
    return any(_is_within(module, end, loop) and not _is_within(module, start, loop) for loop in loops)


def _is_within(module: Module, node: ast.AST, ancestor: ast.AST) -> bool:
    return any(a is ancestor for a in module.ancestors(node))


def _precedes(first: ast.expr, second: ast.expr) -> bool:
    return (first.lineno, first.col_offset) < (second.lineno, second.col_offset)
