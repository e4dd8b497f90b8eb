"""AMP309: a custom autograd Function that autocast splits: half forward, full backward."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from typing import ClassVar

from amplint import edit, half, torch_ops
from amplint.context import Context
from amplint.project import Definition
from amplint.rule import Edit, Example, Finding, Fix, Related, Rule, Safety, Severity
from amplint.torch_ops import Cast, Kind
from amplint.tree import Module

_GUARDS = ("custom_fwd", "custom_bwd")
_CASTS = ("float", "half", "double", "to", "type", "type_as", "autocast", "is_autocast_enabled", "set_autocast_enabled")
"""Calls by which a Function minds dtypes itself."""

_COMMUNICATION = ("reduce", "gather", "scatter", "broadcast", "all_to_all", "send", "recv", "barrier")
_HARMLESS_PACKAGES = frozenset({"torch", "numpy", "builtins", "einops", "typing_extensions", *sys.stdlib_module_names})
_LOADERS = (
    "torch.utils.cpp_extension.load",
    "torch.utils.cpp_extension.load_inline",
    "importlib.import_module",
)


class CustomFunctionUnguarded(Rule):
    """A custom autograd Function without custom_fwd and custom_bwd runs forward and backward in different dtypes.

    ## What it does
    Reports a `torch.autograd.Function` whose forward or backward multiplies matrices, convolves, or calls an extension,
    which is applied under float16 autocast, and which has neither `custom_fwd`/`custom_bwd` nor casts of its own.
    Elementwise Functions, gradient reversal and communication are not reported, nor are Functions that nothing in the
    project applies under autocast.

    ## Why
    forward runs with autocast on: its matmul is float16. backward runs with autocast off, on a float16 gradient and
    float32 saved tensors: `expected scalar type Half but found Float`. An extension gets float16 where it was written
    for float32. `custom_fwd` and `custom_bwd` run both in the same autocast state.

    ## Example
    ```python
    class MaskedLinear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, mask): ...
        @staticmethod
        def backward(ctx, grad): ...
    ```
    Use instead:
    ```python
    class MaskedLinear(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda")
        def forward(ctx, x, weight, mask): ...
        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, grad): ...
    ```

    ## Fix
    Unsafe: the two decorators. An extension that has no float16 kernel also needs `cast_inputs=torch.float32`.

    ## References
    - [PyTorch: functions with multiple inputs or autocastable ops](https://pytorch.org/docs/stable/notes/amp_examples.html#functions-with-multiple-inputs-or-autocastable-ops)
    - [PyTorch issue 38487](https://github.com/pytorch/pytorch/issues/38487)
    """

    code = "AMP309"
    name = "custom-function-unguarded"
    severity = Severity.WARNING
    summary = "a custom autograd Function under autocast lacks custom_fwd and custom_bwd"
    triggers = ((b"Function", b"autograd"),)
    fixable = "unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch
            from torch import nn


            class SharedLinear(torch.autograd.Function):  # expect
                # saves memory: the weight is rebuilt in backward
                @staticmethod
                def forward(ctx, x, weight):
                    ctx.save_for_backward(x, weight)
                    return x @ weight.t()

                @staticmethod
                def backward(ctx, grad):
                    x, weight = ctx.saved_tensors
                    return grad @ weight, grad.t() @ x


            class Layer(nn.Module):
                def __init__(self, dim):
                    super().__init__()
                    self.weight = nn.Parameter(torch.randn(dim, dim))

                def forward(self, x):
                    return SharedLinear.apply(x, self.weight)


            def run(layer: Layer, x):
                with torch.autocast("cuda", dtype=torch.float16):
                    return layer(x)
            """,
            """
            import torch
            from torch import nn


            class SharedLinear(torch.autograd.Function):
                # saves memory: the weight is rebuilt in backward
                @staticmethod
                @torch.amp.custom_fwd(device_type="cuda")
                def forward(ctx, x, weight):
                    ctx.save_for_backward(x, weight)
                    return x @ weight.t()

                @staticmethod
                @torch.amp.custom_bwd(device_type="cuda")
                def backward(ctx, grad):
                    x, weight = ctx.saved_tensors
                    return grad @ weight, grad.t() @ x


            class Layer(nn.Module):
                def __init__(self, dim):
                    super().__init__()
                    self.weight = nn.Parameter(torch.randn(dim, dim))

                def forward(self, x):
                    return SharedLinear.apply(x, self.weight)


            def run(layer: Layer, x):
                with torch.autocast("cuda", dtype=torch.float16):
                    return layer(x)
            """,
        ),
        Example(
            """
            import hash_grid_cuda
            from torch.autograd import Function


            class GridEncode(Function):  # expect
                @staticmethod
                def forward(ctx, points, table):
                    ctx.save_for_backward(points, table)
                    return hash_grid_cuda.encode(points.contiguous(), table)

                @staticmethod
                def backward(ctx, grad):
                    points, table = ctx.saved_tensors
                    return None, hash_grid_cuda.encode_backward(grad.contiguous(), points, table)


            grid_encode = GridEncode.apply
            """,
            """
            import hash_grid_cuda
            import torch
            from torch.autograd import Function


            class GridEncode(Function):
                @staticmethod
                @torch.amp.custom_fwd(device_type="cuda")
                def forward(ctx, points, table):
                    ctx.save_for_backward(points, table)
                    return hash_grid_cuda.encode(points.contiguous(), table)

                @staticmethod
                @torch.amp.custom_bwd(device_type="cuda")
                def backward(ctx, grad):
                    points, table = ctx.saved_tensors
                    return None, hash_grid_cuda.encode_backward(grad.contiguous(), points, table)


            grid_encode = GridEncode.apply
            """,
            {
                "train.py": """
                import torch
                from main import grid_encode

                @torch.autocast("cuda")
                def render(points, table):
                    return grid_encode(points, table).sum()
                """,
            },
        ),
    )
    VALID: ClassVar = (
        """
        import torch
        from torch.amp import custom_bwd, custom_fwd

        class Guarded(torch.autograd.Function):
            @staticmethod
            @custom_fwd(device_type="cuda", cast_inputs=torch.float32)
            def forward(ctx, x, weight):
                ctx.save_for_backward(x, weight)
                return x @ weight

            @staticmethod
            @custom_bwd(device_type="cuda")
            def backward(ctx, grad):
                x, weight = ctx.saved_tensors
                return grad @ weight.t(), x.t() @ grad

        class Casts(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, weight):
                ctx.save_for_backward(x.float(), weight)
                return x.float() @ weight

            @staticmethod
            def backward(ctx, grad):
                x, weight = ctx.saved_tensors
                with torch.autocast("cuda", enabled=False):
                    return grad.float() @ weight.t(), x.t() @ grad.float()

        def run(x, weight):
            with torch.autocast("cuda", dtype=torch.float16):
                return Guarded.apply(x, weight) + Casts.apply(x, weight)
        """,
        """
        import torch
        import torch.distributed as dist

        class Reverse(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, alpha):
                ctx.alpha = alpha
                return x.view_as(x)

            @staticmethod
            def backward(ctx, grad):
                return -ctx.alpha * grad, None

        class Swish(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x.sigmoid()

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                s = torch.sigmoid(x)
                return grad * s * (1 + x * (1 - s))

        class Gather(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
                dist.all_gather(parts, x)
                return torch.cat(parts)

            @staticmethod
            def backward(ctx, grad):
                dist.all_reduce(grad)
                return grad

        def run(x):
            with torch.autocast("cuda", dtype=torch.float16):
                return Reverse.apply(x, 1.0) + Swish.apply(x) + Gather.apply(x)
        """,
        """
        import torch

        class Product(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, weight):
                ctx.save_for_backward(x, weight)
                return x @ weight

            @staticmethod
            def backward(ctx, grad):
                x, weight = ctx.saved_tensors
                return grad @ weight.t(), x.t() @ grad

        def float32(x, weight):
            return Product.apply(x, weight)

        def off(x, weight):
            with torch.autocast("cuda", dtype=torch.float16):
                y = x @ weight
                with torch.autocast("cuda", enabled=False):
                    return Product.apply(x, weight) + y
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for cls in context.module.classes:
            methods = {item.name: item for item in cls.body if isinstance(item, ast.FunctionDef)}
            passes = [methods[name] for name in ("forward", "backward") if name in methods]
            if len(passes) < 2 or not _is_function(context, cls) or any(map(_minds_dtypes, passes)):
                continue
            culprit = next((c for method in passes if (c := _autocast_call(context, method))), None)
            related = None if culprit is None else _applied_in_half(context, methods["forward"])
            if related is None:
                continue
            yield self.finding(
                context,
                cls,
                f"{cls.name} is applied under float16 autocast: its forward ({culprit}) gets float16, its backward "
                "runs outside autocast, so that their dtypes differ; it has no custom_fwd and custom_bwd",
                fix=_fix(context, passes),
                related=related,
            )


def _is_function(context: Context, cls: ast.ClassDef) -> bool:
    bases = context.project.base_names(Definition(context.module, cls))
    return any(base in ("torch.autograd.Function", "torch.autograd.function.Function") for base in bases)


def _minds_dtypes(method: ast.FunctionDef) -> bool:
    """Whether the method is guarded, or casts or switches autocast by itself."""
    names = {_last_name(node) for decorator in method.decorator_list for node in ast.walk(decorator)}
    calls = {_last_name(node.func) for node in ast.walk(method) if isinstance(node, ast.Call)}
    return bool(names & {*_GUARDS}) or bool(calls & {*_CASTS})


def _autocast_call(context: Context, method: ast.AST) -> str | None:
    """What in a method autocast runs in float16, or an extension that may not take it."""
    for node in ast.walk(method):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return "@"
        if isinstance(node, ast.Call) and (_is_cast_op(context.module, node) or _is_extension(context, node)):
            return ast.unparse(node.func)
    return None


def _is_cast_op(module: Module, call: ast.Call) -> bool:
    """Whether the call is a matmul, a convolution or another operation that autocast runs in float16."""
    names = module.names(call.func)
    found = [row for name in names if (row := torch_ops.by_function(name))]
    if not names and isinstance(call.func, ast.Attribute) and (row := torch_ops.by_method(call.func.attr)):
        found = [row]
    return any(row.cast is Cast.FLOAT16 and row.kind in (Kind.MATMUL, Kind.LAYER) for row in found)


def _is_extension(context: Context, call: ast.Call) -> bool:
    """Whether the call goes to compiled code: a module that is neither of this project nor a known package."""
    last = _last_name(call.func)
    if any(word in last for word in _COMMUNICATION) or context.project.callees(context.module, call):
        return False
    if isinstance(call.func, ast.Attribute) and _is_loaded(context.module, call.func.value):
        return True
    for name in context.module.names(call.func):
        root = name.lstrip(".").partition(".")[0]
        if name.startswith("torch.ops.") or (root not in _HARMLESS_PACKAGES and "." in name.lstrip(".")):
            return True
    return False


def _is_loaded(module: Module, node: ast.expr) -> bool:
    """Whether a name of the file is given an extension that is compiled on the spot."""
    found = module.lookup(node.id, node) if isinstance(node, ast.Name) else None
    for binding in found[1] if found else ():
        statement = module.parent(binding)
        value = statement.value if isinstance(statement, ast.Assign) else None
        if isinstance(value, ast.Call) and module.is_named(value.func, *_LOADERS):
            return True
    return False


def _applied_in_half(context: Context, forward: ast.AST) -> tuple[Related, ...] | None:
    """Where the Function is applied under float16 autocast; None if nowhere."""
    for site in context.project.callers(Definition(context.module, forward)):
        for frame in context.values.frames(site.module, site.call):
            region = context.values.region(site.module, site.call, frame)
            if region.is_float16:
                return half.explained(region, frame)
    return None


def _fix(context: Context, passes: list[ast.FunctionDef]) -> Fix:
    place = edit.layout(context.module)
    edits: list[Edit] = []
    for method, guard in zip(passes, _GUARDS, strict=True):
        spelling, imports = edit.add_import(context.module, f"torch.amp.{guard}", method)
        start = place.line_start(context.source.span(method)[0])
        line = f'{place.indentation(method)}@{spelling}(device_type="cuda"){context.source.newline}'
        edits += [Edit(start, start, line), *imports]
    return Fix("run forward and backward in the same autocast state", Safety.UNSAFE, tuple(sorted(set(edits))))


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
