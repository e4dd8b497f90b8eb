"""Where autocast is on, in every form that people write; and through which calls it reaches a function."""

from __future__ import annotations

import pytest

from amplint.values import Dtype, Region, RegionKind
from tests.values.programs import Program

HEAD = """
import contextlib
import functools
import torch
import torch as th
from contextlib import ExitStack, nullcontext, contextmanager
from torch import nn
from torch.amp import autocast
from torch.cuda import amp
from torch.cuda.amp import autocast as cuda_autocast

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}

"""

ENTERING = """
class Mixed:
    def __init__(self, enabled):
        self.context = autocast("cuda", enabled=enabled)

    def __enter__(self):
        self.context.__enter__()
        return self

    def __exit__(self, *error):
        self.context.__exit__(*error)

class Other:
    def __enter__(self):
        context = autocast("cuda")
        context.__enter__()
        context.__exit__(None, None, None)

    def __exit__(self, *error):
        pass

"""


def region(body: str) -> Region:
    """The region in which the call `work(x)` runs."""
    program = Program(HEAD + body)
    return program.values.region(program.main, program.expression("work(x)"))


def inside(context: str, parameters: str = "x") -> str:
    return f"def f({parameters}):\n    with {context}:\n        work(x)\n"


@pytest.mark.parametrize(
    "body",
    [
        inside("torch.autocast('cuda')"),
        inside("torch.autocast(device_type='cuda', dtype=torch.float16)"),
        inside("th.cuda.amp.autocast()"),
        inside("cuda_autocast(True)"),
        inside("autocast('cuda', torch.half, enabled=True)"),
        inside("torch.no_grad(), amp.autocast()"),
        inside("torch.autocast('cuda', dtype=DTYPES['fp16'])"),
        inside("torch.autocast('cuda', dtype=getattr(torch, 'float16'))"),
        "def f(x):\n    context = torch.autocast('cuda')\n    with context:\n        work(x)\n",
        "def f(x):\n    make = functools.partial(torch.autocast, 'cuda', dtype=torch.float16)\n"
        "    with make():\n        work(x)\n",
        "@torch.autocast('cuda')\ndef f(x):\n    work(x)\n",
        "@cuda_autocast()\ndef f(x):\n    work(x)\n",
        "class T:\n    def __init__(self):\n        self.context = torch.autocast('cuda')\n"
        "    def f(self, x):\n        with self.context:\n            work(x)\n",
        "class T:\n    def amp(self):\n        return torch.autocast('cuda')\n"
        "    def f(self, x):\n        with self.amp():\n            work(x)\n",
        "@contextmanager\ndef mixed():\n    with torch.autocast('cuda'):\n        yield\n\n" + inside("mixed()"),
        "def f(x):\n    with torch.autocast('cuda'):\n        for y in x:\n            work(x)\n",
        "def f(x):\n    with torch.autocast('cuda', enabled=False):\n        with torch.autocast('cuda'):\n"
        "            work(x)\n",
        "def f(x):\n    with ExitStack() as stack:\n        stack.enter_context(torch.no_grad())\n"
        "        stack.enter_context(autocast('cuda'))\n        work(x)\n",
        "def f(x):\n    stack = ExitStack()\n"
        "    stack.enter_context(autocast('cuda'))\n    with stack:\n        work(x)\n",
        "def f(x):\n    context = autocast('cuda')\n    context.__enter__()\n    try:\n        work(x)\n"
        "    finally:\n        context.__exit__(None, None, None)\n",
        ENTERING + inside("Mixed(True)"),
        ENTERING + inside("Mixed(enabled=True) as m, torch.no_grad()"),
        "@contextmanager\ndef mixed():\n    with ExitStack() as stack:\n        stack.enter_context(autocast('cuda'))\n"
        "        yield\n\n" + inside("mixed()"),
    ],
)
def test_float16_for_certain(body: str) -> None:
    found = region(body)
    assert (found.kind, found.certain) == (RegionKind.FLOAT16, True)
    assert found.why


@pytest.mark.parametrize(
    "body",
    [
        inside("torch.autocast('cuda', enabled=flag)", "x, flag"),
        inside("torch.autocast('cuda') if flag else nullcontext()", "x, flag"),
        inside("torch.autocast('cuda', dtype=torch.bfloat16 if flag else torch.float16)", "x, flag"),
        inside("torch.autocast('cuda', dtype=DTYPES[flag])", "x, flag"),
        inside("torch.autocast(device_type=device)", "x, device"),
        "def f(x, flag):\n    context = nullcontext()\n    if flag:\n        context = autocast('cuda')\n"
        "    with context:\n        work(x)\n",
        "def f(x, flag):\n    with ExitStack() as stack:\n"
        "        if flag:\n            stack.enter_context(autocast('cuda'))\n"
        "        work(x)\n",
        "def f(x, flag):\n    with ExitStack() as stack:\n"
        "        stack.enter_context(autocast('cuda') if flag else x)\n"
        "        work(x)\n",
        ENTERING + inside("Mixed(flag)", "x, flag"),
    ],
)
def test_float16_perhaps(body: str) -> None:
    found = region(body)
    assert (found.kind, found.certain) == (RegionKind.FLOAT16, False)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (inside("torch.autocast('cuda', dtype=torch.bfloat16)"), RegionKind.BFLOAT16),
        (inside("torch.autocast('cpu')"), RegionKind.CPU),
        (inside("torch.cpu.amp.autocast()"), RegionKind.CPU),
        (inside("torch.autocast('cuda', enabled=False)"), RegionKind.DISABLED),
        (inside("cuda_autocast(False)"), RegionKind.DISABLED),
        (inside("torch.autocast('cuda', dtype=torch.float32)"), RegionKind.DISABLED),
        (inside("torch.autocast('cuda', dtype=dtype)", "x, dtype"), RegionKind.UNKNOWN),
        (inside("torch.autocast('cuda'), torch.autocast('cuda', enabled=False)"), RegionKind.DISABLED),
        (inside("torch.no_grad()"), RegionKind.NONE),
        (inside("open(x)"), RegionKind.NONE),
        (inside("nullcontext()"), RegionKind.NONE),
        ("def f(x):\n    with torch.autocast('cuda'):\n        pass\n    work(x)\n", RegionKind.NONE),
        ("with torch.autocast('cuda'):\n    def f(x):\n        work(x)\n", RegionKind.NONE),
        ("@torch.no_grad()\ndef f(x):\n    work(x)\n", RegionKind.NONE),
        (
            "def f(x):\n    with ExitStack() as stack:\n        stack.enter_context(autocast('cuda'))\n    work(x)\n",
            RegionKind.NONE,
        ),
        (
            "def f(x):\n    with ExitStack() as stack:\n"
            "        work(x)\n        stack.enter_context(autocast('cuda'))\n",
            RegionKind.NONE,
        ),
        (
            "def f(x, flag):\n    stack = ExitStack()\n    if flag:\n        stack.enter_context(autocast('cuda'))\n"
            "    else:\n        work(x)\n",
            RegionKind.NONE,
        ),
        (
            "def f(x):\n    context = autocast('cuda')\n"
            "    context.__enter__()\n    context.__exit__(None, None, None)\n"
            "    work(x)\n",
            RegionKind.NONE,
        ),
        (
            "def f(x):\n    with ExitStack() as stack:\n        stack.enter_context(autocast('cuda'))\n"
            "        with autocast('cuda', enabled=False):\n            work(x)\n",
            RegionKind.DISABLED,
        ),
        (ENTERING + inside("Mixed(False)"), RegionKind.DISABLED),
        (ENTERING + inside("Other()"), RegionKind.NONE),
        ("@amp.custom_fwd(cast_inputs=torch.float32)\ndef f(x):\n    work(x)\n", RegionKind.DISABLED),
        ("@amp.custom_fwd\ndef f(x):\n    work(x)\n", RegionKind.NONE),
        ("@force_fp32(apply_to=('x',))\ndef f(x):\n    work(x)\n", RegionKind.DISABLED),
        ("@registry['a']\ndef f(x):\n    work(x)\n", RegionKind.NONE),
        ("@with_autocast\ndef f(x):\n    work(x)\n", RegionKind.NONE),
        (
            "def autocasting():\n    return autocast('cuda')\n@autocasting()\ndef f(x):\n    work(x)\n",
            RegionKind.FLOAT16,
        ),
        (
            "my_autocast = functools.partial(autocast, 'cuda')\n@my_autocast()\ndef f(x):\n    work(x)\n",
            RegionKind.FLOAT16,
        ),
        *(
            (
                f"from accelerate import Accelerator\naccelerator = Accelerator({given})\n"
                + inside("accelerator.autocast()"),
                kind,
            )
            for given, kind in (
                ("mixed_precision='fp16'", RegionKind.FLOAT16),
                ("mixed_precision='bf16'", RegionKind.BFLOAT16),
                ("mixed_precision='no'", RegionKind.UNKNOWN),
                ("", RegionKind.UNKNOWN),
            )
        ),
        (
            "from lightning.fabric import Fabric\nfabric = Fabric(precision='16-mixed')\n"
            + inside("fabric.autocast()"),
            RegionKind.FLOAT16,
        ),
    ],
)
def test_other_states(body: str, kind: RegionKind) -> None:
    assert region(body).kind is kind


def kinds(program: Program, text: str, name: str = "main") -> set[RegionKind]:
    return {value.region.kind for value in program.seen(text, name)}


def test_reaches_through_files_inheritance_and_callbacks() -> None:
    program = Program(
        """
        import torch
        from nets import Net
        from losses import Loss

        def train(loader, hooks):
            net = Net()
            criterion = Loss()
            for x, y in loader:
                with torch.autocast("cuda", dtype=torch.float16):
                    out = net(x)
                    loss = criterion(out, y)
                after(loss)

        def after(loss):
            return loss + 2.0
        """,
        nets="""
        from torch import nn

        class Base(nn.Module):
            def forward(self, x):
                return self.head(self.body(x))

            def head(self, h):
                return h + 1.0

        class Net(Base):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(4, 4)
        """,
        losses="""
        def gap(a, b, eps=1e-8):
            return a / (b + eps)

        class Loss:
            def __call__(self, out, y):
                return gap(out, out.amax())

        def unused(a):
            return a + 3.0
        """,
    )
    assert kinds(program, "h + 1.0", "nets") == {RegionKind.FLOAT16}
    (eps,) = program.seen("b + eps", "losses")
    assert (eps.region.kind, eps.is_half, eps.number("other")) == (RegionKind.FLOAT16, True, 1e-8)
    assert [place.position.line for place in eps.frame.path] == [12, 7]
    assert kinds(program, "a + 3.0", "losses") == set()
    assert {d for v in program.seen("loss + 2.0") for d in v.dtypes} <= {Dtype.FLOAT16}
    assert kinds(program, "loss + 2.0") <= {RegionKind.NONE}


def test_frameworks() -> None:
    lightning = Program(
        """
        import lightning as L
        from torch import nn

        class Module(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 4)

            def training_step(self, batch, index):
                return self.loss(self.fc(batch))

            def loss(self, h):
                return h + 1.0

            def configure_optimizers(self):
                return self.fc.weight + 2.0

        L.Trainer(precision="16-mixed").fit(Module())
        """
    )
    assert kinds(lightning, "h + 1.0") == {RegionKind.FLOAT16}
    assert kinds(lightning, "self.fc.weight + 2.0") == set()
    accelerate = Program(
        """
        from accelerate import Accelerator
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 4)

            def forward(self, x):
                return self.fc(x) + 1.0

        def main(loader):
            accelerator = Accelerator(mixed_precision="fp16")
            net, loader = accelerator.prepare(Net(), loader)
            for x in loader:
                print(net(x) * 2.0)
        """
    )
    assert kinds(accelerate, "self.fc(x) + 1.0") == {RegionKind.FLOAT16}
    (outside,) = accelerate.of("net(x) * 2.0")
    assert (outside.region.kind, outside.dtypes) == (RegionKind.NONE, {Dtype.FLOAT32})


@pytest.mark.parametrize("precision", ["'bf16-mixed'", "32", "config.precision"])
def test_frameworks_in_another_precision(precision: str) -> None:
    program = Program(
        f"""
        import lightning as L

        class Module(L.LightningModule):
            def training_step(self, batch, index):
                return batch + 1.0

        L.Trainer(precision={precision}).fit(Module())
        """
    )
    assert kinds(program, "batch + 1.0") == set()


def test_a_project_without_half_precision_has_no_frames() -> None:
    program = Program("def f(x):\n    return g(x) + 1\n\ndef g(x):\n    return x\n")
    assert program.seen("g(x) + 1") == ()


@pytest.mark.parametrize("context", ["mixed()", "contexts.make()", "Mixed()", "contexts.Mixed()", "Bare()"])
@pytest.mark.parametrize("own", ["", "half = torch.float16"])
def test_contexts_of_another_file(context: str, own: str) -> None:
    program = Program(
        f"""
        import torch
        import contexts
        from contexts import Bare, Mixed, mixed

        {own}

        def work(x):
            return x + 1.0

        def f(x):
            with {context}:
                work(x)
        """,
        contexts="""
        import torch
        from contextlib import contextmanager

        @contextmanager
        def mixed():
            with torch.autocast("cuda"):
                yield

        def make():
            return torch.autocast("cuda")

        class Mixed:
            def __init__(self):
                self.context = torch.autocast("cuda")

            def __enter__(self):
                self.context.__enter__()

        class Bare:
            def __enter__(self):
                self.context = torch.autocast("cuda")
                self.context.__enter__()
        """,
    )
    assert kinds(program, "x + 1.0") == {RegionKind.FLOAT16}


NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x) + 1.0

    def loss(self, out, y):
        return out + 2.0

"""


def forward(body: str) -> tuple[set[RegionKind], set[bool], set[Dtype]]:
    """The regions, whether they are certain, and the dtypes of the forward of a little net that a program runs."""
    seen = Program(NET + body).seen("self.fc(x) + 1.0")
    return {v.region.kind for v in seen}, {v.region.certain for v in seen}, {d for v in seen for d in v.dtypes}


@pytest.mark.parametrize(
    ("initialize", "expected"),
    [
        ("net, opt = amp.initialize(Net(), opt)", (RegionKind.FLOAT16, True, Dtype.FLOAT16)),
        ("net, opt = amp.initialize(Net(), opt, opt_level='O1')", (RegionKind.FLOAT16, True, Dtype.FLOAT16)),
        ("net = amp.initialize(Net().cuda(), opt_level='O1')", (RegionKind.FLOAT16, True, Dtype.FLOAT16)),
        ("net, opt = amp.initialize(Net(), opt, opt_level='O2')", (RegionKind.NONE, True, Dtype.FLOAT16)),
        ("(net, other), opt = amp.initialize([Net(), x], opt, True, 'O3')", (RegionKind.NONE, True, Dtype.FLOAT16)),
    ],
)
def test_apex(initialize: str, expected: tuple[RegionKind, bool, Dtype]) -> None:
    kind, certain, dtype = expected
    found = forward(f"from apex import amp\n\ndef main(x, opt, args):\n    {initialize}\n    print(net(x) * 2.0)\n")
    assert found == ({kind}, {certain}, {dtype})


def test_apex_at_a_level_that_is_not_known_and_what_its_model_gives() -> None:
    program = Program(
        NET
        + "from apex import amp\n\ndef main(x, opt, args):\n    net = Net()\n    if args.fp16:\n"
        + "        net, opt = amp.initialize(net, opt, opt_level=args.level)\n    print(net(x) * 2.0)\n"
    )
    (value,) = program.seen("self.fc(x) + 1.0")
    assert (value.region.kind, value.region.certain) == (RegionKind.FLOAT16, False)
    assert Dtype.FLOAT16 not in {d for v in program.of("net(x) * 2.0") for d in v.dtypes}


@pytest.mark.parametrize("arguments", ["opt_level='O0'", "enabled=False", "enabled=False, opt_level='O2'"])
def test_apex_that_does_nothing(arguments: str) -> None:
    initialize = f"net, opt = amp.initialize(Net(), opt, {arguments})"
    assert forward(f"from apex import amp\n\ndef main(x, opt):\n    {initialize}\n    net(x)\n")[0] == set()


@pytest.mark.parametrize(
    "body",
    [
        "from fastai.vision.all import *\n\ndef main(dls):\n    learn = Learner(dls, Net()).to_fp16()\n",
        "from fastai.learner import Learner\n\ndef main(dls):\n    learn = Learner(dls, model=Net())\n"
        "    learn = learn.to_fp16()\n",
        "from composer import Trainer\n\nTrainer(model=Net(), precision='amp_fp16').fit()\n",
        "import composer\nfrom composer.core import Precision\n\ndef main():\n    net = Net()\n"
        "    composer.Trainer(net, precision=Precision.AMP_FP16)\n",
    ],
)
def test_frameworks_that_are_given_the_model(body: str) -> None:
    assert forward(body) == ({RegionKind.FLOAT16}, {True}, {Dtype.FLOAT16})


@pytest.mark.parametrize(
    "body",
    [
        "from fastai.vision.all import *\n\ndef main(dls):\n    learn = Learner(dls, Net())\n",
        "from fastai.vision.all import *\n\ndef main(dls):\n    learn = Learner(dls, Net()).to_fp32()\n",
        "from composer import Trainer\n\nTrainer(model=Net(), precision='amp_bf16').fit()\n",
        "from other import Trainer\n\nTrainer(model=Net(), precision='amp_fp16').fit()\n",
    ],
)
def test_frameworks_that_are_given_the_model_in_another_precision(body: str) -> None:
    assert forward(body)[0] == set()


def test_composer_computes_the_loss_in_its_precision_too() -> None:
    program = Program(f"{NET}from composer import Trainer\n\nTrainer(Net(), precision='amp_fp16').fit()\n")
    assert kinds(program, "out + 2.0") == {RegionKind.FLOAT16}


@pytest.mark.parametrize(
    ("line", "dtypes"),
    [
        ("net = Net().half()", {Dtype.FLOAT16}),
        ("net = Net()\nnet.half()", {Dtype.FLOAT16}),
        ("net = Net()\nnet.to('cuda', torch.float16)", {Dtype.FLOAT16}),
        ("net = Net()\nif flag:\n    net.half()", {Dtype.FLOAT16, Dtype.FLOAT32}),
        ("net = Net()\ntorch.save(net.half().state_dict(), 'a.pt')", {Dtype.FLOAT32}),
        ("net = Net()\ntorch.save(net.half(), 'a.pt')", {Dtype.FLOAT32}),
        ("net = Net()\nnet.to(device)", {Dtype.FLOAT32}),
        ("net = Net()\nnet.to(torch.bfloat16)", {Dtype.FLOAT32}),
    ],
)
def test_a_module_is_cast_where_it_is_not_cast_for_saving(line: str, dtypes: set[Dtype]) -> None:
    head = (
        "import torch\nfrom torch import nn\n\n"
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.fc = nn.Linear(2, 2)\n\n"
    )
    program = Program(f"{head}{line}\nweight = net.fc.weight\n")
    assert {d for value in program.of("net.fc.weight") for d in value.dtypes} == dtypes
