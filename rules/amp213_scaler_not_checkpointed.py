"""AMP213: a checkpoint with the optimizer's state but not the scaler's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import ClassVar

from amplint import flow
from amplint.context import Context
from amplint.edit import append_item
from amplint.project import Definition, parameters
from amplint.protocol.roles import is_scaler_name, last_name, used_as_scaler
from amplint.rule import Edit, Example, Finding, Fix, Rule, Safety, Severity
from amplint.tree import Function, Module

_SAVES = ("torch.save", "torch.serialization.save", "xm.save", "torch_xla.core.xla_model.save")
_OPTIMIZER = re.compile(r"optim|(^|_)opt(s|_|$)", re.IGNORECASE)
_NO_OPTIMIZER = re.compile(r"sched|option", re.IGNORECASE)
_SCALER = re.compile(r"scaler|(^|_)amp(_|$)|loss_scale", re.IGNORECASE)
_MAX_STEPS = 4
"""What is saved is followed through this many variables."""


class ScalerNotCheckpointed(Rule):
    """A training checkpoint holds the optimizer's state but not the scaler's.

    ## What it does
    Reports a save call whose dictionary has `optimizer.state_dict()` but no state of the GradScaler that training
    uses. Checkpoints of weights only are no training checkpoints and are not reported.

    ## Why
    A resumed run starts at the scale 65536 with an empty growth tracker, while the optimizer's moments continue. Its
    first steps overflow and are skipped until the scale is down again, or run with another scale than before: the
    resumed run is not the run that was interrupted.

    ## Example
    ```python
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    ```
    Use instead:
    ```python
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()},
        path,
    )
    ```

    ## Fix
    Unsafe: the entry is added, named as the scaler is; code that loads the checkpoint must load it too
    (`scaler.load_state_dict(checkpoint["scaler"])`).

    ## References
    - [Saving and resuming](https://docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html#saving-resuming)
    - [GradScaler.state_dict](https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler.state_dict)
    """

    code = "AMP213"
    name = "scaler-not-checkpointed"
    severity = Severity.INFO
    summary = "a checkpoint with the optimizer's state but not the scaler's"
    triggers = ((b".state_dict", b"save"),)
    fixable = "unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch

            def train(net, loader, opt, path):
                scaler = torch.amp.GradScaler("cuda")
                for x in loader:
                    scaler.scale(net(x).mean()).backward()
                    scaler.step(opt)
                    scaler.update()
                torch.save({"m": net.state_dict(), "o": opt.state_dict()}, path)  # expect
            """,
            """
            import torch

            def train(net, loader, opt, path):
                scaler = torch.amp.GradScaler("cuda")
                for x in loader:
                    scaler.scale(net(x).mean()).backward()
                    scaler.step(opt)
                    scaler.update()
                torch.save({"m": net.state_dict(), "o": opt.state_dict(), "scaler": scaler.state_dict()}, path)
            """,
        ),
        Example(
            """
            import torch

            class Trainer:
                def __init__(self, model, optimizer, fp16):
                    self.model, self.optimizer = model, optimizer
                    self.grad_scaler = torch.cuda.amp.GradScaler(enabled=fp16)

                def step(self, x):
                    self.grad_scaler.scale(self.model(x).mean()).backward()
                    self.grad_scaler.step(self.optimizer)
                    self.grad_scaler.update()

                def state(self, epoch):
                    return {
                        "epoch": epoch,
                        "model": self.model.state_dict(),
                        "optimizer": self.optimizer.state_dict(),
                    }

                def save(self, path, epoch):
                    torch.save(self.state(epoch), path)  # expect
            """,
            """
            import torch

            class Trainer:
                def __init__(self, model, optimizer, fp16):
                    self.model, self.optimizer = model, optimizer
                    self.grad_scaler = torch.cuda.amp.GradScaler(enabled=fp16)

                def step(self, x):
                    self.grad_scaler.scale(self.model(x).mean()).backward()
                    self.grad_scaler.step(self.optimizer)
                    self.grad_scaler.update()

                def state(self, epoch):
                    return {
                        "epoch": epoch,
                        "model": self.model.state_dict(),
                        "optimizer": self.optimizer.state_dict(),
                        "grad_scaler": self.grad_scaler.state_dict(),
                    }

                def save(self, path, epoch):
                    torch.save(self.state(epoch), path)
            """,
        ),
        Example(
            """
            import torch

            def save(path, net, opt):
                state = dict(net=net.state_dict())
                state["opt"] = opt.state_dict()
                torch.save(state, path)  # expect

            def train(net, loader, opt):
                scaler = torch.amp.GradScaler("cuda")
                for x in loader:
                    scaler.scale(net(x).mean()).backward()
                    scaler.step(opt)
                    scaler.update()
                save("last.pt", net, opt)
            """,
        ),
        Example(
            """
            from engine import Engine
            from storage import save_on_master

            class Trainer(Engine):
                def save(self, path, epoch):
                    save_on_master(  # expect
                        {
                            'model': self.model.state_dict(),
                            'optimizer': self.optimizer.state_dict(),
                            'epoch': epoch
                        },
                        path,
                    )
            """,
            """
            from engine import Engine
            from storage import save_on_master

            class Trainer(Engine):
                def save(self, path, epoch):
                    save_on_master(
                        {
                            'model': self.model.state_dict(),
                            'optimizer': self.optimizer.state_dict(),
                            'epoch': epoch,
                            'scaler': self.scaler.state_dict()
                        },
                        path,
                    )
            """,
            {
                "engine.py": """
                import torch

                class Engine:
                    def __init__(self, model, optimizer):
                        self.model, self.optimizer = model, optimizer
                        self.scaler = torch.amp.GradScaler("cuda")
                """,
                "storage.py": """
                import torch

                def save_on_master(state, path):
                    torch.save(state, path)
                """,
            },
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def train(model, loader, optimizer, path):
            scaler = torch.amp.GradScaler("cuda")
            for x in loader:
                scaler.scale(model(x).mean()).backward()
                scaler.step(optimizer)
                scaler.update()
            torch.save(model.state_dict(), path / "weights.pt")
            torch.save({"model": model.state_dict(), "epoch": 3}, path / "best.pt")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state["amp"] = scaler.state_dict()
            torch.save(state, path / "last.pt")
            later = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            later.update(scaler=scaler.state_dict())
            torch.save(later, path / "later.pt")
        """,
        """
        import torch

        def train(model, loader, optimizer, path):
            for x in loader:
                model(x).mean().backward()
                optimizer.step()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        """,
        """
        import torch

        class Trainer:
            def __init__(self, model, optimizer):
                self.model, self.optimizer = model, optimizer
                self.scaler = torch.amp.GradScaler("cuda")

            def step(self, x):
                self.scaler.scale(self.model(x).mean()).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()

            def objects(self):
                return {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler}

            def save(self, path):
                torch.save({name: thing.state_dict() for name, thing in self.objects().items()}, path)

            def save_loop(self, path):
                state = {"optimizer": self.optimizer.state_dict()}
                for name in ("model", "scaler"):
                    state[name] = getattr(self, name).state_dict()
                torch.save(state, path)
        """,
        """
        import torch

        class Model(torch.nn.Module):
            def save(self, path, optimizer):
                torch.save({"model": self.state_dict(), "optimizer": optimizer.state_dict()}, path)

        def save_settings(options, path):
            torch.save({"options": options.state_dict()}, path)

        def train(model, loader, optimizer, extra, path):
            scaler = torch.amp.GradScaler("cuda")
            for x in loader:
                scaler.scale(model(x).mean()).backward()
                scaler.step(optimizer)
                scaler.update()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), **extra}, path)
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        module = context.module
        for call in module.calls:
            state = call.args[0] if call.args else None
            if state is None or not (_is_save(module, call.func) or _is_saving_helper(call, state)):
                continue
            saved = list(_saved(context, module, state, _MAX_STEPS))
            if not _is_training_checkpoint(saved) or _mentions_scaler(module, call, saved):
                continue
            scaler = _scaler_at(context, module, call)
            if scaler is None and not _callers_have_scaler(context, call):
                continue
            message = "saves the optimizer's state but not the scaler's: a resumed run starts at scale 65536 again"
            fix = _fix(context, call, saved, scaler) if scaler else None
            yield self.finding(context, call, message, fix=fix)


def _is_save(module: Module, function: ast.expr) -> bool:
    """`torch.save`, also of a torch that is imported on demand (`_torch = get_torch()`)."""
    if names := module.names(function):
        return any(name in _SAVES for name in names)
    return bool(re.fullmatch(r"_*torch\.save", ast.unparse(function)))


def _is_saving_helper(call: ast.Call, state: ast.expr) -> bool:
    """`save_checkpoint({...}, path)`, `utils.save_on_master(state, path)`: a dictionary handed to what saves it."""
    return bool(re.search(r"(^|_)save(_|$)", last_name(call.func))) and isinstance(state, ast.Dict | ast.Name)


def _saved(context: Context, module: Module, node: ast.expr, steps: int) -> Iterator[ast.expr]:
    """The expressions that make up what is saved: dictionaries, objects, entries added later; through variables and
    functions of this file that return it.
    """
    yield node
    if isinstance(node, ast.Call):
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            if isinstance(argument, ast.Name):
                yield from _saved(context, module, argument, steps)
        for callee in context.project.callees(module, node) if steps else ():
            for inner in ast.walk(callee.function) if callee.module is module else ():
                if isinstance(inner, ast.Return) and inner.value is not None:
                    yield from _saved(context, module, inner.value, steps - 1)
    if not isinstance(node, ast.Name) or steps == 0:
        return
    for reaching in flow.definitions(module, node):
        if reaching.value is not None and not any(n is node for n in ast.walk(reaching.value)):
            yield from _saved(context, module, reaching.value, steps - 1)
    for other in ast.walk(module.function(node) or module.tree):
        if isinstance(other, ast.Name) and other.id == node.id and isinstance(other.ctx, ast.Load):
            yield from _added(module, other)


def _added(module: Module, name: ast.Name) -> Iterator[ast.expr]:
    """What `state[key] = value` and `state.update(...)` put into the dictionary of that name, keys too."""
    parent = module.parent(name)
    outer = module.parent(parent) if parent is not None else None
    if isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store) and isinstance(outer, ast.Assign):
        yield from (parent.slice, outer.value)
    elif isinstance(parent, ast.Attribute) and parent.attr in ("update", "setdefault") and isinstance(outer, ast.Call):
        yield outer


def _is_training_checkpoint(saved: list[ast.expr]) -> bool:
    """Whether an optimizer's state is saved together with something else, and nothing unknown with it."""
    if any(isinstance(node, ast.DictComp | ast.Lambda) for root in saved for node in ast.walk(root)):
        return False
    if not any(isinstance(root, ast.Dict | ast.Call) for root in saved):
        return False
    return any(_is_optimizer_state(node) for root in saved for node in ast.walk(root))


def _is_optimizer_state(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "state_dict"):
        return False
    name = last_name(node.func.value)
    return bool(_OPTIMIZER.search(name)) and not _NO_OPTIMIZER.search(name)


def _mentions_scaler(module: Module, call: ast.Call, saved: list[ast.expr]) -> bool:
    """Whether the scaler is saved too: in this dictionary, by the same function, or perhaps by what is not followed."""
    for root in saved:
        for node in ast.walk(root):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _SCALER.search(node.value):
                return True
            if isinstance(node, ast.Dict) and any(key is None for key in node.keys):
                return True
            if isinstance(node, ast.keyword) and (node.arg is None or _SCALER.search(node.arg)):
                return True
            if isinstance(node, ast.Name | ast.Attribute) and _SCALER.search(last_name(node)):
                return True
    function = module.function(call) or module.tree
    return any(
        (isinstance(node, ast.Attribute) and node.attr == "state_dict" and _SCALER.search(last_name(node.value)))
        or (isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"\w*scaler", node.value))
        for node in ast.walk(function)
    )


def _scaler_at(context: Context, module: Module, at: ast.AST) -> ast.expr | None:
    """A GradScaler that code at this place can name: an attribute of `self`, a local, a parameter, a global."""
    used = (node for node in _named_at(module, at) if _is_scaler(context, module, node))
    return next(used, None) or next(_never_used_here(context, module, at), None)


def _named_at(module: Module, at: ast.AST) -> Iterator[ast.expr]:
    """The reads, somewhere in the file, of things with a scaler's name that are the same things at this place."""
    function = module.function(at)
    cls = module.class_of(function) if function is not None else None
    for use in module.nodes:
        if not isinstance(use, ast.Name | ast.Attribute) or not isinstance(use.ctx, ast.Load):
            continue
        if "scaler" not in last_name(use).lower():
            continue
        if isinstance(use, ast.Attribute) and ast.unparse(use.value) == "self":
            owner = module.function(use)
            if cls is not None and owner is not None and module.class_of(owner) is cls:
                yield use
        elif isinstance(use, ast.Name):
            seen_there, seen_here = module.lookup(use.id, use), module.lookup(use.id, at)
            if seen_there and seen_here and seen_there[0] is seen_here[0]:
                yield use


def _never_used_here(context: Context, module: Module, at: ast.AST) -> Iterator[ast.expr]:
    """Scalers that the file never reads: inherited attributes, and parameters of the function."""
    function = module.function(at)
    cls = module.class_of(function) if function is not None else None
    for name in _attributes(context, module, cls) if cls is not None else ():
        yield ast.Attribute(ast.Name("self", ast.Load()), name, ast.Load())
    for parameter in parameters(function) if function is not None else ():
        if "scaler" in parameter.arg.lower() and _is_given_scaler(context, module, function, parameter):
            yield ast.Name(parameter.arg, ast.Load())


def _is_given_scaler(context: Context, module: Module, function: Function | None, parameter: ast.arg) -> bool:
    if parameter.annotation is not None and "GradScaler" in ast.unparse(parameter.annotation):
        return True
    for site in context.project.callers(Definition(module, function)) if function is not None else ():
        for callee in context.project.callees(site.module, site.call):
            given = callee.argument(parameter.arg) if callee.function is function else None
            if given is not None and _is_scaler(context, site.module, given):
                return True
    return False


def _attributes(context: Context, module: Module, cls: ast.ClassDef) -> Iterator[str]:
    """The attributes with a scaler's name that a class inherits, if a GradScaler is what they are."""
    for base in context.project.mro(Definition(module, cls))[1:]:
        targets = (target for target in context.project.self_targets(base) if "scaler" in target.attr)
        yield from dict.fromkeys(target.attr for target in targets if _is_made(base.module, target))


def _is_made(module: Module, target: ast.expr) -> bool:
    """Whether a GradScaler is assigned to `target`."""
    statement = module.parent(target)
    value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
    return value is not None and any(
        isinstance(node, ast.Call) and is_scaler_name(last_name(node.func)) for node in ast.walk(value)
    )


def _is_scaler(context: Context, module: Module, node: ast.expr) -> bool:
    if last_name(node) in used_as_scaler(context.project, module):
        return True
    return any(
        isinstance(source, ast.Call) and is_scaler_name(last_name(source.func))
        for _, source in context.project.sources(module, node)
    )


def _callers_have_scaler(context: Context, call: ast.Call) -> bool:
    """Whether the function that saves is called where a scaler is at hand."""
    function = context.module.function(call)
    if function is None:
        return False
    sites = context.project.callers(Definition(context.module, function))
    return any(_scaler_at(context, site.module, site.call) is not None for site in sites)


def _fix(context: Context, call: ast.Call, saved: list[ast.expr], scaler: ast.expr) -> Fix | None:
    module = context.module
    displays = [node for node in saved if isinstance(node, ast.Dict)]
    display = next((node for node in [*displays, *saved] if isinstance(node, ast.Dict | ast.Call)), None)
    if display is None or not _can_be_written(module, scaler, display, call):
        return None
    key, written = last_name(scaler).lstrip("_"), ast.unparse(scaler)
    state = f"{written}.state_dict()"
    if _may_be_none(context, scaler):
        state += f" if {written} is not None else None"
    edits: tuple[Edit, ...]
    if isinstance(display, ast.Dict):
        first = next((k for k in display.keys if isinstance(k, ast.Constant)), None)
        quote = module.source.segment(first)[-1] if first is not None else '"'
        edits = append_item(module, display, f"{quote}{key}{quote}: {state}")
    elif last_name(display.func) == "dict" and not display.args:
        edits = append_item(module, display, f"{key}={state}")
    else:
        return None
    return Fix("Save the scaler's state too", Safety.UNSAFE, edits)


def _can_be_written(module: Module, scaler: ast.expr, display: ast.expr, call: ast.Call) -> bool:
    """Whether the scaler is at hand at the dictionary too: in the same function, or an attribute of the same object."""
    here, there = module.function(call), module.function(display)
    if here is there:
        return True
    is_attribute = isinstance(scaler, ast.Attribute) and here is not None and there is not None
    return is_attribute and module.class_of(here) is module.class_of(there) is not None  # type: ignore[arg-type]


def _may_be_none(context: Context, scaler: ast.expr) -> bool:
    if context.module.parent(scaler) is None:  # it is not read in this file
        return False
    sources = context.project.sources(context.module, scaler)
    return any(isinstance(source, ast.Constant) and source.value is None for _, source in sources)
