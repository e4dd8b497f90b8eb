"""Little programs, and what the analysis says of the expressions in them."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent

from amplint.context import Analyses, Options
from amplint.project import Project
from amplint.source import Source
from amplint.tree import Module
from amplint.values import Value, Values

ROOT = Path("/program")


class Program:
    """A project of the given files; `main.py` is the first."""

    def __init__(self, main: str, **files: str) -> None:
        texts = {ROOT / "main.py": dedent(main)}
        texts |= {ROOT / f"{name}.py": dedent(text) for name, text in files.items()}
        self.project = Project(texts, lambda path: Source(path, texts[path]))
        self.values: Values = Analyses(self.project, Options()).values
        self.main = self.module("main")

    def module(self, name: str) -> Module:
        module = self.project.whole(ROOT / f"{name}.py")
        assert module is not None
        return module

    def expression(self, text: str, name: str = "main") -> ast.expr:
        """The last expression of a file that is written like this."""
        module = self.module(name)
        found = [
            node
            for node in module.nodes
            if isinstance(node, ast.expr)
            and not isinstance(getattr(node, "ctx", None), ast.Store)
            and module.source.segment(node) == text
        ]
        assert found, f"no expression {text}"
        return max(found, key=lambda node: (node.lineno, node.col_offset))

    def of(self, text: str, name: str = "main") -> tuple[Value, ...]:
        """What the last expression written like this can be."""
        return self.values.of(self.module(name), self.expression(text, name))

    def ops(self, text: str, name: str = "main") -> set[str]:
        return {value.op for value in self.of(text, name)}

    def seen(self, text: str, name: str = "main") -> tuple[Value, ...]:
        """The expression in the frames through which half precision reaches it."""
        module, node = self.module(name), self.expression(text, name)
        return tuple(v for f in self.values.frames(module, node)[:-1] for v in self.values.of(module, node, f))
