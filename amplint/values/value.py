"""What an expression can be (`Value`), in which activation of its function (`Frame`), under which `Region`."""

from __future__ import annotations

import ast
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from amplint import torch_ops
from amplint.rule import Position
from amplint.tree import Module
from amplint.values.dtype import Dtype, Dtypes
from amplint.values.interval import Interval

if TYPE_CHECKING:
    from pathlib import Path

    from amplint.project import Definition
    from amplint.values.engine import Values


class Certainty(enum.Enum):
    """How sure it is that something holds."""

    ALWAYS = "always"
    MAY = "may"
    NEVER = "never"
    UNKNOWN = "unknown"


class RegionKind(enum.Enum):
    """In what precision code runs."""

    FLOAT16 = "float16 autocast"
    BFLOAT16 = "bfloat16 autocast"
    CPU = "CPU autocast"
    DISABLED = "autocast disabled"
    NONE = "no autocast"
    UNKNOWN = "autocast of unknown dtype"


@dataclass(frozen=True, slots=True)
class Place:
    """A node of a file, with what it says there: a step of the reason for a region."""

    module: Module
    node: ast.AST
    message: str

    @property
    def path(self) -> Path:
        return self.module.source.path

    @property
    def position(self) -> Position:
        return self.module.source.position(self.module.source.span(self.node)[0])


@dataclass(frozen=True, slots=True)
class Region:
    """The autocast state in which a node runs. `certain` is False behind a flag that may be off."""

    kind: RegionKind
    certain: bool = True
    why: tuple[Place, ...] = ()

    @property
    def is_float16(self) -> bool:
        return self.kind is RegionKind.FLOAT16


@dataclass(frozen=True, eq=False)
class Frame:
    """One activation of a function: where it was called from, and so what its parameters are.

    `function` is None at module level. A frame without a `call` was entered from code that is not known;
    its `region` then says under which autocast (a Lightning step, a decorated function).
    """

    module: Module
    function: ast.AST | None
    region: Region
    arguments: Mapping[str, Alternatives] = field(default_factory=dict)
    receiver: Value | None = None
    call: ast.Call | None = None
    caller: Frame | None = None

    @cached_property
    def depth(self) -> int:
        return 0 if self.caller is None else self.caller.depth + 1

    @property
    def path(self) -> tuple[Place, ...]:
        """The calls that lead here, outermost first."""
        if self.caller is None or self.call is None:
            return ()
        return (*self.caller.path, Place(self.caller.module, self.call, "called from here"))


@dataclass(frozen=True, slots=True)
class Argument:
    """An operand before it is evaluated: an expression and the frame it stands in, or values made by the engine."""

    module: Module
    node: ast.expr | None
    frame: Frame
    values: Alternatives | None = None


class Value:
    """One thing that an expression can be. Compare values with `is` or `Values.same`.

    `op` is the canonical operation of `torch_ops` ("softmax", "add", "getitem", …) or one of
      "constant"   a Python constant, see `constant`
      "parameter"  a parameter that no known call binds
      "tuple"      a tuple or list of `elements`
      "instance"   an instance of a class of the project, see `definition`
      "module"     an instance of a torch.nn class, see `operation`; "sequential" is nn.Sequential of `elements`
      "function", "class", "method", "partial"   things that can be called
      "torch"      anything else named in torch or another library, see `dotted`
      "python"     a call of a builtin or another library whose result is no tensor
      "unknown"
    """

    def __init__(
        self,
        engine: Values,
        op: str,
        module: Module,
        node: ast.expr,
        frame: Frame,
        arguments: Mapping[str, Argument] | None = None,
        *,
        in_place: bool = False,
        elements: tuple[Argument, ...] = (),
        constant: object = None,
        definition: Definition | None = None,
        dotted: str = "",
        extra: object = None,
    ) -> None:
        self.engine = engine
        self.op = op
        self.module = module
        self.node = node
        self.frame = frame
        self.arguments = arguments or {}
        self.in_place = in_place
        self.elements = elements
        self.constant = constant
        self.definition = definition
        self.dotted = dotted
        self.extra = extra

    def __repr__(self) -> str:
        return f"<{self.op} at {self.module.source.path.name}:{getattr(self.node, 'lineno', '?')}>"

    def is_op(self, *names: str) -> bool:
        return self.op in names

    @property
    def operation(self) -> torch_ops.Operation | None:
        """The row of the table of operations; None for a value that is no torch operation."""
        return torch_ops.by_name(self.op)

    def operand(self, name: str) -> Alternatives:
        """All values of an operand by its torch_ops parameter name ("input", "other"); () if it is not given."""
        argument = self.arguments.get(name)
        return () if argument is None else self.engine.of_argument(argument)

    def argument(self, name: str) -> ast.expr | None:
        """The expression given for a parameter, as written (for module instances, in the constructor call)."""
        argument = self.arguments.get(name)
        return None if argument is None else argument.node

    def number(self, name: str) -> float | None:
        """The one number that a parameter is, through constants, attributes and defaults; None if not one."""
        values = self.operand(name)
        numbers = {v.as_number() for v in values}
        return next(iter(numbers)) if len(numbers) == 1 else None

    def as_number(self) -> float | None:
        """This value as a number, if it is a constant one (bools are not numbers)."""
        if self.op == "constant" and isinstance(self.constant, int | float) and not isinstance(self.constant, bool):
            return float(self.constant)
        return None

    @cached_property
    def dtypes(self) -> Dtypes:
        """The dtypes it can have in its frame."""
        return self.engine.dtypes(self)

    @cached_property
    def interval(self) -> Interval:
        """The interval its numbers lie in, as rounded in its dtypes."""
        return self.engine.interval(self)

    @property
    def is_half(self) -> bool:
        """Whether it is certainly float16 in its frame."""
        return self.dtypes == {Dtype.FLOAT16}

    @property
    def may_be_half(self) -> bool:
        return Dtype.FLOAT16 in self.dtypes

    @property
    def region(self) -> Region:
        """The autocast state where it is computed."""
        return self.engine.region(self.module, self.node, self.frame)


Alternatives: TypeAlias = tuple[Value, ...]
"""Alternatives: one a reaching definition, branch or call. Never empty for an expression; unknown is a Value."""

Test: TypeAlias = Callable[[Value], bool]


@dataclass(frozen=True, slots=True)
class Step:
    """One layer that `peel` took off: its kind ("index", "cast", "eps", "clamp", …) and the value that was it."""

    kind: str
    value: Value


@dataclass(frozen=True, slots=True)
class Peeled:
    """What is left when slices, casts, eps and the like are taken off a value, outermost step first."""

    core: Value
    steps: tuple[Step, ...]

    def took(self, kind: str) -> bool:
        return any(step.kind == kind for step in self.steps)
