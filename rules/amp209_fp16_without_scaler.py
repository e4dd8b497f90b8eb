"""AMP209: training under float16 autocast that no GradScaler reaches."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from amplint import scaling
from amplint.context import Context
from amplint.edit import add_import, argument, insert_after, insert_before, replace, set_argument
from amplint.loss_regions import forward_regions
from amplint.protocol import Event, Kind, Path, Symbol
from amplint.protocol.roles import last_name
from amplint.rule import Edit, Example, Finding, Fix, Rule, Safety, Severity
from amplint.scaling import Fault
from amplint.tree import Function, Module
from amplint.values import Dtype, Region

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_IGNITE = "ignite.engine.create_supervised_trainer"
_ENABLED_POSITIONS = {"torch.cuda.amp.autocast": 0, "torch.cuda.amp.autocast_mode.autocast": 0}


class Float16WithoutScaler(Rule):
    """Training under float16 autocast without a GradScaler: small gradients become zero.

    ## What it does
    Reports `loss.backward()` followed by `optimizer.step()` where the loss was computed under float16 autocast (the
    CUDA default dtype) and neither a GradScaler nor a framework scales it; also ignite's
    `create_supervised_trainer(..., amp_mode="amp")` without a `scaler`.

    ## Why
    Gradients flow backward in the dtype of the forward pass. The smallest positive float16 is 2**-24, about 6e-8;
    activation gradients below half of that are exactly zero, and deep layers stop learning while the loss still
    falls. A GradScaler multiplies the loss so that they stay in range, and skips steps in which they overflow:
    without it one overflow writes `inf` or NaN into the weights. bfloat16 has the exponents of float32 and needs none.

    ## Example
    ```python
    with torch.autocast("cuda"):
        loss = model(x).mean()
    loss.backward()
    optimizer.step()
    ```
    Use instead:
    ```python
    scaler = torch.amp.GradScaler("cuda")
    ...
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    ```

    ## Fix
    Unsafe: a GradScaler, made before the loop (or in `__init__`), scales the loss, steps the optimizer and is updated.

    ## References
    - [Gradient scaling](https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling)
    - Micikevicius et al., "Mixed precision training", 2018, section 3.2
    """

    code = "AMP209"
    name = "fp16-without-scaler"
    severity = Severity.WARNING
    summary = "float16 autocast training without a GradScaler"
    triggers = ((b"backward", b"step"), (b"create_supervised_trainer", b"amp_mode"))
    fixable = "unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch

            def train(model, loader, lr):
                optimizer = torch.optim.SGD(model.parameters(), lr=lr)
                for x, y in loader:
                    optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        loss = torch.nn.functional.cross_entropy(model(x), y)
                    loss.backward()  # expect
                    optimizer.step()
            """,
            """
            import torch

            def train(model, loader, lr):
                optimizer = torch.optim.SGD(model.parameters(), lr=lr)
                scaler = torch.amp.GradScaler("cuda")
                for x, y in loader:
                    optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        loss = torch.nn.functional.cross_entropy(model(x), y)
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
            """,
        ),
        Example(
            """
            import torch
            from torch.cuda.amp import autocast

            class Trainer:
                def __init__(self, model, amp=True):
                    self.model = model
                    self.amp = amp
                    self.opt = torch.optim.AdamW(model.parameters())

                def step(self, x):
                    with autocast(enabled=self.amp):
                        loss = self.model(x).mean()
                    self.opt.zero_grad()
                    loss.backward()  # expect
                    torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.opt.step()
            """,
            """
            import torch
            from torch.cuda.amp import autocast

            class Trainer:
                def __init__(self, model, amp=True):
                    self.model = model
                    self.amp = amp
                    self.opt = torch.optim.AdamW(model.parameters())
                    self.scaler = torch.amp.GradScaler("cuda", enabled=self.amp)

                def step(self, x):
                    with autocast(enabled=self.amp):
                        loss = self.model(x).mean()
                    self.opt.zero_grad()
                    self.scaler.scale(loss).backward()
                    self.scaler.unscale_(self.opt)
                    torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.scaler.step(self.opt)
                    self.scaler.update()
            """,
        ),
        Example(
            """
            import torch
            from net import Net

            def train(loader):
                net = Net().cuda()
                opt = torch.optim.SGD(net.parameters(), 0.1)
                for x in loader:
                    loss = net(x).float().mean()
                    opt.zero_grad()
                    loss.backward()  # expect
                    opt.step()
            """,
            """
            import torch
            from net import Net

            def train(loader):
                net = Net().cuda()
                opt = torch.optim.SGD(net.parameters(), 0.1)
                scaler = torch.amp.GradScaler("cuda")
                for x in loader:
                    loss = net(x).float().mean()
                    opt.zero_grad()
                    scaler.scale(loss).backward()
                    scaler.step(opt)
                    scaler.update()
            """,
            {
                "net.py": """
                import torch

                class Net(torch.nn.Module):
                    def __init__(self):
                        super().__init__()
                        self.layer = torch.nn.Linear(8, 8)

                    @torch.autocast(device_type="cuda", dtype=torch.float16)
                    def forward(self, x):
                        return self.layer(x)
                """,
            },
        ),
        Example(
            """
            from ignite.engine import create_supervised_trainer

            def main(model, optimizer, loss, data):
                trainer = create_supervised_trainer(model, optimizer, loss, "cuda", amp_mode="amp")  # expect
                trainer.run(data, max_epochs=3)
            """,
            """
            from ignite.engine import create_supervised_trainer

            def main(model, optimizer, loss, data):
                trainer = create_supervised_trainer(model, optimizer, loss, "cuda", amp_mode="amp", scaler=True)
                trainer.run(data, max_epochs=3)
            """,
        ),
    )
    VALID: ClassVar = (
        """
        from ignite.engine import create_supervised_trainer

        def trainers(model, optimizer, loss, made):
            yield create_supervised_trainer(model, optimizer, loss, "cuda", amp_mode="amp", scaler=made)
            yield create_supervised_trainer(model, optimizer, loss, "cuda", amp_mode="apex")
            yield create_supervised_trainer(model, optimizer, loss)
        """,
        """
        import torch

        def in_bfloat16(model, loader, optimizer):
            for x in loader:
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = model(x).mean()
                loss.backward()
                optimizer.step()

        def switched_off(model, loader, optimizer):
            for x in loader:
                with torch.autocast("cuda", enabled=False):
                    loss = model(x).mean()
                loss.backward()
                optimizer.step()

        def on_the_cpu(model, loader, optimizer):
            for x in loader:
                with torch.autocast("cpu"):
                    loss = model(x).mean()
                loss.backward()
                optimizer.step()

        def any_dtype(model, loader, optimizer, dtype):
            for x in loader:
                with torch.autocast("cuda", dtype=dtype):
                    loss = model(x).mean()
                loss.backward()
                optimizer.step()
        """,
        """
        import torch

        def scaled(model, loader, optimizer, amp):
            scaler = torch.amp.GradScaler("cuda", enabled=amp)
            for x in loader:
                with torch.autocast("cuda", enabled=amp):
                    loss = model(x).mean()
                if amp:
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    loss.backward()
                    optimizer.step()

        def passed_in(model, loader, optimizer, grad_scaler):
            for x in loader:
                with torch.autocast("cuda"):
                    loss = model(x).mean()
                grad_scaler(loss, optimizer, parameters=model.parameters())
        """,
        """
        import torch
        from accelerate import Accelerator

        def accelerated(model, optimizer, loader):
            accelerator = Accelerator(mixed_precision="fp16")
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
            for x in loader:
                with accelerator.autocast():
                    loss = model(x).mean()
                accelerator.backward(loss)
                optimizer.step()

        def dry_run(model, batches, optimizer):
            for x in batches:
                with torch.autocast("cuda"):
                    loss = model(x).mean()
                loss.backward()
                optimizer.zero_grad()

        def memory_check(model, batches, optimizer):
            for x in batches:
                with torch.autocast("cuda"):
                    loss = model(x).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

        def then_scaled(model, batches, optimizer, scaler: torch.amp.GradScaler):
            for x in batches:
                with torch.autocast("cuda"):
                    loss = model(x).mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()

        def features_only(encoder, head, loader, optimizer):
            for x, y in loader:
                with torch.no_grad(), torch.autocast("cuda"):
                    features = encoder(x)
                loss = torch.nn.functional.cross_entropy(head(features.float()), y)
                loss.backward()
                optimizer.step()
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for fault in scaling.once(context, _plain_steps):
            backward, step = fault.event, fault.causes[0]
            if _is_scaled_somewhere(context, backward, step):
                continue
            region = _float16_region(context, backward)
            if region is None:
                continue
            message = "float16 gradients below 3e-8 are zero, and an overflow reaches the weights: no GradScaler"
            fix = _fix(context, backward, step, region)
            yield self.finding(context, backward.node, message, fix=fix, related=fault.related(context))
        for call in context.module.calls:
            if _is_unscaled_ignite(context.module, call):
                message = 'ignite scales the loss of amp_mode="amp" only if it is told to: scaler=True'
                edits = set_argument(context.module, call, "scaler", "True")
                yield self.finding(context, call, message, fix=Fix("Let ignite scale the loss", Safety.UNSAFE, edits))


def _plain_steps(path: Path) -> Iterator[Fault]:
    """Backward passes whose gradients the next step applies, neither of them through a scaler or a framework."""
    backward: Event | None = None
    cleared: set[Symbol | None] = set()
    for event in path.events:
        if event.kind is Kind.BACKWARD:
            is_scaled = event.scaler is not None or event.framework or scaling.is_scaled_by_hand(event)
            backward, cleared = None if is_scaled else event, set()
        elif event.kind is Kind.ZERO and backward is not None:
            cleared.add(event.optimizer)
        elif event.kind is Kind.STEP:
            is_plain = event.scaler is None and not event.framework
            if backward is not None and is_plain and not cleared & {None, event.optimizer}:
                yield Fault(path, backward, (event,))
            backward = None


def _is_unscaled_ignite(module: Module, call: ast.Call) -> bool:
    """Whether ignite is asked for a training step under float16 autocast, and for no scaler."""
    if _IGNITE not in module.names(call.func) or any(keyword.arg is None for keyword in call.keywords):
        return False
    mode, scaler = argument(call, "amp_mode", 8), argument(call, "scaler", 9)
    is_autocast = isinstance(mode, ast.Constant) and mode.value == "amp"
    return is_autocast and (scaler is None or (isinstance(scaler, ast.Constant) and not scaler.value))


def _is_scaled_somewhere(context: Context, backward: Event, step: Event) -> bool:
    """Whether a scaler serves the function, or an optimizer of that name: then this is a branch or dry run without."""
    function, name = scaling.function_of(backward), last_name(step.subject)
    return any(
        event.scaler is not None and (scaling.function_of(event) is function or last_name(event.subject) == name)
        for path in context.protocol.paths(context.module)
        for event in path.events
    )


def _float16_region(context: Context, backward: Event) -> Region | None:
    """The float16 region the loss comes from, if its dtype is not left open."""
    if backward.subject is None:
        return None
    regions = forward_regions(context, backward.module, backward.subject, backward.calls)
    return next((r for r in regions if r.is_float16 and (r.certain or _has_known_dtype(context, r))), None)


def _has_known_dtype(context: Context, region: Region) -> bool:
    """Whether it is only the `enabled` of an autocast call that leaves the region open."""
    call = _autocast_call(region)
    if call is None:
        return False
    module = region.why[0].module
    device = argument(call, "device_type", 0)
    if device is not None and not isinstance(device, ast.Constant) and not _enabled(region):
        return False
    dtype = argument(call, "dtype", 1)
    return dtype is None or context.values.named_dtypes(context.values.of(module, dtype)) == {Dtype.FLOAT16}


def _autocast_call(region: Region) -> ast.Call | None:
    node = region.why[0].node if region.why else None
    return node if isinstance(node, ast.Call) else None


def _enabled(region: Region) -> ast.expr | None:
    """The `enabled` argument of the region's autocast call."""
    call = _autocast_call(region)
    if call is None:
        return None
    module = region.why[0].module
    parent = module.parent(call)
    if isinstance(parent, ast.IfExp) and parent.body is call:  # `autocast("cuda") if fp16 else nullcontext()`
        return parent.test
    positions = [_ENABLED_POSITIONS.get(name) for name in module.names(call.func)]
    return argument(call, "enabled", next((p for p in positions if p is not None), 2))


@dataclass(frozen=True, slots=True)
class _Home:
    """Where the new scaler is made, and how it is written there and in the step."""

    name: str
    at: ast.stmt
    after: bool


def _fix(context: Context, backward: Event, step: Event, region: Region) -> Fix | None:
    module = context.module
    pair = (module.statement(backward.node), module.statement(step.node)) if step.module is module else None
    if pair is None or not scaling.same_function(backward, step) or backward.subject is None:
        return None
    if not all(isinstance(s, ast.Expr) and s.value is e.node for s, e in zip(pair, (backward, step), strict=True)):
        return None
    if not isinstance(step.node, ast.Call) or not isinstance(step.node.func, ast.Attribute) or step.node.args:
        return None
    function = module.function(backward.node)
    home = _home(context, function, pair[0], step.node.func.value) if function is not None else None
    enabled = _enabled_there(module, region, home) if home else None
    if home is None or enabled is None:
        return None
    newest = context.options.torch_version >= (2, 3)
    spelling, edits = add_import(module, "torch.amp.GradScaler" if newest else "torch.cuda.amp.GradScaler", home.at)
    arguments = [*(['"cuda"'] if newest else []), *([f"enabled={enabled}"] if enabled else [])]
    made = [f"{home.name} = {spelling}({', '.join(arguments)})"]
    optimizer = module.source.segment(step.node.func.value)
    all_edits = [
        *edits,
        *(insert_after(module, home.at, made) if home.after else insert_before(module, home.at, made)),
        replace(
            module,
            backward.subject,
            f"{home.name}.scale({module.source.segment(backward.subject)})",
            parentheses=True,
        ),
        *_unscale(context, home.name, optimizer, backward, step),
        replace(module, step.node, f"{home.name}.step({optimizer})"),
        *insert_after(module, pair[1], [f"{home.name}.update()"]),
    ]
    return Fix("Scale the loss with a GradScaler", Safety.UNSAFE, tuple(all_edits))


def _unscale(context: Context, scaler: str, optimizer: str, backward: Event, step: Event) -> tuple[Edit, ...]:
    """`unscale_` before the first clip between the backward pass and the step."""
    for path, event in scaling.events_of(context, Kind.BACKWARD):
        if event.node is not backward.node:
            continue
        for later in path.after(event):
            if later.kind is Kind.STEP:
                break
            if later.kind is Kind.CLIP and scaling.same_function(later, backward):
                target = context.module.statement(later.node)
                return insert_before(context.module, target, [f"{scaler}.unscale_({optimizer})"])
    return ()


def _home(context: Context, function: Function, statement: ast.stmt, optimizer: ast.expr) -> _Home | None:
    """Before the outermost loop of the function; for the step of a class, after its optimizer in `__init__`."""
    module = context.module
    ancestors = [a for a in module.ancestors(statement) if module.function(a) is function]
    loops = [ancestor for ancestor in ancestors if isinstance(ancestor, _LOOPS)]
    if loops:
        return None if module.bindings(function, "scaler") else _Home("scaler", loops[-1], after=False)
    cls = module.class_of(function)
    is_attribute = isinstance(optimizer, ast.Attribute) and isinstance(optimizer.value, ast.Name)
    if cls is None or not is_attribute:
        return None
    for inner in ast.walk(cls):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            made_in = module.function(inner)
            if ast.unparse(inner) == ast.unparse(optimizer) and made_in is not None and made_in.name == "__init__":
                return _Home(f"{optimizer.value.id}.scaler", module.statement(inner), after=True)  # type: ignore[attr-defined]
    return None


def _enabled_there(module: Module, region: Region, home: _Home) -> str | None:
    """The region's switch as it can be written where the scaler is made; "" if it needs none, None if it cannot."""
    enabled = _enabled(region)
    if enabled is None and not region.certain:
        return None
    if enabled is None or (isinstance(enabled, ast.Constant) and enabled.value is True):
        return ""
    root = enabled
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name) or region.why[0].module is not module:
        return None
    found_there, found_here = module.lookup(root.id, home.at), module.lookup(root.id, enabled)
    if found_there is None or found_here is None:
        return None
    same = found_there[0] is found_here[0]
    both_self = root.id == "self" and module.class_of(found_there[0]) is module.class_of(found_here[0])
    changes = any(not isinstance(binding, ast.arg | ast.alias) for binding in found_there[1])
    return module.source.segment(enabled) if both_self or (same and not changes) else None
