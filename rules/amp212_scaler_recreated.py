"""AMP212: a GradScaler made anew inside the loop that it should live through."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import ClassVar

from amplint import scaling
from amplint.context import Context
from amplint.edit import insert_after, move_before, remove_statement, replace
from amplint.protocol import Event, Kind, Path, Symbol
from amplint.rule import Edit, Example, Finding, Fix, Rule, Safety, Severity
from amplint.scaling import Fault
from amplint.tree import Module

_OPTIMIZER = re.compile(r"optim|(^|_)opt(s|_|$)", re.IGNORECASE)
_STEP = re.compile(
    r"(train|training|optimi[sz]e|learn|update)\w*_(step|batch|iteration|iter)$|^(train|fit)_(one_)?(step|batch)"
)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


class ScalerRecreated(Rule):
    """A GradScaler made anew for each step forgets what it has learnt.

    ## What it does
    Reports a GradScaler that is constructed in the loop over batches, or in the training step, whose losses it
    scales. Once per epoch, with a model and an optimizer that outlive it, is reported as info.

    A scaler per fold or per run, made together with a new model and optimizer, is right.

    ## Why
    The scale starts at 65536 and is halved by each overflow: typical runs settle after a few skipped steps. A fresh
    scaler starts at 65536 each time. Where the loss overflows at that scale, every step of a scaler that lives for
    one batch is skipped and nothing is trained; one that lives for an epoch loses the first steps of each. Its
    growth after 2000 good steps never comes either.

    ## Example
    ```python
    for x, y in loader:
        scaler = torch.amp.GradScaler("cuda")
        scaler.scale(criterion(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
    ```
    Use instead:
    ```python
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        scaler.scale(criterion(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Fix
    Unsafe: the constructor moves before the loop, or from a method to `__init__`; none where the scaler would have to
    be passed on from another function.

    ## References
    - [GradScaler](https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler)
    """

    code = "AMP212"
    name = "scaler-recreated"
    severity = Severity.WARNING
    summary = "a GradScaler made anew for each step or epoch"
    triggers = ((b"GradScaler",), (b"scaler",))
    fixable = "unsafe"
    INVALID: ClassVar = (
        Example(
            """
            import torch

            def train(model, loader, optimizer):
                model.train()
                for x, y in loader:
                    scaler = torch.amp.GradScaler("cuda")  # expect
                    optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        loss = torch.nn.functional.cross_entropy(model(x), y)
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
            """,
            """
            import torch

            def train(model, loader, optimizer):
                model.train()
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
            from torch.cuda.amp import GradScaler

            def train_step(model, x, optimizer, fp16):
                scaler = GradScaler(enabled=fp16)  # expect
                scaler.scale(model(x).mean()).backward()
                scaler.step(optimizer)
                scaler.update()

            def train(model, loader, fp16=True):
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for x in loader:
                    train_step(model, x, optimizer, fp16)
            """,
        ),
        Example(
            """
            import torch

            def fit(model, loader, epochs, amp):
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for epoch in range(epochs):
                    # for mixed precision
                    grad_scaler = torch.amp.GradScaler("cuda", enabled=amp)  # expect
                    for x in loader:
                        optimizer.zero_grad()
                        grad_scaler.scale(model(x).mean()).backward()
                        grad_scaler.step(optimizer)
                        grad_scaler.update()
            """,
            """
            import torch

            def fit(model, loader, epochs, amp):
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                # for mixed precision
                grad_scaler = torch.amp.GradScaler("cuda", enabled=amp)
                for epoch in range(epochs):
                    for x in loader:
                        optimizer.zero_grad()
                        grad_scaler.scale(model(x).mean()).backward()
                        grad_scaler.step(optimizer)
                        grad_scaler.update()
            """,
        ),
        Example(
            """
            import torch

            class Learner:
                def __init__(self, model, amp):
                    self.model = model
                    self.amp = amp
                    self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

                def learn(self, x):
                    scaler = torch.amp.GradScaler("cuda", enabled=self.amp)  # expect
                    self.optimizer.zero_grad()
                    scaler.scale(self.model(x).mean()).backward()
                    scaler.step(self.optimizer)
                    scaler.update()

                def fit(self, loader):
                    for x in loader:
                        self.learn(x)
            """,
            """
            import torch

            class Learner:
                def __init__(self, model, amp):
                    self.model = model
                    self.amp = amp
                    self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                    self.scaler = torch.amp.GradScaler("cuda", enabled=self.amp)

                def learn(self, x):
                    self.optimizer.zero_grad()
                    self.scaler.scale(self.model(x).mean()).backward()
                    self.scaler.step(self.optimizer)
                    self.scaler.update()

                def fit(self, loader):
                    for x in loader:
                        self.learn(x)
            """,
        ),
        Example(
            """
            import torch

            def training_step(model, batch, optimizer):
                grad_scaler = torch.amp.GradScaler("cuda")  # expect
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = model(batch).mean()
                grad_scaler.scale(loss).backward()
                grad_scaler.step(optimizer)
                grad_scaler.update()
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch

        def folds(build, loaders, epochs):
            for loader in loaders:
                model = build()
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                scaler = torch.amp.GradScaler("cuda")
                for _ in range(epochs):
                    for x in loader:
                        scaler.scale(model(x).mean()).backward()
                        scaler.step(optimizer)
                        scaler.update()
        """,
        """
        import torch

        def one_epoch(model, loader, optimizer, scaler):
            for x in loader:
                scaler.scale(model(x).mean()).backward()
                scaler.step(optimizer)
                scaler.update()

        def main(model, loader, optimizer, epochs):
            scaler = torch.amp.GradScaler("cuda")
            for _ in range(epochs):
                one_epoch(model, loader, optimizer, scaler)

        def whole_training(model, loader, epochs):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for _ in range(epochs):
                for x in loader:
                    scaler.scale(model(x).mean()).backward()
                    scaler.step(optimizer)
                    scaler.update()

        def search(build, loader, candidates):
            for candidate in candidates:
                whole_training(build(candidate), loader, 3)
        """,
        """
        import torch

        class Lazy:
            def __init__(self, model, optimizer):
                self.model, self.optimizer = model, optimizer
                self.scaler = None

            def step(self, x):
                if self.scaler is None:
                    self.scaler = torch.amp.GradScaler("cuda")
                self.scaler.scale(self.model(x).mean()).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()

            def fit(self, loader):
                for x in loader:
                    self.step(x)
        """,
        """
        import torch

        def federated(model, clients, rounds):
            for _ in range(rounds):
                for loader in clients:
                    local_training(model, loader)

        def local_training(model, loader):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for x in loader:
                optimizer.zero_grad()
                scaler.scale(model(x).mean()).backward()
                scaler.step(optimizer)
                scaler.update()
        """,
        """
        import torch

        def test_one_step(model, batch):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            scaler.scale(model(batch).mean()).backward()
            scaler.step(optimizer)
            scaler.update()

        def train_batches(model, batches, optimizer):
            scaler = torch.amp.GradScaler("cuda")
            for batch in batches:
                optimizer.zero_grad()
                scaler.scale(model(batch).mean()).backward()
                scaler.step(optimizer)
                scaler.update()
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        for fault in scaling.once(context, _recreated_scalers):
            if _steps_repeatedly(context, fault.event.node):
                severity = Severity.INFO
                message = "made anew for each epoch: the scale starts at 65536 again, and the first steps overflow"
            else:
                severity = Severity.WARNING
                message = "made anew for each step: the scale is 65536 every time, and an overflow is never learnt from"
            fix = _fix(context.module, fault.event.node)
            related = fault.related(context)
            yield self.finding(context, fault.event.node, message, severity=severity, fix=fix, related=related)


def _recreated_scalers(path: Path) -> Iterator[Fault]:
    """Scalers made again at the same place for an optimizer that the one made there before has stepped."""
    made: dict[Symbol, Event] = {}
    stepped: dict[Symbol, dict[Symbol, Event]] = {}  # by scaler: the constructor whose scaler stepped each optimizer
    for event in path.events:
        if event.scaler is None or event.inert or event.framework:
            continue
        if event.kind is Kind.SCALER:
            made[event.scaler] = event
        elif event.kind is Kind.STEP and event.optimizer is not None and event.scaler in made:
            constructor = made[event.scaler]
            if _is_own_of_step(constructor, event):
                yield Fault(path, constructor, (event,))
            earlier = stepped.setdefault(event.scaler, {}).setdefault(event.optimizer, constructor)
            if earlier is not constructor and not _has_new_optimizer(path, earlier, constructor):
                yield Fault(path, constructor, (event,))


def _is_own_of_step(constructor: Event, step: Event) -> bool:
    """Whether a function called a step, which nothing here calls, makes a scaler for the one step that it does."""
    function = scaling.function_of(constructor)
    if function is None or constructor.calls or not scaling.same_function(constructor, step):
        return False
    in_loop = any(
        isinstance(a, _LOOPS) and scaling.is_within(step.module, a, function) for a in step.module.ancestors(step.node)
    )
    return bool(_STEP.search(function.name)) and not in_loop and not _makes_optimizer(function)


def _has_new_optimizer(path: Path, earlier: Event, constructor: Event) -> bool:
    """Whether the code that runs again between two constructions makes an optimizer too: another fold, another run."""
    sites = [(constructor.module, constructor.node), *((site.module, site.call) for site in constructor.calls)]
    events = path.events
    for event in events[events.index(earlier) : events.index(constructor)]:
        if event.kind is not Kind.ROUND:
            continue
        inside = [site for site in sites if scaling.is_within(site[0], site[1], event.node)]
        if inside:
            entered = [module.function(node) for module, node in sites if (module, node) not in inside]
            return any(_makes_optimizer(body) for body in (event.node, *entered) if body is not None)
    return True


def _makes_optimizer(body: ast.AST) -> bool:
    return any(
        isinstance(node, ast.Name | ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and bool(_OPTIMIZER.search(node.id if isinstance(node, ast.Name) else node.attr))
        for node in ast.walk(body)
    )


def _steps_repeatedly(context: Context, constructor: ast.AST) -> bool:
    """Whether one scaler made here steps an optimizer more than once: it lives for an epoch."""
    for path in context.protocol.paths(context.module):
        steps: set[tuple[Symbol | None, Symbol | None]] = set()
        for event in path.events:
            if event.kind is Kind.SCALER and event.node is constructor:
                steps.clear()
            elif event.kind is Kind.STEP:
                if (event.scaler, event.optimizer) in steps:
                    return True
                steps.add((event.scaler, event.optimizer))
    return False


def _fix(module: Module, constructor: ast.AST) -> Fix | None:
    statement = module.statement(constructor)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    edits = _before_loop(module, statement) or _into_init(module, statement)
    return Fix("Make the scaler once", Safety.UNSAFE, edits) if edits else None


def _before_loop(module: Module, statement: ast.Assign) -> tuple[Edit, ...]:
    """Before the loop that the constructor stands right in, if it needs nothing that changes there."""
    loop = module.parent(statement)
    if not isinstance(loop, _LOOPS) or statement not in loop.body:
        return ()
    bound = {n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    if any(isinstance(node, ast.Name) and node.id in bound for node in ast.walk(statement.value)):
        return ()
    return move_before(module, [statement], loop)


def _into_init(module: Module, statement: ast.Assign) -> tuple[Edit, ...]:
    """To the end of `__init__`, as an attribute, from the top of another method of the class."""
    method, target = module.function(statement), statement.targets[0]
    cls = module.class_of(method) if method is not None else None
    init = next((f for f in cls.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None) if cls else None
    if method is None or init is None or init is method or statement not in method.body or not init.args.args:
        return ()
    receiver = init.args.args[0].arg
    text = module.source.segment(statement.value)
    if "\n" in text or not _is_known_in(module, init, receiver, statement.value):
        return ()
    if isinstance(target, ast.Attribute):
        attribute, uses = module.source.segment(target), list[ast.Name]()
    elif isinstance(target, ast.Name) and len(module.bindings(method, target.id)) == 1:
        attribute = f"{receiver}.{target.id}"
        uses = [n for n in ast.walk(method) if isinstance(n, ast.Name) and n.id == target.id and n is not target]
    else:
        return ()
    return (
        *insert_after(module, init.body[-1], [f"{attribute} = {text}"]),
        *remove_statement(module, statement),
        *(replace(module, use, attribute) for use in uses),
    )


def _is_known_in(module: Module, init: ast.FunctionDef, receiver: str, value: ast.expr) -> bool:
    """Whether an expression means in `__init__` what it means elsewhere: globals, and attributes that are set there."""
    attributes = {n.attr for n in ast.walk(init) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    for node in ast.walk(value):
        if isinstance(node, ast.Name) and node.id == receiver:
            parent = module.parent(node)
            if not isinstance(parent, ast.Attribute) or parent.attr not in attributes:
                return False
        elif isinstance(node, ast.Name):
            found = module.lookup(node.id, node)
            if found is not None and (found[0] is not module.tree or module.bindings(init, node.id)):
                return False
    return True
