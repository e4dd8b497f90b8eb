"""The parsed file: an `ast` tree with parents, scopes and the dotted names that its imports give.

The analyses run on `ast`, which the C parser makes six times faster than LibCST makes its tree, and which carries
every position. LibCST reads what `ast` cannot (`amplint.lower`) and rewrites what a fix touches (`amplint.concrete`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache, cached_property
from typing import TypeAlias

from amplint.source import Source

Spot: TypeAlias = tuple[int, int, int, int]
"""Where a node stands: its first line and column, its last line and column. It outlasts the tree."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Scope: TypeAlias = (
    ast.Module | Function | ast.Lambda | ast.ClassDef | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
)

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (ast.Module, *_FUNCTIONS, ast.Lambda, ast.ClassDef, *_COMPREHENSIONS)
_RECORDED = frozenset(
    [
        *(ast.Call, ast.Name, ast.arg, *_FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom),
        *(ast.Global, ast.Nonlocal),
        *(ast.ExceptHandler, ast.MatchAs, ast.MatchStar),
    ]
)
_NO_NODES = frozenset(
    "id attr ctx op ops arg module level kind conversion type_comment simple asname is_async kwd_attrs rest".split()
)
_ALIAS_DEPTH = 8


class Module:
    """One file's tree. Nodes are compared by identity; every query is answered from one walk."""

    def __init__(self, source: Source, tree: ast.Module) -> None:
        self.source = source
        self.tree = tree
        self.parents: dict[ast.AST, ast.AST] = {}
        self.calls: list[ast.Call] = []
        self.functions: list[Function] = []
        self.classes: list[ast.ClassDef] = []
        self.star_imports: list[str] = []
        self.kept: dict[type, object] = {}
        """What analyses of this file alone remember, by their class; it goes when the file goes."""
        self._bindings: dict[ast.AST, dict[str, list[ast.AST]]] = {tree: {}}
        self._import_targets: dict[tuple[ast.AST, str], str] = {}
        self._declared: dict[ast.AST, dict[str, ast.AST]] = {}
        self._scopes: dict[ast.AST, ast.AST] = {}
        self._walk()

    # -- structure ---------------------------------------------------------------------------------------------

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self.parents.get(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around `node`, innermost first, up to the module."""
        current = self.parents.get(node)
        while current is not None:
            yield current
            current = self.parents.get(current)

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that `node` is or belongs to."""
        current: ast.AST | None = node
        while current is not None and not isinstance(current, ast.stmt):
            current = self.parents.get(current)
        assert current is not None, "a node outside any statement"
        return current

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The list of statements that `statement` stands in."""
        parent = self.parents[statement]
        for field in ("body", "orelse", "finalbody"):
            block = getattr(parent, field, None)
            if isinstance(block, list) and any(item is statement for item in block):
                return block
        raise LookupError("a statement outside its parent's blocks")

    def function(self, node: ast.AST) -> Function | None:
        """The innermost function (not lambda) around `node`."""
        return next((a for a in self.ancestors(node) if isinstance(a, _FUNCTIONS)), None)

    def class_of(self, function: ast.AST) -> ast.ClassDef | None:
        """The class whose body holds `function` directly."""
        parent = self.parents.get(function)
        while isinstance(parent, ast.If | ast.Try | ast.With):
            parent = self.parents.get(parent)
        return parent if isinstance(parent, ast.ClassDef) else None

    def qualname(self, node: ast.AST) -> str:
        """`Trainer.step` for a definition, `<module>` for the module."""
        names = [n.name for n in (node, *self.ancestors(node)) if isinstance(n, (*_FUNCTIONS, ast.ClassDef))]
        return ".".join(reversed(names)) or "<module>"

    def at(self, spot: Spot) -> ast.AST:
        """The function, lambda, class or call that stands at a spot; the file at that of its tree. Raises KeyError."""
        return self._at[spot]

    # -- names -------------------------------------------------------------------------------------------------

    def scope(self, node: ast.AST) -> Scope:
        """The scope in which names at `node` are looked up."""
        if (known := self._scopes.get(node)) is not None:
            return known  # type: ignore[return-value]
        child = node
        for ancestor in self.ancestors(node):
            if isinstance(ancestor, _SCOPES) and not _outside(ancestor, child, self.parents):
                return ancestor
            child = ancestor
        return self.tree

    def bindings(self, scope: ast.AST, name: str) -> list[ast.AST]:
        """The nodes that bind `name` in `scope`: Name stores, arguments, definitions, import aliases, handlers."""
        return self._bindings.get(scope, {}).get(name, [])

    def lookup(self, name: str, at: ast.AST) -> tuple[Scope, list[ast.AST]] | None:
        """The scope that binds `name` as seen from `at`, with the binding nodes; None for a builtin or star name."""
        scope: Scope = self.scope(at)
        first = True
        while True:
            owner = self._declared.get(scope, {}).get(name)
            if owner is not None:
                return owner, self.bindings(owner, name)  # type: ignore[return-value]
            if (first or not isinstance(scope, ast.ClassDef)) and (found := self.bindings(scope, name)):
                return scope, found
            if isinstance(scope, ast.Module):
                return None
            first = False
            scope = self.scope(scope)

    def names(self, expression: ast.AST) -> tuple[str, ...]:
        """The dotted names that `expression` may stand for, through imports and plain aliases.

        `F.softmax` gives `torch.nn.functional.softmax`; a try/except import gives both of its targets; relative
        imports keep their leading dots; a name that is bound to something else gives nothing.
        """
        return tuple(dict.fromkeys(self._names(expression, _ALIAS_DEPTH)))

    def name(self, expression: ast.AST) -> str | None:
        """The one dotted name of `expression`; None if there is none or more than one."""
        names = self.names(expression)
        return names[0] if len(names) == 1 else None

    def is_named(self, expression: ast.AST, *dotted: str) -> bool:
        """Whether one of the names of `expression` is among `dotted`."""
        return any(name in dotted for name in self.names(expression))

    def import_target(self, alias: ast.AST, name: str) -> str | None:
        """The dotted target of an import alias that binds `name`."""
        return self._import_targets.get((alias, name))

    def imports(self, *roots: str) -> bool:
        """Whether the file imports one of these top-level packages, or something of it."""
        return any(target.partition(".")[0] in roots for target in self._import_targets.values())

    def bound_as(self, dotted: str, at: ast.AST) -> str | None:
        """How the user can write `dotted` at `at` with the bindings there are: `F.softmax`, `th.log`, `softmax`."""
        for candidate in self._spellings(dotted):
            root = candidate.split(".", 1)[0]
            found = self.lookup(root, at)
            if found and all(self.import_target(b, root) is not None for b in found[1]):
                return candidate
        return None

    # -- inside ------------------------------------------------------------------------------------------------

    def _names(self, expression: ast.AST, depth: int) -> Iterator[str]:
        if isinstance(expression, ast.Attribute):
            attributes = []
            while isinstance(expression, ast.Attribute):  # no recursion: a chain can be thousands long
                attributes.append(expression.attr)
                expression = expression.value
            dotted = ".".join(reversed(attributes))
            for base in self._names(expression, depth):
                yield f"{base}.{dotted}"
            return
        if not isinstance(expression, ast.Name) or depth == 0:
            return
        found = self.lookup(expression.id, expression)
        if found is None:
            for star in self.star_imports:
                yield f"{star}.{expression.id}"
            return
        _, bound = found
        targets = [self.import_target(node, expression.id) for node in bound]
        if all(targets):
            yield from (target for target in targets if target)
        elif len(bound) == 1 and (alias := self._aliased(bound[0])) is not None:
            yield from self._names(alias, depth - 1)

    def _aliased(self, binding: ast.AST) -> ast.expr | None:
        """The dotted expression that a plain `name = a.b.c` gives its name."""
        parent = self.parents.get(binding)
        if isinstance(parent, ast.Assign) and binding in parent.targets:
            value: ast.expr | None = parent.value
        elif isinstance(parent, ast.AnnAssign) and parent.target is binding:
            value = parent.value
        else:
            return None
        return value if isinstance(value, ast.Attribute | ast.Name) else None

    @cached_property
    def _at(self) -> dict[Spot, ast.AST]:
        callables = (node for node in self._bindings if not isinstance(node, _COMPREHENSIONS))
        return {spot(node): node for node in (*callables, *self.calls)}

    @cached_property
    def _imported(self) -> list[tuple[str, str]]:
        """(dotted target, local name) of every import, longest target first."""
        pairs = {(target, name) for (_, name), target in self._import_targets.items()}
        return sorted(pairs, key=lambda pair: (-len(pair[0]), pair))

    def _spellings(self, dotted: str) -> Iterator[str]:
        for target, name in self._imported:
            if dotted == target:
                yield name
            elif dotted.startswith(f"{target}."):
                yield f"{name}{dotted[len(target) :]}"

    def _walk(self) -> None:
        """Go over all nodes, parents first, in the order of the text."""
        parents = self.parents
        stack: list[tuple[ast.AST, ast.AST]] = [(self.tree, self.tree)]
        while stack:
            node, scope = stack.pop()
            kind = type(node)
            if kind in _RECORDED:
                self._record(node, scope)
            if kind in _SCOPES:
                self._bindings.setdefault(node, {})
                found = [(child, scope if outside else node) for child, outside in _children_of_scope(node)]
            else:
                found = [(child, scope) for child in _children(node)]
            for child, _ in found:
                parents[child] = node
            found.reverse()
            stack += found

    def _record(self, node: ast.AST, scope: ast.AST) -> None:
        match node:
            case ast.Call():
                self.calls.append(node)
            case ast.Name():
                self._scopes[node] = scope
                if not isinstance(node.ctx, ast.Load):
                    self._bind(self._store_scope(node, scope), node.id, node)
            case ast.arg():
                self._bind(scope, node.arg, node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.functions.append(node)
                self._bind(scope, node.name, node)
            case ast.ClassDef():
                self.classes.append(node)
                self._bind(scope, node.name, node)
            case ast.Import() | ast.ImportFrom():
                self._record_import(node, scope)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                self._bind(scope, name, node)
            case ast.Global():
                self._declared.setdefault(scope, {}).update(dict.fromkeys(node.names, self.tree))
            case ast.Nonlocal():
                self._declared.setdefault(scope, {}).update((name, self._outer(name, scope)) for name in node.names)

    def _outer(self, name: str, scope: ast.AST) -> ast.AST:
        """The function around `scope` that binds `name`; the innermost one, where none has done so yet."""
        outer = [self._declared.get(a, {}).get(name, a) for a in self.ancestors(scope) if isinstance(a, _FUNCTIONS)]
        return next((a for a in outer if self.bindings(a, name)), outer[0] if outer else self.tree)

    def _store_scope(self, node: ast.Name, scope: ast.AST) -> ast.AST:
        if name_owner := self._declared.get(scope, {}).get(node.id):
            return name_owner
        if isinstance(self.parents.get(node), ast.NamedExpr):
            while isinstance(scope, _COMPREHENSIONS):
                scope = self.scope(scope)
        return scope

    def _bind(self, scope: ast.AST, name: str, node: ast.AST) -> None:
        self._bindings.setdefault(scope, {}).setdefault(name, []).append(node)

    def _record_import(self, node: ast.Import | ast.ImportFrom, scope: ast.AST) -> None:
        base = "." * node.level + (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            if alias.name == "*":
                self.star_imports.append(base)
                continue
            if isinstance(node, ast.ImportFrom):
                local = alias.asname or alias.name
                target = f"{base}{alias.name}" if base.endswith(".") or not base else f"{base}.{alias.name}"
            else:
                local = alias.asname or alias.name.split(".", 1)[0]
                target = alias.name if alias.asname else local
            self._import_targets[alias, local] = target
            self._bind(scope, local, alias)


def parse(source: Source) -> Module:
    """The tree of `source`. Raises SyntaxError, with its line, where no Python of any version reads it."""
    try:
        tree = ast.parse(source.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        from amplint.lower import parse_with_libcst

        tree = parse_with_libcst(source.text)
    return Module(source, tree)


def spot(node: ast.AST) -> Spot:
    """Where a node stands; zeros for a whole file, and for what stands in no text."""
    start = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
    end = getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0)
    return (*start, *end)


def _children(node: ast.AST) -> list[ast.AST]:
    """The nodes right below, without contexts and operators."""
    found: list[ast.AST] = []
    for field in _fields(type(node)):  # type: ignore[arg-type]  # a class is hashable whatever its instances are
        value = getattr(node, field, None)
        if isinstance(value, list):
            found += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def _children_of_scope(node: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """The nodes right below one that opens a scope, each with whether it is evaluated in the scope around."""
    for field in _fields(type(node)):  # type: ignore[arg-type]  # a class is hashable whatever its instances are
        value = getattr(node, field, None)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, ast.AST):
                yield item, _evaluated_outside(node, field)


@cache
def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    """The fields of a kind of node that may hold located nodes."""
    return () if kind is ast.Constant else tuple(field for field in kind._fields if field not in _NO_NODES)


def _evaluated_outside(node: ast.AST, field: str) -> bool:
    """Whether `field` of a scope node is evaluated in the scope around it (decorators, defaults, bases)."""
    if isinstance(node, _FUNCTIONS):
        return field in ("decorator_list", "returns")
    return isinstance(node, ast.ClassDef) and field in ("bases", "keywords", "decorator_list")


def _outside(scope: ast.AST, child: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    if isinstance(scope, _FUNCTIONS):
        return child in scope.decorator_list or child is scope.returns
    if isinstance(scope, ast.ClassDef):
        return child in scope.bases or child in scope.keywords or child in scope.decorator_list
    return False
