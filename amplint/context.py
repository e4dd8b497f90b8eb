"""What a rule sees of the file it judges: the tree, the project around it, and the two analyses, made on demand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ast

    from amplint.project import Project
    from amplint.protocol import Protocol
    from amplint.source import Source
    from amplint.tree import Module
    from amplint.values import Values


@dataclass(frozen=True, slots=True)
class Options:
    """The settings that rules read. `max_norm` is what AMP202's fix clips to; `torch_version` is the user's."""

    max_norm: float = 1.0
    torch_version: tuple[int, int] = (2, 13)


class Analyses:
    """The analyses of one project, shared by all the files judged in it."""

    def __init__(self, project: Project, options: Options) -> None:
        self.project = project
        self.options = options

    @cached_property
    def values(self) -> Values:
        """What each expression can be: operation, dtype, interval."""
        from amplint.values import Values

        return Values(self.project, self.options)

    @cached_property
    def protocol(self) -> Protocol:
        """The gradient-scaling events along each path of the training steps."""
        from amplint.protocol import Protocol

        return Protocol(self.project, self.options)

    def trim(self) -> None:
        """Let go of trees, and of all that was made of them, where they have become many."""
        values = vars(self).get("values")
        if self.project.trim(values.remembered if values else 0):
            vars(self).pop("protocol", None)
            if values:
                values.trim()

    def abandon(self) -> None:
        """The work was interrupted: what is half made must not be taken for made."""
        self.project.abandon()
        vars(self).pop("protocol", None)
        if "values" in vars(self):
            self.values.abandon()

    def limits(self, module: Module) -> tuple[tuple[ast.AST, str], ...]:
        """The functions of a file that the analyses gave up on when a rule asked for them, each with the reason."""
        return self.protocol.limits(module) if "protocol" in vars(self) else ()


class Context:
    """One file under judgement."""

    def __init__(self, module: Module, analyses: Analyses) -> None:
        self.module = module
        self.project = analyses.project
        self.options = analyses.options
        self._analyses = analyses

    @property
    def source(self) -> Source:
        return self.module.source

    @property
    def values(self) -> Values:
        return self._analyses.values

    @property
    def protocol(self) -> Protocol:
        return self._analyses.protocol

    @property
    def limits(self) -> tuple[tuple[ast.AST, str], ...]:
        return self._analyses.limits(self.module)
