"""AMP211: a GradScaler over parameters that are float16 themselves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import ClassVar, TypeGuard

from amplint import scaling
from amplint.casts import Cast, half_casts
from amplint.context import Context
from amplint.edit import argument, layout, remove_argument, remove_statement
from amplint.optimizers import parameter_owners
from amplint.project import Definition
from amplint.protocol import Event, Kind
from amplint.rule import Edit, Example, Finding, Fix, Rule, Safety, Severity
from amplint.scaling import Fault
from amplint.tree import Module
from amplint.triggers import attribute

_IMPORTED = re.compile(rb"from torch import [^\n]*(?:half|float16)")
_FLOAT16_PRECISION = (16, "16", "16-mixed")


class ScalerOnHalfParameters(Rule):
    """A GradScaler cannot unscale the gradients of float16 parameters.

    ## What it does
    Reports the cast (`.half()`, `.to(torch.float16)`, `torch_dtype=torch.float16`) that makes trainable parameters
    float16 when a GradScaler, or the one that a framework brings, unscales or steps them.

    Frozen halves, copies for evaluation or saving, and parameters that are cast back to float32 before the optimizer
    gets them are fine.

    ## Why
    The gradient has the dtype of its parameter, and `unscale_` refuses: `ValueError: Attempting to unscale FP16
    gradients.` The reason is that autocast wants float32 parameters: it casts a copy of them for each matmul, and the
    optimizer adds updates that float16 would round away (below 2**-11 of the weight).

    ## Example
    ```python
    model = Net().cuda().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler.scale(model(x).mean()).backward()
    scaler.step(optimizer)
    ```
    Use instead:
    ```python
    model = Net().cuda()
    ```

    ## Fix
    Unsafe: the cast goes; the parameters need twice the memory.

    ## References
    - [Automatic mixed precision](https://docs.pytorch.org/docs/stable/amp.html#autocasting)
    - [pytorch#40497](https://github.com/pytorch/pytorch/issues/40497)
    """

    code = "AMP211"
    name = "scaler-on-half-parameters"
    severity = Severity.ERROR
    summary = "a GradScaler over float16 parameters raises"
    triggers = ((attribute("half"),), (attribute("float16"),), (_IMPORTED,))
    fixable = "unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch

            def train(net, loader):
                net = net.cuda()
                net = net.half()  # expect
                opt = torch.optim.SGD(net.parameters(), lr=0.1)
                scaler = torch.amp.GradScaler("cuda")
                for x in loader:
                    opt.zero_grad()
                    with torch.autocast("cuda"):
                        loss = net(x).mean()
                    scaler.scale(loss).backward()
                    scaler.step(opt)
                    scaler.update()
            """,
            """
            import torch

            def train(net, loader):
                net = net.cuda()
                opt = torch.optim.SGD(net.parameters(), lr=0.1)
                scaler = torch.amp.GradScaler("cuda")
                for x in loader:
                    opt.zero_grad()
                    with torch.autocast("cuda"):
                        loss = net(x).mean()
                    scaler.scale(loss).backward()
                    scaler.step(opt)
                    scaler.update()
            """,
        ),
        Example(
            """
            import torch
            from transformers import AutoModelForCausalLM

            def main(name, loader):
                model = AutoModelForCausalLM.from_pretrained(  # expect
                    name,
                    torch_dtype=torch.float16,
                    use_cache=False,
                )
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
                scaler = torch.cuda.amp.GradScaler()
                for batch in loader:
                    loss = model(**batch).loss
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
            """,
            """
            import torch
            from transformers import AutoModelForCausalLM

            def main(name, loader):
                model = AutoModelForCausalLM.from_pretrained(
                    name,
                    use_cache=False,
                )
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
                scaler = torch.cuda.amp.GradScaler()
                for batch in loader:
                    loss = model(**batch).loss
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
            """,
        ),
        Example(
            """
            import torch

            class Trainer:
                def __init__(self, build):
                    self.model = build().to("cuda", torch.float16)  # expect
                    self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
                    self.scaler = torch.amp.GradScaler("cuda")

                def step(self, x):
                    self.scaler.scale(self.model(x).mean()).backward()
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
            """,
            """
            import torch

            class Trainer:
                def __init__(self, build):
                    self.model = build().to("cuda")
                    self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
                    self.scaler = torch.amp.GradScaler("cuda")

                def step(self, x):
                    self.scaler.scale(self.model(x).mean()).backward()
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
            """,
        ),
        Example(
            """
            import torch
            from torch import nn

            def too_late(loader):
                net = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).cuda()
                opt = torch.optim.SGD(net.parameters(), lr=0.1)
                net.half()  # expect
                scaler = torch.amp.GradScaler("cuda")
                for x in loader:
                    scaler.scale(net(x).mean()).backward()
                    scaler.step(opt)
                    scaler.update()

            def made_half(loader):
                head = nn.Linear(8, 8, device="cuda", dtype=torch.float16)  # expect
                opt = torch.optim.SGD(head.parameters(), lr=0.1)
                scaler = torch.amp.GradScaler("cuda")
                for x in loader:
                    scaler.scale(head(x).mean()).backward()
                    scaler.step(opt)
                    scaler.update()
            """,
            """
            import torch
            from torch import nn

            def too_late(loader):
                net = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).cuda()
                opt = torch.optim.SGD(net.parameters(), lr=0.1)
                scaler = torch.amp.GradScaler("cuda")
                for x in loader:
                    scaler.scale(net(x).mean()).backward()
                    scaler.step(opt)
                    scaler.update()

            def made_half(loader):
                head = nn.Linear(8, 8, device="cuda")
                opt = torch.optim.SGD(head.parameters(), lr=0.1)
                scaler = torch.amp.GradScaler("cuda")
                for x in loader:
                    scaler.scale(head(x).mean()).backward()
                    scaler.step(opt)
                    scaler.update()
            """,
        ),
        Example(
            """
            import torch
            from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

            def main(name, data):
                model = AutoModelForSequenceClassification.from_pretrained(name, torch_dtype=torch.float16)  # expect
                args = TrainingArguments("out", fp16=True, learning_rate=2e-5)
                Trainer(model=model, args=args, train_dataset=data).train()
            """,
            """
            import torch
            from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

            def main(name, data):
                model = AutoModelForSequenceClassification.from_pretrained(name)
                args = TrainingArguments("out", fp16=True, learning_rate=2e-5)
                Trainer(model=model, args=args, train_dataset=data).train()
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import copy

        import torch

        def train(model, teacher, loader, path):
            teacher = teacher.half().eval()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for x in loader:
                with torch.autocast("cuda"):
                    loss = (model(x) - teacher(x.half())).square().mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            torch.save(copy.deepcopy(model).half().state_dict(), path)
        """,
        """
        import torch

        def adapters(unet, make_lora, loader):
            unet.requires_grad_(False)
            unet.to("cuda", dtype=torch.float16)
            lora = make_lora(unet)
            optimizer = torch.optim.AdamW(lora.parameters(), lr=1e-4)
            scaler = torch.amp.GradScaler("cuda")
            for x in loader:
                scaler.scale(unet(lora(x)).mean()).backward()
                scaler.step(optimizer)
                scaler.update()
        """,
        """
        import torch

        def restored(net, loader):
            net = net.half()
            net = net.float()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for x in loader:
                scaler.scale(net(x).mean()).backward()
                scaler.step(optimizer)
                scaler.update()

        def evaluated(net, loader, tests):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for x in loader:
                scaler.scale(net(x.cuda()).mean()).backward()
                scaler.step(optimizer)
                scaler.update()
            net.half()
            return [net(x.half()) for x in tests]

        def pure_half(net, loader):
            net = net.half()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for x in loader:
                (net(x.half()).mean() * 128).backward()
                optimizer.step()
        """,
        """
        import torch
        from diffusers.training_utils import cast_training_params
        from peft import LoraConfig

        def lora(unet, config: LoraConfig, loader):
            unet.requires_grad_(False)
            unet.to("cuda", dtype=torch.float16)
            unet.add_adapter(config)
            cast_training_params(unet, dtype=torch.float32)
            optimizer = torch.optim.AdamW([p for p in unet.parameters() if p.requires_grad], lr=1e-4)
            scaler = torch.amp.GradScaler("cuda")
            for x in loader:
                scaler.scale(unet(x).mean()).backward()
                scaler.step(optimizer)
                scaler.update()

        def trainable_upcast(net, loader):
            net.half()
            for name, p in net.named_parameters():
                if p.requires_grad:
                    p.data = p.data.to(torch.float32)
            optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for x in loader:
                scaler.scale(net(x).mean()).backward()
                scaler.step(optimizer)
                scaler.update()

        def on_old_devices(net, loader, old):
            if old:
                net.half()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda", enabled=not old)
            for x in loader:
                scaler.scale(net(x).mean()).backward()
                scaler.step(optimizer)
                scaler.update()
        """,
        """
        import torch
        from peft import get_peft_model
        from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

        def adapters(name, config, data):
            model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.float16)
            model = get_peft_model(model, config)
            Trainer(model=model, args=TrainingArguments("out", fp16=True), train_dataset=data).train()

        def in_bfloat16(name, data):
            model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.bfloat16)
            Trainer(model, TrainingArguments("out", bf16=True), train_dataset=data).train()

        def pure_float16(name, data):
            model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.float16)
            Trainer(model, TrainingArguments("out"), train_dataset=data).train()
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        reported: set[ast.Call] = set()
        for fault, cast in [*_cast_and_unscaled(context), *_cast_and_fitted(context)]:
            if cast.module is not context.module or cast.call in reported:
                continue
            reported.add(cast.call)
            place = scaling.where(fault.event, context.module) if fault else "the scaler of the Trainer"
            message = f"{place} raises ValueError: Attempting to unscale FP16 gradients."
            related = fault.related(context) if fault else ()
            yield self.finding(context, cast.call, message, fix=_fix(context, cast), related=related)


def _cast_and_unscaled(context: Context) -> Iterator[tuple[Fault, Cast]]:
    """The casts on the parameters of optimizers that a scaler unscales, explicitly or in its step."""
    judged: set[tuple[ast.AST, ast.AST | None]] = set()
    for path, event in scaling.events_of(context, Kind.UNSCALE, Kind.STEP):
        optimizer = scaling.constructor(context, event.optimizer)
        if not _is_float16_scaler(event) or (event.node, optimizer.node if optimizer else None) in judged:
            continue
        judged.add((event.node, optimizer.node if optimizer else None))
        for made in [optimizer] if optimizer else list(_constructed_near(event)):
            assert isinstance(made.node, ast.Call)
            for owner in parameter_owners(made.module, made.node):
                for cast in half_casts(context, made.module, owner, until=_on_the_way(made, event)):
                    yield Fault(path, event), cast


def _on_the_way(made: Definition, event: Event) -> ast.expr | None:
    """The event, or the call that leads to it, in the function that makes the optimizer, if it comes later there."""
    assert isinstance(made.node, ast.Call)
    sites = [*((site.module, site.call) for site in event.calls), (event.module, event.node)]
    function = made.module.function(made.node)
    for module, node in sites:
        is_here = module is made.module and module.function(node) is function and isinstance(node, ast.expr)
        if is_here and node.lineno > made.node.lineno:  # type: ignore[attr-defined]
            return node  # type: ignore[return-value]
    return None


def _is_float16_scaler(event: Event) -> bool:
    """Whether gradients are unscaled there: by an enabled torch scaler, or a framework told to use float16."""
    return scaling.is_scaling(event) and (not event.framework or bool(scaling.in_float16(event)))


def _constructed_near(event: Event) -> Iterator[Definition]:
    """The optimizers that the function of a framework's call builds."""
    function = scaling.function_of(event)
    for call in event.module.calls if event.framework else ():
        is_optimizer = any(name.startswith("torch.optim.") for name in event.module.names(call.func))
        if is_optimizer and event.module.function(call) is function:
            yield Definition(event.module, call)


def _cast_and_fitted(context: Context) -> Iterator[tuple[None, Cast]]:
    """The casts on modules that a Trainer of Lightning or transformers trains in float16."""
    module = context.module
    for call in module.calls:
        if scaling.called(call).endswith("Trainer") and _has_fp16_arguments(context, call):
            model = argument(call, "model", 0)
            for cast in half_casts(context, module, model) if model is not None else ():
                yield None, cast
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "fit":
            continue
        model = argument(call, "model", 0)
        trainers = context.project.sources(module, call.func.value)
        if model is not None and any(_is_float16_trainer(*trainer) for trainer in trainers):
            for cast in half_casts(context, module, model):
                yield None, cast


def _has_fp16_arguments(context: Context, call: ast.Call) -> bool:
    """Whether a transformers Trainer is given `TrainingArguments(fp16=True)`."""
    arguments = argument(call, "args", 1)
    for _, made in context.project.sources(context.module, arguments) if arguments is not None else ():
        flag = argument(made, "fp16") if isinstance(made, ast.Call) else None
        if isinstance(flag, ast.Constant) and flag.value is True:
            return True
    return False


def _is_float16_trainer(module: Module, made: ast.expr) -> bool:
    if not isinstance(made, ast.Call) or not any(name.endswith(".Trainer") for name in module.names(made.func)):
        return False
    precision = argument(made, "precision")
    return isinstance(precision, ast.Constant) and precision.value in _FLOAT16_PRECISION


def _fix(context: Context, cast: Cast) -> Fix:
    return Fix("Keep the parameters in float32", Safety.UNSAFE, _without(context.module, cast))


def _assigns_itself(statement: ast.AST | None, model: ast.expr) -> TypeGuard[ast.Assign]:
    """Whether only `model = model` is left of `model = model.half()`."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    return ast.unparse(statement.targets[0]) == ast.unparse(model)


def _without(module: Module, cast: Cast) -> tuple[Edit, ...]:
    """The call without its cast: the whole statement, the call of the chain, or the argument."""
    call = cast.call
    others = len(call.args) + len(call.keywords) > 1
    if cast.dtype is not None and (others or not isinstance(call.func, ast.Attribute) or call.func.attr != "to"):
        return remove_argument(module, call, cast.dtype)
    statement = module.parent(call)
    assert isinstance(call.func, ast.Attribute)
    if isinstance(statement, ast.Expr) or _assigns_itself(statement, call.func.value):
        return remove_statement(module, statement)
    start = layout(module).span(call.func.value, parentheses=True)[1]
    return (Edit(start, module.source.span(call)[1], ""),)
