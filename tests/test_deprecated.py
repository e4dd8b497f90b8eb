"""AMP501 beyond its examples: which torch the user has, and imports that other files may rely on."""

from __future__ import annotations

from pathlib import Path

import pytest

from amplint.deprecated import deprecated_uses, modernised
from amplint.gates import is_gated
from amplint.source import Source, apply_edits
from amplint.tree import parse


def fixed(text: str, torch_version: tuple[int, int] = (2, 13), name: str = "main.py") -> str:
    module = parse(Source(Path(name), text))
    uses = list(deprecated_uses(module, torch_version))
    fixes = modernised(module, uses)
    edits = dict.fromkeys(edit for use in uses if id(use.node) in fixes for edit in fixes[id(use.node)].edits)
    return apply_edits(text, edits)


OLD = (
    "from torch.cuda.amp import GradScaler, autocast, custom_fwd\nGradScaler()\nautocast()\n@custom_fwd\ndef f(): ...\n"
)


@pytest.mark.parametrize(
    ("version", "first", "changed"),
    [
        ((1, 9), "from torch.cuda.amp import GradScaler, autocast, custom_fwd\n", 0),
        ((2, 2), "from torch.cuda.amp import GradScaler, custom_fwd\nfrom torch.amp import autocast\n", 1),
        ((2, 3), "from torch.cuda.amp import custom_fwd\nfrom torch.amp import GradScaler, autocast\n", 2),
        ((2, 4), "from torch.amp import GradScaler, autocast, custom_fwd\n", 3),
    ],
)
def test_nothing_is_suggested_that_the_torch_lacks(version: tuple[int, int], first: str, changed: int) -> None:
    result = fixed(OLD, version)
    assert result.startswith(first)
    assert result.count('"cuda"') == changed


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from torch.cuda.amp import autocast\nautocast()\n", "__init__.py"),
        ("from torch.cuda.amp import autocast\n__all__ = ['autocast']\nautocast()\n", "main.py"),
        ("from torch.cuda.amp import autocast\nautocast(*flags)\n", "main.py"),
        ("from torch.cuda.amp import autocast\nregister(autocast)\n", "main.py"),
        ("from torch.cuda.amp import autocast\nclass Mine(autocast): ...\n", "main.py"),
        ("import torch.cuda.amp as amp\nmodule = amp\namp.GradScaler()\n", "main.py"),
        ("import torch\nregion = torch.cuda.amp.autocast if amp else other\nregion(True)\n", "main.py"),
        ("import torch\nself.region = torch.cuda.amp.autocast if amp else other\n", "main.py"),
        ("import torch\nregion = torch.cuda.amp.autocast if amp else other\nregister(region)\n", "main.py"),
        ("import torch\nif isinstance(torch.cuda.amp.autocast, x): pass\n", "main.py"),
        ("import torch\ntorch.cuda.amp.autocast(True, None, False, 1)\n", "main.py"),
        ("import torch.cuda.amp\nx = torch.cuda.amp.common\ntorch.cuda.amp.GradScaler()\n", "main.py"),
        ("from torch.cuda.amp import *\nx = 1\n", "main.py"),
        ("from torch.cuda.amp import autocast\nx = (autocast,)\n", "main.py"),
        (
            "try:\n    from torch.amp import autocast\nexcept ImportError:\n    from torch.cuda.amp import autocast\n"
            "autocast()\n",
            "main.py",
        ),
    ],
)
def test_what_something_else_may_rely_on_stays(text: str, name: str) -> None:
    assert fixed(text, name=name) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "import torch as t\nt.cuda.amp.autocast(a, b, c)\n",
            't.amp.autocast("cuda", enabled=a, dtype=b, cache_enabled=c)\n',
        ),
        (
            "import torch.cuda.amp as amp, os\namp.GradScaler(**k)\n",
            'import torch.amp as amp, os\namp.GradScaler("cuda", **k)\n',
        ),
        (
            "from torch import cuda\ncuda.amp.autocast()\n",
            'import torch\nfrom torch import cuda\ntorch.amp.autocast("cuda")\n',
        ),
        (
            "def f():\n    from torch.cuda import amp; amp.autocast()\n",
            '    from torch import amp; amp.autocast("cuda")\n',
        ),
        ("import torch\ntorch.set_autocast_cpu_enabled(on)\n", 'torch.set_autocast_enabled("cpu", on)\n'),
        ("import torch\nx: torch.cuda.amp.GradScaler | None\n", "x: torch.amp.GradScaler | None\n"),
        ("from torch.cuda.amp import custom_fwd\nf = custom_fwd(g)\n", 'f = custom_fwd(g, device_type="cuda")\n'),
        (
            "from torch.cuda.amp import (\n    autocast,  # why\n)\nautocast()\n",
            "from torch.amp import (\n    autocast,  # why\n)\n",
        ),
    ],
)
def test_spellings(text: str, expected: str) -> None:
    assert expected in fixed(text)


@pytest.mark.parametrize(
    ("before", "gated"),
    [
        ("if torch.__version__ >= '2.4':\n    ", True),
        ("if a:\n    pass\nelif TORCH_2_4:\n    pass\nelse:\n    ", True),
        ("if not hasattr(torch, 'amp'):\n    ", True),
        ("def f():\n    if is_torch_available(): return\n    ", True),
        ("try:\n    import x\nexcept ImportError:\n    ", True),
        ("if hasattr(self, 'scaler'):\n    ", False),
        ("if model.version == 2:\n    ", False),
        ("if TYPE_CHECKING:\n    ", False),
        ("def f():\n    if torch.__version__ < '1': print()\n    ", False),
        ("try:\n    x()\nexcept RuntimeError:\n    ", False),
        ("while hasattr(torch, 'x'):\n    pass\n", False),
    ],
)
def test_gates(before: str, gated: bool) -> None:
    module = parse(Source(Path("main.py"), f"{before}use()\n"))
    use = next(call for call in module.calls if module.source.segment(call) == "use()")
    assert is_gated(module, use) is gated
