"""What the questions to a project are answered with."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TypeAlias

from amplint.tree import Function, Module

Callable_: TypeAlias = Function | ast.Lambda


@dataclass(frozen=True, slots=True)
class Definition:
    """What a name stands for: a function, a class, a whole module (its tree), or the node that binds a variable."""

    module: Module
    node: ast.AST


@dataclass(frozen=True, slots=True)
class Callee:
    """One function that a call may enter, and how the call's arguments meet its parameters.

    `receiver` is the expression, in the caller's file, that the method is called on; `cls` the class of the receiver
    (of the new instance for a constructor). `open` tells that the call passes `*` or `**` arguments as well, so that
    a parameter without an argument need not have its default.
    """

    definition: Definition
    receiver: ast.expr | None = None
    cls: Definition | None = None
    arguments: dict[str, ast.expr] = field(default_factory=dict)
    open: bool = False

    @property
    def module(self) -> Module:
        """The file of the function."""
        return self.definition.module

    @property
    def function(self) -> Callable_:
        node = self.definition.node
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        return node

    def argument(self, parameter: str) -> ast.expr | None:
        """The expression, in the caller's file, that the call gives for `parameter`; None if it gives none."""
        return self.arguments.get(parameter)

    def default(self, parameter: str) -> ast.expr | None:
        """The default of `parameter`, an expression of the function's file."""
        return default_of(self.function, parameter)


@dataclass(frozen=True, slots=True)
class CallSite:
    """A call and the file it stands in."""

    module: Module
    call: ast.Call


def parameters(function: Callable_) -> list[ast.arg]:
    """The named parameters in order, keyword-only ones last; without `*args` and `**kwargs`."""
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def default_of(function: Callable_, parameter: str) -> ast.expr | None:
    """The default expression of a parameter."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = dict(zip([p.arg for p in reversed(positional)], reversed(arguments.defaults), strict=False))
    keywords = {p.arg: d for p, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=False) if d is not None}
    return {**defaults, **keywords}.get(parameter)
