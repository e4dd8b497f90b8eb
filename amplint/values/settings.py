"""What a flag is in a frame: the constants that reach it through parameters, defaults and the constructor.

Tests are decided by such flags. Nothing is computed here and no function is entered, as a test is looked at far more
often than an expression: what is not a constant handed on is not known.
"""

from __future__ import annotations

import ast

from amplint import flow
from amplint.flow import How, Reaching
from amplint.project import default_of
from amplint.values import objects
from amplint.values.site import Site, merged
from amplint.values.value import Alternatives, Argument

_MAX_STEPS = 5
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LAZY = (ast.Constant, ast.BinOp, ast.Tuple, ast.List, ast.Dict, ast.Lambda, ast.UnaryOp)
"""What is recognised without evaluating anything else."""


def of(site: Site, node: ast.expr, left: int = _MAX_STEPS) -> Alternatives:
    """The values of a flag; () if one of them is not a constant handed on, or an operation that stands there."""
    if isinstance(node, _LAZY):
        return site.of(node)
    if isinstance(node, ast.Name) and left > 0:
        return _together([_defined(site, reaching, left) for reaching in flow.definitions(site.module, node)])
    if isinstance(node, ast.Attribute) and left > 0:
        return _of_attribute(site, node, left)
    return ()


def _together(parts: list[Alternatives]) -> Alternatives:
    return merged(v for part in parts for v in part) if all(parts) else ()


def _defined(site: Site, reaching: Reaching, left: int) -> Alternatives:
    if reaching.how is How.PARAMETER and isinstance(reaching.node, ast.arg):
        return _of_parameter(site, reaching.node, left)
    if reaching.how is How.ASSIGN and reaching.value is not None:
        frame = site.engine.frame_of(site.module, reaching.node, site.frame)
        return of(site.at(site.module, frame), reaching.value, left - 1)
    return ()


def _of_parameter(site: Site, node: ast.arg, left: int) -> Alternatives:
    function = site.module.parents[site.module.parents[node]]
    frame = site.engine.frame_of(site.module, node, site.frame)
    if not isinstance(function, _FUNCTIONS) or frame.function is not function:
        return ()
    if (argument := frame.arguments.get(node.arg)) is not None:
        return _of_argument(site, argument, left)
    default = default_of(function, node.arg)
    if frame.call is None or frame.open or not isinstance(default, ast.Constant):
        return ()
    return site.at(site.module, frame).of(default)


def _of_argument(site: Site, argument: Argument, left: int) -> Alternatives:
    if argument.values is not None:
        return argument.values
    return of(site.at(argument.module, argument.frame), argument.node, left - 1)


def _of_attribute(site: Site, node: ast.Attribute, left: int) -> Alternatives:
    """`self.flag`, as the receiver's class assigns it."""
    receiver = site.frame.receiver
    if receiver is None or receiver.definition is None or not _names_receiver(site, node.value):
        return ()
    parts: list[Alternatives] = []
    for target in site.engine.project.attribute(receiver.definition, node.attr):
        reaching = flow.binding(target.module, target.node, node.attr)
        if objects.is_field(target) and (given := objects.field_given(site, receiver, node.attr)):
            return given
        frame = objects.frame_of_target(site, target, receiver, node)
        parts.append(_defined(site.at(target.module, frame), reaching, left - 1))
    return _together(parts)


def _names_receiver(site: Site, node: ast.expr) -> bool:
    if not isinstance(node, ast.Name):
        return False
    found = site.module.lookup(node.id, node)
    function = site.frame.function
    return (
        found is not None
        and len(found[1]) == 1
        and isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and bool(function.args.args)
        and found[1][0] is function.args.args[0]
    )
