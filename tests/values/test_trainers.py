"""The methods of a model that a training framework runs in float16, without a call of them in the project."""

from __future__ import annotations

import pytest

from amplint.values import Dtype
from tests.values.programs import Program

MODEL = "class Net({base}):\n    def {method}(self, batch):\n        print(self)\n        return batch.exp()\n"


def in_float16(imports: str, base: str, method: str, use: str) -> bool:
    program = Program(f"{imports}\nfrom torch import nn\n\n{MODEL.format(base=base, method=method)}\n{use}\n")
    frames = program.values.frames(program.main, program.expression("batch.exp()"))
    return any(frame.region.is_float16 for frame in frames)


@pytest.mark.parametrize(
    ("imports", "base", "method", "use"),
    [
        (
            "import lightning as L",
            "L.LightningModule",
            "training_step",
            "L.Trainer(precision='16-mixed').fit(Net())",
        ),
        (
            "import pytorch_lightning as pl",
            "pl.LightningModule",
            "validation_step",
            "pl.Trainer(precision=16).fit(model=Net())",
        ),
        (
            "import lightning as L",
            "L.LightningModule",
            "training_step",
            "def main(build):\n    L.Trainer(precision='16-mixed').fit(build())",
        ),
        ("from composer import Trainer", "nn.Module", "forward", "Trainer(model=Net(), precision='amp_fp16')"),
        (
            "from composer import Trainer\nfrom composer.core import Precision",
            "nn.Module",
            "loss",
            "Trainer(Net(), precision=Precision.AMP_FP16)",
        ),
        ("from fastai.vision.all import Learner", "nn.Module", "forward", "learn = Learner(dls, Net()).to_fp16()"),
        (
            "from fastai.vision.all import vision_learner",
            "nn.Module",
            "forward",
            "learn = vision_learner(dls, model=Net())\nlearn.to_fp16()",
        ),
        (
            "from transformers import Trainer, TrainingArguments",
            "nn.Module",
            "forward",
            "Trainer(model=Net(), args=TrainingArguments('out', fp16=True))",
        ),
        (
            "from transformers import PreTrainedModel, Trainer, TrainingArguments",
            "PreTrainedModel",
            "forward",
            "def main(build):\n    Trainer(build(), TrainingArguments('out', fp16=True))",
        ),
    ],
)
def test_a_trainer_in_float16_runs_its_model_so(imports: str, base: str, method: str, use: str) -> None:
    assert in_float16(imports, base, method, use)


@pytest.mark.parametrize(
    ("imports", "base", "method", "use"),
    [
        (
            "import lightning as L",
            "L.LightningModule",
            "training_step",
            "L.Trainer(precision='bf16-mixed').fit(Net())",
        ),
        ("import lightning as L", "L.LightningModule", "training_step", "L.Trainer(max_epochs=3).fit(Net())"),
        ("import lightning as L", "L.LightningModule", "helper", "L.Trainer(precision='16-mixed').fit(Net())"),
        ("from composer import Trainer", "nn.Module", "forward", "Trainer(Net(), precision='amp_bf16')"),
        ("from mine import Trainer", "nn.Module", "forward", "Trainer(Net(), precision=16)"),
        (
            "from transformers import Trainer, TrainingArguments",
            "nn.Module",
            "forward",
            "Trainer(model=Net(), args=TrainingArguments('out', fp16=False))",
        ),
        (
            "from transformers import Trainer, TrainingArguments",
            "nn.Module",
            "forward",
            "Trainer(model=Net(), args=TrainingArguments('out'))",
        ),
    ],
)
def test_a_trainer_in_another_precision_does_not(imports: str, base: str, method: str, use: str) -> None:
    assert not in_float16(imports, base, method, use)


def test_a_container_that_is_cast_hands_its_precision_to_the_modules_in_it() -> None:
    use = "net = nn.Sequential(Net(), nn.ModuleList([Net()])).half()"
    program = Program(f"from torch import nn\n\n{MODEL.format(base='nn.Module', method='forward')}\n{use}\n")
    seen = program.seen("self")
    assert [value.precision for value in seen] == [Dtype.FLOAT16] * 2
