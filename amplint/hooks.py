"""Hooks in which a framework shows gradients that its scaler has multiplied and not yet divided again.

Lightning calls `on_after_backward` before it unscales and `on_before_optimizer_step` after; fastai's MixedPrecision
unscales between `after_backward` and `before_step`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from amplint.context import Context
from amplint.edit import argument
from amplint.project import Definition
from amplint.tree import Function

_LIGHTNING = ("lightning", "pytorch_lightning")
_FLOAT16_PRECISION = (16, "16", "16-mixed")


@dataclass(frozen=True, slots=True)
class ScaledHook:
    """A method that sees scaled gradients, and the hook that would see them unscaled."""

    function: Function
    framework: str
    instead: str


def scaled_hooks(context: Context) -> Iterator[ScaledHook]:
    """The hooks of the judged file that see scaled gradients, where the project trains in float16."""
    module = context.module
    for function in module.functions:
        cls = module.class_of(function)
        if cls is None or function.name not in ("on_after_backward", "after_backward"):
            continue
        bases = context.project.base_names(Definition(module, cls))
        if function.name == "on_after_backward" and _is_from(bases, _LIGHTNING) and _has_float16_trainer(context):
            yield ScaledHook(function, "Lightning", "on_before_optimizer_step")
        elif function.name == "after_backward" and _is_from(bases, ("fastai",)) and _is_fastai_float16(context):
            yield ScaledHook(function, "fastai", "before_step")


def _is_from(bases: frozenset[str], packages: tuple[str, ...]) -> bool:
    """Whether a class derives from a module or callback of one of the packages."""
    ends = ("LightningModule", "LightningDataModule", "Callback")
    return any(base.split(".")[0] in packages and base.rsplit(".", 1)[-1] in ends for base in bases)


def _has_float16_trainer(context: Context) -> bool:
    return any(
        isinstance(precision := argument(site.call, "precision"), ast.Constant)
        and precision.value in _FLOAT16_PRECISION
        for site in context.project.calls_of("Trainer")
    )


def _is_fastai_float16(context: Context) -> bool:
    return any(True for name in ("to_fp16", "MixedPrecision") for _ in context.project.calls_of(name))
