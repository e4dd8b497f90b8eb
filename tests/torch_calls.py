"""Calls of the operations in `amplint.torch_ops`, made of sample arguments: to hold the table to the real torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from amplint import torch_ops
from amplint.torch_ops import Kind, Operation

HALF, SINGLE = torch.float16, torch.float32


class Floats:
    """A floating-point argument of that shape, in the dtype that the probe asks for."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


class Definite(Floats):
    """A floating-point matrix that is symmetric and positive definite."""


class Integers(Floats):
    """An integer argument of zeros."""


class Booleans(Floats):
    """A boolean argument of ones."""


class FloatList(Floats):
    """A list of two floating-point tensors."""


class IntegerList(Floats):
    """A list of one integer tensor of zeros."""


SQUARE = Floats(4, 4)

# What to give for a parameter of that name; parameters that are not here are left out.
SAMPLES: dict[str, Any] = {
    **dict.fromkeys(
        ("input", "other", "mat", "mat1", "mat2", "end", "A", "B", "L", "x", "y", "a", "b", "logits", "theta"), SQUARE
    ),
    **dict.fromkeys(("query", "key", "value_", "x1", "x2", "anchor", "positive", "negative"), SQUARE),
    **dict.fromkeys(
        ("tensor1", "tensor2", "tensor", "target", "src", "source", "var", "exponent", "sorted_sequence"), SQUARE
    ),
    **dict.fromkeys(("input1", "input2"), SQUARE),
    **dict.fromkeys(("vec", "vec1", "vec2", "values", "boundaries"), Floats(4)),
    **dict.fromkeys(("batch1", "batch2"), Floats(2, 4, 4)),
    **dict.fromkeys(("tensors", "matrices"), FloatList(4, 4)),
    **dict.fromkeys(("condition", "mask"), Booleans(4, 4)),
    "dim": -1,
    "dims": (0,),
    "dim0": 0,
    "dim1": 1,
    "index": Integers(4),
    "indices": Integers(4, 4),
    "normalized_shape": (4,),
    "num_groups": 2,
    "kernel_size": 2,
    "output_size": 2,
    "value": 0.5,
    "threshold": 20.0,
    "chunks": 2,
    "shifts": 1,
    "repeats": 2,
    "start": 0,
    "length": 2,
    "source_": 0,
    "k": 2,
    "n": 2,
    "q": 0.5,
    "size": (4, 4),
    "shape": (4, 4),
    "fill_value": 0.5,
    "split_size_or_sections": 2,
    "indices_or_sections": 2,
    "num_samples": 2,
    "upper": True,
    "n_fft": 8,
    "pad": (1, 1),
    "reduce": "sum",
    "data": [0.5],
    "maxnorm": 1.0,
    "low": 0,
    "high": 4,
    "s_": 0.5,
}

IMAGE = Floats(2, 4, 8, 8)
# Where an operation wants other arguments than the names say; None leaves one out.
OVERRIDES: dict[str, dict[str, Any]] = {
    "bmm": {"input": Floats(2, 4, 4), "mat2": Floats(2, 4, 4)},
    "baddbmm": {"input": Floats(2, 4, 4)},
    "addmv": {"input": Floats(4)},
    "dot": {"input": Floats(4), "tensor": Floats(4)},
    "vdot": {"input": Floats(4), "other": Floats(4)},
    "cross": {"input": Floats(4, 3), "other": Floats(4, 3)},
    "tensordot": {"dims": 2},
    "outer": {"input": Floats(4)},
    "linear": {"weight": SQUARE, "bias": Floats(4)},
    "bilinear": {"weight": Floats(2, 4, 4), "bias": Floats(2)},
    "conv1d": {"input": Floats(2, 3, 8), "weight": Floats(3, 3, 3)},
    "conv2d": {"input": Floats(2, 3, 8, 8), "weight": Floats(3, 3, 3, 3)},
    "conv3d": {"input": Floats(2, 3, 8, 8, 8), "weight": Floats(3, 3, 3, 3, 3)},
    "conv_tbc": {"input": Floats(8, 2, 3), "weight": Floats(3, 3, 4), "bias": Floats(4), "pad": 0},
    "conv_transpose1d": {"input": Floats(2, 3, 8), "weight": Floats(3, 3, 3)},
    "conv_transpose2d": {"input": Floats(2, 3, 8, 8), "weight": Floats(3, 3, 3, 3)},
    "conv_transpose3d": {"input": Floats(2, 3, 8, 8, 8), "weight": Floats(3, 3, 3, 3, 3)},
    "scaled_dot_product_attention": {k: Floats(1, 2, 4, 8) for k in ("query", "key", "value")},
    "affine_grid": {"theta": Floats(2, 2, 3), "size": (2, 3, 4, 4)},
    "grid_sample": {"input": Floats(2, 3, 4, 4), "grid": Floats(2, 4, 4, 2)},
    "interpolate": {"input": IMAGE, "size": None, "scale_factor": 2.0},
    "prelu": {"weight": Floats(1)},
    "embedding": {"input": Integers(2), "weight": SQUARE},
    "embedding_bag": {"input": Integers(2, 2), "weight": SQUARE},
    "matrix_power": {"n": 3},
    "norm": {"dim": None},
    "linalg_norm": {"dim": None},
    "vector_norm": {"dim": None},
    "matrix_norm": {"dim": None},
    "renorm": {"p": 2, "dim": 0},
    "lp_pool1d": {"input": Floats(2, 3, 8), "norm_type": 2},
    "lp_pool2d": {"input": IMAGE, "norm_type": 2},
    "local_response_norm": {"input": Floats(2, 4, 8), "size": 2},
    "nll_loss": {"target": Integers(4)},
    "cross_entropy": {"target": Integers(4)},
    "gaussian_nll_loss": {"var": Floats(4, 4)},
    "margin_ranking_loss": {"input1": Floats(4), "input2": Floats(4), "target": Floats(4)},
    "cosine_embedding_loss": {"target": Floats(4)},
    "multilabel_margin_loss": {"target": Integers(4, 4)},
    "multi_margin_loss": {"target": Integers(4)},
    "lerp": {"weight": 0.5},
    "scatter_add": {"dim": 0, "index": Integers(4, 4)},
    "scatter": {"dim": 0, "index": Integers(4, 4)},
    "scatter_reduce": {"dim": 0, "index": Integers(4, 4)},
    "index_add": {"dim": 0},
    "index_copy": {"dim": 0},
    "index_fill": {"dim": 0},
    "index_put": {"indices": IntegerList(4), "values": SQUARE},
    "gather": {"index": Integers(4, 4)},
    "take_along_dim": {"indices": Integers(4, 4)},
    "take": {"index": Integers(4)},
    "select": {"index": 0},
    "bucketize": {"input": Floats(4)},
    "batch_norm": {"running_mean": Floats(4), "running_var": Floats(4), "training": True},
    "instance_norm": {"input": Floats(2, 4, 4)},
    "diff": {"n": 1},
    "fold": {"input": Floats(2, 4, 9), "output_size": (4, 4)},
    "unfold": {"input": IMAGE},
    "pixel_shuffle": {"input": Floats(1, 4, 2, 2), "upscale_factor": 2},
    "pixel_unshuffle": {"input": Floats(1, 4, 2, 2), "downscale_factor": 2},
    "movedim": {"source": 0, "destination": 1},
    "unflatten": {"dim": 1, "sizes": (2, 2)},
    "permute": {"dims": (1, 0)},
    "broadcast_to": {"size": (4, 4)},
    "expand": {"size": (4, 4)},
    "repeat": {"repeats": (2, 2)},
    "tile": {"dims": (2, 2)},
    "narrow": {"dim": 0},
    "tensorsolve": {"B": Floats(4)},
    "threshold": {"threshold": 0.1, "value": 0.2},
    "heaviside": {"values": SQUARE},
    "median": {"dim": None},
    "max": {"dim": None},
    "min": {"dim": None},
    "clamp": {"min": 0.1, "max": 0.9},
    "clamp_min": {"min": 0.1},
    "clamp_max": {"max": 0.9},
    "cholesky": {"A": Definite(4, 4)},
    "one_hot": {"tensor": Integers(4)},
    "logspace": {"start": 0.0, "end": 1.0, "steps": 4},
    "linspace": {"start": 0.0, "end": 1.0, "steps": 4},
    "arange": {"start": 0.0, "end": 4.0},
    "eye": {"n": 4},
    "randperm": {"n": 4},
    "normal": {"mean": 0.0, "std": 1.0},
    "scalar_tensor": {"s": 0.5},
    "fill_": {"value": 0.5},
    "pdist": {},
    "rrelu": {"lower": 0.1, "upper": 0.3},
    **{f"{kind}_pool{n}d": {"input": Floats(2, 4, *(8,) * n)} for kind in ("max", "avg") for n in (1, 2, 3)},
    **{f"adaptive_{kind}_pool{n}d": {"input": Floats(2, 4, *(8,) * n)} for kind in ("max", "avg") for n in (1, 2, 3)},
}

# Called by position: these names are not keywords in torch, or come as a variable number of arguments.
POSITIONAL = {"view", "expand", "repeat", "permute", "split", "tensor_split", "copy_", "transpose"}
POSITIONAL |= {"linalg_norm", "matrix_norm", "matrix_power", "one_hot"}
POSITIONAL |= {row.name for row in torch_ops.operations() if row.kind is Kind.LINALG}

# Fake tensors cannot run these: they need a driver, or look at values. None of them may be listed for a cast of
# its own without appearing in `test_listed_operations_are_known`.
NOT_ON_FAKE_TENSORS = {
    "cuda",
    "pin_memory",
    "copy_",
    "lstsq",
    "unique",
    "one_hot",
    "nonzero",
    "item",
    "tolist",
    "masked_select",
    "from_numpy",
    "as_tensor",
    "new_tensor",
    "uniform_",
    "unfold",
    "batch_norm",
    "cov",
    "corrcoef",
    "geqrf",
    "stft",
    "istft",
    "gaussian_nll_loss",
    "ctc_loss",
    "grid_sample",
    "lstm_cell",
    "gru_cell",
    "multi_head_attention_forward",
}

# What no call by those names can be made of.
CALLS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "torch.einsum": lambda t: torch.einsum("ij,jk->ik", t(4, 4), t(4, 4)),
    "torch.chain_matmul": lambda t: torch.chain_matmul(t(4, 4), t(4, 4)),
    "torch.block_diag": lambda t: torch.block_diag(t(4, 4), t(4, 4)),
    "torch.linalg.solve_triangular": lambda t: torch.linalg.solve_triangular(t(4, 4), t(4, 4), upper=True),
    "torch.meshgrid": lambda t: torch.meshgrid(t(4), t(4), indexing="ij"),
    "torch.rnn_tanh_cell": lambda t: torch.rnn_tanh_cell(t(2, 4), t(2, 4), t(4, 4), t(4, 4)),
    "torch.rnn_relu_cell": lambda t: torch.rnn_relu_cell(t(2, 4), t(2, 4), t(4, 4), t(4, 4)),
}


def build(argument: Any, dtype: torch.dtype, device: str) -> Any:
    """An argument made of its sample: floating-point tensors are in (0, 1)."""
    if not isinstance(argument, Floats):
        return argument
    if isinstance(argument, FloatList):
        return [torch.rand(argument.shape, device=device).to(dtype) for _ in range(2)]
    if isinstance(argument, IntegerList):
        return (torch.zeros(argument.shape, dtype=torch.long, device=device),)
    if isinstance(argument, Integers):
        return torch.zeros(argument.shape, dtype=torch.long, device=device)
    if isinstance(argument, Booleans):
        return torch.ones(argument.shape, dtype=torch.bool, device=device)
    if isinstance(argument, Definite):
        return (4 * torch.eye(*argument.shape, device=device)).to(dtype)
    return torch.rand(argument.shape, device=device).to(dtype)


def arguments(operation: Operation) -> dict[str, Any]:
    """The sample arguments of an operation, by parameter."""
    samples = {name: SAMPLES[name] for name in operation.parameters if name in SAMPLES}
    samples.update(OVERRIDES.get(operation.name, {}))
    return {name: sample for name, sample in samples.items() if sample is not None}


def resolve(dotted: str) -> Callable[..., Any]:
    found: Any = torch
    for part in dotted.split(".")[1:]:
        found = getattr(found, part)
    return found


def call(operation: Operation, spelling: str, dtypes: tuple[torch.dtype, ...], device: str, **more: Any) -> Any:
    """Call one spelling (`torch.exp`, `Tensor.exp`); floating-point arguments take the dtypes in turn."""
    order = iter([*dtypes, *[dtypes[-1]] * 8])
    if spelling in CALLS:
        return CALLS[spelling](lambda *shape: torch.rand(shape, device=device).to(next(order)))
    built = {}
    for name, sample in arguments(operation).items():
        floating = type(sample) in (Floats, FloatList, Definite)
        built[name] = build(sample, next(order) if floating else SINGLE, device)
    if spelling.startswith("Tensor."):
        receiver = built.pop(operation.parameters[0])
        method = getattr(receiver, spelling.removeprefix("Tensor."))
        if not callable(method):
            return method
        return method(*built.values(), **more) if operation.name in POSITIONAL else method(**built, **more)
    function = resolve(spelling)
    return function(*built.values(), **more) if operation.name in POSITIONAL else function(**built, **more)


# Every spelling that such a call can be made of on a fake tensor.
SPELLINGS = [
    (operation, spelling)
    for operation in torch_ops.operations()
    for spelling in (*operation.functions, *("Tensor." + name for name in operation.methods))
    if spelling.startswith(("torch.", "Tensor."))
    if operation.kind is not Kind.CAST and operation.name not in NOT_ON_FAKE_TENSORS
]
