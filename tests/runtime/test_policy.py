"""The simulation's cast policy against torch's own C++ kernels, which run on fake CUDA tensors without a GPU."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from amplint.runtime import autocast
from amplint.runtime.simulated_cuda import simulated_cuda
from amplint.torch_ops import Kind, Operation
from tests.torch_calls import SPELLINGS, call

HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
REGIONS = (HALF, BRAIN)
OPERANDS = ((SINGLE,), (HALF,), (BRAIN,), (DOUBLE,), (SINGLE, HALF), (HALF, SINGLE))

# Errors of the probe, not of the policy: of fake tensors, of a missing driver, of a CPU kernel that CUDA has.
UNRUNNABLE = re.compile(
    r"NVIDIA|CUDA|cuda|meta|fake|not implemented for|Low precision|Unsupported dtype|MKL|not linked|data-dependent"
    r"|aten\.|_local_scalar|DynamicOutputShape"
)


@contextlib.contextmanager
def region(dtype: torch.dtype) -> Iterator[None]:
    """`torch.autocast("cuda", dtype)` without its test that CUDA is there."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", HALF)


def outcome(run: Callable[[], Any]) -> tuple[list[torch.dtype], str]:
    """The dtypes of the results, or the error."""
    try:
        result = run()
    except Exception as error:  # an operation may refuse a dtype in any way it likes
        return [], f"{type(error).__name__}: {error}"
    return [leaf.dtype for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)], ""


def outcomes(
    spellings: list[str], operation: Operation, device: str, mode: Callable[[], Any]
) -> dict[tuple[Any, ...], tuple[list[torch.dtype], str]]:
    found = {}
    for spelling in spellings:
        for dtype in REGIONS:
            for operands in OPERANDS:
                with mode(), region(dtype):
                    key = (spelling, dtype, operands)
                    found[key] = outcome(lambda s=spelling, o=operands: call(operation, s, o, device))
    return found


GROUPS = [
    pytest.param(group[0][0], [spelling for _, spelling in group], id=group[0][0].name)
    for group in (list(pairs) for _, pairs in groupby(SPELLINGS, key=lambda pair: pair[0].name))
]


@pytest.mark.parametrize(("operation", "spellings"), GROUPS)
@pytest.mark.filterwarnings("ignore")
def test_same_dtypes_as_the_kernels(operation: Operation, spellings: list[str]) -> None:
    torch.manual_seed(0)
    theirs = outcomes(spellings, operation, "cuda", lambda: FakeTensorMode(allow_non_fake_inputs=True))
    with simulated_cuda():
        ours = outcomes(spellings, operation, "cuda", contextlib.nullcontext)
    compared = 0
    for key, (dtypes, error) in theirs.items():
        our_dtypes, our_error = ours[key]
        if "autocast" in error + our_error:  # refused by the policy itself
            assert ("autocast" in error, "autocast" in our_error) == (True, True), key
        elif our_error or UNRUNNABLE.search(error) or torch.complex32 in dtypes:
            continue  # a fake kernel looks at less than the real one
        else:
            assert (our_dtypes, "") == (dtypes, error), key
        compared += 1
    assert compared or operation.kind is Kind.COMPARISON


def test_every_listed_operation_is_known() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert set(autocast.policies()) == set(autocast.listed())


def test_an_unknown_listed_operation_is_a_warning() -> None:
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("sinc", lambda tensor: tensor, "AutocastCUDA")
        with pytest.warns(autocast.UnknownPolicyWarning, match="sinc"):
            assert "sinc" not in autocast.policies()
    finally:
        library._destroy()
