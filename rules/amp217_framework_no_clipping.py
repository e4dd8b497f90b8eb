"""AMP217: a float16 run of a framework with its gradient clipping off."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from amplint.context import Context
from amplint.edit import argument, replace, set_argument
from amplint.project import Definition
from amplint.rule import Example, Finding, Fix, Rule, Safety, Severity
from amplint.tree import Module

_TRAINERS = frozenset(
    "pytorch_lightning.Trainer pytorch_lightning.trainer.Trainer pytorch_lightning.trainer.trainer.Trainer "
    "lightning.Trainer lightning.pytorch.Trainer lightning.pytorch.trainer.Trainer".split()
)
_ARGUMENTS = frozenset(
    "transformers.TrainingArguments transformers.Seq2SeqTrainingArguments transformers.training_args.TrainingArguments "
    "trl.SFTConfig trl.DPOConfig trl.PPOConfig".split()
)
_FLOAT16 = (16, "16", "16-mixed")
_CLIPPING_HOOKS = frozenset("configure_gradient_clipping on_before_optimizer_step on_after_backward".split())


class FrameworkNoClipping(Rule):
    """A float16 run of Lightning or of the Hugging Face Trainer without gradient clipping.

    ## What it does
    Reports a Lightning `Trainer` with float16 precision and no `gradient_clip_val`, and `TrainingArguments` with
    `fp16=True` and `max_grad_norm=0`. Modules that optimize manually or clip in a hook are left alone, and so are
    trainers that only evaluate or try a batch.

    ## Why
    Lightning does not clip unless it is told to, and one batch with an outlier moves the weights as far as its gradient
    is long. The loss scale does not help: it absorbs overflows, not large finite gradients. Hugging Face clips to 1.0
    by default.

    ## Example
    ```python
    trainer = L.Trainer(precision="16-mixed")
    ```
    Use instead:
    ```python
    trainer = L.Trainer(precision="16-mixed", gradient_clip_val=1.0)
    ```

    ## Fix
    Unsafe, as it changes training: adds `gradient_clip_val`, or sets `max_grad_norm`, to `max-norm` of the
    configuration (1.0).

    ## References
    - [Gradient clipping in Lightning](https://lightning.ai/docs/pytorch/stable/advanced/training_tricks.html#gradient-clipping)
    """

    code = "AMP217"
    name = "framework-no-clipping"
    severity = Severity.INFO
    summary = "a float16 run of a framework without gradient clipping"
    triggers = ((b"Trainer", b"precision"), (b"max_grad_norm", b"fp16"))
    fixable = "unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import lightning as L

            def main(model, data):
                trainer = L.Trainer(  # expect
                    max_epochs=3,
                    precision="16-mixed",
                )
                trainer.fit(model, data)
            """,
            """
            import lightning as L

            def main(model, data):
                trainer = L.Trainer(
                    max_epochs=3,
                    precision="16-mixed",
                    gradient_clip_val=1.0,
                )
                trainer.fit(model, data)
            """,
        ),
        Example(
            """
            import pytorch_lightning as pl

            def build(logger):
                trainer = pl.Trainer(precision=16, logger=logger)  # expect
                return trainer
            """,
            """
            import pytorch_lightning as pl

            def build(logger):
                trainer = pl.Trainer(precision=16, logger=logger, gradient_clip_val=1.0)
                return trainer
            """,
        ),
        Example(
            """
            from transformers import TrainingArguments

            args = TrainingArguments("out", fp16=True, max_grad_norm=0.0)  # expect
            """,
            """
            from transformers import TrainingArguments

            args = TrainingArguments("out", fp16=True, max_grad_norm=1.0)
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import lightning as L

        def smoke(model):
            trainer = L.Trainer(precision="16-mixed", fast_dev_run=True)
            trainer.fit(model)

        def evaluate(model, data):
            trainer = L.Trainer(precision="16-mixed", logger=False)
            trainer.test(model, data)
            return trainer.callback_metrics
        """,
        """
        import lightning as L

        clipped = L.Trainer(precision="16-mixed", gradient_clip_val=0.5)
        brain = L.Trainer(precision="bf16-mixed")
        full = L.Trainer()
        """,
        """
        import pytorch_lightning as pl

        class Gan(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.automatic_optimization = False

        trainer = pl.Trainer(precision=16)
        trainer.fit(Gan())
        """,
        """
        from transformers import TrainingArguments

        default = TrainingArguments("out", fp16=True)
        brain = TrainingArguments("out", bf16=True, max_grad_norm=0)
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        module = context.module
        for call in module.calls:
            names = set(module.names(call.func))
            if names & _TRAINERS and _is_unclipped_trainer(context, call):
                message = "float16 training without clipping: Lightning does not clip unless gradient_clip_val is set"
                yield self.finding(context, call, message, fix=_fix(context, call, "gradient_clip_val"))
            elif names & _ARGUMENTS and _is_unclipped_arguments(call):
                message = "max_grad_norm=0 switches the Trainer's clipping off in a float16 run"
                yield self.finding(context, call, message, fix=_fix(context, call, "max_grad_norm"))


def _is_unclipped_trainer(context: Context, call: ast.Call) -> bool:
    precision = argument(call, "precision")
    if not isinstance(precision, ast.Constant) or precision.value not in _FLOAT16 or _is_open(call):
        return False
    if _is_trial(call) or not _may_fit(context.module, call):
        return False
    clip = argument(call, "gradient_clip_val")
    if clip is not None and not _is_nothing(clip):
        return False
    return not any(_clips_itself(cls) for cls in _trained_classes(context, call))


def _is_unclipped_arguments(call: ast.Call) -> bool:
    fp16, norm = argument(call, "fp16"), argument(call, "max_grad_norm")
    is_float16 = isinstance(fp16, ast.Constant) and fp16.value is True
    return is_float16 and norm is not None and _is_nothing(norm)


def _is_trial(call: ast.Call) -> bool:
    """Whether the trainer only tries a batch or a few."""
    given = argument(call, "fast_dev_run")
    return isinstance(given, ast.Constant) and bool(given.value)


def _may_fit(module: Module, call: ast.Call) -> bool:
    """Whether the trainer trains: a local that neither fits nor is handed on does not."""
    assigned = module.parent(call)
    target = assigned.targets[0] if isinstance(assigned, ast.Assign) and len(assigned.targets) == 1 else None
    function = module.function(call)
    if function is None or not isinstance(target, ast.Name):
        return True
    reads = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == target.id and n is not target]
    used = [module.parent(read) for read in reads]
    return any(not isinstance(parent, ast.Attribute) or parent.attr.startswith(("fit", "tune")) for parent in used)


def _is_open(call: ast.Call) -> bool:
    return any(keyword.arg is None for keyword in call.keywords)


def _is_nothing(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def _trained_classes(context: Context, call: ast.Call) -> Iterator[Definition]:
    """The classes of this file, and those that are fitted in it."""
    module = context.module
    yield from (Definition(module, cls) for cls in module.classes)
    for other in module.calls:
        if isinstance(other.func, ast.Attribute) and other.func.attr in ("fit", "validate"):
            for value in (*other.args, *(keyword.value for keyword in other.keywords)):
                yield from context.project.types(module, value)


def _clips_itself(cls: Definition) -> bool:
    """Whether a module optimizes manually, or has a hook in which it clips."""
    assert isinstance(cls.node, ast.ClassDef)
    return any(_is_manual(node) or _is_clipping_hook(cls.module, node) for node in ast.walk(cls.node))


def _is_manual(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef):
        return node.name == "automatic_optimization"
    if not isinstance(node, ast.Assign) or not _is_nothing(node.value):
        return False
    return any(ast.unparse(target).rpartition(".")[2] == "automatic_optimization" for target in node.targets)


def _is_clipping_hook(module: Module, node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name in _CLIPPING_HOOKS and "clip" in module.source.segment(node)


def _fix(context: Context, call: ast.Call, name: str) -> Fix:
    norm = repr(context.options.max_norm)
    given = argument(call, name)
    edits = (
        (replace(context.module, given, norm),) if given is not None else set_argument(context.module, call, name, norm)
    )
    return Fix(f"Clip gradients: {name}={norm}", Safety.UNSAFE, edits)
