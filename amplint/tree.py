"""The parsed file: an `ast` tree with parents, scopes and the dotted names that its imports give.

The analyses run on `ast`, which the C parser makes six times faster than LibCST makes its tree, and which carries
every position. LibCST reads what `ast` cannot (`amplint.lower`) and rewrites what a fix touches (`amplint.concrete`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cached_property
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from amplint.index import imported_names
from amplint.nodes import children, compact, compact_children, compact_kind, fields
from amplint.sections import Section, divide, only, without
from amplint.source import Source

T = TypeVar("T")

Spot: TypeAlias = tuple[int, int, int, int]
"""Where a node stands: its first line and column, its last line and column. It outlasts the tree."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Scope: TypeAlias = (
    ast.Module | Function | ast.Lambda | ast.ClassDef | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
)

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (ast.Module, *_FUNCTIONS, ast.Lambda, ast.ClassDef, *_COMPREHENSIONS)
_SCOPE_KINDS = frozenset(map(compact_kind, _SCOPES))
_BINDING = (ast.Name, ast.arg, ast.Import, ast.ImportFrom, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
_RECORDED = frozenset(map(compact_kind, (ast.Call, *_FUNCTIONS, ast.ClassDef, *_BINDING, ast.Global, ast.Nonlocal)))
_ALIAS_DEPTH = 8


class Module:
    """One file's tree. Nodes are compared by identity.

    `sections` are definitions that the tree still lacks: each is parsed when a question needs it. `parents` holds what
    has been parsed; whoever wants all of a file asks for `nodes`, `calls`, `functions` or `classes`.
    """

    def __init__(self, source: Source, tree: ast.Module, sections: Iterable[Section] = ()) -> None:
        self.source = source
        self.tree = tree
        self.parents: dict[ast.AST, ast.AST] = {}
        self.star_imports: list[str] = []
        self.kept: dict[Hashable, Any] = {}
        """What analyses of this file alone remember (`keep`)."""
        self.revision = 0
        """It grows when more of the file is parsed: what was worked out from all that was there holds no longer."""
        self._unread: dict[str, list[Section]] = {}
        self._left = 0
        for section in sections:
            self._left += section.end - section.start
            self._unread.setdefault(section.name, []).append(section)
        self._is_broken = False
        self._parts: list[_Part] = []
        self._calls: list[ast.Call] = []
        self._functions: list[Function] = []
        self._classes: list[ast.ClassDef] = []
        self._bindings: dict[ast.AST, dict[str, list[ast.AST]]] = {tree: {}}
        self._import_targets: dict[tuple[ast.AST, str], str] = {}
        self._declared: dict[ast.AST, dict[str, ast.AST]] = {}
        self._scopes: dict[ast.AST, ast.AST] = {}
        self._spots: tuple[int, dict[Spot, ast.AST]] = (0, {})
        self._walk(tree)

    # -- what is parsed ----------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Iterable[ast.AST]:
        """All nodes but the tree, parents first."""
        self.read_all()
        return self.parents

    @property
    def calls(self) -> list[ast.Call]:
        """All calls, in the order of the text."""
        self.read_all()
        return self._calls

    @property
    def functions(self) -> list[Function]:
        """All functions and methods, in the order of the text."""
        self.read_all()
        return self._functions

    @property
    def classes(self) -> list[ast.ClassDef]:
        """All classes, in the order of the text."""
        self.read_all()
        return self._classes

    def keep(self, key: Hashable, make: Callable[[], T]) -> T:
        """`make()`, made once per key and kept as long as the file is held; it may refer to the file."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]  # type: ignore[no-any-return]

    @property
    def size(self) -> int:
        """The characters that are parsed."""
        return len(self.source.text) - self._left

    def read_all(self) -> bool:
        """Parse what was not parsed so far. False if something in the file is no Python."""
        if not self._unread:
            return not self._is_broken
        self._insert(self._parsed([*self._sections()]))
        self._unread, self._left = {}, 0
        for known in (self.parents, self._import_targets, self._declared, self._scopes, self._bindings):
            known.clear()
        for listed in (self._parts, self._calls, self._functions, self._classes, self.star_imports):
            listed.clear()
        self._bindings[self.tree] = {}
        self._walk(self.tree)
        return not self._is_broken

    def named(self, name: str) -> list[ast.Name | ast.Attribute]:
        """The variables and attributes of this (last) name that are read or bound in what is parsed, as they stand."""
        return sorted((node for part in self._parts for node in part.named(self.parents).get(name, ())), key=spot)

    def calls_of(self, *names: str) -> list[ast.Call]:
        """The calls of what has one of these (last) names."""
        for name in names:
            self._read_where(name, _is_called)
        found = ((node, self.parents.get(node)) for name in names for node in self.named(name))
        return [call for func, call in found if isinstance(call, ast.Call) and call.func is func]

    def handed_on(self, name: str) -> list[ast.Name | ast.Attribute]:
        """The places that read what has this (last) name, but do not call it."""
        self._read_where(name, _is_handed_on)
        found = (node for node in self.named(name) if isinstance(node.ctx, ast.Load))
        return [node for node in found if getattr(self.parents.get(node), "func", None) is not node]

    def calls_within(self, function: ast.AST) -> Iterator[ast.Call]:
        """The calls that a function makes itself, or a file; those in its lambdas too, those of inner functions not."""
        if function is self.tree:
            self.read_all()
        stack = [*reversed(children(function))]
        while stack:
            node = stack.pop()
            if isinstance(node, ast.Call):
                yield node
            if not isinstance(node, _FUNCTIONS):
                stack += reversed(children(node))

    def classes_mentioning(self, name: str) -> list[ast.ClassDef]:
        """The classes parsed once those that mention a name are; all, where the file has another name for it."""
        if re.search(rf"\b{name} +as\b", self.source.text):
            return self.classes
        self._read_where(name, lambda text, start, end: True)
        return sorted(self._classes, key=spot)

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

    def at(self, spot: Spot) -> ast.AST | None:
        """The function, lambda, class or call that stands at a spot; the file at that of its tree."""
        if self._unread:
            self._read([section for section in self._sections() if section.holds(spot[0])])
        return self._at.get(spot)

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
        if scope is self.tree and name in self._unread:
            self._read(self._unread[name])
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
        return any(dotted.partition(".")[0] in roots for dotted in imported_names(self.source.text))

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

    @property
    def _at(self) -> dict[Spot, ast.AST]:
        revision, known = self._spots
        if revision != self.revision:
            callables = (node for node in self._bindings if not isinstance(node, _COMPREHENSIONS))
            known = {spot(node): node for node in (*callables, *self._calls)}
            self._spots = self.revision, known
        return known

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

    def _read(self, sections: list[Section]) -> None:
        """Parse some sections."""
        for node in self._insert(self._parsed(sections)) if sections else ():
            self.parents[node] = self.tree
            self._walk(node)
        for section in sections:
            self._left -= section.end - section.start
            left = [other for other in self._unread.pop(section.name, ()) if other not in sections]
            if left:
                self._unread[section.name] = left
            self._bindings[self.tree].get(section.name, []).sort(key=lambda node: getattr(node, "lineno", 0))

    def _read_where(self, word: str, stands: Callable[[str, int, int], bool]) -> None:
        """Parse the sections in which a word stands so; the test is given the text, and where the word is in it."""
        text, found = self.source.text, []
        for section in self._sections() if self._unread and word in text else ():
            at = text.find(word, section.start, section.end)
            while at >= 0 and not stands(text, at, at + len(word)):
                at = text.find(word, at + 1, section.end)
            if at >= 0:
                found.append(section)
        self._read(found)

    def _sections(self) -> Iterator[Section]:
        """What is not parsed yet, in the order of the text."""
        return iter(sorted((s for named in self._unread.values() for s in named), key=lambda s: s.start))

    def _parsed(self, sections: list[Section]) -> list[ast.stmt]:
        """The trees of sections. Where they are no Python by themselves, those that the whole text gives there."""
        text = self.source.text
        try:
            found = ast.parse(only(text, sections)).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            found = []
        if [getattr(node, "name", "") for node in found] == [section.name for section in sections]:
            return found
        try:
            whole = parse_whole(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self._is_broken = True
            return [node for section in sections for node in _parsed_alone(text, section)]
        return [node for node in whole.body if any(section.holds(node.lineno) for section in sections)]

    def _insert(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Put statements where they stand in the tree."""
        statements = [compact(statement) for statement in statements]
        self.tree.body = sorted([*self.tree.body, *statements], key=lambda node: node.lineno)
        return statements

    def _walk(self, root: ast.AST) -> None:
        """Go over a node, or the whole tree, and all below, parents first, in the order of the text."""
        parents = self.parents
        part = _Part(len(parents) - (root is not self.tree))
        stack: list[tuple[ast.AST, ast.AST]] = [(root, self.tree)]
        while stack:
            node, scope = stack.pop()
            kind = type(node)
            below = compact_children(node)
            if kind in _RECORDED:
                self._record(node, scope)
            if kind in _SCOPE_KINDS:
                self._bindings.setdefault(node, {})
                found = [(child, scope if outside else node) for child, outside in _children_of_scope(node)]
            else:
                found = [(child, scope) for child in below]
            for child in below:
                parents[child] = node
            found.reverse()
            stack += found
        part.end = len(parents)
        self._parts.append(part)
        self.revision += 1

    def _record(self, node: ast.AST, scope: ast.AST) -> None:
        match node:
            case ast.Call():
                self._calls.append(node)
            case ast.Name():
                self._scopes[node] = scope
                if not isinstance(node.ctx, ast.Load):
                    self._bind(self._store_scope(node, scope), node.id, node)
            case ast.arg():
                self._bind(scope, node.arg, node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._functions.append(node)
                self._bind(scope, node.name, node)
            case ast.ClassDef():
                self._classes.append(node)
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


def _parsed_alone(text: str, section: Section) -> list[ast.stmt]:
    """The tree of one section; nothing, if it is no Python."""
    try:
        return ast.parse(only(text, [section])).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _is_called(text: str, start: int, end: int) -> bool:
    """Whether the name at a place of the text may be called there."""
    return text.startswith(("(", " ("), end) and not text.endswith("def ", 0, start)


def _is_handed_on(text: str, start: int, end: int) -> bool:
    """Whether the name at a place of the text may stand there without being called."""
    return not text.startswith(("(", " ("), end)


class _Part:
    """What was parsed together: the nodes of `parents` from `first` to `end`."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.end = first
        self._named: dict[str, list[ast.Name | ast.Attribute]] | None = None

    def named(self, parents: dict[ast.AST, ast.AST]) -> dict[str, list[ast.Name | ast.Attribute]]:
        """The variables and attributes by their last names."""
        if self._named is None:
            found = self._named = {}
            for node in islice(parents, self.first, self.end):
                if isinstance(node, ast.Name | ast.Attribute):
                    found.setdefault(node.id if isinstance(node, ast.Name) else node.attr, []).append(node)
        return self._named


def parse(source: Source) -> Module:
    """The tree of `source`. Raises SyntaxError, with its line, where no Python of any version reads it."""
    return Module(source, parse_whole(source.text))


def parse_in_sections(source: Source) -> Module:
    """The same tree, but definitions are parsed when they are asked for: an error in one shows no sooner."""
    text = source.text
    if sections := divide(text):
        try:
            return Module(source, ast.parse(without(text, sections)), sections)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass  # the text was not understood
    return parse(source)


def parse_whole(text: str) -> ast.Module:
    """The tree of a text. Raises SyntaxError."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        from amplint.lower import parse_with_libcst

        return parse_with_libcst(text)


def spot(node: ast.AST) -> Spot:
    """Where a node stands; zeros for a whole file, and for what stands in no text."""
    start = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
    end = getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0)
    return (*start, *end)


def _children_of_scope(node: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """The nodes right below one that opens a scope, each with whether it is evaluated in the scope around."""
    for field in fields(type(node)):  # type: ignore[arg-type]  # a class is hashable whatever its instances are
        value = getattr(node, field, None)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, ast.AST):
                yield item, _evaluated_outside(node, field)


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
