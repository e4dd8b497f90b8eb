"""Which paths a training step has, and which events lie on them."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path as FilePath

import pytest

from amplint.context import Options
from amplint.project import Project
from amplint.protocol import Event, Kind, Path, Protocol
from amplint.source import Source
from amplint.tree import Module

ROOT = FilePath("/program")
SHOWN = {
    Kind.BACKWARD: "B",
    Kind.UNSCALE: "U",
    Kind.CLIP: "C",
    Kind.STEP: "S",
    Kind.UPDATE: "D",
    Kind.ZERO: "Z",
    Kind.READ: "r",
    Kind.WRITE: "w",
    Kind.REDUCE: "R",
    Kind.HOOK: "H",
}
STEP = """
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
"""


def walked(source: str, name: str = "main", **files: str) -> tuple[Protocol, Module]:
    texts = {ROOT / f"{file}.py": textwrap.dedent(text) for file, text in {"main": source, **files}.items()}
    sources = {path: Source(path, text) for path, text in texts.items()}
    project = Project(sources, sources.__getitem__)
    module = project.whole(ROOT / f"{name}.py")
    assert module is not None
    return Protocol(project, Options()), module


def paths(source: str, name: str = "main", **files: str) -> tuple[Path, ...]:
    protocol, module = walked(source, name, **files)
    assert not protocol.limits(module)
    return protocol.paths(module)


def shown(path: Path) -> str:
    """The events of a path as letters: small ones for plain backward passes and steps, brackets for a framework's."""
    return "".join(letter(event) for event in path.events if event.kind in SHOWN)


def letter(event: Event) -> str:
    text = SHOWN[event.kind]
    if event.kind in (Kind.BACKWARD, Kind.STEP) and (event.scaler is None or event.inert):
        text = text.lower()
    return f"[{text}]" if event.framework else text


def all_shown(source: str, **files: str) -> set[str]:
    return {shown(path) for path in paths(source, **files)}


def function(body: str, parameters: str = "scaler, opt, model, loss, flag=None, other=None") -> str:
    inner = textwrap.indent(textwrap.dedent(body), "    ")
    return f"from torch.nn.utils import clip_grad_norm_\ndef train({parameters}):\n{inner}"


def test_a_straight_step() -> None:
    assert all_shown(function(STEP)) == {"BUCSD"}


@pytest.mark.parametrize(("made", "tested"), [("Sampler(flag)", False), ("checked(flag)", True)])
def test_constructors_test_no_loss(made: str, tested: bool) -> None:
    source = f"""
        import torch

        class Sampler:
            def __init__(self, weights):
                self.weights = checked(weights)

        def checked(weights):
            assert torch.isfinite(weights).all()
            return weights

        def train(scaler, opt, loss, flag):
            kept = {made}
            scaler.scale(loss).backward()
            scaler.step(opt)
    """
    assert {any(e.kind is Kind.CHECK for e in p.events) for p in paths(source) if "B" in shown(p)} == {tested}


@pytest.mark.parametrize(("bound", "expected"), [("None", {"BS"}), ("flag", {"BCCS", "BS"})])
def test_what_an_if_assigns_is_forgotten_only_where_it_may_be_taken(bound: str, expected: set[str]) -> None:
    body = f"""
        bound = {bound}
        if bound is not None:
            bound = float(bound)
        scaler.scale(loss).backward()
        for p in model.parameters():
            if bound is not None:
                p.grad.clamp_(-bound, bound)
        scaler.step(opt)
    """
    assert all_shown(function(body)) == expected


def test_what_either_side_of_an_if_assigns_is_forgotten() -> None:
    body = """
        bound = None
        if bound is not None:
            bound = float(bound)
        else:
            bound = float(other)
        if bound is not None:
            scaler.unscale_(opt)
        scaler.step(opt)
    """
    assert all_shown(function(body)) == {"US", "S"}


def test_equal_tests_take_equal_branches() -> None:
    body = """
        if flag:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        if flag is not None and flag:
            scaler.unscale_(opt)
        clip_grad_norm_(model.parameters(), 1.0)
        if not flag:
            opt.step()
        else:
            scaler.step(opt)
            scaler.update()
    """
    assert all_shown(function(body)) == {"BUCSD", "bCs"}


def test_a_variable_is_what_it_was_assigned() -> None:
    body = """
        use = flag and other
        if use:
            scaler.scale(loss).backward()
        if other and flag:
            scaler.step(opt)
    """
    assert all_shown(function(body)) == {"BS", ""}


def test_a_test_whose_variable_changed_is_another_test() -> None:
    body = """
        if flag:
            scaler.scale(loss).backward()
        flag = other()
        if flag:
            scaler.step(opt)
    """
    assert all_shown(function(body)) == {"BS", "B", "S", ""}


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ("GradScaler()", {"BUCSD"}),
        ("GradScaler(enabled=False)", {"bUCsD"}),
        ("GradScaler(enabled=flag)", {"BUCSD"}),
        ("GradScaler() if flag else None", {"BUCSD", "bCs"}),
    ],
)
def test_a_scaler_is_on_off_or_absent(made: str, expected: set[str]) -> None:
    body = f"""
        from torch.amp import GradScaler
        scaler = {made}
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
        else:
            loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        if scaler:
            scaler.step(opt)
            scaler.update()
        else:
            opt.step()
    """
    assert all_shown(function(body, "opt, model, loss, flag")) == expected


def test_the_enabling_flag_correlates_with_later_tests() -> None:
    body = """
        from torch.amp import GradScaler
        scaler = GradScaler(enabled=flag == "fp16")
        scaler.scale(loss).backward()
        if flag == "fp16":
            scaler.unscale_(opt)
        if flag == "bf16":
            clip_grad_norm_(model.parameters(), 1.0)
    """
    assert all_shown(function(body, "opt, model, loss, flag")) == {"BU"}


def test_loops_run_twice_and_carry_state_over() -> None:
    body = """
        for i, batch in enumerate(loader):
            scaler.scale(model(batch)).backward()
            if (i + 1) % 4:
                continue
            scaler.step(opt)
            scaler.update()
    """
    found = all_shown(function(body, "scaler, opt, model, loader"))
    assert {"BB", "BBSD", "BSDB"} <= found


def test_flags_stay_the_same_from_round_to_round() -> None:
    body = """
        for batch in loader:
            if flag:
                scaler.scale(model(batch)).backward()
            else:
                model(batch).backward()
    """
    assert all_shown(function(body, "scaler, model, loader, flag")) == {"BB", "bb"}


def test_elements_of_equal_lists_are_equal() -> None:
    body = """
        for m, o in zip(models, opts):
            scaler.unscale_(o)
        for o in opts:
            scaler.step(o)
    """
    (path,) = paths(function(body, "scaler, models, opts"))
    unscaled = [event.optimizer for event in path.events if event.kind is Kind.UNSCALE]
    assert unscaled == [event.optimizer for event in path.events if event.kind is Kind.STEP]
    assert len(set(unscaled)) == 2


def test_early_exits_leave_and_raising_paths_end() -> None:
    body = """
        scaler.scale(loss).backward()
        if flag:
            return
        if other:
            raise ValueError
        scaler.step(opt)
    """
    assert all_shown(function(body)) == {"B", "BS"}


def test_finally_runs_on_all_paths_and_handlers_from_the_start() -> None:
    body = """
        try:
            scaler.scale(loss).backward()
            scaler.step(opt)
        except RuntimeError:
            opt.zero_grad()
        finally:
            scaler.update()
    """
    assert all_shown(function(body)) == {"BSD", "ZD"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("loss = model(flag); scaler.scale(loss).backward(); scaler.step(opt)", {"BS", "H"}),
        ("scaler.scale(loss).backward(); scaler.unscale_(opt); scaler.step(opt)", {"BUS", "H"}),
        (
            "scaler.unscale_(opt); clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True); scaler.step(opt)",
            {"UCS", "UH"},
        ),
        ("scaler.step(opt)", {"S", "SH"}),
        ("scaler.unscale_(opt)", {"U", "H"}),
        ("scaler.unscale_(opt); scaler.step(opt)", {"US", "H", "USH"}),
        ("with model: scaler.scale(model(flag)).backward()", {"B", "H"}),
        ("print(flag)", {"H"}),
    ],
)
def test_an_exception_leaves_a_body_where_it_may_fail(body: str, expected: set[str]) -> None:
    text = """
        try:
            {}
        except RuntimeError:
            opt.register_step_pre_hook(clip_all)
    """.format("\n            ".join(body.split("; ")))
    assert all_shown(function(text)) == expected


def test_what_follows_a_body_without_exception_runs_there_alone() -> None:
    body = """
        try:
            if flag:
                scaler.scale(loss).backward()
                raise ValueError
        except ValueError:
            pass
        else:
            scaler.unscale_(opt)
        scaler.step(opt)
    """
    assert all_shown(function(body)) == {"BS", "S", "US"}  # in the second, the backward pass failed


def test_after_a_handler_the_path_goes_on_from_where_the_body_was_left() -> None:
    body = """
        try:
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        except RuntimeError:
            print("too large")
        scaler.step(opt)
    """
    assert all_shown(function(body)) == {"BUCS", "BUS", "S"}


def test_match_cases_exclude_each_other() -> None:
    body = """
        match flag:
            case "fp16":
                scaler.scale(loss).backward()
            case "fp32" | "bf16":
                loss.backward()
        if flag == "fp16":
            scaler.step(opt)
    """
    assert all_shown(function(body)) == {"BS", "b", ""}


def test_helpers_methods_and_context_managers_are_entered() -> None:
    source = """
        from contextlib import contextmanager
        from helper import clip

        @contextmanager
        def unscaled(scaler, opt):
            scaler.unscale_(opt)
            yield
            scaler.step(opt)

        class Trainer:
            def __init__(self, scaler, opt):
                self.scaler, self.opt = scaler, opt
            def backward(self, loss):
                scaled = self.scaler.scale(loss)
                scaled.backward()
            def train(self, model, loss):
                self.backward(loss)
                with unscaled(self.scaler, self.opt):
                    clip(model)
                self.scaler.update()
    """
    helper = """
        import torch
        def clip(model):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    """
    (path,) = paths(source, helper=helper)
    assert shown(path) == "BUCSD"
    clip = next(event for event in path.events if event.kind is Kind.CLIP)
    assert clip.module.source.path.name == "helper.py"
    assert len(clip.calls) == 1
    scalers = {event.scaler for event in path.events if event.scaler is not None}
    assert len(scalers) == 1
    assert all_shown(source, helper=helper) == {shown(p) for p in paths(source, "helper", helper=helper)}


def test_subclasses_run_their_own_hooks() -> None:
    source = """
        import torch
        class Base:
            def __init__(self, opt):
                self.opt, self.scaler = opt, torch.amp.GradScaler()
            def hook(self):
                self.scaler.unscale_(self.opt)
            def step(self, loss):
                self.scaler.scale(loss).backward()
                self.hook()
                self.scaler.step(self.opt)
        class Child(Base):
            def hook(self):
                pass
    """
    assert {"BUS", "BS"} <= all_shown(source)


@pytest.mark.parametrize(
    "inner",
    [
        "self.before()\nself.after()\nself.scaler.step(self.opt)",
        "def run():\n    self.before()\n    self.after()\nrun()\nself.scaler.step(self.opt)",
        "run = lambda: (self.before(), self.after())\nrun()\nself.scaler.step(self.opt)",
    ],
)
def test_hooks_are_those_of_one_class_however_deep_they_are_called(inner: str) -> None:
    source = f"""
import torch
from torch.nn.utils import clip_grad_norm_
class Base:
    def __init__(self, opt):
        self.opt, self.scaler = opt, torch.amp.GradScaler()
    def step(self, loss):
        self.scaler.scale(loss).backward()
        self.inner()
    def inner(self):
{textwrap.indent(inner, 8 * " ")}
    def before(self):
        self.scaler.unscale_(self.opt)
    def after(self):
        clip_grad_norm_(self.parameters, 1.0)
class Child(Base):
    def before(self):
        pass
    def after(self):
        pass
"""
    assert {path for path in all_shown(source) if path.startswith("B")} == {"BUCS", "BS"}


def test_a_method_runs_on_the_object_it_is_called_on() -> None:
    source = """
        class Trainer:
            def __init__(self, opt):
                self.opt = opt
            def unscale(self, scaler):
                scaler.unscale_(self.opt)
        def train(scaler, first, second):
            one, two = Trainer(first), Trainer(second)
            one.unscale(scaler)
            two.unscale(scaler)
            scaler.step(second)
            scaler.step(first)
    """
    (path,) = (path for path in paths(source) if "S" in shown(path))
    first, second, *stepped = [event.optimizer for event in path.events]
    assert first != second
    assert stepped == [second, first]


def test_a_closure_reaches_the_methods_of_the_base() -> None:
    source = """
        class Base:
            def __init__(self, opt, scaler):
                self.opt, self.scaler = opt, scaler
            def unscale(self):
                self.scaler.unscale_(self.opt)
        class Child(Base):
            def train(self, loss):
                def step():
                    super(Child, self).unscale()
                    self.scaler.step(self.opt)
                self.scaler.scale(loss).backward()
                step()
    """
    (path,) = (path for path in paths(source) if "B" in shown(path))
    assert shown(path) == "BUS"
    assert len({event.optimizer for event in path.events if event.optimizer is not None}) == 1


@pytest.mark.parametrize(
    "body",
    [
        "(full if flag else half)(scaler, opt)",
        "act = full if flag else half\nact(scaler, opt)",
        "act = half\nif flag:\n    act = full\nact(scaler, opt)",
        "(Steps.full if flag else Steps.half)(scaler, opt)",
        "steps = Steps()\nact = steps.full if flag else steps.half\nact(scaler, opt)",
    ],
)
@pytest.mark.parametrize("known", [False, True])
def test_the_function_that_a_test_chose_is_called(body: str, known: bool) -> None:
    """Whether that test was made before, or is made by the choice."""
    backward = """
if flag:
    loss.backward()
else:
    scaler.scale(loss).backward()
"""
    again = "if flag:\n    clip_grad_norm_(model.parameters(), 1.0)\n"
    source = """
def full(scaler, opt):
    opt.step()
def half(scaler, opt):
    scaler.step(opt)
class Steps:
    @staticmethod
    def full(scaler, opt):
        opt.step()
    @staticmethod
    def half(scaler, opt):
        scaler.step(opt)
"""
    found = all_shown(source + function(backward + body if known else f"{body}\n{again}")) - {"s", "S"}
    assert found == ({"bs", "BS"} if known else {"sC"})


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("step(opt)", {"S"}),
        ("step(opt, True)", {"US"}),
        ("step(opt, clip=flag)", {"US", "S"}),
        ("step(*other)", {"US", "S"}),
        ("step(opt, **other)", {"US", "S"}),
    ],
)
def test_a_default_holds_where_a_call_gives_nothing_else(call: str, expected: set[str]) -> None:
    source = f"""
        def train(scaler, opt, flag, other):
            def step(opt, clip=False):
                if clip:
                    scaler.unscale_(opt)
                scaler.step(opt)
            {call}
    """
    assert all_shown(source) == expected


def test_a_constructor_that_is_no_function_of_the_class_is_passed_over() -> None:
    source = """
        def configured(self, opt):
            self.opt = opt
        class Trainer:
            __init__ = configured
            def train(self, scaler):
                scaler.unscale_(self.opt)
                scaler.step(self.opt)
    """
    assert all_shown(source) == {"US"}


def test_a_function_that_calls_itself_is_passed_over_there() -> None:
    body = """
        scaler.scale(loss).backward()
        if other:
            train(scaler, opt, model, loss)
        scaler.step(opt)
    """
    assert all_shown(function(body)) == {"BS", "B"}  # "B" ends where it is in the same state as the other


def test_another_librarys_scaler_is_none() -> None:
    source = """
        from sklearn.preprocessing import StandardScaler
        def train(x, model, opt):
            scaler = StandardScaler()
            loss = model(scaler.fit_transform(x))
            loss.backward()
            opt.step()
            scaler.update()
    """
    assert all_shown(source) == {"bs"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("model.clip_grad_norm_(1.0)", "C"),
        ("dispatch_clip_grad(model.parameters(), 1.0)", "C"),
        ("for p in model.parameters(): p.grad.data.clamp_(-1, 1)", "CC"),
        ("for p in model.parameters(): p.grad = p.grad.clamp(-1, 1)", "rCrC"),
        ("clip_grad_norm_(model.parameters(), float('inf'))", "r"),
        ("clip_grad_norm_(model.parameters(), None)", "r"),
        ("for p in model.parameters(): p.grad.add_(p, alpha=0.1)", "ww"),
        ("for p in model.parameters(): p.grad = None", "ZZ"),
        ("torch.distributed.all_reduce(p.grad)", "rR"),
        ("torch.distributed.all_reduce(loss)", ""),
        ("opt.register_step_pre_hook(lambda *a: clip_grad_norm_(model.parameters(), 1.0))", "H"),
        ("scheduler.step()", ""),
        ("metrics.update(loss)", ""),
        ("model.zero_grad()", "Z"),
        ("torch.autograd.backward([scaler.scale(loss)])", "B"),
        ("sum(scaler.scale(part) for part in loss).backward()", "B"),
        ("wrapped(scaler.scale(loss).backward)(scaler.step(opt))", "S"),
        ("waiting(scaler.step(opt))()", "S"),
    ],
)
def test_events_in_many_spellings(line: str, expected: str) -> None:
    body = f"scaler.unscale_(opt)\n{line}"
    source = "import torch\n" + function(body, "scaler, opt, model, loss, scheduler, metrics, p")
    assert all_shown(source) == {"U" + expected}


def test_frameworks_do_several_things_at_once() -> None:
    source = """
        from accelerate import Accelerator
        def train(model, opt, loss):
            accelerator = Accelerator(mixed_precision="fp16")
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
    """
    assert all_shown(source) == {"[B][U][C]"}


def test_too_many_paths_are_no_paths_and_said() -> None:
    tests = "\n".join(
        f"    if f{n}():\n        scaler.unscale_(o{n})\n    else:\n        clip_grad_norm_(o{n})" for n in range(12)
    )
    source = f"def train(scaler):\n{tests}\n"
    protocol, module = walked(source)
    assert protocol.paths(module) == ()
    ((node, reason),) = protocol.limits(module)
    assert node is module.functions[0]
    assert "paths" in reason


def test_settings_that_are_not_read_again_make_no_paths() -> None:
    settings = "\n".join(
        f"    if args.a{n}:\n        x{n} = 1\n    else:\n        x{n} = args.b{n}\n    if x{n} == 2:\n        raise E"
        for n in range(12)
    )
    body = "    while True:\n        scaler.scale(f()).backward()\n        clip_grad_norm_(p)\n        scaler.step(o)"
    protocol, module = walked(f"def train(args, scaler, o):\n{settings}\n{body}\n")
    assert protocol.limits(module) == ()
    assert {e.kind for path in protocol.paths(module) for e in path.events} >= {Kind.CLIP, Kind.STEP}


def test_what_a_with_block_sets_is_kept_apart_at_the_end_of_its_context_manager() -> None:
    """The manager stands in a file of its own, where the variables of the block mean nothing."""
    source = """
        from helper import region
        def train(flag, scaler, o):
            with region(o):
                if flag:
                    clip = True
                else:
                    clip = False
            if clip:
                scaler.unscale_(o)
            scaler.step(o)
    """
    helper = """
        from contextlib import contextmanager
        @contextmanager
        def region(optimizer):
            try:
                yield
            finally:
                optimizer.zero_grad()
    """
    assert all_shown(source, helper=helper) == {"ZS", "ZUS"}


def test_owners_by_constructor_by_group_and_by_name() -> None:
    source = """
        import torch
        from torch.nn.utils import clip_grad_norm_
        def train(scaler, gen, disc, opt_x):
            first = torch.optim.Adam(gen.parameters())
            second = torch.optim.SGD([*disc.parameters()], lr=1.0)
            for o in (first, second, opt_x):
                scaler.step(o)
            clip_grad_norm_(gen.body.parameters(), 1.0)
            clip_grad_norm_(list(disc.parameters()), 1.0)
            clip_grad_norm_(opt_x.param_groups[0]["params"], 1.0)
            clip_grad_norm_(elsewhere.parameters(), 1.0)
    """
    protocol, module = walked(source)
    (path,) = protocol.paths(module)
    optimizers = list(dict.fromkeys(event.optimizer for event in path.events if event.kind is Kind.STEP))
    clips = [event for event in path.events if event.kind is Kind.CLIP]
    first, second = optimizers[0], optimizers[1]
    owners = [protocol.owners(path, clip) for clip in clips]
    assert owners[0] == {first}
    assert owners[1] == {second}
    assert owners[3] is None


@pytest.mark.parametrize(
    ("spelled", "scalers"),
    [
        ("getattr(model, 'scaler')", 1),
        ("getattr(model, 'other')", 2),
        ("(flag, model.scaler)[1]", 1),
        ("(flag, model.scaler)[-1]", 1),
    ],
)
def test_one_object_in_several_spellings(spelled: str, scalers: int) -> None:
    body = f"""
        {spelled}.scale(loss).backward()
        model.scaler.step(opt)
        model.scaler.update()
    """
    (path,) = (path for path in paths(function(body)) if "B" in shown(path))
    assert len({event.scaler for event in path.events if event.scaler is not None}) == scalers


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("flag and scaler.unscale_(opt)\nscaler.step(opt)", {"US", "S"}),
        ("flag or scaler.unscale_(opt)\nscaler.step(opt)", {"US", "S"}),
        ("flag and other and scaler.unscale_(opt)\nscaler.step(opt)", {"US", "S"}),
        ("scaler.unscale_(opt) if flag else other(loss)\nscaler.step(opt)", {"US", "S"}),
        ("scaler.step(opt) if flag else opt.step()", {"S", "s"}),
        ("n = 1 if flag else 2\nscaler.step(opt)", {"S"}),
        ("(scaled := scaler.scale(loss)).backward()\nscaler.step(opt)", {"BS"}),
        ("[scaler.step(o) for o in model.opts]", {"SS"}),
        ("{o: scaler.step(o) for o in model.opts}", {"SS"}),
        ("[scaler.step(o) for o in model.opts if scaler.unscale_(o) is None]", {"USUS"}),
        ("for o in reversed(model.opts): scaler.step(o)", {"SS"}),
        ("for name, o in model.opts.items(): scaler.step(o)", {"SS"}),
        ("for n, o in enumerate(model.opts): scaler.step(o)", {"SS"}),
        ("run = lambda: scaler.step(opt)\nrun()", {"S"}),
        ("def run():\n    scaler.step(opt)\nrun()", {"S"}),
        ("def on():\n    scaler.step(opt)\ndef off():\n    opt.step()\nrun = on if flag else off\nrun()", {"S", "s"}),
        ("def run():\n    scaler.scale(loss).backward()\n    return loss\nopt.step(run)", {"B", "Bs"}),
        ("def run():\n    scaler.scale(loss).backward()\nopt.step(closure=run)", {"B", "Bs"}),
        ("held = {'scaler': scaler, 'opt': opt}\nheld['scaler'].step(held['opt'])", {"S"}),
        ("scalers = [scaler, None]\nscalers[0].step(opt)\nscalers[-2].update()", {"SD"}),
        ("own_scaler, *rest = scaler, opt\nown_scaler.step(opt)", {"S"}),
        ("grad = model.weight.grad\ngrad.clamp_(-1, 1)", {"rC"}),
        ("for p in model.parameters(): p.grad.zero_()", {"ZZ"}),
        ("for p in model.parameters(): p.grad.data.mul_(other)", {"ww"}),
        ("for p in model.parameters(): p.grad.mul_(clip_coef)", {"CC"}),
        ("for p in model.parameters(): p.grad.data = p.grad.data.clamp(-1, 1)", {"rCrC"}),
        ("for n, p in model.named_parameters(): p.grad.clamp_(-1, 1)", {"CC"}),
        ("grads = [p.grad for p in model.parameters()]\ntorch._foreach_mul_(grads, 0.5)", {"rrw"}),
        ("grads = [p.grad for p in model.parameters()]\ntorch._foreach_zero_(grads)", {"rrZ"}),
        ("if model.weight.grad is not None: scaler.step(opt)", {"S"}),
        ("clip_grad_norm_(model.parameters(), max_norm=torch.inf)", {"r"}),
        ("assert scaler.step(opt) is None", {"S"}),
        ("with other(scaler.step(opt)): pass", {"S"}),
        ("while scaler.step(opt): pass", {"SS"}),
        ("del flag\nscaler.step(opt)", {"S"}),
        ("return scaler.step(opt)", {"S"}),
        ("async def run():\n    await scaler.step(opt)\nrun()", {"S"}),
    ],
)
def test_events_wherever_an_expression_has_them(body: str, expected: set[str]) -> None:
    source = "import torch\n" + function(body, "scaler, opt, model, loss, clip_coef=1, flag=None, other=None")
    assert all_shown(source) == expected


@pytest.mark.parametrize(
    ("imports", "body", "expected"),
    [
        (
            "from timm.utils import NativeScaler",
            "loss_scaler = NativeScaler()\nloss_scaler(loss, opt, clip_grad=1.0, parameters=model.parameters())",
            "[B][U][C][S][D]",
        ),
        (
            "from timm.utils import NativeScaler",
            "loss_scaler = NativeScaler()\nloss_scaler(loss, opt, parameters=model.parameters())",
            "[B][U][S][D]",
        ),
        (
            "from timm.utils import NativeScaler",
            "loss_scaler = NativeScaler()\nloss_scaler(loss, opt, clip_grad=None, need_update=False)",
            "[B]",
        ),
        (
            "from apex import amp",
            "with amp.scale_loss(loss, opt) as scaled:\n    scaled.backward()\nopt.step()",
            "[B]s",
        ),
        (
            "from mmengine.optim import AmpOptimWrapper",
            "wrapper = AmpOptimWrapper(optimizer=opt)\nwrapper.update_params(loss)",
            "[B][U][C][S][D]",
        ),
        (
            "from mmengine.optim import AmpOptimWrapper",
            "wrapper = AmpOptimWrapper(optimizer=opt)\nwrapper.backward(loss)\nwrapper.step()\nwrapper.zero_grad()",
            "[B][U][C][S][D][Z]",
        ),
        (
            "import deepspeed",
            "engine, _, _, _ = deepspeed.initialize(model=model)\nengine.backward(loss)\nengine.step()",
            "[B][U][C][S][D]",
        ),
        (
            "from lightning.fabric import Fabric",
            "fabric = Fabric(precision='16-mixed')\nfabric.backward(loss)\nfabric.clip_gradients(model, opt)",
            "[B][U][C]",
        ),
    ],
)
def test_what_the_calls_of_frameworks_do(imports: str, body: str, expected: str) -> None:
    assert all_shown(f"{imports}\n{function(body)}") == {expected}


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("torch.amp.GradScaler", {"bs", "S"}),
        ("'GradScaler'", {"bs", "S"}),
        ("int", {"bs"}),
    ],
)
def test_an_annotation_tells_what_a_parameter_is(annotation: str, expected: set[str]) -> None:
    source = f"""
        import torch
        from torch.amp import GradScaler
        def plain(opt, loss):
            loss.backward()
            opt.step()
        def train(opt, thing: {annotation}):
            thing.step(opt)
    """
    assert all_shown(source) == expected


def test_a_method_of_the_base_class_is_entered_through_super() -> None:
    source = """
        import torch
        class Base:
            def __init__(self, opt):
                self.opt, self.scaler = opt, torch.amp.GradScaler()
            def step(self, loss):
                self.scaler.scale(loss).backward()
                self.scaler.step(self.opt)
        class Child(Base):
            def step(self, loss):
                super().step(loss)
                self.scaler.update()
    """
    assert "BSD" in all_shown(source)


def test_of_several_classes_the_method_of_the_one_that_was_made_is_entered() -> None:
    source = """
        class First:
            def run(self, scaler, opt):
                scaler.unscale_(opt)
        class Second:
            def run(self, scaler, opt):
                scaler.step(opt)
        def train(scaler, opt):
            runner = Second()
            runner.run(scaler, opt)
            scaler.update()
    """
    assert "SD" in all_shown(source)
    assert "USD" not in all_shown(source)


def test_a_closure_that_is_a_module_is_not_entered() -> None:
    source = "import helper\ndef train(opt):\n    opt.step(helper)\n"
    assert all_shown(source, helper="scaler.scale(loss).backward()\n") == {"s"}


def test_what_an_entered_lambda_gives_is_what_its_body_is() -> None:
    body = """
        unscaled = lambda optimizer: (scaler.unscale_(optimizer), optimizer)[1]
        scaler.step(unscaled(opt))
    """
    (path,) = paths(function(body))
    unscale, step = (event for event in path.events if event.kind in (Kind.UNSCALE, Kind.STEP))
    assert step.optimizer == unscale.optimizer


def test_what_is_read_of_a_gradient_is_the_gradient() -> None:
    (path,) = paths(function("scaler.scale(loss).backward()\nnorm = model.head.weight.grad.norm()"))
    (read,) = (event for event in path.events if event.kind is Kind.READ)
    assert read.subject is not None
    assert ast.unparse(read.subject) == "model.head.weight.grad"
