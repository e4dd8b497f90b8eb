"""What a `.grad` expression is used for: does anything depend on the size of the values, which the loss scale changes?

Followed are the expressions around it, local variables, loops and comprehensions of its function. Copies, reshaping
and products commute with the scale; signs, ratios and finiteness do not see it. What leaves the function as a tensor
is not known to be used.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amplint import flow
from amplint.tree import Module

_MAX_LOCALS = 6
"""A gradient is followed through this many local variables."""

_LINEAR = frozenset(
    [
        "data",
        "detach",
        "clone",
        "view",
        "view_as",
        "flatten",
        "ravel",
        "reshape",
        "float",
        "double",
        "half",
        "cpu",
        "cuda",
        "to",
        "type",
        "type_as",
        "numpy",
        "contiguous",
        "t",
        "transpose",
        "permute",
        "squeeze",
        "unsqueeze",
        "expand",
        "neg",
        "mul",
        "div",
        "true_divide",
        "narrow",
        "index_select",
        "masked_select",
        "to_dense",
        "coalesce",
        "real",
        "T",
        "cat",
        "stack",
        "concat",
        "concatenate",
        "list",
        "tuple",
        "iter",
        "reversed",
        "sorted",
        "zip",
        "enumerate",
        "filter",
        "map",
        "chain",
        "_flatten_dense_tensors",
        "parameters_to_vector",
        "append",
        "extend",
        "sum",
        "mean",
        "where",
        "full_tensor",
        "to_local",
    ]
)
"""Attributes, methods and functions whose result is the gradient again, rearranged or multiplied."""

_SIZES = frozenset(
    [
        "norm",
        "vector_norm",
        "matrix_norm",
        "abs",
        "absolute",
        "std",
        "var",
        "max",
        "min",
        "amax",
        "amin",
        "median",
        "quantile",
        "item",
        "tolist",
        "pow",
        "square",
        "sqrt",
        "log",
        "log10",
        "exp",
        "dot",
        "vdot",
        "histc",
        "clamp",
        "clip",
        "cumsum",
        "get_total_norm",
        "_foreach_norm",
        "_get_total_norm",
        "norms",
        "rms",
    ]
)
"""Functions whose result tells how large the gradient is."""

_DESCRIPTIONS = frozenset(["shape", "dtype", "device", "ndim", "size", "numel", "dim", "is_sparse"])

_LOGGING = frozenset(
    [
        "print",
        "add_scalar",
        "add_scalars",
        "add_histogram",
        "log",
        "log_dict",
        "log_metrics",
        "log_metric",
        "debug",
        "info",
        "warning",
        "histogram",
        "Histogram",
        "log_scalar",
        "log_histogram",
        "write",
    ]
)


def sees_size(module: Module, gradient: ast.expr) -> bool:
    """Whether something of the function around depends on how large the values of a `.grad` expression are."""
    return _Followed(module, gradient).sees_size(gradient, _MAX_LOCALS)


class _Followed:
    """One gradient on its way through its function. `names` are the locals that hold it or its size."""

    def __init__(self, module: Module, gradient: ast.expr) -> None:
        self.module = module
        self.function = module.function(gradient) or module.tree
        self.names: set[str] = set()
        self.followed: set[ast.expr] = set()

    def sees_size(self, node: ast.expr, locals_left: int) -> bool:
        """Whether the size of the gradient that `node` holds is used."""
        parent = self.module.parent(node)
        match parent:
            case ast.Attribute():
                return self._of_attribute(parent, locals_left)
            case ast.Call():
                return self._of_argument(node, parent, locals_left)
            case ast.keyword():
                call = self.module.parent(parent)
                return isinstance(call, ast.Call) and self._of_argument(node, call, locals_left)
            case ast.BinOp():
                return self._of_arithmetic(node, parent, locals_left)
            case ast.Compare():
                return self._of_comparison(parent)
            case ast.AugAssign():
                return self._of_augmented(node, parent, locals_left)
            case ast.FormattedValue():
                return True
            case ast.Subscript() if parent.slice is node:
                return False
            case ast.IfExp() if parent.test is node:
                return False
            case ast.UnaryOp() if isinstance(parent.op, ast.Not):
                return False
            case ast.List() | ast.Tuple() | ast.Set() | ast.Starred() | ast.Subscript() | ast.IfExp() | ast.UnaryOp():
                return self.sees_size(parent, locals_left)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                return self.sees_size(parent, locals_left)
            case ast.Assign() | ast.AnnAssign() | ast.NamedExpr() if parent.value is node:
                inner = isinstance(parent, ast.NamedExpr) and self.sees_size(parent, locals_left)
                return inner or self._of_names(_targets(parent), locals_left, sized=False)
            case ast.For() | ast.comprehension() if parent.iter is node:
                return self._of_names([parent.target], locals_left, sized=False)
        return False

    def _of_attribute(self, attribute: ast.Attribute, locals_left: int) -> bool:
        call = self.module.parent(attribute)
        name = attribute.attr
        if not isinstance(call, ast.Call) or call.func is not attribute:
            return name in _LINEAR and self.sees_size(attribute, locals_left)
        if name in ("add_", "sub_", "addcmul_", "addcdiv_", "lerp_"):
            return not any(self._holds_gradient(argument) for argument in call.args)
        if name in ("mean", "sum") and self._is_number(call):
            return self._sized(call, locals_left)
        if name in _SIZES:
            return self._sized(call, locals_left)
        return name in _LINEAR and self.sees_size(call, locals_left)

    def _of_argument(self, node: ast.expr, call: ast.Call, locals_left: int) -> bool:
        name = _last_name(call.func)
        if _is_logging(self.module, call):
            return True
        if name in ("append", "extend") and isinstance(call.func, ast.Attribute):
            return self._of_names([call.func.value], locals_left, sized=False)
        if name in _SIZES or (name in ("mean", "sum", "float") and self._is_number(call)):
            return self._sized(call, locals_left)
        return name in _LINEAR and self.sees_size(call, locals_left)

    def _of_arithmetic(self, node: ast.expr, parent: ast.BinOp, locals_left: int) -> bool:
        other = parent.right if node is parent.left else parent.left
        if isinstance(parent.op, ast.Pow):
            return self._sized(parent, locals_left)
        if isinstance(parent.op, ast.Add | ast.Sub):
            return not self._holds_gradient(other) or self.sees_size(parent, locals_left)
        if isinstance(parent.op, ast.Div) and self._holds_gradient(other):
            return False
        return self.sees_size(parent, locals_left)

    def _of_comparison(self, compare: ast.Compare) -> bool:
        sides = [compare.left, *compare.comparators]
        if any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in compare.ops):
            return False
        constants = [side.value for side in sides if isinstance(side, ast.Constant)]
        if 0 in constants or None in constants or ast.unparse(sides[0]) == ast.unparse(sides[-1]):
            return False
        return not all(self._holds_gradient(side) for side in sides)

    def _of_augmented(self, node: ast.expr, parent: ast.AugAssign, locals_left: int) -> bool:
        if node is parent.target:
            return isinstance(parent.op, ast.Add | ast.Sub) and not self._holds_gradient(parent.value)
        return self._of_names([parent.target], locals_left, sized=False)

    def _sized(self, node: ast.expr, locals_left: int) -> bool:
        """Whether a number that tells the size of gradients is used for more than a ratio or a test for finiteness."""
        parent = self.module.parent(node)
        match parent:
            case ast.BinOp(op=ast.Div() | ast.Mult()) if self._holds_gradient(_other(parent, node)):
                return not isinstance(parent.op, ast.Div) and self._sized(parent, locals_left)
            case ast.BinOp() | ast.UnaryOp() | ast.ListComp() | ast.GeneratorExp() | ast.List() | ast.Tuple():
                return self._sized(parent, locals_left)
            case ast.Compare():
                return self._of_comparison(parent)
            case ast.Call() if _is_logging(self.module, parent):
                return True
            case ast.Expr():
                return False
            case ast.Call() if _last_name(parent.func) in ("isfinite", "isnan", "isinf"):
                return False
            case ast.Attribute():
                call = self.module.parent(parent)
                if parent.attr in ("isfinite", "isnan", "isinf"):
                    return False
                return self._sized(call if isinstance(call, ast.Call) else parent, locals_left)
            case ast.Call() if _last_name(parent.func) in ("append", "extend") and isinstance(
                parent.func, ast.Attribute
            ):
                return self._of_names([parent.func.value], locals_left, sized=True)
            case ast.Call() if _last_name(parent.func) in _SIZES | _LINEAR | {"float"}:
                return self._sized(parent, locals_left)
            case ast.Assign() | ast.AnnAssign() if parent.value is node:
                return self._of_names(_targets(parent), locals_left, sized=True)
            case ast.AugAssign() if parent.value is node:
                return self._of_names([parent.target], locals_left, sized=True)
        return True

    def _of_names(self, targets: list[ast.expr], locals_left: int, *, sized: bool) -> bool:
        """Whether the size is used where a local that holds the gradient (or its size) is read."""
        if locals_left == 0:
            return False
        names = {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        if any(not isinstance(target, ast.Name | ast.Tuple) for target in targets):
            return sized  # an attribute or an item: somebody may look at it
        if targets[0] in self.followed:
            return False
        self.followed.update(targets)
        self.names |= names
        follow = self._sized if sized else self.sees_size
        return any(follow(use, locals_left - 1) for use in self._reads(names, targets))

    def _reads(self, names: set[str], targets: list[ast.expr]) -> Iterator[ast.Name]:
        """The reads of names that what was stored in `targets` can reach."""
        for node in ast.walk(self.function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
                parent = self.module.parent(node)
                is_receiver = isinstance(parent, ast.Attribute) and parent.attr in ("append", "extend")
                if node not in targets and not is_receiver and self._reaches(node, targets):
                    yield node

    def _reaches(self, use: ast.Name, targets: list[ast.expr]) -> bool:
        stored = {n for t in targets for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        return not stored or any(found.node in stored for found in flow.definitions(self.module, use))

    def _holds_gradient(self, node: ast.AST) -> bool:
        """Whether values of gradients come into an expression; a shape or dtype taken from one does not count."""
        if isinstance(node, ast.Name):
            return node.id in self.names or "grad" in node.id
        if isinstance(node, ast.Attribute):
            return node.attr == "grad" or (node.attr not in _DESCRIPTIONS and self._holds_gradient(node.value))
        if isinstance(node, ast.Call) and _last_name(node.func).endswith("_like"):
            return False
        return any(self._holds_gradient(child) for child in ast.iter_child_nodes(node))

    def _is_number(self, call: ast.Call) -> bool:
        """Whether a mean or sum is taken of all values: without a dimension (a sum over micro-batches is linear)."""
        arguments = (
            call.args if isinstance(call.func, ast.Attribute) and not _is_torch(self.module, call) else call.args[1:]
        )
        return not arguments and not call.keywords


def _other(operation: ast.BinOp, node: ast.expr) -> ast.expr:
    return operation.right if node is operation.left else operation.left


def _targets(statement: ast.Assign | ast.AnnAssign | ast.NamedExpr) -> list[ast.expr]:
    return list(statement.targets) if isinstance(statement, ast.Assign) else [statement.target]


def _last_name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _is_logging(module: Module, call: ast.Call) -> bool:
    is_mathematical = any(name.startswith(("torch.", "math.", "numpy.")) for name in module.names(call.func))
    return _last_name(call.func) in _LOGGING and not is_mathematical


def _is_torch(module: Module, call: ast.Call) -> bool:
    return any(name.startswith("torch.") for name in module.names(call.func))
