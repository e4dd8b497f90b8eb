"""Whether gradients flow through a value: not under no_grad, however it is reached, nor from constants or data."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from amplint.flow import branches_around, definitions
from amplint.project import Definition, Project
from amplint.torch_ops import Kind
from amplint.tree import Module
from amplint.values.dtype import Dtype
from amplint.values.value import Certainty, Frame, Value

_MAX_VALUES = 200
_CALLS = 3
"""So many calls back it is asked whether all callers are under no_grad."""

_NO_TENSORS = ("item", "tolist", "detach", "data")
"""What leaves the graph."""

_TESTS = ("float", "print", "bool", "int", "isclose", "allclose")
"""Functions that hand on no tensor; those named `assert…` do not either."""

_STEPS = ("floor", "ceil", "round", "trunc", "sign", "floor_divide")
"""Operations whose slope is 0 wherever they have one."""

_FILES = ("torchaudio.load", "torchvision.io")
"""What reads tensors from files: data, which no gradient leads to."""

_FUNCTION = ("torch.autograd.Function", "torch.autograd.function.")
_EXPORTING = ("torch.jit.is_scripting", "torch.jit.is_tracing", "torch.onnx.is_in_onnx_export")
_DATA = ("torch.utils.data.",)
_PREPARING = ("FeatureExtractor", "FeatureExtractionMixin", "ImageProcessor", "ImageProcessingMixin", "ProcessorMixin")
"""How transformers calls what prepares data."""

_MEASURING = ("Metric",)
"""How libraries call what measures results: torchmetrics, MONAI, ignite."""

_NO_OPERANDS = ("index", "indices", "dim", "dims", "keepdim", "size", "shape", "dtype", "mask", "condition", "repeats")
"""Parameters through which no gradient flows."""


def flow(seen: Iterable[Value]) -> bool:
    """Whether a gradient may flow through a value in one of the ways that it is reached."""
    return any(not _is_under_no_grad(v) and _is_tracked(v) and not _is_only_tested(v) for v in seen)


def _is_under_no_grad(value: Value) -> bool:
    """Whether a value is computed under no_grad, in its own frame or because all known calls of its function are."""
    outermost = value.frame
    while outermost.caller is not None and outermost.call is not None:
        outermost = outermost.caller
    node = value.node if outermost is value.frame else _entry(value.frame)
    return _is_made_under_no_grad(value) or _is_switched_off(value.engine.project, outermost.module, node, _CALLS)


def _is_made_under_no_grad(value: Value) -> bool:
    """Whether a value is computed under no_grad: where it stands, or at one of the calls that lead there."""
    module, node, frame = value.module, value.node, value.frame
    while (off := _switched_off(value.engine.project, module, node)) is None:
        if frame.caller is None or frame.call is None:
            return False
        module, node, frame = frame.caller.module, frame.call, frame.caller
    return off


def _entry(frame: Frame) -> ast.AST:
    """The outermost call that leads to a frame."""
    while frame.caller is not None and frame.caller.call is not None:
        frame = frame.caller
    assert frame.call is not None
    return frame.call


def _is_switched_off(project: Project, module: Module, node: ast.AST, calls: int) -> bool:
    """Whether `node` runs under no_grad where it stands, or all known calls of its function do or are only compared."""
    off = _switched_off(project, module, node)
    if off is not None:
        return off
    function = module.function(node)
    callers = project.callers(Definition(module, function)) if function is not None and calls else ()
    return bool(callers) and all(
        _is_test(c.module.parent(c.call)) or _is_switched_off(project, c.module, c.call, calls - 1) for c in callers
    )


def _is_only_tested(value: Value) -> bool:
    """Whether nothing is done with the value but comparing it, or taking its number."""
    module, parent = value.module, value.module.parent(value.node)
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1 or not isinstance(parent.targets[0], ast.Name):
        return _is_test(parent)
    name, scope = parent.targets[0], module.scope(value.node)
    reads = [
        node
        for node in ast.walk(scope)
        if isinstance(node, ast.Name) and node.id == name.id and isinstance(node.ctx, ast.Load)
        if any(reaching.node is name for reaching in definitions(module, node))
    ]
    return bool(reads) and all(_is_test(module.parent(node)) for node in reads)


def _is_test(parent: ast.AST | None) -> bool:
    if isinstance(parent, ast.Call):
        name = parent.func.attr if isinstance(parent.func, ast.Attribute) else getattr(parent.func, "id", "")
        return name.startswith("assert") or name in _TESTS
    return isinstance(parent, ast.Compare) or (isinstance(parent, ast.Attribute) and parent.attr in _NO_TENSORS)


def _switched_off(project: Project, module: Module, node: ast.AST) -> bool | None:
    """Whether the innermost `with torch.no_grad()`, `enable_grad()` or decorator around `node` turns gradients off.

    Methods do, too: those of a data set or of what prepares data, and those of an autograd Function, of which torch
    differentiates neither forward nor, unless asked for second derivatives, backward. And a branch that is not taken
    in training. None where there is no such thing.
    """
    for ancestor in module.ancestors(node):
        if isinstance(ancestor, ast.With | ast.AsyncWith):
            switches = [item.context_expr for item in reversed(ancestor.items)]
        elif isinstance(ancestor, ast.FunctionDef | ast.AsyncFunctionDef):
            if _is_never_differentiated(project, module, ancestor):
                return True
            switches = ancestor.decorator_list
        else:
            continue
        for switch in switches:
            off = _turns_off(module, switch)
            if off is not None:
                return off
    is_evaluated = any(_is_evaluation(module, test, outcome) for test, outcome in branches_around(module, node))
    return True if is_evaluated else None


def _is_evaluation(module: Module, test: ast.expr, outcome: bool) -> bool:
    """Whether a test with this outcome means that nothing is trained: `not self.training`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_evaluation(module, test.operand, not outcome)
    if isinstance(test, ast.BoolOp):
        holds = any if isinstance(test.op, ast.And) is outcome else all
        return holds(_is_evaluation(module, part, outcome) for part in test.values)
    if isinstance(test, ast.Call):
        return outcome and module.is_named(test.func, *_EXPORTING)
    return not outcome and isinstance(test, ast.Attribute) and test.attr == "training"


def _is_never_differentiated(
    project: Project, module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef
) -> bool:
    """Whether a function is a method of a data set, of what prepares data or measures, or of an autograd Function."""
    cls = module.class_of(function)
    if cls is None or not cls.bases:
        return False
    kinds = (*_DATA, *_FUNCTION) if function.name in ("forward", "backward") else _DATA
    return any(
        base.startswith(kinds) or base.endswith((*_PREPARING, *_MEASURING))
        for base in project.base_names(Definition(module, cls))
    )


def _turns_off(module: Module, switch: ast.expr) -> bool | None:
    called = switch.func if isinstance(switch, ast.Call) else switch
    names = {name.rpartition(".")[2] for name in module.names(called) if name.startswith("torch.")}
    if names & {"no_grad", "inference_mode"}:
        return True
    if names & {"enable_grad"}:
        return False
    arguments = switch.args if isinstance(switch, ast.Call) else []
    if names & {"set_grad_enabled"} and arguments and isinstance(arguments[0], ast.Constant):
        return not arguments[0].value
    return None


def _is_tracked(value: Value) -> bool:
    """Whether `value` can depend on something that requires a gradient, as far as so many values tell."""
    pending, known = [value], {value}
    while pending and len(known) < _MAX_VALUES:
        current = pending.pop()
        if _is_untracked(current):
            continue
        operands = _operands(current)
        if not operands or _has_parameters(current):
            return True
        pending += [operand for operand in operands if operand not in known]
        known.update(operands)
    return bool(pending)


def _has_parameters(value: Value) -> bool:
    """Whether a value is what a module with weights of its own (a Linear, a LayerNorm) makes of its input."""
    operation = value.operation
    if operation is None or operation.kind not in (Kind.LAYER, Kind.NORM) or "weight" in value.arguments:
        return False
    return bool(operation.modules) and operation.name not in ("interpolate", "local_response_norm")


def _operands(value: Value) -> list[Value]:
    """What a tensor operation, a list of tensors, or an element that was unpacked is made of; [] for anything else."""
    if value.op in ("tuple", "comprehension"):
        return [operand for element in value.elements for operand in value.engine.of_argument(element)]
    if value.op == "unknown" and isinstance(value.constant, int):
        return list(value.operand("input"))
    if not value.is_tensor_op:
        return []
    names = [name for name in value.arguments if name not in _NO_OPERANDS]
    return [operand for name in names for operand in value.operand(name)]


def _is_untracked(value: Value) -> bool:
    """Whether no gradient comes out of a value whatever it is made of: numbers, new tensors, what is detached."""
    operation = value.operation
    if value.op in ("constant", "python") or is_stopped(value) or value.dotted in ("size", "shape", "dim"):
        return True
    if value.op == "unknown" and (value.dotted.startswith(_FILES) or _is_gradient(value)):
        return True
    if value.op in ("tuple", "comprehension"):
        return False
    if operation is not None and (operation.result or operation.kind is Kind.CREATE):
        return True
    return value.engine.is_tensor(value) is Certainty.NEVER or _is_made_under_no_grad(value)


def is_stopped(value: Value) -> bool:
    """Whether an operation lets no gradient through: it gives integers, or its slope is 0."""
    if value.op in (*_NO_TENSORS, *_STEPS):
        return True
    is_cast = value.operation is not None and value.operation.kind is Kind.CAST
    return is_cast and value.dtypes <= {Dtype.INTEGER, Dtype.BOOL}


def _is_gradient(value: Value) -> bool:
    """Whether a value is a `.grad` that no second derivative is taken of."""
    is_read = isinstance(value.node, ast.Attribute) and value.node.attr == "grad"
    return is_read and "create_graph" not in value.module.source.text
