"""Expressions, from LibCST to `ast`: one method for each LibCST class, named after it."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from amplint.lower.places import Places, normalised

if TYPE_CHECKING:
    import libcst as cst

OPERATORS: dict[str, Any] = {
    "Add": ast.Add,
    "Subtract": ast.Sub,
    "Multiply": ast.Mult,
    "MatrixMultiply": ast.MatMult,
    "Divide": ast.Div,
    "FloorDivide": ast.FloorDiv,
    "Modulo": ast.Mod,
    "Power": ast.Pow,
    "LeftShift": ast.LShift,
    "RightShift": ast.RShift,
    "BitOr": ast.BitOr,
    "BitXor": ast.BitXor,
    "BitAnd": ast.BitAnd,
    "And": ast.And,
    "Or": ast.Or,
    "Not": ast.Not,
    "Minus": ast.USub,
    "Plus": ast.UAdd,
    "BitInvert": ast.Invert,
    "Equal": ast.Eq,
    "NotEqual": ast.NotEq,
    "LessThan": ast.Lt,
    "LessThanEqual": ast.LtE,
    "GreaterThan": ast.Gt,
    "GreaterThanEqual": ast.GtE,
    "Is": ast.Is,
    "IsNot": ast.IsNot,
    "In": ast.In,
    "NotIn": ast.NotIn,
}


class Expressions(Places):
    """Each method takes a LibCST node and the context (`ast.Load()`, …) it stands in."""

    # -- names and literals ------------------------------------------------------------------------------------

    def _Name(self, node: cst.Name, context: Any) -> ast.expr:
        constants = {"True": True, "False": False, "None": None}
        if node.value in constants:
            return self.at(self.span(node), ast.Constant(value=constants[node.value], kind=None))
        return self.at(self.span(node), ast.Name(id=normalised(node.value), ctx=context))

    def _literal(self, node: Any, context: Any = None) -> ast.expr:
        return self.at(self.span(node), ast.Constant(value=ast.literal_eval(node.value), kind=None))

    _Integer = _Float = _Imaginary = _literal

    def _Ellipsis(self, node: cst.Ellipsis, context: Any) -> ast.expr:
        return self.at(self.span(node), ast.Constant(value=..., kind=None))

    def _string(self, node: Any, context: Any = None) -> ast.expr:
        """A string of any kind, its implicitly concatenated parts joined as `ast` joins them."""
        values: list[ast.expr] = []
        is_formatted = False
        leaves = list(_leaves(node))
        for leaf in leaves:
            if type(leaf).__name__ == "SimpleString":
                values.append(self.at(self.span(leaf), ast.Constant(value=_evaluated(leaf.value), kind=None)))
            else:
                is_formatted = True
                values += self._parts(leaf, leaf.parts)
                self._check_formatted(leaf)
        kind = "u" if leaves[0].prefix in ("u", "U") and not is_formatted else None
        if not is_formatted:
            joined: Any = values[0].value[:0]  # type: ignore[attr-defined]
            joined = joined.join(value.value for value in values)  # type: ignore[attr-defined]
            return self.at(self.span(node), ast.Constant(value=joined, kind=kind))
        return self.at(self.span(node), ast.JoinedStr(values=_merged(values)))

    _SimpleString = _ConcatenatedString = _FormattedString = _TemplatedString = _string

    def _parts(self, string: Any, parts: Sequence[Any]) -> list[ast.expr]:
        values: list[ast.expr] = []
        for part in parts:
            if type(part).__name__.endswith("Text"):
                prefix = string.prefix.lower().replace("f", "").replace("t", "")
                text = part.value.replace("{{", "{").replace("}}", "}")
                value = _evaluated(f"{prefix}{string.end}{text}{string.end}")
                values.append(self.at(self.span(part), ast.Constant(value=value, kind=None)))
            else:
                values += self._replacement(string, part)
        return values

    def _replacement(self, string: Any, part: Any) -> Iterator[ast.expr]:
        """The value in braces, after its own text if it is written `{x=}`."""
        start, end = self.span(part)
        conversion = ord(part.conversion) if part.conversion else -1
        if part.equal is not None:
            text = self.text[start + 1 : self.span(part.equal)[1]]
            yield self.at((start, end), ast.Constant(value=text, kind=None))
            if conversion == -1 and part.format_spec is None:
                conversion = ord("r")
        spec = None
        if part.format_spec is not None:
            spec = self.at((start, end), ast.JoinedStr(values=_merged(self._parts(string, part.format_spec))))
        value = self.load(part.expression)
        yield self.at((start, end), ast.FormattedValue(value=value, conversion=conversion, format_spec=spec))

    def _check_formatted(self, node: Any) -> None:
        """Note the version that reads this string: PEP 701 lets more into the braces, t-strings are newer still."""
        if type(node).__name__ == "TemplatedString":
            self.require(3, 14)
        elif sys.version_info < (3, 12):
            start, end = self.span(node)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    ast.parse(f"({self.text[start:end]}\n)", mode="eval")
            except SyntaxError:
                self.require(3, 12)

    # -- operators ---------------------------------------------------------------------------------------------

    def _UnaryOperation(self, node: cst.UnaryOperation, context: Any) -> ast.expr:
        operator = OPERATORS[type(node.operator).__name__]()
        return self.at(self.span(node), ast.UnaryOp(op=operator, operand=self.load(node.expression)))

    def _BinaryOperation(self, node: cst.BinaryOperation, context: Any) -> ast.expr:
        operator = OPERATORS[type(node.operator).__name__]()
        left, right = self.load(node.left), self.load(node.right)
        return self.at(self.span(node), ast.BinOp(left=left, op=operator, right=right))

    def _BooleanOperation(self, node: cst.BooleanOperation, context: Any) -> ast.expr:
        operator = OPERATORS[type(node.operator).__name__]
        left, right = self.load(node.left), self.load(node.right)
        is_chain = isinstance(left, ast.BoolOp) and isinstance(left.op, operator) and not node.left.lpar
        values = [*left.values, right] if is_chain else [left, right]
        return self.at(self.span(node), ast.BoolOp(op=operator(), values=values))

    def _Comparison(self, node: cst.Comparison, context: Any) -> ast.expr:
        operators = [OPERATORS[type(item.operator).__name__]() for item in node.comparisons]
        comparators = [self.load(item.comparator) for item in node.comparisons]
        made = ast.Compare(left=self.load(node.left), ops=operators, comparators=comparators)
        return self.at(self.span(node), made)

    def _IfExp(self, node: cst.IfExp, context: Any) -> ast.expr:
        test, body, orelse = self.load(node.test), self.load(node.body), self.load(node.orelse)
        return self.at(self.span(node), ast.IfExp(test=test, body=body, orelse=orelse))

    def _NamedExpr(self, node: cst.NamedExpr, context: Any) -> ast.expr:
        target = self.lower(node.target, ast.Store())
        return self.at(self.span(node), ast.NamedExpr(target=target, value=self.load(node.value)))

    def _Await(self, node: cst.Await, context: Any) -> ast.expr:
        return self.at(self.span(node), ast.Await(value=self.load(node.expression)))

    def _Yield(self, node: cst.Yield, context: Any) -> ast.expr:
        if type(node.value).__name__ == "From":
            return self.at(self.span(node), ast.YieldFrom(value=self.load(node.value.item)))  # type: ignore[union-attr]
        return self.at(self.span(node), ast.Yield(value=self.load(node.value)))

    def _Lambda(self, node: cst.Lambda, context: Any) -> ast.expr:
        made = ast.Lambda(args=self.parameters(node.params), body=self.load(node.body))
        return self.at(self.span(node), made)

    # -- access and calls --------------------------------------------------------------------------------------

    def _Attribute(self, node: cst.Attribute, context: Any) -> ast.expr:
        made = ast.Attribute(value=self.load(node.value), attr=normalised(node.attr.value), ctx=context)
        return self.at(self.span(node), made)

    def _Subscript(self, node: cst.Subscript, context: Any) -> ast.expr:
        elements = [self._subscript(element.slice) for element in node.slice]
        last = node.slice[-1]
        has_comma = type(last.comma).__name__ == "Comma"
        made: Any = elements[0]
        if len(elements) > 1 or has_comma or isinstance(elements[0], ast.Starred):
            start, end = self._ends(node.slice[0].slice)[0], self._ends(last.slice)[1]
            if has_comma:
                end = self.text.index(",", end) + 1
            made = self.at((start, end), ast.Tuple(elts=elements, ctx=ast.Load()))
        return self.at(self.span(node), ast.Subscript(value=self.load(node.value), slice=made, ctx=context))

    def _subscript(self, node: Any) -> ast.expr:
        if type(node).__name__ == "Slice":
            made = ast.Slice(lower=self.load(node.lower), upper=self.load(node.upper), step=self.load(node.step))
            return self.at(self.span(node), made)
        if node.star:
            self.require(3, 11)
            return self.at(self._ends(node), ast.Starred(value=self.load(node.value), ctx=ast.Load()))
        value: ast.expr = self.load(node.value)
        return value

    def _ends(self, node: Any) -> tuple[int, int]:
        """The offsets of an item in square brackets, with its star or its parentheses."""
        if type(node).__name__ == "Slice":
            return self.span(node)
        start, end = self.outer(node.value)
        return self.span(node)[0] if node.star else start, end

    def _Call(self, node: cst.Call, context: Any) -> ast.expr:
        args, keywords = self.arguments(node.args)
        if len(node.args) == 1 and args and isinstance(args[0], ast.GeneratorExp):
            generator: Any = node.args[0].value
            if not generator.lpar:  # the parentheses are the call's
                start = self.span(node.whitespace_before_args)[0] - 1
                self.at((start, self.span(node)[1]), args[0])
        return self.at(self.span(node), ast.Call(func=self.load(node.func), args=args, keywords=keywords))

    def arguments(self, nodes: Sequence[cst.Arg]) -> tuple[list[ast.expr], list[ast.keyword]]:
        args: list[ast.expr] = []
        keywords: list[ast.keyword] = []
        for node in nodes:
            value = self.load(node.value)
            span = (self.span(node)[0], self.outer(node.value)[1])
            if node.star == "*":
                args.append(self.at(span, ast.Starred(value=value, ctx=ast.Load())))
            elif node.star == "**" or node.keyword is not None:
                name = normalised(node.keyword.value) if node.keyword else None
                keywords.append(self.at(span, ast.keyword(arg=name, value=value)))
            else:
                args.append(value)
        return args, keywords

    # -- displays and comprehensions ---------------------------------------------------------------------------

    def _StarredElement(self, node: cst.StarredElement, context: Any) -> ast.expr:
        span = (self.span(node)[0], self.outer(node.value)[1])
        return self.at(span, ast.Starred(value=self.lower(node.value, context), ctx=context))

    def _Element(self, node: cst.Element, context: Any) -> ast.expr:
        made: ast.expr = self.lower(node.value, context)
        return made

    def _Tuple(self, node: cst.Tuple, context: Any) -> ast.expr:
        elements = [self.lower(element, context) for element in node.elements]
        return self.at(self.bracketed(node), ast.Tuple(elts=elements, ctx=context))

    def _List(self, node: cst.List, context: Any) -> ast.expr:
        elements = [self.lower(element, context) for element in node.elements]
        return self.at(self.span(node), ast.List(elts=elements, ctx=context))

    def _Set(self, node: cst.Set, context: Any) -> ast.expr:
        return self.at(self.span(node), ast.Set(elts=[self.load(element) for element in node.elements]))

    def _Dict(self, node: cst.Dict, context: Any) -> ast.expr:
        keys = [self.load(getattr(element, "key", None)) for element in node.elements]
        values = [self.load(element.value) for element in node.elements]
        return self.at(self.span(node), ast.Dict(keys=keys, values=values))

    def _comprehension(self, node: Any, context: Any = None) -> ast.expr:
        kind = getattr(ast, type(node).__name__)
        made = kind(elt=self.load(node.elt), generators=list(self._generators(node.for_in)))
        span = self.bracketed(node) if kind is ast.GeneratorExp else self.span(node)
        located: ast.expr = self.at(span, made)
        return located

    _ListComp = _SetComp = _GeneratorExp = _comprehension

    def _DictComp(self, node: cst.DictComp, context: Any) -> ast.expr:
        generators = list(self._generators(node.for_in))
        made = ast.DictComp(key=self.load(node.key), value=self.load(node.value), generators=generators)
        return self.at(self.span(node), made)

    def _generators(self, node: Any) -> Iterator[ast.comprehension]:
        while node is not None:
            yield ast.comprehension(
                target=self.lower(node.target, ast.Store()),
                iter=self.load(node.iter),
                ifs=[self.load(condition.test) for condition in node.ifs],
                is_async=int(node.asynchronous is not None),
            )
            node = node.inner_for_in

    # -- parameters ----------------------------------------------------------------------------------------------------

    def parameters(self, node: cst.Parameters) -> ast.arguments:
        positional = [*node.posonly_params, *node.params]
        star, double = node.star_arg, node.star_kwarg
        return ast.arguments(
            posonlyargs=[self._parameter(parameter) for parameter in node.posonly_params],
            args=[self._parameter(parameter) for parameter in node.params],
            vararg=self._parameter(star) if type(star).__name__ == "Param" else None,  # type: ignore[arg-type]
            kwonlyargs=[self._parameter(parameter) for parameter in node.kwonly_params],
            kw_defaults=[self.load(parameter.default) for parameter in node.kwonly_params],
            kwarg=self._parameter(double) if double else None,
            defaults=[self.load(parameter.default) for parameter in positional if parameter.default is not None],
        )

    def _parameter(self, node: cst.Param) -> ast.arg:
        annotation = node.annotation.annotation if node.annotation else None
        start, end = self.span(node.name)
        if annotation is not None:
            end = self.outer(annotation)[1]
        lowered = self.load(annotation)
        if type(annotation).__name__ == "StarredElement":
            self.require(3, 11)
        made = ast.arg(arg=normalised(node.name.value), annotation=lowered, type_comment=None)
        return self.at((start, end), made)


def _leaves(node: Any) -> Iterator[Any]:
    """The single strings of an implicit concatenation, which LibCST nests to the right."""
    while type(node).__name__ == "ConcatenatedString":
        yield from _leaves(node.left)
        node = node.right
    yield node


def _merged(values: Sequence[ast.expr]) -> list[ast.expr]:
    """`values` with neighbouring texts joined and empty ones left out."""
    merged: list[ast.expr] = []
    for value in values:
        last: Any = merged[-1] if merged else None
        if isinstance(value, ast.Constant) and isinstance(last, ast.Constant):
            last.value = str(last.value) + str(value.value)
            last.end_lineno, last.end_col_offset = value.end_lineno, value.end_col_offset
        elif not (isinstance(value, ast.Constant) and value.value == ""):
            merged.append(value)
    return merged


def _evaluated(literal: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # escapes that mean nothing
        return ast.literal_eval(literal)
