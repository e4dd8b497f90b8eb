"""The table of torch operations against the installed torch.

The policy of a row is derived from torch's own AutocastCUDA kernels, which run on fake CUDA tensors without a GPU:
what dtype comes out, and what is cast on the way, with autocast on and off.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from amplint import torch_ops  # noqa: E402
from amplint.torch_ops import Cast, Kind, Operation  # noqa: E402
from tests.torch_calls import (  # noqa: E402
    HALF,
    NOT_ON_FAKE_TENSORS,
    SINGLE,
    SPELLINGS,
    Floats,
    arguments,
    call,
    resolve,
)

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


@contextlib.contextmanager
def autocast() -> Iterator[None]:
    """`torch.autocast("cuda", torch.float16)` without its test that CUDA is there."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", HALF)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", False)


class Casts(TorchDispatchMode):
    """Records the casts between floating-point dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[torch.dtype, torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and args[0].is_floating_point() and args[0].dtype != out.dtype:
            self.seen.append((args[0].dtype, out.dtype))
        return out


class Outcome:
    """What one call gave: the dtype of its first floating-point result, the casts on the way, the error."""

    def __init__(self, run: Callable[[], Any], enabled: bool) -> None:
        self.dtype: torch.dtype | None = None
        self.error = ""
        casts = Casts()
        with FakeTensorMode(allow_non_fake_inputs=True), autocast() if enabled else contextlib.nullcontext():
            try:
                with casts:
                    result = run()
                tensors = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.is_floating_point()]
                self.dtype = tensors[0].dtype if tensors else None
            except Exception as error:  # an operation may refuse a dtype in any way it likes
                self.error = str(error) or type(error).__name__
        self.casts = sorted(map(str, casts.seen))


def derive(operation: Operation, spelling: str) -> Cast:
    """The policy that the installed torch follows."""

    def probe(dtypes: tuple[torch.dtype, ...], enabled: bool, **more: Any) -> Outcome:
        return Outcome(lambda: call(operation, spelling, dtypes, "cuda", **more), enabled)

    single, half, mixed = (probe(dtypes, True) for dtypes in ((SINGLE,), (HALF,), (SINGLE, HALF)))
    plain = probe((HALF,), False)
    assert not (single.error and half.error and plain.error) or "unsafe to autocast" in single.error, single.error
    if "unsafe to autocast" in single.error:
        return Cast.BANNED
    if single.dtype == HALF:
        return Cast.FLOAT16
    if half.dtype == SINGLE and (plain.dtype != SINGLE):
        takes_dtype = "dtype" in operation.parameters
        kept = takes_dtype and probe((HALF,), True, dtype=HALF).dtype == HALF
        return Cast.FLOAT32_UNLESS_DTYPE if kept else Cast.FLOAT32
    if mixed.casts != probe((SINGLE, HALF), False).casts:
        return Cast.WIDEST
    return Cast.AS_GIVEN


PROBED = [pytest.param(*pair, id=f"{pair[0].name}-{pair[1]}") for pair in SPELLINGS]


@pytest.mark.parametrize(("operation", "spelling"), PROBED)
def test_policy_is_the_installed_torchs(operation: Operation, spelling: str) -> None:
    expected = operation.returns or operation.policy(VERSION)
    assert derive(operation, spelling) is expected


def test_listed_operations_are_known() -> None:
    """What torch registers for CUDA autocast is in the table: a new release that lists more fails here."""
    registered = {
        name.removeprefix("aten::").partition(".")[0]
        for name in torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    }
    known = {packet for row in torch_ops.operations() for packet in row.aten}
    assert registered <= known


@pytest.mark.parametrize("operation", torch_ops.operations(), ids=lambda row: row.name)
def test_spellings_exist(operation: Operation) -> None:
    for dotted in (*operation.functions, *operation.modules):
        if dotted.startswith("torch."):
            assert resolve(dotted) is not None
    for method in operation.methods:
        assert hasattr(torch.Tensor, method)


@pytest.mark.parametrize(
    ("operation", "method"),
    [
        pytest.param(operation, name + "_", id=name + "_")
        for operation in torch_ops.operations()
        for name in operation.methods
        if hasattr(torch.Tensor, name + "_") and operation.kind is not Kind.LINALG
    ],
)
def test_in_place_variants_run_as_given(operation: Operation, method: str) -> None:
    found = torch_ops.by_method(method)
    assert found is not None
    assert found.in_place
    assert found.policy(VERSION) is Cast.AS_GIVEN
    arguments_of_row = arguments(operation)
    if any(type(sample) is Floats and sample.shape != (4, 4) for sample in arguments_of_row.values()):
        pytest.skip("operands of several shapes")
    on, off = (Outcome(lambda: call(operation, "Tensor." + method, (HALF,), "cuda"), on) for on in (True, False))
    assert on.casts == off.casts
    assert on.dtype == off.dtype
    assert on.error == off.error


@pytest.mark.parametrize("dotted", ["torch.relu_", "torch.nn.functional.relu_", "torch.exp_"])
def test_in_place_functions_are_found(dotted: str) -> None:
    found = torch_ops.by_function(dotted)
    assert found is not None
    assert found.in_place


def spread(operation: Operation, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Results for operands of every size and sign, from float64 tensors on the CPU."""
    spelling = operation.functions[0] if operation.functions else "Tensor." + operation.methods[0]
    torch.manual_seed(0)
    results = []
    for size in (0.1, 3.0, 40.0):
        monkeypatch.setattr(torch, "rand", functools.partial(torch.normal, 0.0, size))
        results += tree_leaves(call(operation, spelling, (torch.float64,), "cpu"))
    return [t for t in results if isinstance(t, torch.Tensor)]


# Out of the operand's domain the result is NaN; those values are left out below.
RANGED = [
    row
    for row in torch_ops.operations()
    if row.range != torch_ops.Range() and (row.functions or row.methods) and row.name not in NOT_ON_FAKE_TENSORS
    if row.kind is not Kind.LOSS and row.name not in ("rand", "rand_like", "bernoulli", "multinomial")
]


@pytest.mark.parametrize("operation", RANGED, ids=lambda row: row.name)
def test_results_lie_in_the_range(operation: Operation, monkeypatch: pytest.MonkeyPatch) -> None:
    rounding = 1e-9
    seen = torch.cat([result.double().flatten() for result in spread(operation, monkeypatch)])
    seen = seen[~seen.isnan()]
    assert seen.numel()
    assert seen.min() >= operation.range.lower - rounding
    assert seen.max() <= operation.range.upper + rounding


@pytest.mark.parametrize(
    "operation",
    [r for r in torch_ops.operations() if r.keeps_range and r.functions and r.name not in NOT_ON_FAKE_TENSORS],
    ids=lambda row: row.name,
)
def test_selections_return_values_between_the_operands(operation: Operation) -> None:
    torch.manual_seed(0)
    result = call(operation, operation.functions[0], (torch.float64,), "cpu")
    for values in (t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.is_floating_point()):
        assert values.min() >= 0.0
        assert values.max() <= 1.0


@pytest.mark.parametrize(
    ("symbol", "run"),
    [
        ("+", lambda x: x + x),
        ("-", lambda x: x - x),
        ("*", lambda x: x * x),
        ("/", lambda x: x / x),
        ("**", lambda x: x**2),
        ("@", lambda x: x @ x),
        ("number/tensor", lambda x: 1 / x),
        ("-tensor", lambda x: -x),
    ],
)
@pytest.mark.parametrize("dtype", [SINGLE, HALF])
def test_operators(symbol: str, run: Callable[[Any], Any], dtype: torch.dtype) -> None:
    row = torch_ops.by_operator(symbol)
    assert row is not None
    expected = {Cast.FLOAT16: HALF, Cast.FLOAT32: SINGLE, Cast.AS_GIVEN: dtype}[row.policy(VERSION)]
    assert Outcome(lambda: run(torch.rand(4, 4, device="cuda").to(dtype)), enabled=True).dtype == expected


@pytest.mark.parametrize("operation", [row for row in torch_ops.operations() if row.modules], ids=lambda row: row.name)
def test_modules_call_the_operation(operation: Operation) -> None:
    for dotted in operation.modules:
        module = resolve(dotted)
        assert issubclass(module, torch.nn.Module)
        if operation.functions and operation.name != "relu6":  # a Hardtanh
            sources = [
                inspect.getsource(base) for base in module.__mro__ if base.__module__.startswith("torch.nn.modules")
            ]
            spelled = {dotted_function.rpartition(".")[2] for dotted_function in operation.functions}
            assert any(name + "(" in source for name in spelled for source in sources)


def test_rms_norm_changed() -> None:
    policies = [torch_ops.cast_policy("rms_norm", version) for version in ((2, 4), (2, 9), (2, 13))]
    assert policies == [Cast.FLOAT32, Cast.AS_GIVEN, Cast.FLOAT32]


def test_unknown_spellings_are_not_found() -> None:
    assert torch_ops.by_function("math.log") is None
    assert torch_ops.by_method("__init__") is None
    assert torch_ops.by_module("torch.nn.Module") is None
    assert torch_ops.cast_policy("no_such_operation") is Cast.AS_GIVEN
