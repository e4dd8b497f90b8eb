"""The files of one project, linked: what a name, a method or a call stands for in another file.

Nothing is parsed that is not asked for. Every question about other files comes down to the few *primitives* below,
so that a cache can record them (`recording`) and later ask whether they would still be answered alike.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from amplint.source import Source
from amplint.tree import Function, Module


@dataclass(frozen=True, slots=True)
class Definition:
    """What a name stands for: a function, a class, a whole module (its tree), or the node that binds a variable."""

    module: Module
    node: ast.AST


@dataclass(frozen=True, slots=True)
class Callee:
    """One function that a call may enter, and how the call's arguments meet its parameters."""

    definition: Definition
    receiver: ast.expr | None
    cls: Definition | None
    arguments: dict[str, ast.expr]

    @property
    def function(self) -> Function | ast.Lambda: ...  # type: ignore[empty-body]

    @property
    def module(self) -> Module:
        return self.definition.module

    def argument(self, parameter: str) -> ast.expr | None:
        """The expression, in the caller's file, that the call gives for `parameter`; None if the default applies."""
        return self.arguments.get(parameter)

    def default(self, parameter: str) -> ast.expr | None:
        """The default of `parameter`, an expression of the callee's file."""


@dataclass(frozen=True, slots=True)
class CallSite:
    """A call and the file it stands in."""

    module: Module
    call: ast.Call


class Project:
    """The files, linked on demand. Definitions of classes and functions are compared by node identity."""

    def __init__(self, files: Iterable[Path], read: Callable[[Path], Source]) -> None: ...

    # -- primitives --------------------------------------------------------------------------------------------

    def module(self, path: Path) -> Module | None:
        """The parsed file; None if it is no file of this project, or cannot be read or parsed."""

    def files_of(self, dotted: str, importer: Path) -> tuple[Path, ...]:  # type: ignore[empty-body]
        """The file that `import dotted` in `importer` loads (leading dots are relative), nearest first."""

    def files_calling(self, name: str) -> tuple[Path, ...]:  # type: ignore[empty-body]
        """The files in which something of this (undotted) name seems to be called."""

    def files_deriving(self, name: str) -> tuple[Path, ...]:  # type: ignore[empty-body]
        """The files in which a class of this (undotted) name seems to be a base."""

    def modules_with(self, *words: bytes) -> Iterator[Module]:  # type: ignore[empty-body]
        """The parsed files whose text holds one of `words`."""

    # -- names -------------------------------------------------------------------------------------------------

    def resolve(self, module: Module, name: ast.expr | str) -> tuple[Definition, ...]:  # type: ignore[empty-body]
        """The definitions that an expression of `module`, or a dotted name as seen from it, stands for.

        Follows imports, re-exports, star imports and plain aliases. Empty: not in this project.
        """

    # -- classes -----------------------------------------------------------------------------------------------

    def mro(self, cls: Definition) -> tuple[Definition, ...]:  # type: ignore[empty-body]
        """The class and its bases in this project, in method resolution order (approximately)."""

    def base_names(self, cls: Definition) -> frozenset[str]:  # type: ignore[empty-body]
        """The dotted names of all bases, those outside this project too: `torch.nn.Module`."""

    def method(self, cls: Definition, name: str) -> Definition | None:
        """The function that `instance.name` finds."""

    def subclasses(self, cls: Definition) -> tuple[Definition, ...]:  # type: ignore[empty-body]
        """The classes of this project that derive from `cls`, directly or not."""

    def attribute(self, cls: Definition, name: str) -> tuple[Definition, ...]:  # type: ignore[empty-body]
        """Where `self.name` is bound: the `self.name` targets, class-level targets and fields, along the MRO."""

    def types(self, module: Module, expression: ast.expr) -> tuple[Definition, ...]:  # type: ignore[empty-body]
        """The classes of this project that `expression` may be an instance of; empty: unknown."""

    # -- calls -------------------------------------------------------------------------------------------------

    def callees(self, module: Module, call: ast.Call, receiver: Definition | None = None) -> tuple[Callee, ...]:  # type: ignore[empty-body]
        """The functions of this project that `call` may enter; empty: unknown.

        `receiver` is the class that `self` is known to be an instance of; without it, `self.m()` gives the method
        and those of all subclasses that override it.
        """

    def callers(self, function: Definition) -> tuple[CallSite, ...]:  # type: ignore[empty-body]
        """The calls in this project that may enter `function`, each confirmed by `callees`."""
