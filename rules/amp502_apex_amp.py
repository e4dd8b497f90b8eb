"""AMP502: mixed precision by NVIDIA's apex, which torch.amp replaced."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from amplint.context import Context
from amplint.edit import add_import, insert_after, insert_before, layout, nest, remove_statement, replace
from amplint.rule import Edit, Example, Finding, Fix, Rule, Safety, Severity
from amplint.tree import Module

_REPORTED = {
    "apex.amp.initialize": "torch.amp.GradScaler, with the forward pass in torch.autocast,",
    "apex.amp.scale_loss": "scaler.scale(loss).backward()",
}
_LEVELS = ("O1", "O2")
_UNNEEDED = ("opt_level", "loss_scale", "keep_batchnorm_fp32", "master_weights", "verbosity")
_SCALERS = ("scaler", "grad_scaler", "amp_scaler")


class ApexAmp(Rule):
    """Mixed precision by apex.amp, which nobody maintains any more.

    ## What it does
    Reports `amp.initialize` and `amp.scale_loss` of NVIDIA's apex.

    ## Why
    apex.amp was the model for torch.amp and was deprecated in its favour in 2020; apex no longer builds it by default.
    It patches torch's functions for the whole process (O1) or casts the model (O2), its loss scale is not in a
    checkpoint unless it is put there by hand, and what runs in float16 depends on when a function was imported.
    torch.amp does the same by a region in the code, and the scaler is an object.

    ## Example
    ```python
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for x, y in loader:
        loss = criterion(model(x), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
    ```
    Use instead:
    ```python
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Fix
    Unsafe, since O1's lists of operations are not quite torch's, and the losses differ in the last digits. Only where
    the whole of it stands in one function: one model, one optimizer, level O1 or O2. A clip of
    `amp.master_params(optimizer)` becomes one of `model.parameters()` after `scaler.unscale_(optimizer)`.

    ## References
    - [apex.amp](https://nvidia.github.io/apex/amp.html)
    - [Automatic mixed precision examples](https://docs.pytorch.org/docs/stable/notes/amp_examples.html)
    """

    code = "AMP502"
    name = "apex-amp"
    severity = Severity.WARNING
    summary = "amp.initialize and amp.scale_loss of apex"
    triggers = ((b"apex",),)
    fixable = "unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch
            from apex import amp

            def fit(net, batches, criterion):
                opt = torch.optim.SGD(net.parameters(), lr=0.1)
                net, opt = amp.initialize(net, opt, opt_level="O1")  # expect
                for x, y in batches:
                    opt.zero_grad()
                    # forward
                    out = net(x)
                    loss = criterion(out, y)
                    with amp.scale_loss(loss, opt) as scaled:  # expect
                        scaled.backward()
                    torch.nn.utils.clip_grad_norm_(amp.master_params(opt), 1.0)
                    opt.step()
                torch.save({"net": net.state_dict(), "amp": amp.state_dict()}, "last.pt")
            """,
            """
            import torch

            def fit(net, batches, criterion):
                opt = torch.optim.SGD(net.parameters(), lr=0.1)
                scaler = torch.amp.GradScaler("cuda")
                for x, y in batches:
                    opt.zero_grad()
                    with torch.autocast("cuda", dtype=torch.float16):
                        # forward
                        out = net(x)
                        loss = criterion(out, y)
                    scaler.scale(loss).backward()
                    scaler.unscale_(opt)
                    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                    scaler.step(opt)
                    scaler.update()
                torch.save({"net": net.state_dict(), "amp": scaler.state_dict()}, "last.pt")
            """,
        ),
        Example(
            """
            try:
                import apex.amp
            except ImportError:
                apex = None

            class Trainer:
                def __init__(self, net, opt):
                    self.net, self.opt = apex.amp.initialize(net, opt, opt_level="O2")  # expect

                def step(self, x):
                    loss = self.net(x)
                    with apex.amp.scale_loss(loss, self.opt) as scaled:  # expect
                        scaled.backward()
                    self.opt.step()
            """,
        ),
        Example(
            """
            from apex.amp import initialize, scale_loss

            def fit(nets, opts, batches):
                nets, opts = initialize(nets, opts, opt_level="O1", num_losses=2)  # expect
                for x in batches:
                    for i, (net, opt) in enumerate(zip(nets, opts)):
                        with scale_loss(net(x), opt, loss_id=i) as scaled:  # expect
                            scaled.backward()
                        opt.step()
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch
        from torch import amp

        def fit(net, opt, batches):
            scaler = amp.GradScaler("cuda")
            for x in batches:
                with amp.autocast("cuda"):
                    loss = net(x)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
        """,
        """
        from apex.optimizers import FusedAdam
        from apex.normalization import FusedLayerNorm

        def build(net):
            return FusedAdam(net.parameters()), FusedLayerNorm(64)
        """,
        """
        import mylib.amp as amp  # not apex

        net, opt = amp.initialize(net, opt)
        with amp.scale_loss(loss, opt) as scaled:
            scaled.backward()
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        module = context.module
        uses = list(_apex_uses(module))
        fix = _migration(module, uses, context.options.torch_version)
        for use in uses:
            if use.name in _REPORTED:
                message = f"{use.name} is no longer maintained: {_REPORTED[use.name]} replaces it"
                yield self.finding(context, use.call, message, fix=fix)


@dataclass(frozen=True, slots=True)
class _Use:
    """A call of something of apex.amp."""

    name: str
    call: ast.Call


def _apex_uses(module: Module) -> Iterator[_Use]:
    for call in module.calls:
        for name in _imported_names(module, call.func):
            if name.startswith("apex.amp."):
                yield _Use(name, call)


def _imported_names(module: Module, expression: ast.expr) -> list[str]:
    """The dotted names that imports give an expression, also where a failed import gives it another meaning."""
    path: list[str] = []
    while isinstance(expression, ast.Attribute):
        path.insert(0, expression.attr)
        expression = expression.value
    if not isinstance(expression, ast.Name):
        return []
    found = module.lookup(expression.id, expression)
    targets = [module.import_target(node, expression.id) for node in (found[1] if found else [])]
    return [".".join([target, *path]) for target in dict.fromkeys(targets) if target]


# -- the fix ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Names:
    """How the things of the loop are written."""

    model: str
    optimizer: str
    scaler: str


def _migration(module: Module, uses: Sequence[_Use], torch_version: tuple[int, int]) -> Fix | None:
    """The whole move to torch.amp, if all that apex does in the file is a plain loop in one function."""
    starts = [use for use in uses if use.name == "apex.amp.initialize"]
    if len(starts) != 1 or len({module.function(use.call) for use in uses}) != 1:
        return None
    names = _names(module, starts[0].call)
    if names is None:
        return None
    _, imports = add_import(module, "torch.autocast", starts[0].call)
    torch = module.bound_as("torch", starts[0].call) or "torch"
    scaler = f'{torch}.amp.GradScaler("cuda")' if torch_version >= (2, 3) else f"{torch}.cuda.amp.GradScaler()"
    edits = [*imports, _replaced(module, module.statement(starts[0].call), f"{names.scaler} = {scaler}")]
    for use in uses:
        if use.name == "apex.amp.initialize":
            continue
        made = _moved(module, use, names, torch)
        if made is None:
            return None
        edits += made
    steps = _stepped(module, starts[0].call, names)
    if not steps or not any(use.name == "apex.amp.scale_loss" for use in uses):
        return None
    edits += [*steps, *_without_import(module, uses)]
    return Fix("use torch.autocast and torch.amp.GradScaler", Safety.UNSAFE, tuple(edits))


def _names(module: Module, initialize: ast.Call) -> _Names | None:
    """The names in `model, optimizer = amp.initialize(model, optimizer, opt_level="O1")`, if it is one like that."""
    statement = module.statement(initialize)
    if not isinstance(statement, ast.Assign) or statement.value is not initialize or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    if not isinstance(target, ast.Tuple) or not _same(target.elts, initialize.args) or len(initialize.args) != 2:
        return None
    for keyword in initialize.keywords:
        is_level = keyword.arg == "opt_level" and getattr(keyword.value, "value", None) not in _LEVELS
        if keyword.arg not in _UNNEEDED or is_level:
            return None
    model, optimizer = initialize.args
    free = next((name for name in _SCALERS if module.lookup(name, initialize) is None), None)
    if not isinstance(model, ast.Name) or not isinstance(optimizer, ast.Name) or free is None:
        return None
    return _Names(model.id, optimizer.id, free)


def _same(ones: Sequence[ast.expr], others: Sequence[ast.expr]) -> bool:
    return [getattr(one, "id", one) for one in ones] == [getattr(other, "id", other) for other in others]


def _moved(module: Module, use: _Use, names: _Names, torch: str) -> tuple[Edit, ...] | None:
    """One call of apex in torch's terms; None where that is not plain."""
    call, function = use.call, use.name.rpartition(".")[2]
    if function == "scale_loss":
        return _scaled(module, call, names, torch)
    if function == "master_params" and _is_name(call.args, names.optimizer) and _is_clipped(module, call):
        before = insert_before(module, module.statement(call), [f"{names.scaler}.unscale_({names.optimizer})"])
        return (*before, replace(module, call, f"{names.model}.parameters()"))
    if function in ("state_dict", "load_state_dict"):
        return (replace(module, call.func, f"{names.scaler}.{function}"),)
    return None


def _scaled(module: Module, call: ast.Call, names: _Names, torch: str) -> tuple[Edit, ...] | None:
    """`with amp.scale_loss(loss, optimizer) as scaled: scaled.backward()` and the forward pass before it."""
    match module.statement(call):
        case (
            ast.With(
                items=[ast.withitem(optional_vars=ast.Name(id=scaled))],
                body=[
                    ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=receiver), attr="backward") as method))
                ],
            ) as block
        ) if receiver == scaled:
            pass
        case _:
            return None
    if len(call.args) != 2 or call.keywords or not _is_name(call.args[1:], names.optimizer):
        return None
    forward = _forward(module, block, names.model)
    if not forward:
        return None
    place = layout(module)
    arguments = place.text[place.span(method)[1] : place.end(block.body[0])]
    scaled_backward = f"{names.scaler}.scale({module.source.segment(call.args[0])}).backward{arguments}"
    region = f'with {torch}.autocast("cuda", dtype={torch}.float16):'
    return (*nest(module, forward, region), _replaced(module, block, scaled_backward))


def _is_clipped(module: Module, parameters: ast.Call) -> bool:
    """Whether the parameters are given to a clip."""
    parent = module.parent(parameters)
    return isinstance(parent, ast.Call) and "clip_grad" in module.source.segment(parent.func)


def _forward(module: Module, block: ast.With, model: str) -> list[ast.stmt]:
    """The statements from the first that calls the model up to the one that scales the loss, each on its own line."""
    place = layout(module)
    siblings = module.block(block)
    before = siblings[: siblings.index(block)]
    first = next((i for i, item in enumerate(before) if _calls(item, model)), None)
    forward = [] if first is None else before[first:]
    alone = all(place.starts_line(item) and place.ends_line(item) for item in [*forward, block])
    return forward if alone else []


def _stepped(module: Module, initialize: ast.Call, names: _Names) -> list[Edit]:
    """`optimizer.step()` by the scaler, wherever the function has it."""
    edits: list[Edit] = []
    for call in module.calls:
        is_step = isinstance(call.func, ast.Attribute) and call.func.attr == "step"
        if not is_step or not _is_name([call.func.value], names.optimizer):  # type: ignore[attr-defined]
            continue
        statement = module.statement(call)
        if call.args or call.keywords or module.function(call) is not module.function(initialize):
            return []
        edits.append(replace(module, call, f"{names.scaler}.step({names.optimizer})"))
        edits += insert_after(module, statement, [f"{names.scaler}.update()"])
    return edits


def _without_import(module: Module, uses: Sequence[_Use]) -> tuple[Edit, ...]:
    """Remove `from apex import amp` where nothing mentions it any more; one in a `try` stays."""
    used = {id(node) for use in uses for node in ast.walk(use.call.func)}
    for statement in module.tree.body:
        if not isinstance(statement, ast.ImportFrom) or statement.module != "apex" or len(statement.names) != 1:
            continue
        local = statement.names[0].asname or statement.names[0].name
        mentions = [node for node in ast.walk(module.tree) if isinstance(node, ast.Name) and node.id == local]
        if all(id(node) in used for node in mentions):
            return remove_statement(module, statement)
    return ()


def _replaced(module: Module, statement: ast.stmt, text: str) -> Edit:
    start, end = layout(module).span(statement)
    return Edit(start, end, text)


def _is_name(expressions: Sequence[ast.expr], name: str) -> bool:
    return len(expressions) == 1 and isinstance(expressions[0], ast.Name) and expressions[0].id == name


def _calls(statement: ast.stmt, function: str) -> bool:
    calls = (node.func for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(isinstance(called, ast.Name) and called.id == function for called in calls)
