"""What a name stands for across files: imports, re-exports, star imports, plain aliases."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING

from amplint.project.definitions import Definition
from amplint.tree import Module

if TYPE_CHECKING:
    from pathlib import Path

    from amplint.project import Project

_MANY_STARS = 20
"""From more star imports than this, only functions and classes are looked for."""
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def resolve(project: Project, module: Module, name: ast.expr | str) -> tuple[Definition, ...]:
    """The definitions that an expression of `module`, or a dotted name imported from it, stands for."""
    if isinstance(name, str):
        return imported(project, name, module.source.path)
    if not isinstance(name, ast.Name | ast.Attribute):
        return ()
    key = ("resolve", identity(module, name))
    return project.remember(key, lambda: _unique(_resolve(project, module, name)), ())


def identity(module: Module, expression: ast.expr) -> Hashable:
    """What answers that disregard the order of statements depend on: for a name, the scope and its name there."""
    if isinstance(expression, ast.Name) and (found := module.lookup(expression.id, expression)):
        return found[0], expression.id
    return expression


def imported(project: Project, dotted: str, importer: Path) -> tuple[Definition, ...]:
    """What the dotted target of an import gives: a module, or something found in one."""
    key = ("imported", dotted, importer)
    return project.remember(key, lambda: _imported(project, dotted, importer), ())


def member(project: Project, module: Module, parts: tuple[str, ...]) -> tuple[Definition, ...]:
    """What `module.parts[0].parts[1]…` stands for, bound in the module itself or imported by it."""
    key = ("member", module.tree, parts)
    return project.remember(key, lambda: _member(project, module, parts), ())


def _member(project: Project, module: Module, parts: tuple[str, ...]) -> tuple[Definition, ...]:
    found = _bound(project, module, module.bindings(module.tree, parts[0]), parts[0])
    if not found and (len(module.star_imports) <= _MANY_STARS or project.defines(parts[0])):
        for star in module.star_imports:
            found += imported(project, f"{star}{'' if star.endswith('.') else '.'}{parts[0]}", module.source.path)
    if len(parts) == 1:
        return _unique(found)
    return _unique(inner for outer in found for inner in _inside(project, outer, parts[1:]))


def bound_value(module: Module, binding: ast.AST) -> ast.expr | None:
    """The expression that a plain `name = value`, `name: T = value` or `(name := value)` binds."""
    parent = module.parent(binding)
    if isinstance(parent, ast.Assign) and any(target is binding for target in parent.targets):
        return parent.value
    if isinstance(parent, ast.AnnAssign | ast.NamedExpr) and parent.target is binding:
        return parent.value
    if isinstance(parent, ast.Tuple | ast.List) and isinstance(assign := module.parent(parent), ast.Assign):
        values = assign.value
        if isinstance(values, ast.Tuple | ast.List) and len(values.elts) == len(parent.elts):
            return next(v for target, v in zip(parent.elts, values.elts, strict=False) if target is binding)
    return None


def _resolve(project: Project, module: Module, name: ast.expr) -> Iterator[Definition]:
    if isinstance(name, ast.Attribute):
        for base in resolve(project, module, name.value):
            yield from _inside(project, base, (name.attr,))
        for dotted in module.names(name):
            yield from imported(project, dotted, module.source.path)
    elif isinstance(name, ast.Name):
        if found := module.lookup(name.id, name):
            yield from _bound(project, module, found[1], name.id)
        else:
            for dotted in module.names(name):
                yield from imported(project, dotted, module.source.path)


def _bound(project: Project, module: Module, bindings: list[ast.AST], name: str) -> tuple[Definition, ...]:
    return _unique(found for binding in bindings for found in _binding(project, module, binding, name))


def _binding(project: Project, module: Module, binding: ast.AST, name: str) -> Iterator[Definition]:
    if isinstance(binding, _DEFINITIONS):
        yield Definition(module, binding)
    elif target := module.import_target(binding, name):
        yield from imported(project, target, module.source.path)
    elif isinstance(binding, ast.Name):
        value = bound_value(module, binding)
        aliased = resolve(project, module, value) if isinstance(value, ast.Name | ast.Attribute) else ()
        yield from aliased or (Definition(module, binding),)


def _inside(project: Project, outer: Definition, parts: tuple[str, ...]) -> tuple[Definition, ...]:
    """What `outer.parts…` stands for, `outer` being a module or a class."""
    if isinstance(outer.node, ast.Module):
        return member(project, outer.module, parts) or imported(
            project, _submodule(outer, parts), outer.module.source.path
        )
    if isinstance(outer.node, ast.ClassDef):
        found = project.class_member(outer, parts[0])
        if found is None or len(parts) == 1:
            return (found,) if found else ()
        return _inside(project, found, parts[1:])
    return ()


def _submodule(package: Definition, parts: tuple[str, ...]) -> str:
    is_package = package.module.source.path.stem == "__init__"
    return "." + ".".join(parts) if is_package else ""


def _imported(project: Project, dotted: str, importer: Path) -> tuple[Definition, ...]:
    """The longest part of the name that is a file, and the rest in it; but what a package binds hides its submodule."""
    if not dotted:
        return ()
    level = len(dotted) - len(dotted.lstrip("."))
    dots, parts = dotted[:level], tuple(part for part in dotted[level:].split(".") if part)
    for module in _modules(project, f"{dots}{'.'.join(parts[:-1])}", importer, parts[-1:]):
        if found := _bound(project, module, module.bindings(module.tree, parts[-1]), parts[-1]):
            return found
    for cut in range(len(parts), -1 if level else 0, -1):
        rest, prefix = parts[cut:], f"{dots}{'.'.join(parts[:cut])}"
        if prefix and project.files_of(prefix, importer):
            modules = _modules(project, prefix, importer, rest)
            return _unique(d for m in modules for d in (member(project, m, rest) if rest else (Definition(m, m.tree),)))
    return ()


def _modules(project: Project, dotted: str, importer: Path, rest: tuple[str, ...]) -> Iterator[Module]:
    """The files that a dotted name stands for, in which the first of `rest` may be found."""
    for path in project.files_of(dotted, importer) if dotted else ():
        if rest and (path == importer or not project.mentions(path, rest[0])):
            continue
        if module := project.module(path):
            yield module


def _unique(definitions: Iterable[Definition]) -> tuple[Definition, ...]:
    return tuple(dict.fromkeys(definitions))
