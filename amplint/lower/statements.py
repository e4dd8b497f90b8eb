"""Statements and patterns, from LibCST to `ast`: one method for each LibCST class, named after it."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any, TypeVar

from amplint.lower.expressions import OPERATORS, Expressions
from amplint.lower.places import normalised

if TYPE_CHECKING:
    import libcst as cst

T = TypeVar("T")


class Lowering(Expressions):
    """A whole module: `module(node)` gives its tree."""

    def module(self, node: cst.Module) -> ast.Module:
        return ast.Module(body=self.block(node), type_ignores=[])

    def block(self, node: Any) -> list[Any]:
        """The statements of a module, suite or simple line."""
        statements: list[Any] = []
        for child in node.body:
            statements += self.block(child) if type(child).__name__ == "SimpleStatementLine" else [self.lower(child)]
        return statements

    # -- simple statements -------------------------------------------------------------------------------------

    def _Expr(self, node: cst.Expr) -> ast.stmt:
        return self.at(self._covering(node, node.value), ast.Expr(value=self.load(node.value)))

    def _covering(self, node: Any, last: Any) -> tuple[int, int]:
        """The span of a statement that ends with the expression `last`."""
        return self.span(node)[0], self.outer(last)[1]

    def _Assign(self, node: cst.Assign) -> ast.stmt:
        targets = [self.lower(target.target, ast.Store()) for target in node.targets]
        made = ast.Assign(targets=targets, value=self.load(node.value), type_comment=None)
        return self.at(self._covering(node, node.value), made)

    def _AnnAssign(self, node: cst.AnnAssign) -> ast.stmt:
        target = self.lower(node.target, ast.Store())
        simple = int(isinstance(target, ast.Name) and not getattr(node.target, "lpar", ()))
        annotation, value = self.load(node.annotation.annotation), self.load(node.value)
        made = ast.AnnAssign(target=target, annotation=annotation, value=value, simple=simple)
        return self.at(self._covering(node, node.value or node.annotation.annotation), made)

    def _AugAssign(self, node: cst.AugAssign) -> ast.stmt:
        operator = OPERATORS[type(node.operator).__name__.removesuffix("Assign")]()
        made = ast.AugAssign(target=self.lower(node.target, ast.Store()), op=operator, value=self.load(node.value))
        return self.at(self._covering(node, node.value), made)

    def _Del(self, node: cst.Del) -> ast.stmt:
        target = self.lower(node.target, ast.Del())
        is_list = isinstance(target, ast.Tuple) and not node.target.lpar
        targets = target.elts if is_list else [target]
        return self.at(self._covering(node, node.target), ast.Delete(targets=targets))

    def _Return(self, node: cst.Return) -> ast.stmt:
        span = self._covering(node, node.value) if node.value else self.span(node)
        return self.at(span, ast.Return(value=self.load(node.value)))

    def _Raise(self, node: cst.Raise) -> ast.stmt:
        cause = node.cause.item if node.cause else None
        last = cause or node.exc
        span = self._covering(node, last) if last else self.span(node)
        return self.at(span, ast.Raise(exc=self.load(node.exc), cause=self.load(cause)))

    def _Assert(self, node: cst.Assert) -> ast.stmt:
        made = ast.Assert(test=self.load(node.test), msg=self.load(node.msg))
        return self.at(self._covering(node, node.msg or node.test), made)

    def _word(self, node: Any) -> ast.stmt:
        made: ast.stmt = getattr(ast, type(node).__name__)()
        return self.at(self.span(node), made)

    _Pass = _Break = _Continue = _word

    def _declaration(self, node: Any) -> ast.stmt:
        made: ast.stmt = getattr(ast, type(node).__name__)(names=[normalised(item.name.value) for item in node.names])
        return self.at(self.span(node), made)

    _Global = _Nonlocal = _declaration

    def _Import(self, node: cst.Import) -> ast.stmt:
        return self.at(self.span(node), ast.Import(names=[self._alias(alias) for alias in node.names]))

    def _ImportFrom(self, node: cst.ImportFrom) -> ast.stmt:
        if type(node.names).__name__ == "ImportStar":
            names = [self.at(self.span(node.names), ast.alias(name="*", asname=None))]
        else:
            names = [self._alias(alias) for alias in node.names]  # type: ignore[union-attr]
        module = self._dotted(node.module) if node.module else None
        return self.at(self.span(node), ast.ImportFrom(module=module, names=names, level=len(node.relative)))

    def _alias(self, node: cst.ImportAlias) -> ast.alias:
        bound: Any = node.asname.name if node.asname else None
        span = (self.span(node.name)[0], self.span(bound or node.name)[1])
        return self.at(span, ast.alias(name=self._dotted(node.name), asname=bound and normalised(bound.value)))

    def _dotted(self, node: Any) -> str:
        if type(node).__name__ == "Attribute":
            return f"{self._dotted(node.value)}.{normalised(node.attr.value)}"
        return normalised(node.value)

    def _TypeAlias(self, node: cst.TypeAlias) -> ast.stmt:
        self.require(3, 12)
        name, value = self.lower(node.name, ast.Store()), self.load(node.value)
        made: Any
        if hasattr(ast, "TypeAlias"):
            made = ast.TypeAlias(name=name, value=value, type_params=self._type_parameters(node.type_parameters))
        else:
            self._type_parameters(node.type_parameters)
            made = ast.Assign(targets=[name], value=value, type_comment=None)
        located: ast.stmt = self.at(self._covering(node, node.value), made)
        return located

    # -- compound statements -----------------------------------------------------------------------------------

    def _compound(self, node: Any, made: T, *blocks: Any) -> T:
        """A statement that ends where the last of its blocks does."""
        last = next(block for block in reversed(blocks) if block)[-1]
        start = self.span(node)[0]
        self.at((start, start), made)
        located: Any = made
        located.end_lineno, located.end_col_offset = last.end_lineno, last.end_col_offset
        return made

    def _If(self, node: cst.If) -> ast.stmt:
        orelse: list[Any] = []
        if node.orelse is not None:
            is_elif = type(node.orelse).__name__ == "If"
            orelse = [self.lower(node.orelse)] if is_elif else self.block(node.orelse.body)
        body = self.block(node.body)
        return self._compound(node, ast.If(test=self.load(node.test), body=body, orelse=orelse), body, orelse)

    def _While(self, node: cst.While) -> ast.stmt:
        body, orelse = self.block(node.body), self._else(node)
        return self._compound(node, ast.While(test=self.load(node.test), body=body, orelse=orelse), body, orelse)

    def _For(self, node: cst.For) -> ast.stmt:
        kind: Any = ast.AsyncFor if node.asynchronous else ast.For
        body, orelse = self.block(node.body), self._else(node)
        target = self.lower(node.target, ast.Store())
        made = kind(target=target, iter=self.load(node.iter), body=body, orelse=orelse, type_comment=None)
        located: ast.stmt = self._compound(node, made, body, orelse)
        return located

    def _With(self, node: cst.With) -> ast.stmt:
        kind: Any = ast.AsyncWith if node.asynchronous else ast.With
        items = [
            ast.withitem(
                context_expr=self.load(item.item),
                optional_vars=self.lower(item.asname.name, ast.Store()) if item.asname else None,
            )
            for item in node.items
        ]
        body = self.block(node.body)
        located: ast.stmt = self._compound(node, kind(items=items, body=body, type_comment=None), body)
        return located

    def _Try(self, node: Any) -> ast.stmt:
        kind: Any = ast.Try
        if type(node).__name__ == "TryStar":
            self.require(3, 11)
            kind = getattr(ast, "TryStar", ast.Try)
        body, orelse = self.block(node.body), self._else(node)
        handlers = [self._handler(handler) for handler in node.handlers]
        finalbody = self.block(node.finalbody.body) if node.finalbody else []
        made = kind(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody)
        located: ast.stmt = self._compound(node, made, body, handlers, orelse, finalbody)
        return located

    _TryStar = _Try

    def _handler(self, node: Any) -> ast.ExceptHandler:
        if type(node.type).__name__ == "Tuple" and not node.type.lpar:
            self.require(3, 14)
        name = normalised(node.name.name.value) if node.name else None
        body = self.block(node.body)
        return self._compound(node, ast.ExceptHandler(type=self.load(node.type), name=name, body=body), body)

    def _else(self, node: Any) -> list[Any]:
        return self.block(node.orelse.body) if node.orelse else []

    # -- definitions -------------------------------------------------------------------------------------------

    def _FunctionDef(self, node: cst.FunctionDef) -> ast.stmt:
        kind: Any = ast.AsyncFunctionDef if node.asynchronous else ast.FunctionDef
        body = self.block(node.body)
        made = kind(
            name=normalised(node.name.value),
            args=self.parameters(node.params),
            body=body,
            decorator_list=[self.load(decorator.decorator) for decorator in node.decorators],
            returns=self.load(node.returns.annotation) if node.returns else None,
            type_comment=None,
        )
        self._parametrise(made, node.type_parameters)
        located: ast.stmt = self._definition(node, made, body)
        return located

    def _ClassDef(self, node: cst.ClassDef) -> ast.stmt:
        body = self.block(node.body)
        bases, keywords = self.arguments([*node.bases, *node.keywords])
        made = ast.ClassDef(
            name=normalised(node.name.value),
            bases=bases,
            keywords=keywords,
            body=body,
            decorator_list=[self.load(decorator.decorator) for decorator in node.decorators],
        )
        self._parametrise(made, node.type_parameters)
        return self._definition(node, made, body)

    def _definition(self, node: Any, made: T, body: list[Any]) -> T:
        """`made`, from its `def` or `class` on: LibCST's place may begin with the decorators."""
        self._compound(node, made, body)
        if node.decorators:
            after = self.outer(node.decorators[-1].decorator)[1]
            keyword = getattr(node, "asynchronous", None)
            word = "async" if keyword else "class" if type(node).__name__ == "ClassDef" else "def"
            after = max(after, self.span(node)[0])
            located: Any = made
            located.lineno, located.col_offset = self._place(_word_after(self.text, after, word))
        return made

    def _parametrise(self, made: Any, node: Any) -> None:
        parameters = self._type_parameters(node)
        if "type_params" in made._fields:
            made.type_params = parameters

    def _type_parameters(self, node: Any) -> list[Any]:
        """Nodes where the running Python has them; none on one before 3.12."""
        if node is None:
            return []
        self.require(3, 12)
        made = []
        for parameter in node.params:
            if parameter.default is not None:
                self.require(3, 13)
            kind = getattr(ast, type(parameter.param).__name__, None)
            if kind is None:
                continue
            fields = {"name": parameter.param.name.value}
            if "bound" in kind._fields:
                fields["bound"] = self.load(parameter.param.bound)
            end = self.span(parameter.param)[1]
            if parameter.default is not None:
                start, end = self.outer(parameter.default)
                default = self.load(parameter.default)
                if parameter.star:
                    star = self.text.rindex("*", 0, start)
                    default = self.at((star, end), ast.Starred(value=default, ctx=ast.Load()))
                if "default_value" in kind._fields:
                    fields["default_value"] = default
            made.append(self.at((self.span(parameter)[0], end), kind(**fields)))
        return made

    # -- match -------------------------------------------------------------------------------------------------

    def _Match(self, node: cst.Match) -> ast.stmt:
        self.require(3, 10)
        cases = [self._case(case) for case in node.cases]
        made = ast.Match(subject=self.load(node.subject), cases=cases)
        return self._compound(node, made, cases[-1].body)

    def _case(self, node: cst.MatchCase) -> ast.match_case:
        guard = self.load(node.guard)
        return ast.match_case(pattern=self.lower(node.pattern), guard=guard, body=self.block(node.body))

    def _MatchValue(self, node: cst.MatchValue) -> ast.pattern:
        return self.at(self.span(node.value), ast.MatchValue(value=self.load(node.value)))

    def _MatchSingleton(self, node: cst.MatchSingleton) -> ast.pattern:
        value = {"True": True, "False": False, "None": None}[node.value.value]
        return self.at(self.span(node), ast.MatchSingleton(value=value))

    def _sequence(self, node: Any) -> ast.pattern:
        patterns = [self.lower(element) for element in node.patterns]
        span = self.bracketed(node) if type(node).__name__ == "MatchTuple" else self.span(node)
        return self.at(span, ast.MatchSequence(patterns=patterns))

    _MatchList = _MatchTuple = _sequence

    def _MatchSequenceElement(self, node: cst.MatchSequenceElement) -> ast.pattern:
        made: ast.pattern = self.lower(node.value)
        return made

    def _MatchStar(self, node: cst.MatchStar) -> ast.pattern:
        name = normalised(node.name.value) if node.name else None
        return self.at(self.span(node), ast.MatchStar(name=name))

    def _MatchMapping(self, node: cst.MatchMapping) -> ast.pattern:
        made = ast.MatchMapping(
            keys=[self._key(element.key) for element in node.elements],
            patterns=[self.lower(element.pattern) for element in node.elements],
            rest=normalised(node.rest.value) if node.rest else None,
        )
        return self.at(self.span(node), made)

    def _key(self, node: Any) -> ast.expr:
        """The key of a mapping pattern: an expression, which LibCST wraps as it wraps patterns."""
        is_wrapped = type(node).__name__ in ("MatchValue", "MatchSingleton")
        key: ast.expr = self.load(node.value if is_wrapped else node)
        return key

    def _MatchClass(self, node: cst.MatchClass) -> ast.pattern:
        made = ast.MatchClass(
            cls=self.load(node.cls),
            patterns=[self.lower(element) for element in node.patterns],
            kwd_attrs=[normalised(element.key.value) for element in node.kwds],
            kwd_patterns=[self.lower(element.pattern) for element in node.kwds],
        )
        return self.at(self.span(node), made)

    def _MatchAs(self, node: cst.MatchAs) -> ast.pattern:
        pattern = self.lower(node.pattern) if node.pattern else None
        name = normalised(node.name.value) if node.name else None
        return self.at(self.span(node), ast.MatchAs(pattern=pattern, name=name))

    def _MatchOr(self, node: cst.MatchOr) -> ast.pattern:
        return self.at(self.span(node), ast.MatchOr(patterns=[self.lower(e.pattern) for e in node.patterns]))


def _word_after(text: str, offset: int, word: str) -> int:
    """The offset of the keyword `word` at or after `offset`, on a line that starts with it."""
    match = re.compile(rf"(?:(?<=\n)|(?<=\r)|^|\b)[ \t\f]*(?={word}\b)", re.MULTILINE).search(text, offset)
    return match.end() if match else offset
