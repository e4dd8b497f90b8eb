"""What an expression can be (`Value`), in which activation of its function (`Frame`), under which `Region`."""

from __future__ import annotations

import ast
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from amplint import torch_ops
from amplint.rule import Position
from amplint.tree import Module, Spot, spot
from amplint.values.dtype import Dtype, Dtypes
from amplint.values.interval import Interval

if TYPE_CHECKING:
    from pathlib import Path

    from amplint.project import Definition
    from amplint.values.engine import Values


Where: TypeAlias = "tuple[Path, Spot]"
"""A node, by what outlasts the tree of its file."""


def where(module: Module, node: ast.AST) -> Where:
    """Which node of which file it is."""
    return module.source.path, spot(node)


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


@dataclass(frozen=True, eq=False, slots=True)
class Frame:
    """One activation of a function: where it was called from, and so what its parameters are.

    `function` is None at module level. A frame without a `call` was entered from code that is not known;
    its `region` then says under which autocast (a Lightning step, a decorated function).
    """

    module: Module
    function: ast.AST | None
    region: Region
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    receiver: Value | None = None
    call: ast.Call | None = None
    caller: Frame | None = None
    open: bool = False
    """Whether the call passes `*` or `**` arguments, so that what is not bound need not be its default."""

    depth: int = 0
    hops: int = 3
    """How many calls back the parameters of a frame without a call are followed."""

    @property
    def path(self) -> tuple[Place, ...]:
        """The calls that lead here, outermost first."""
        if self.caller is None or self.call is None:
            return ()
        return (*self.caller.path, Place(self.caller.module, self.call, "called from here"))


@dataclass(frozen=True, slots=True)
class Argument:
    """An operand before it is evaluated: an expression and the frame it stands in, or `values` worked out already."""

    module: Module
    node: ast.expr
    frame: Frame
    values: Alternatives | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """One thing that an expression can be. Compare values with `is` or `Values.same`.

    `op` is the canonical operation of `torch_ops` ("softmax", "add", "getitem", "div" also for `1 / x`, …) or
      "constant"    a Python constant, see `constant`
      "parameter"   a parameter that no known call binds; `default` holds what it is when not given
      "setting"     a number that a configuration gives; `default` holds what it is when nothing is set
      "tuple"       a tuple, list or set of `elements`; "comprehension" one of any length whose elements
                    are these
      "dict"        a dictionary, `arguments` by constant key
      "instance"    an instance of a class of the project, see `definition`
      "module"      an instance of a torch.nn class: `operation` is what it computes
      "sequential"  nn.Sequential of `elements`; "modules" is nn.ModuleList or ModuleDict
      "function", "class", "method", "partial", "super"   things that can be called
      "external"    anything else named in torch or another library, see `dotted`
      "python"      what is no tensor: the result of a builtin or of another library, a string
      "unknown"     `dotted` still names what was called, where that has a name
    """

    engine: Values
    op: str
    module: Module
    node: ast.expr
    frame: Frame
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    """By torch_ops parameter name; for a module instance the constructor's arguments as well."""
    elements: tuple[Argument, ...] = ()
    constant: object = None
    definition: Definition | None = None
    dotted: str = ""
    in_place: bool = False
    open: bool = False
    """For an instance: whether its constructor was given `*` or `**` arguments besides."""
    default: Argument | None = None
    operator: str = ""
    """For "module": the canonical operation that calling it is."""
    owner: Value | None = None
    """The instance whose attribute it is, which hands its precision down."""
    cast: Dtype | None = None
    """For a module or instance: the dtype that this very expression casts its parameters to."""
    wrapped: Region | None = None
    """The region in which a framework runs its forward (it returns float32)."""

    def __repr__(self) -> str:
        return f"<{self.op} at {self.module.source.path.name}:{getattr(self.node, 'lineno', '?')}>"

    @property
    def operation(self) -> torch_ops.Operation | None:
        """The row of the table of operations; None for a value that is no torch operation."""
        return torch_ops.by_name(self.operator or self.op)

    @property
    def is_tensor_op(self) -> bool:
        """Whether it is the result of an operation of the table."""
        return torch_ops.by_name(self.op) is not None

    def operand(self, name: str) -> Alternatives:
        """All values of an operand by its torch_ops parameter name ("input", "other"); () if it is not given."""
        argument = self.arguments.get(name)
        return () if argument is None else self.engine.of_argument(argument)

    def argument(self, name: str) -> ast.expr | None:
        """The expression given for a parameter, as written (for module instances also in the constructor call)."""
        argument = self.arguments.get(name)
        return None if argument is None else argument.node

    def number(self, name: str) -> float | None:
        """The one number that a parameter is, through constants, attributes and defaults; None if not one."""
        return self.engine.number(self.operand(name))

    def as_number(self) -> float | None:
        """This value as a number (no bool): a constant, arithmetic on constants, a parameter's default; else None."""
        return self.engine.as_number(self)

    @property
    def dtypes(self) -> Dtypes:
        """The dtypes it can have in its frame."""
        return self.engine.dtypes(self)

    @property
    def interval(self) -> Interval:
        """The interval its numbers lie in, as rounded in its dtypes."""
        return self.engine.interval(self)

    @property
    def precision(self) -> Dtype | None:
        """For a module or instance: the dtype of its parameters, wherever they were cast; None if not one."""
        found = self.engine.precision(self)
        return next(iter(found)) if len(found) == 1 else None

    @property
    def is_half(self) -> bool:
        """Whether it is certainly float16 in its frame."""
        return self.dtypes == {Dtype.FLOAT16}

    @property
    def may_be_half(self) -> bool:
        """Whether float16 is among its dtypes in its frame."""
        return Dtype.FLOAT16 in self.dtypes

    @property
    def region(self) -> Region:
        """The autocast state where it is computed."""
        return self.engine.region(self.module, self.node, self.frame)


Alternatives: TypeAlias = tuple[Value, ...]
"""Alternatives: one a reaching definition, branch or call. Never empty for an expression; unknown is a Value."""


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
