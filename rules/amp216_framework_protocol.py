"""AMP216: torch's own backward, clip or scaler in place of the framework's."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from amplint import frameworks, scaling
from amplint.context import Context
from amplint.edit import argument, nest, replace, segment
from amplint.protocol import Event, Kind, Path
from amplint.rule import Edit, Example, Finding, Fix, Rule, Safety, Severity
from amplint.scaling import Fault
from amplint.tree import Module

_CLIPS = ("clip_grad_norm_", "clip_grad_value_")
_REASONS = {
    "accelerate": "Accelerate unscales in its own clip_grad_norm_ only: this clips gradients still scaled by 65536",
    "fabric": "Fabric unscales in its own clip_gradients only: this clips gradients still scaled by 65536",
    "lightning": "Lightning unscales inside optimizer.step(): this clips gradients still scaled by 65536; clip in "
    "on_before_optimizer_step",
    "deepspeed": "DeepSpeed unscales inside engine.step(): this clips gradients still scaled; use gradient_clipping",
    "mmengine": "AmpOptimWrapper unscales inside step(): this clips gradients still scaled; use its clip_grad",
    "transformers": "the Trainer unscales, and clips by max_grad_norm, after training_step(): this clips gradients "
    "still scaled by 65536",
}
_NATIVE = {
    "accelerate": "Accelerate",
    "fabric": "Fabric",
    "lightning": "Lightning",
    "deepspeed": "DeepSpeed",
    "mmengine": "AmpOptimWrapper",
    "transformers": "the Trainer",
}


class FrameworkProtocol(Rule):
    """torch's own backward, clip or GradScaler in place of the framework's, in float16.

    ## What it does
    Under Accelerate, Fabric, Lightning's manual optimization, DeepSpeed and MMEngine with float16, reports
    `loss.backward()`, torch's `clip_grad_norm_` / `clip_grad_value_`, Lightning's `self.clip_gradients`, and a
    hand-made GradScaler beside the framework's. The same in a `training_step` of a class derived from the Trainer of
    transformers, under `TrainingArguments(fp16=True)`.

    ## Why
    These frameworks own the GradScaler. A loss that goes backward without them is not scaled, while the step divides
    the gradients by the scale all the same: they become 65536 times too small. A clip that is not theirs sees gradients
    that are still scaled, so that a limit of 1.0 is one of 1/65536. Two scalers unscale twice.

    ## Example
    ```python
    accelerator.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    ```
    Use instead:
    ```python
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    ```

    ## Fix
    Safe where one call replaces it: `accelerator.backward`, `fabric.backward`, `self.manual_backward`,
    `engine.backward`; `accelerator.clip_grad_norm_`, under `if accelerator.sync_gradients:` inside
    `accelerator.accumulate`; `fabric.clip_gradients(..., error_if_nonfinite=False)`. None for clips in Lightning's
    manual optimization and in a Trainer, which clip by themselves afterwards, and for a hand-made scaler.

    ## References
    - [Accelerate: gradient clipping](https://huggingface.co/docs/accelerate/package_reference/accelerator#accelerate.Accelerator.clip_grad_norm_)
    - [Fabric.clip_gradients](https://lightning.ai/docs/fabric/stable/api/fabric_methods.html#clip-gradients)
    - [Lightning: manual optimization](https://lightning.ai/docs/pytorch/stable/model/manual_optimization.html)
    """

    code = "AMP216"
    name = "framework-protocol"
    severity = Severity.ERROR
    summary = "torch's own backward, clip or scaler in place of the framework's"
    triggers = tuple(
        (framework, word)
        for framework in (b"ccelerat", b"abric", b"ightning", b"deepspeed", b"mmengine", b"Trainer")
        for word in (b"backward(", b"clip_grad", b"GradScaler")
    )
    fixable = "safe"
    INVALID: ClassVar = (
        Example(
            """
            import torch
            from accelerate import Accelerator

            def train(model, loader):
                accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=4)
                opt = torch.optim.SGD(model.parameters(), lr=0.1)
                model, opt, loader = accelerator.prepare(model, opt, loader)
                for x in loader:
                    with accelerator.accumulate(model):
                        loss = model(x).mean()
                        accelerator.backward(loss)
                        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect
                        opt.step()
                        opt.zero_grad()
            """,
            """
            import torch
            from accelerate import Accelerator

            def train(model, loader):
                accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=4)
                opt = torch.optim.SGD(model.parameters(), lr=0.1)
                model, opt, loader = accelerator.prepare(model, opt, loader)
                for x in loader:
                    with accelerator.accumulate(model):
                        loss = model(x).mean()
                        accelerator.backward(loss)
                        if accelerator.sync_gradients:
                            accelerator.clip_grad_norm_(model.parameters(), 1.0)
                        opt.step()
                        opt.zero_grad()
            """,
        ),
        Example(
            """
            import torch
            from lightning.fabric import Fabric
            from torch.nn.utils import clip_grad_norm_, clip_grad_value_

            def train(net, data, by_value):
                fabric = Fabric(precision="16-mixed")
                opt = torch.optim.SGD(net.parameters(), lr=0.1)
                net, opt = fabric.setup(net, opt)
                for x in data:
                    loss = net(x).mean()
                    loss.backward()  # expect
                    opt.step()
                    fabric.backward(net(x).sum())
                    if by_value:
                        clip_grad_value_(net.parameters(), 0.5)  # expect
                    else:
                        clip_grad_norm_(net.parameters(), 1.0)  # expect
                    opt.step()
            """,
            """
            import torch
            from lightning.fabric import Fabric
            from torch.nn.utils import clip_grad_norm_, clip_grad_value_

            def train(net, data, by_value):
                fabric = Fabric(precision="16-mixed")
                opt = torch.optim.SGD(net.parameters(), lr=0.1)
                net, opt = fabric.setup(net, opt)
                for x in data:
                    loss = net(x).mean()
                    fabric.backward(loss)
                    opt.step()
                    fabric.backward(net(x).sum())
                    if by_value:
                        fabric.clip_gradients(net, opt, clip_val=0.5)
                    else:
                        fabric.clip_gradients(net, opt, max_norm=1.0, error_if_nonfinite=False)
                    opt.step()
            """,
        ),
        Example(
            """
            import lightning as L
            import torch

            class Net(L.LightningModule):
                def __init__(self):
                    super().__init__()
                    self.automatic_optimization = False
                    self.layer = torch.nn.Linear(4, 1)

                def training_step(self, batch, index):
                    opt = self.optimizers()
                    opt.zero_grad()
                    loss = self.layer(batch).mean()
                    self.manual_backward(loss)
                    self.clip_gradients(opt, gradient_clip_val=1.0)  # expect
                    opt.step()

            L.Trainer(precision="16-mixed").fit(Net())
            """
        ),
        Example(
            """
            import torch
            from accelerate import Accelerator

            def train(model, loader):
                accelerator = Accelerator(mixed_precision="fp16")
                scaler = torch.amp.GradScaler("cuda")  # expect
                opt = torch.optim.SGD(model.parameters(), lr=0.1)
                model, opt, loader = accelerator.prepare(model, opt, loader)
                for x in loader:
                    scaler.scale(model(x).mean()).backward()
                    scaler.step(opt)
                    scaler.update()
            """
        ),
        Example(
            """
            import torch
            from transformers import Trainer, TrainingArguments

            class Weighted(Trainer):
                def training_step(self, model, inputs, num_items_in_batch=None):
                    model.train()
                    with self.compute_loss_context_manager():
                        loss = self.compute_loss(model, inputs)
                    loss.backward()  # expect
                    return loss.detach()

            class Limited(Trainer):
                def training_step(self, model, inputs, num_items_in_batch=None):
                    loss = super().training_step(model, inputs, num_items_in_batch)
                    torch.nn.utils.clip_grad_norm_(model.head.parameters(), 0.1)  # expect
                    return loss

            class Both(Trainer):
                def training_step(self, model, inputs, num_items_in_batch=None):
                    loss = self.compute_loss(model, inputs)
                    self.accelerator.backward(loss)
                    torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)  # expect
                    return loss.detach()

            args = TrainingArguments("out", fp16=True)
            """,
            """
            import torch
            from transformers import Trainer, TrainingArguments

            class Weighted(Trainer):
                def training_step(self, model, inputs, num_items_in_batch=None):
                    model.train()
                    with self.compute_loss_context_manager():
                        loss = self.compute_loss(model, inputs)
                    self.accelerator.backward(loss)
                    return loss.detach()

            class Limited(Trainer):
                def training_step(self, model, inputs, num_items_in_batch=None):
                    loss = super().training_step(model, inputs, num_items_in_batch)
                    torch.nn.utils.clip_grad_norm_(model.head.parameters(), 0.1)
                    return loss

            class Both(Trainer):
                def training_step(self, model, inputs, num_items_in_batch=None):
                    loss = self.compute_loss(model, inputs)
                    self.accelerator.backward(loss)
                    torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
                    return loss.detach()

            args = TrainingArguments("out", fp16=True)
            """,
        ),
        Example(
            """
            import deepspeed
            import torch

            CONFIG = {"train_batch_size": 8, "fp16": {"enabled": True}}

            def train(model, loader):
                engine, _, _, _ = deepspeed.initialize(model=model, config=CONFIG)
                for x in loader:
                    engine.backward(engine(x).mean())
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect
                    engine.step()
                    loss = engine(x).sum()
                    loss.backward()  # expect
                    engine.step()
            """,
            """
            import deepspeed
            import torch

            CONFIG = {"train_batch_size": 8, "fp16": {"enabled": True}}

            def train(model, loader):
                engine, _, _, _ = deepspeed.initialize(model=model, config=CONFIG)
                for x in loader:
                    engine.backward(engine(x).mean())
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    engine.step()
                    loss = engine(x).sum()
                    engine.backward(loss)
                    engine.step()
            """,
        ),
        Example(
            """
            import torch
            from mmengine.optim import AmpOptimWrapper

            def train(model, loader, opt):
                optim_wrapper = AmpOptimWrapper(optimizer=opt)
                for x in loader:
                    model(x).mean().backward()  # expect
                    optim_wrapper.step()
                    optim_wrapper.backward(model(x).sum())
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect
                    optim_wrapper.step()
            """,
            """
            import torch
            from mmengine.optim import AmpOptimWrapper

            def train(model, loader, opt):
                optim_wrapper = AmpOptimWrapper(optimizer=opt)
                for x in loader:
                    optim_wrapper.backward(model(x).mean())
                    optim_wrapper.step()
                    optim_wrapper.backward(model(x).sum())
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optim_wrapper.step()
            """,
        ),
        Example(
            """
            import lightning as L
            import torch

            class Net(L.LightningModule):
                def __init__(self):
                    super().__init__()
                    self.automatic_optimization = False
                    self.layer = torch.nn.Linear(4, 1)

                def training_step(self, batch, index):
                    opt = self.optimizers()
                    opt.zero_grad()
                    self.layer(batch).mean().backward()  # expect
                    opt.step()

            L.Trainer(precision="16-mixed").fit(Net())
            """,
            """
            import lightning as L
            import torch

            class Net(L.LightningModule):
                def __init__(self):
                    super().__init__()
                    self.automatic_optimization = False
                    self.layer = torch.nn.Linear(4, 1)

                def training_step(self, batch, index):
                    opt = self.optimizers()
                    opt.zero_grad()
                    self.manual_backward(self.layer(batch).mean())
                    opt.step()

            L.Trainer(precision="16-mixed").fit(Net())
            """,
        ),
        Example(
            """
            import lightning as L
            import torch

            class Net(L.LightningModule):
                def __init__(self):
                    super().__init__()
                    self.layer = torch.nn.Linear(4, 1)
                    self.scaler = torch.amp.GradScaler("cuda")  # expect

                def training_step(self, batch, index):
                    return self.scaler.scale(self.layer(batch).mean())

            L.Trainer(precision="16-mixed").fit(Net())
            """
        ),
        Example(
            """
            import torch
            from accelerate import Accelerator

            class Loop:
                def __init__(self, model, loader):
                    self.accelerator = Accelerator(mixed_precision="fp16")
                    opt = torch.optim.SGD(model.parameters(), lr=0.1)
                    self.model, self.opt, self.loader = self.accelerator.prepare(model, opt, loader)

                def train(self):
                    for x in self.loader:
                        self.model(x).mean().backward()  # expect
                        self.opt.step()

                def again(self):
                    for x in self.loader:
                        self.model(x).mean().backward(retain_graph=True)  # expect
                        self.opt.step()
                        self.accelerator.backward(self.model(x).mean())
                        self.limit(1.0)
                        self.opt.step()

                def limit(self, bound):
                    norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), bound)  # expect
                    return norm
            """,
            """
            import torch
            from accelerate import Accelerator

            class Loop:
                def __init__(self, model, loader):
                    self.accelerator = Accelerator(mixed_precision="fp16")
                    opt = torch.optim.SGD(model.parameters(), lr=0.1)
                    self.model, self.opt, self.loader = self.accelerator.prepare(model, opt, loader)

                def train(self):
                    for x in self.loader:
                        self.accelerator.backward(self.model(x).mean())
                        self.opt.step()

                def again(self):
                    for x in self.loader:
                        self.model(x).mean().backward(retain_graph=True)
                        self.opt.step()
                        self.accelerator.backward(self.model(x).mean())
                        self.limit(1.0)
                        self.opt.step()

                def limit(self, bound):
                    norm = self.accelerator.clip_grad_norm_(self.model.parameters(), bound)
                    return norm
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch
        from transformers import Trainer, TrainingArguments

        class Weighted(Trainer):
            def training_step(self, model, inputs, num_items_in_batch=None):
                loss = self.compute_loss(model, inputs)
                self.accelerator.backward(loss)
                return loss.detach()

            def create_optimizer(self):
                self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.args.learning_rate)
                return self.optimizer

        class Older(Trainer):
            def training_step(self, model, inputs):
                loss = self.compute_loss(model, inputs)
                self.scaler.scale(loss).backward()
                return loss.detach()

        class Checked(Trainer):
            def training_step(self, model, inputs, num_items_in_batch=None):
                loss = super().training_step(model, inputs, num_items_in_batch)
                if not torch.isfinite(loss):
                    model.zero_grad()
                return loss

        args = TrainingArguments("out", fp16=True, max_grad_norm=0.5)
        """,
        """
        import torch
        from transformers import Trainer, TrainingArguments

        class Brain(Trainer):
            def training_step(self, model, inputs, num_items_in_batch=None):
                loss = super().training_step(model, inputs, num_items_in_batch)
                torch.nn.utils.clip_grad_norm_(model.head.parameters(), 0.1)
                return loss

            def probe(self, model, inputs):
                self.compute_loss(model, inputs).backward()

        args = TrainingArguments("out", bf16=True)
        """,
        """
        import torch
        from accelerate import Accelerator

        def train(model, loader):
            accelerator = Accelerator(mixed_precision="fp16")
            opt = torch.optim.SGD(model.parameters(), lr=0.1)
            model, opt, loader = accelerator.prepare(model, opt, loader)
            for x in loader:
                accelerator.backward(model(x).mean())
                accelerator.unscale_gradients()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
        """,
        """
        import torch
        from accelerate import Accelerator

        def train(model, loader):
            accelerator = Accelerator(mixed_precision="bf16")
            opt = torch.optim.SGD(model.parameters(), lr=0.1)
            model, opt, loader = accelerator.prepare(model, opt, loader)
            for x in loader:
                accelerator.backward(model(x).mean())
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
        """,
        """
        import torch
        from accelerate import Accelerator

        def plain(model, loader):
            opt = torch.optim.SGD(model.parameters(), lr=0.1)
            for x in loader:
                model(x).mean().backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()

        def prepared(model, loader):
            accelerator = Accelerator(mixed_precision="fp16")
            opt = torch.optim.SGD(model.parameters(), lr=0.1)
            model, opt, loader = accelerator.prepare(model, opt, loader)
            for x in loader:
                accelerator.backward(model(x).mean())
                opt.step()
        """,
        """
        import lightning as L
        import torch

        class Net(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.automatic_optimization = False
                self.layer = torch.nn.Linear(4, 1)

            def training_step(self, batch, index):
                opt = self.optimizers()
                opt.zero_grad()
                self.manual_backward(self.layer(batch).mean())
                torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)
                opt.step()

        L.Trainer(precision="bf16-mixed").fit(Net())
        """,
        """
        import deepspeed
        import torch

        def brain(model, loader):
            config = {"train_batch_size": 8, "bf16": {"enabled": True}}
            engine, _, _, _ = deepspeed.initialize(model=model, config=config)
            for x in loader:
                engine.backward(engine(x).mean())
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                engine.step()

        def switched_off(model, loader):
            engine, _, _, _ = deepspeed.initialize(model=model, config={"fp16": {"enabled": False}})
            for x in loader:
                engine(x).mean().backward()
                engine.step()

        def unknown(args, model, loader):
            engine, _, _, _ = deepspeed.initialize(args=args, model=model)
            for x in loader:
                engine(x).mean().backward()
                engine.step()
        """,
        """
        import torch
        from mmengine.optim import OptimWrapper

        def train(model, loader, opt):
            optim_wrapper = OptimWrapper(optimizer=opt)
            for x in loader:
                optim_wrapper.backward(model(x).mean())
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optim_wrapper.step()
        """,
        """
        import lightning as L
        import torch

        class Net(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)
                self.scaler = torch.amp.GradScaler("cuda", enabled=False)
                self.kept = torch.amp.GradScaler("cuda")

            def training_step(self, batch, index):
                return self.scaler.scale(self.layer(batch).mean())

        L.Trainer(precision="16-mixed").fit(Net())
        """,
        """
        import torch
        from accelerate import Accelerator

        class Prepared:
            def __init__(self, model):
                self.accelerator = Accelerator(mixed_precision="fp16")
                self.model = self.accelerator.prepare(model)

        class ByHand:
            def __init__(self, model):
                self.model = model
                self.opt = torch.optim.SGD(model.parameters(), lr=0.1)
                self.scaler = torch.amp.GradScaler("cuda")

            def train(self, loader):
                for x in loader:
                    self.scaler.scale(self.model(x).mean()).backward()
                    self.scaler.step(self.opt)
                    self.scaler.update()
        """,
        """
        import torch
        from lightning.fabric import Fabric

        def train(net, data):
            fabric = Fabric(precision="bf16-mixed")
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            net, opt = fabric.setup(net, opt)
            for x in data:
                net(x).mean().backward()
                opt.step()
                fabric.backward(net(x).sum())
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                opt.step()
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        scalers = list(frameworks.scalers_beside(context))
        for scaler in scalers:
            message = f"{_NATIVE[scaler.framework]} has a GradScaler of its own: with two, gradients are unscaled twice"
            yield self.finding(context, scaler.constructor, message)
        if scalers:
            return
        for fault in scaling.once(context, lambda path: _foreign_clips(context, path)):
            yield self._clip(context, fault)
        for fault in scaling.once(context, lambda path: _plain_backwards(context, path)):
            owner = frameworks.owner_of_step(context, fault.causes[0])
            assert owner is not None
            message = f"{_NATIVE[owner.framework]} scales the loss in its own backward only: this one is not scaled"
            yield self.finding(context, fault.node, message, fix=_backward_fix(context, fault, owner))
        for fault in scaling.once(context, lambda path: _backwards_left_to_a_trainer(context, path)):
            owner = frameworks.Owner("accelerate", "self.accelerator")
            message = "the Trainer divides these gradients by the scale, but only its accelerator's backward scales"
            yield self.finding(context, fault.node, message, fix=_backward_fix(context, fault, owner))

    def _clip(self, context: Context, fault: Fault) -> Finding:
        backward = fault.causes[0]
        certain = frameworks.is_float16(context, backward)
        in_trainer = frameworks.is_in_transformers_trainer(context, backward)
        message = _REASONS["transformers" if in_trainer else backward.framework]
        if not certain:
            message = f"if the precision is float16: {message}"
        severity = None if certain else Severity.WARNING
        fix = _clip_fix(context, fault) if not in_trainer else None
        return self.finding(context, fault.node, message, severity=severity, fix=fix, related=fault.related(context))


def _foreign_clips(context: Context, path: Path) -> Iterator[Fault]:
    """The clips between a framework's backward and the step that are not the framework's own."""
    backward: Event | None = None
    for event in path.events:
        if event.kind is Kind.BACKWARD:
            is_half = event.framework in _REASONS and frameworks.is_float16(context, event) is not False
            backward = event if is_half else None
        elif event.kind in (Kind.UNSCALE, Kind.STEP):
            backward = None
        elif event.kind is Kind.CLIP and backward is not None and event.framework in ("", "lightning"):
            yield Fault(path, event, (backward,))


def _plain_backwards(context: Context, path: Path) -> Iterator[Fault]:
    """The plain backward passes whose step belongs to a framework that scales."""
    backward: Event | None = None
    for event in path.events:
        if event.kind is Kind.BACKWARD:
            backward = event if event.scaler is None and not event.framework else None
        elif event.kind is Kind.STEP and (event.scaler is None or event.framework):
            if backward is not None and frameworks.owner_of_step(context, event):
                yield Fault(path, backward, (event,))
            backward = None


def _backwards_left_to_a_trainer(context: Context, path: Path) -> Iterator[Fault]:
    """The plain backward passes in a Trainer's training_step, which steps nothing itself."""
    if any(event.kind is Kind.STEP for event in path.events):
        return
    for event in path.events:
        is_plain = event.kind is Kind.BACKWARD and event.scaler is None and not event.framework
        if is_plain and event.module is context.module and frameworks.is_left_to_transformers(context, event):
            yield Fault(path, event)


def _backward_fix(context: Context, fault: Fault, owner: frameworks.Owner) -> Fix | None:
    module, call = context.module, fault.node
    if owner.text is None or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    if call.args or call.keywords:
        return None
    loss = segment(module, call.func.value)
    method = "manual_backward" if owner.framework == "lightning" else "backward"
    return Fix(
        "Go backward through the framework", Safety.SAFE, (replace(module, call, f"{owner.text}.{method}({loss})"),)
    )


def _clip_fix(context: Context, fault: Fault) -> Fix | None:
    backward, call = fault.causes[0], fault.node
    owner = frameworks.written(context, backward, call)
    if owner is None or not isinstance(call, ast.Call):
        return None
    name = scaling.called(call)
    if name not in _CLIPS:
        return None
    if backward.framework == "accelerate":
        edits = _accelerate_edits(context.module, call, owner, name)
    elif backward.framework == "fabric":
        edits = _fabric_edits(context, fault, call, owner, name)
    else:
        edits = ()
    return Fix("Clip through the framework, which unscales first", Safety.SAFE, edits) if edits else None


def _accelerate_edits(module: Module, call: ast.Call, owner: str, name: str) -> tuple[Edit, ...]:
    replaced = replace(module, call.func, f"{owner}.{name}")
    statement = module.statement(call)
    if not _accumulates(module, call) or "sync_gradients" in _tests(module, call):
        return (replaced,)
    if not isinstance(statement, ast.Expr):
        return (replaced,)
    return (replaced, *nest(module, [statement], f"if {owner}.sync_gradients:"))


def _fabric_edits(context: Context, fault: Fault, call: ast.Call, owner: str, name: str) -> tuple[Edit, ...]:
    module = context.module
    parameters = argument(call, "parameters", 0)
    limit = argument(call, "max_norm" if name == "clip_grad_norm_" else "clip_value", 1)
    step = next((e for e in fault.path.after(fault.event) if e.kind is Kind.STEP), None)
    model = _model_of(parameters)
    if model is None or limit is None or step is None or not isinstance(step.subject, ast.Name | ast.Attribute):
        return ()
    if step.module is not module or len(call.args) + len(call.keywords) > 2:
        return ()
    given = f"max_norm={segment(module, limit)}, error_if_nonfinite=False"
    if name == "clip_grad_value_":
        given = f"clip_val={segment(module, limit)}"
    text = f"{owner}.clip_gradients({segment(module, model)}, {segment(module, step.subject)}, {given})"
    return (replace(module, call, text),)


def _model_of(parameters: ast.expr | None) -> ast.expr | None:
    """`model` of `model.parameters()`."""
    if isinstance(parameters, ast.Call) and isinstance(parameters.func, ast.Attribute):
        return parameters.func.value if parameters.func.attr == "parameters" else None
    return None


def _accumulates(module: Module, node: ast.AST) -> bool:
    """Whether the node stands in a `with accelerator.accumulate(...)`."""
    return any(
        isinstance(ancestor, ast.With)
        and any(".accumulate(" in ast.unparse(item.context_expr) for item in ancestor.items)
        for ancestor in module.ancestors(node)
    )


def _tests(module: Module, node: ast.AST) -> str:
    return " ".join(ast.unparse(a.test) for a in module.ancestors(node) if isinstance(a, ast.If))
