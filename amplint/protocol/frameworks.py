"""What frameworks do with gradients: their conventions as data, one row a call.

Sources: accelerate `Accelerator.backward/clip_grad_norm_/unscale_gradients` (0.10 to 1.10); lightning
`Fabric.backward/clip_gradients`, `LightningModule.manual_backward/clip_gradients` (2.0 to 2.5); timm
`utils/cuda.py: NativeScaler` (0.3 to 1.0); mmengine `AmpOptimWrapper` (0.1 to 0.10); deepspeed `DeepSpeedEngine`
(0.5 to 0.17); transformers `Trainer.training_step` (4.31 to 4.57), which goes backward through its accelerator, while
the unscaling and the clipping by `max_grad_norm` follow after it; apex `amp.scale_loss`.

Composer, fastai's callbacks and ignite's `create_supervised_trainer` do whole steps by themselves: no call of theirs in
a training script does a part of one. What fastai's hooks see is in `amplint.hooks`.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from amplint.protocol.events import Kind
from amplint.tree import Module

WHOLE_STEP = (Kind.BACKWARD, Kind.UNSCALE, Kind.CLIP, Kind.STEP, Kind.UPDATE)


@dataclass(frozen=True, slots=True)
class Call:
    """A method of the framework's object and what it does, in order. Arguments by position and by name."""

    does: tuple[Kind, ...]
    loss: int | None = None
    parameters: int | None = None
    optimizer: int | None = None


@dataclass(frozen=True, slots=True)
class Framework:
    """`classes` are the ends of the dotted names of its object's class; `variables` matches what it is usually called.

    `imports` is a module without which the variable's name alone says nothing. `bases` matches the dotted names of the
    classes whose methods call on `self`.
    """

    name: str
    classes: tuple[str, ...]
    variables: re.Pattern[str]
    imports: tuple[str, ...]
    calls: dict[str, Call]
    bases: re.Pattern[str] | None = None


def _named(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


FRAMEWORKS = (
    Framework(
        "accelerate",
        ("Accelerator",),
        _named(r"accelerator$"),
        ("accelerate", "transformers", "trl"),
        {
            "backward": Call((Kind.BACKWARD,), loss=0),
            "clip_grad_norm_": Call((Kind.UNSCALE, Kind.CLIP), parameters=0),
            "clip_grad_value_": Call((Kind.UNSCALE, Kind.CLIP), parameters=0),
            "unscale_gradients": Call((Kind.UNSCALE,), optimizer=0),
        },
    ),
    Framework(
        "fabric",
        ("lightning.fabric.Fabric", "lightning.Fabric", "lightning_fabric.Fabric", "lightning.fabric.fabric.Fabric"),
        _named(r"fabric$"),
        ("lightning", "lightning_fabric"),
        {
            "backward": Call((Kind.BACKWARD,), loss=0),
            "clip_gradients": Call((Kind.UNSCALE, Kind.CLIP), parameters=0, optimizer=1),
        },
    ),
    Framework(
        "lightning",
        ("LightningModule",),
        _named(r"^$"),
        ("lightning", "pytorch_lightning"),
        {
            "manual_backward": Call((Kind.BACKWARD,), loss=0),
            "clip_gradients": Call((Kind.CLIP,), optimizer=0),
        },
        re.compile(r"(^|\.)Lightning(Module|Lite)$"),
    ),
    Framework(
        "transformers",
        (),
        _named(r"^$"),
        ("transformers", "trl"),
        {"training_step": Call((Kind.BACKWARD,))},
        re.compile(r"^(transformers|trl|sentence_transformers)\.(\w+\.)*\w*Trainer$"),
    ),
    Framework(
        "timm",
        ("NativeScaler", "NativeScalerWithGradNormCount", "timm.utils.cuda.NativeScaler"),
        _named(r"loss_scaler$"),
        ("timm",),
        {"__call__": Call(WHOLE_STEP, loss=0, parameters=4, optimizer=1)},
    ),
    Framework(
        "mmengine",
        ("AmpOptimWrapper", "OptimWrapper"),
        _named(r"optim(izer)?_wrapper$"),
        ("mmengine",),
        {
            "update_params": Call(WHOLE_STEP, loss=0),
            "backward": Call((Kind.BACKWARD,), loss=0),
            "step": Call((Kind.UNSCALE, Kind.CLIP, Kind.STEP, Kind.UPDATE)),
            "zero_grad": Call((Kind.ZERO,)),
        },
    ),
    Framework(
        "deepspeed",
        ("DeepSpeedEngine", "deepspeed.initialize"),
        _named(r"(model_)?engine$"),
        ("deepspeed",),
        {
            "backward": Call((Kind.BACKWARD,), loss=0),
            "step": Call((Kind.UNSCALE, Kind.CLIP, Kind.STEP, Kind.UPDATE)),
        },
    ),
)

OPTIMIZERS_THAT_CLIP = frozenset(
    "Lamb LAMB NVLamb FusedLAMB FusedLamb DistributedFusedLAMB ScaledAdam Adafactor LARS LAMBOptimizer Lambc "
    "AdaScale AdamP_clip GradClipOptimizer ClippedAdam BertAdam".split()
)
"""Optimizers that limit the update or the gradient by themselves."""

CLIPPING_ARGUMENTS = frozenset(
    "clipping_scale clipping_update_period max_grad_norm grad_clip clip_grad gradient_clip".split()
)
"""Arguments that tell an optimizer's constructor to clip."""


def imports_any(module: Module, *packages: str) -> bool:
    """Whether a file imports one of the packages, or something of one."""
    for node in module.tree.body:
        if isinstance(node, ast.Import) and any(alias.name.split(".")[0] in packages for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in packages:
            return True
    return False
