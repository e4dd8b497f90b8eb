"""What each torch operation is: how it is spelled, in which dtype it runs under CUDA autocast, what it can return.

A table, imported by the linter's value analysis and by the simulated CUDA alike; it needs neither torch nor
anything slow. `tests/test_torch_ops.py` derives the policy of every entry from the installed torch's own
AutocastCUDA kernels, so a torch release that changes one shows up as a failing test.

Source of the cast policy: `aten/src/ATen/autocast_mode.h` of torch 2.4 to 2.14. An operation that is not listed
there runs in the dtype it is given; so does every in-place and `out=` variant of one that is.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, pi

Version = tuple[int, int]

NEWEST: Version = (2, 13)
"""The torch release whose behaviour the table describes; `Operation.earlier` holds what differed before."""


class Cast(enum.Enum):
    """The dtype in which CUDA autocast runs an operation, given floating-point operands other than float64."""

    FLOAT16 = "float16"
    """The region's dtype: float16 by default, bfloat16 if the region says so."""
    FLOAT32 = "float32"
    FLOAT32_UNLESS_DTYPE = "float32 unless dtype= is given"
    WIDEST = "widest operand"
    BANNED = "raises"
    AS_GIVEN = "as given"


class Kind(enum.Enum):
    """What sort of operation it is, as far as dtypes and ranges need to know."""

    ELEMENTWISE = "elementwise function of one operand"
    ARITHMETIC = "elementwise, promotes its operands"
    COMPARISON = "returns booleans or indices"
    REDUCTION = "combines values"
    SELECTION = "returns some of its operand's values, or averages of them"
    SHAPE = "returns its operand's values in another arrangement"
    CAST = "changes the dtype"
    CREATE = "makes a new tensor"
    SCATTER = "writes values into a copy or a buffer"
    MATMUL = "multiplies matrices"
    LAYER = "has parameters: linear, convolution, recurrent, attention, embedding"
    NORM = "normalizes"
    LOSS = "loss"
    LINALG = "solver or decomposition"
    FFT = "Fourier transform"


@dataclass(frozen=True, slots=True)
class Range:
    """The values that an operation can return for finite operands, in exact arithmetic.

    An end that is not attained (`sigmoid` is above 0) may still be reached by rounding in a given dtype.
    """

    lower: float = -inf
    upper: float = inf
    lower_attained: bool = False
    upper_attained: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table.

    `functions` and `modules` are dotted names as the torch documentation writes them; `methods` are methods of
    `torch.Tensor`; `operators` are Python's (see `by_operator`); `parameters` are in order, the operand first.
    `returns` is set where a composite operation returns another dtype than it computes in. `aten` names the
    overload packets under AutocastCUDA that the row stands for. `half` is False where CUDA has no float16 kernel.
    `result` is "bool" or "int64" where the dtype does not follow from the operands.
    """

    name: str
    cast: Cast
    kind: Kind
    parameters: tuple[str, ...]
    functions: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    range: Range = Range()
    aten: tuple[str, ...] = ()
    returns: Cast | None = None
    result: str = ""
    half: bool = True
    in_place: bool = False
    earlier: tuple[tuple[Version, Cast], ...] = ()
    """(version, cast): the policy in torch releases before that version, oldest first."""

    def policy(self, torch_version: Version = NEWEST) -> Cast:
        """The cast policy in that torch release."""
        for before, cast in self.earlier:
            if torch_version < before:
                return cast
        return self.cast

    @property
    def keeps_range(self) -> bool:
        """Whether every value returned lies between two values of the operand."""
        return self.kind in (Kind.SHAPE, Kind.SELECTION, Kind.CAST)


_PLACES = {
    "torch": "torch.",
    "F": "torch.nn.functional.",
    "special": "torch.special.",
    "linalg": "torch.linalg.",
    "fft": "torch.fft.",
    "init": "torch.nn.init.",
}


def _op(
    names: str,
    cast: Cast,
    kind: Kind,
    parameters: str,
    at: str,
    *,
    also: str = "",
    modules: str = "",
    operators: str = "",
    range: Range = Range(),
    aten: str = "",
    composite: bool = False,
    returns: Cast | None = None,
    result: str = "",
    half: bool = True,
    earlier: tuple[tuple[Version, Cast], ...] = (),
) -> Operation:
    """A row; `names` is the canonical name and its aliases, each found in every place of `at`.

    `also` holds spellings found in one place only, dotted, `Tensor.` for methods. `aten` is the canonical name
    unless given; a `composite` operation has its policy from the listed ones that it calls.
    """
    spelled = names.split()
    functions = [_PLACES[place] + name for place in at.split() if place != "method" for name in spelled]
    methods = list(spelled) if "method" in at.split() else []
    for dotted in also.split():
        if dotted.startswith("Tensor."):
            methods.append(dotted.removeprefix("Tensor."))
        else:
            functions.append(dotted)
    listed = cast is not Cast.AS_GIVEN and not composite
    return Operation(
        name=spelled[0],
        cast=cast,
        kind=kind,
        parameters=tuple(parameters.split()),
        functions=tuple(functions),
        methods=tuple(methods),
        modules=tuple("torch.nn." + module for module in modules.split()),
        operators=tuple(operators.split()),
        range=range,
        aten=tuple(aten.split()) or ((spelled[0],) if listed else ()),
        returns=returns,
        result=result,
        half=half,
        earlier=earlier,
    )


def _ops(
    names: str,
    cast: Cast,
    kind: Kind,
    parameters: str,
    at: str,
    *,
    range: Range = Range(),
    result: str = "",
    half: bool = True,
) -> Iterator[Operation]:
    """A row for each name, all alike."""
    for name in names.split():
        yield _op(name, cast, kind, parameters, at, range=range, result=result, half=half)


_ANY = Range()
_AT_LEAST_0 = Range(0.0, inf, lower_attained=True)
_ABOVE_0 = Range(0.0, inf)
_AT_MOST_0 = Range(-inf, 0.0, upper_attained=True)
_BELOW_0 = Range(-inf, 0.0)
_0_TO_1 = Range(0.0, 1.0, True, True)
_BETWEEN_0_AND_1 = Range(0.0, 1.0)
_1_TO_1 = Range(-1.0, 1.0, True, True)
_BETWEEN_1_AND_1 = Range(-1.0, 1.0)

F16, F32, F32_DTYPE = Cast.FLOAT16, Cast.FLOAT32, Cast.FLOAT32_UNLESS_DTYPE
WIDEST, BANNED, GIVEN = Cast.WIDEST, Cast.BANNED, Cast.AS_GIVEN


def _matmuls() -> Iterable[Operation]:
    kind = Kind.MATMUL
    yield _op("matmul", F16, kind, "input other", "torch method linalg", operators="@")
    yield _op("mm", F16, kind, "input mat2", "torch method")
    yield _op("bmm", F16, kind, "input mat2", "torch method")
    yield _op("mv", F16, kind, "input vec", "torch method")
    yield _op("addmm", F16, kind, "input mat1 mat2", "torch method")
    yield _op("addmv", F16, kind, "input mat vec", "torch method")
    yield _op("addr", F16, kind, "input vec1 vec2", "torch method")
    yield _op("addbmm", F16, kind, "input batch1 batch2", "torch method")
    yield _op("baddbmm", F16, kind, "input batch1 batch2", "torch method")
    yield _op("chain_matmul", F16, kind, "matrices", "torch")
    yield _op("multi_dot", F16, kind, "tensors", "linalg", aten="linalg_multi_dot")
    yield _op("vecdot", F16, kind, "x y", "linalg", aten="linalg_vecdot")
    yield _op("einsum", F16, kind, "equation operands", "torch")
    yield _op("dot", WIDEST, kind, "input tensor", "torch method")
    yield _op("vdot", WIDEST, kind, "input other", "torch method")
    yield _op("tensordot", WIDEST, kind, "a b dims", "torch")
    yield _op("cross", WIDEST, kind, "input other dim", "torch method")
    yield _op("inner", F16, kind, "input other", "torch method", composite=True)
    yield _op("outer ger", GIVEN, kind, "input vec2", "torch method")
    yield _op("kron", GIVEN, kind, "input other", "torch method")


def _layers() -> Iterable[Operation]:
    kind = Kind.LAYER
    conv = "input weight bias stride padding dilation groups"
    transposed = "input weight bias stride padding output_padding groups dilation"
    yield _op("linear", F16, kind, "input weight bias", "F", modules="Linear LazyLinear")
    yield _op("bilinear", WIDEST, kind, "input1 input2 weight bias", "F", modules="Bilinear")
    low_level = "_convolution convolution cudnn_convolution"
    yield _op("conv1d", F16, kind, conv, "F torch", modules="Conv1d LazyConv1d")
    yield _op("conv2d", F16, kind, conv, "F torch", modules="Conv2d LazyConv2d", aten="conv2d " + low_level)
    yield _op("conv3d", F16, kind, conv, "F torch", modules="Conv3d LazyConv3d")
    yield _op("conv_tbc", F16, kind, "input weight bias pad", "F torch")
    for n in "123":
        yield _op(
            f"conv_transpose{n}d",
            F16,
            kind,
            transposed,
            "F torch",
            modules=f"ConvTranspose{n}d LazyConvTranspose{n}d",
            aten=f"conv_transpose{n}d" + (" cudnn_convolution_transpose" if n == "2" else ""),
        )
    recurrent = "input hx"
    yield _op("lstm", F16, kind, recurrent, "", modules="LSTM", aten="lstm _cudnn_rnn")
    yield _op("gru", F16, kind, recurrent, "", modules="GRU")
    yield _op("rnn", F16, kind, recurrent, "", modules="RNN", aten="rnn_tanh rnn_relu")
    yield _op("lstm_cell", F16, kind, recurrent, "torch", modules="LSTMCell", aten="lstm_cell _thnn_fused_lstm_cell")
    yield _op("gru_cell", F16, kind, recurrent, "torch", modules="GRUCell", aten="gru_cell _thnn_fused_gru_cell")
    yield _op(
        "rnn_cell",
        F16,
        kind,
        recurrent,
        "",
        also="torch.rnn_tanh_cell torch.rnn_relu_cell",
        modules="RNNCell",
        aten="rnn_tanh_cell rnn_relu_cell",
    )
    yield _op(
        "scaled_dot_product_attention",
        F16,
        kind,
        "query key value attn_mask dropout_p is_causal scale",
        "F",
        aten="scaled_dot_product_attention _scaled_dot_product_flash_attention",
    )
    yield _op(
        "multi_head_attention_forward",
        F16,
        kind,
        "query key value",
        "F",
        modules="MultiheadAttention",
        composite=True,
    )
    yield _op("embedding", GIVEN, kind, "input weight", "F", modules="Embedding")
    yield _op("embedding_bag", GIVEN, kind, "input weight", "F", modules="EmbeddingBag")
    yield _op("prelu", F16, Kind.ELEMENTWISE, "input weight", "F torch method", modules="PReLU")


def _arithmetic() -> Iterable[Operation]:
    kind = Kind.ARITHMETIC
    yield _op("add", GIVEN, kind, "input other alpha", "torch method", operators="+")
    yield _op("sub subtract", GIVEN, kind, "input other alpha", "torch method", operators="-")
    yield _op("rsub", GIVEN, kind, "input other alpha", "torch")
    yield _op("mul multiply", GIVEN, kind, "input other", "torch method", operators="*")
    yield _op("div divide true_divide", GIVEN, kind, "input other rounding_mode", "torch method", operators="/")
    yield _op("floor_divide", GIVEN, kind, "input other", "torch method", operators="//")
    yield _op("remainder", GIVEN, kind, "input other", "torch method", operators="%")
    yield _op("fmod", GIVEN, kind, "input other", "torch method")
    yield _op("pow", F32, kind, "input exponent", "torch method", operators="**")
    yield _op("float_power", GIVEN, kind, "input exponent", "torch method")
    yield _op("atan2 arctan2", WIDEST, kind, "input other", "torch method", range=Range(-pi, pi, True, True))
    yield _op("addcmul", WIDEST, kind, "input tensor1 tensor2", "torch method")
    yield _op("addcdiv", WIDEST, kind, "input tensor1 tensor2", "torch method")
    yield _op("lerp", GIVEN, kind, "input end weight", "torch method")
    yield _op("maximum", GIVEN, kind, "input other", "torch method")
    yield _op("minimum", GIVEN, kind, "input other", "torch method")
    yield _op("fmax", GIVEN, kind, "input other", "torch method")
    yield _op("fmin", GIVEN, kind, "input other", "torch method")
    yield _op("hypot", GIVEN, kind, "input other", "torch method", range=_AT_LEAST_0)
    yield _op("logaddexp", GIVEN, kind, "input other", "torch method")
    yield _op("logaddexp2", GIVEN, kind, "input other", "torch method")
    yield _op("xlogy", GIVEN, kind, "input other", "torch method special")
    yield _op("xlog1py", GIVEN, kind, "input other", "special")
    yield _op("copysign", GIVEN, kind, "input other", "torch method")
    yield _op("where", GIVEN, kind, "condition input other", "torch", also="Tensor.where")
    yield _op("heaviside", GIVEN, kind, "input values", "torch method", range=_ANY)


def _elementwise() -> Iterable[Operation]:
    kind = Kind.ELEMENTWISE
    at = "torch method"
    # listed for float32
    yield _op("acos arccos", F32, kind, "input", at, range=Range(0.0, pi, True, True))
    yield _op("asin arcsin", F32, kind, "input", at, range=Range(-pi / 2, pi / 2, True, True))
    yield _op("cosh", F32, kind, "input", at, range=Range(1.0, inf, lower_attained=True))
    yield _op("sinh", F32, kind, "input", at)
    yield _op("tan", F32, kind, "input", at)
    yield _op("erfinv", F32, kind, "input", at + " special")
    yield _op("exp", F32, kind, "input", at, range=_ABOVE_0)
    yield _op("expm1", F32, kind, "input", at + " special", range=Range(-1.0, inf))
    yield _op("log", F32, kind, "input", at)
    yield _op("log10", F32, kind, "input", at)
    yield _op("log1p", F32, kind, "input", at + " special")
    yield _op("log2", F32, kind, "input", at)
    yield _op("reciprocal", F32, kind, "input", at, operators="number/tensor")
    yield _op("rsqrt", F32, kind, "input", at, range=_ABOVE_0)
    yield _op("square", F32, kind, "input", at, range=_AT_LEAST_0, composite=True)
    yield _op("softplus", F32, kind, "input beta threshold", "F", modules="Softplus", range=_ABOVE_0)
    # not listed: in the dtype given
    yield _op(
        "sigmoid",
        GIVEN,
        kind,
        "input",
        at + " F",
        also="torch.special.expit",
        modules="Sigmoid",
        range=_BETWEEN_0_AND_1,
    )
    yield _op("tanh", GIVEN, kind, "input", at + " F", modules="Tanh", range=_BETWEEN_1_AND_1)
    yield _op("logsigmoid", GIVEN, kind, "input", "F", modules="LogSigmoid", range=_BELOW_0)
    yield _op("relu", GIVEN, kind, "input", at + " F", modules="ReLU", range=_AT_LEAST_0)
    yield _op("relu6", GIVEN, kind, "input", "F", modules="ReLU6", range=Range(0.0, 6.0, True, True))
    yield _op("gelu", GIVEN, kind, "input approximate", "F", modules="GELU", range=Range(-0.17, inf))
    yield _op("silu", GIVEN, kind, "input", "F", modules="SiLU", range=Range(-0.2785, inf))
    yield _op("mish", GIVEN, kind, "input", "F", modules="Mish", range=Range(-0.3089, inf))
    yield _op("elu", GIVEN, kind, "input alpha", "F", modules="ELU")
    yield _op("selu", GIVEN, kind, "input", "F torch", modules="SELU", range=Range(-1.7581, inf))
    yield _op("celu", GIVEN, kind, "input alpha", "F torch", modules="CELU")
    yield _op("leaky_relu", GIVEN, kind, "input negative_slope", "F", modules="LeakyReLU")
    yield _op("rrelu", GIVEN, kind, "input lower upper training", "F torch", modules="RReLU")
    yield _op("glu", GIVEN, kind, "input dim", "F", modules="GLU")
    yield _op("hardtanh", GIVEN, kind, "input min_val max_val", "F", modules="Hardtanh")
    yield _op("hardsigmoid", GIVEN, kind, "input", "F", modules="Hardsigmoid", range=_0_TO_1)
    yield _op(
        "hardswish",
        GIVEN,
        kind,
        "input",
        "F",
        modules="Hardswish",
        range=Range(-0.375, inf, lower_attained=True),
    )
    yield _op("softsign", GIVEN, kind, "input", "F", modules="Softsign", range=_BETWEEN_1_AND_1)
    yield _op("tanhshrink", GIVEN, kind, "input", "F", modules="Tanhshrink")
    yield _op("hardshrink", GIVEN, kind, "input lambd", "F torch method", modules="Hardshrink")
    yield _op("softshrink", GIVEN, kind, "input lambd", "F", modules="Softshrink")
    yield _op("threshold", GIVEN, kind, "input threshold value", "F torch", modules="Threshold")
    yield _op("identity", GIVEN, Kind.SHAPE, "input", "", modules="Identity")
    yield _op("sqrt", GIVEN, kind, "input", at, range=_AT_LEAST_0)
    yield _op("abs absolute", GIVEN, kind, "input", at, range=_AT_LEAST_0, also="builtins.abs")
    yield _op("neg negative", GIVEN, kind, "input", at, operators="-tensor")
    yield _op("positive", GIVEN, kind, "input", at, operators="+tensor")
    yield _op("clamp clip", GIVEN, kind, "input min max", at)
    yield _op("clamp_min", GIVEN, kind, "input min", at)
    yield _op("clamp_max", GIVEN, kind, "input max", at)
    yield _op("masked_fill", GIVEN, kind, "input mask value", at)
    yield _op("nan_to_num", GIVEN, kind, "input nan posinf neginf", at)
    yield _op("exp2", GIVEN, kind, "input", at + " special", range=_ABOVE_0)
    yield _op("logit", GIVEN, kind, "input eps", at + " special")
    yield _op("erf", GIVEN, kind, "input", at + " special", range=_BETWEEN_1_AND_1)
    yield _op("erfc", GIVEN, kind, "input", at + " special", range=Range(0.0, 2.0))
    yield _op("atan arctan", GIVEN, kind, "input", at, range=Range(-pi / 2, pi / 2))
    yield _op("sin", GIVEN, kind, "input", at, range=_1_TO_1)
    yield _op("cos", GIVEN, kind, "input", at, range=_1_TO_1)
    yield _op("sinc", GIVEN, kind, "input", at + " special", range=Range(-0.2173, 1.0, False, True))
    yield _op("sign", GIVEN, kind, "input", at, range=_1_TO_1)
    yield _op("sgn", GIVEN, kind, "input", at, range=_1_TO_1)
    yield _op("frac", GIVEN, kind, "input", at, range=_BETWEEN_1_AND_1)
    yield _op("acosh arccosh", GIVEN, kind, "input", at, range=_AT_LEAST_0)
    yield _op("i0", GIVEN, kind, "input", at + " special", range=Range(1.0, inf, lower_attained=True))
    yield _op("entr", GIVEN, kind, "input", "special")
    yield from _ops(
        "asinh arcsinh atanh arctanh digamma lgamma deg2rad rad2deg ceil floor trunc",
        GIVEN,
        kind,
        "input",
        at,
    )
    yield _op("round", GIVEN, kind, "input decimals", at)
    dropouts = "input p training"
    yield _op("dropout", GIVEN, kind, dropouts, "F", modules="Dropout")
    for n in "123":
        yield _op(f"dropout{n}d", GIVEN, kind, dropouts, "F", modules=f"Dropout{n}d")
    yield _op("alpha_dropout", GIVEN, kind, dropouts, "F", modules="AlphaDropout")
    yield _op("feature_alpha_dropout", GIVEN, kind, dropouts, "F", modules="FeatureAlphaDropout")


def _softmaxes() -> Iterable[Operation]:
    kind = Kind.ELEMENTWISE
    yield _op(
        "softmax",
        F32_DTYPE,
        kind,
        "input dim dtype",
        "torch F special method",
        modules="Softmax Softmax2d",
        range=_0_TO_1,
    )
    yield _op(
        "log_softmax",
        F32_DTYPE,
        kind,
        "input dim dtype",
        "torch F special method",
        modules="LogSoftmax",
        range=_AT_MOST_0,
    )
    yield _op("softmin", F32_DTYPE, kind, "input dim dtype", "F", modules="Softmin", range=_0_TO_1, composite=True)
    yield _op("gumbel_softmax", F32, kind, "logits tau hard dim", "F", range=_0_TO_1, composite=True)


def _reductions() -> Iterable[Operation]:
    kind = Kind.REDUCTION
    at = "torch method"
    yield _op("sum", F32_DTYPE, kind, "input dim keepdim dtype", at)
    yield _op("prod", F32_DTYPE, kind, "input dim keepdim dtype", at)
    yield _op("cumsum", F32_DTYPE, kind, "input dim dtype", at)
    yield _op("cumprod", F32_DTYPE, kind, "input dim dtype", at)
    yield _op("nansum", GIVEN, kind, "input dim keepdim dtype", at)
    yield _op("logsumexp", F32, kind, "input dim keepdim", at + " special")
    yield _op("logcumsumexp", GIVEN, kind, "input dim", at)
    yield _op(
        "norm",
        F32_DTYPE,
        kind,
        "input p dim keepdim dtype",
        at,
        range=_AT_LEAST_0,
        aten="norm frobenius_norm",
    )
    yield _op(
        "linalg_norm",
        F32_DTYPE,
        kind,
        "A ord dim keepdim dtype",
        "",
        also="torch.linalg.norm",
        range=_AT_LEAST_0,
        composite=True,
    )
    yield _op(
        "vector_norm",
        F32_DTYPE,
        kind,
        "x ord dim keepdim dtype",
        "linalg",
        range=_AT_LEAST_0,
        aten="linalg_vector_norm",
    )
    yield _op(
        "matrix_norm",
        F32_DTYPE,
        kind,
        "A ord dim keepdim dtype",
        "linalg",
        range=_AT_LEAST_0,
        aten="linalg_matrix_norm",
    )
    yield _op("nuclear_norm", F32, kind, "input keepdim", "torch", range=_AT_LEAST_0)
    yield _op("renorm", F32, kind, "input p dim maxnorm", at)
    yield _op("dist", F32, kind, "input other p", at, range=_AT_LEAST_0)
    yield _op("cdist", F32, kind, "x1 x2 p", "torch", range=_AT_LEAST_0, half=False)
    yield _op("pdist", F32, kind, "input p", "torch F", range=_AT_LEAST_0, half=False)
    yield _op(
        "pairwise_distance",
        F32_DTYPE,
        kind,
        "x1 x2 p eps",
        "F",
        modules="PairwiseDistance",
        range=_AT_LEAST_0,
        composite=True,
    )
    yield _op("cosine_similarity", F32, kind, "x1 x2 dim eps", "F torch", modules="CosineSimilarity", range=_1_TO_1)
    yield _op("var", GIVEN, kind, "input dim correction keepdim", at, range=_AT_LEAST_0)
    yield _op("std", GIVEN, kind, "input dim correction keepdim", at, range=_AT_LEAST_0)
    yield _op("var_mean", GIVEN, kind, "input dim correction keepdim", "torch")
    yield _op("std_mean", GIVEN, kind, "input dim correction keepdim", "torch")
    yield from _ops("cov corrcoef", GIVEN, kind, "input", at)
    yield _op("trace", GIVEN, kind, "input", at)
    yield _op("diff", GIVEN, kind, "input n dim", at)
    # values of the operand, or averages of them
    picks = Kind.SELECTION
    yield _op("mean", GIVEN, picks, "input dim keepdim dtype", at)
    yield _op("nanmean", GIVEN, picks, "input dim keepdim dtype", at)
    yield from _ops("median nanmedian", GIVEN, picks, "input", at)
    yield from _ops("max min", GIVEN, picks, "input", at)
    yield from _ops("amax amin", GIVEN, picks, "input dim keepdim", at)
    yield _op("aminmax", GIVEN, picks, "input", at)
    yield from _ops("cummax cummin", GIVEN, picks, "input dim", at)
    yield _op("topk", GIVEN, picks, "input k dim", at)
    yield _op("sort", GIVEN, picks, "input", at)
    yield _op("kthvalue", GIVEN, picks, "input k dim", at)
    yield _op("mode", GIVEN, picks, "input", at)
    yield _op("unique", GIVEN, picks, "input", at)
    yield from _ops("quantile nanquantile", GIVEN, picks, "input q dim", at, half=False)


def _comparisons() -> Iterable[Operation]:
    kind = Kind.COMPARISON
    at = "torch method"
    for name, symbol in (
        ("eq", "=="),
        ("ne not_equal", "!="),
        ("lt less", "<"),
        ("le less_equal", "<="),
        ("gt greater", ">"),
        ("ge greater_equal", ">="),
    ):
        yield _op(name, GIVEN, kind, "input other", at, operators=symbol, result="bool", range=_0_TO_1)
    yield from _ops(
        "isnan isinf isfinite isposinf isneginf signbit logical_not",
        GIVEN,
        kind,
        "input",
        at,
        range=_0_TO_1,
        result="bool",
    )
    yield from _ops("logical_and logical_or logical_xor", GIVEN, kind, "input other", at, range=_0_TO_1, result="bool")
    yield _op("isclose", GIVEN, kind, "input other", at, range=_0_TO_1, result="bool")
    yield from _ops("any all", GIVEN, kind, "input", at, range=_0_TO_1, result="bool")
    yield from _ops("argmax argmin argsort count_nonzero", GIVEN, kind, "input", at, range=_AT_LEAST_0, result="int64")
    yield from _ops("searchsorted", GIVEN, kind, "sorted_sequence input", "torch", range=_AT_LEAST_0, result="int64")
    yield _op("bucketize", GIVEN, kind, "input boundaries", "torch", range=_AT_LEAST_0, result="int64")
    yield _op("nonzero", GIVEN, kind, "input", at, range=_AT_LEAST_0, result="int64")
    yield _op("one_hot", GIVEN, kind, "tensor num_classes", "F", range=_0_TO_1, result="int64")
    yield _op("multinomial", GIVEN, kind, "input num_samples", at, range=_AT_LEAST_0, result="int64")


def _shapes() -> Iterable[Operation]:
    kind = Kind.SHAPE
    at = "torch method"
    yield _op("getitem", GIVEN, kind, "input index", "", operators="[]")
    yield _op("view", GIVEN, kind, "input shape", "method")
    yield _op("reshape", GIVEN, kind, "input shape", at)
    yield _op("flatten", GIVEN, kind, "input start_dim end_dim", at, modules="Flatten")
    yield _op("unflatten", GIVEN, kind, "input dim sizes", at, modules="Unflatten")
    yield _op("ravel", GIVEN, kind, "input", at)
    yield _op("squeeze", GIVEN, kind, "input dim", at)
    yield _op("unsqueeze", GIVEN, kind, "input dim", at)
    yield _op("transpose swapaxes swapdims", GIVEN, kind, "input dim0 dim1", at)
    yield _op("t", GIVEN, kind, "input", at, also="Tensor.T Tensor.mT Tensor.H Tensor.mH")
    yield _op("permute", GIVEN, kind, "input dims", at)
    yield _op("movedim moveaxis", GIVEN, kind, "input source destination", at)
    yield _op("expand", GIVEN, kind, "input size", "method")
    yield _op("expand_as", GIVEN, kind, "input other", "method")
    yield _op("view_as", GIVEN, kind, "input other", "method")
    yield _op("reshape_as", GIVEN, kind, "input other", "method")
    yield _op("broadcast_to", GIVEN, kind, "input size", at)
    yield _op("repeat", GIVEN, kind, "input repeats", "method")
    yield _op("repeat_interleave", GIVEN, kind, "input repeats dim", at)
    yield _op("tile", GIVEN, kind, "input dims", at)
    yield _op("roll", GIVEN, kind, "input shifts dims", at)
    yield _op("flip", GIVEN, kind, "input dims", at)
    yield from _ops("fliplr flipud clone detach", GIVEN, kind, "input", at)
    yield _op("contiguous", GIVEN, kind, "input", "method")
    yield _op("narrow", GIVEN, kind, "input dim start length", at)
    yield _op("select", GIVEN, kind, "input dim index", at)
    yield _op("chunk", GIVEN, kind, "input chunks dim", at)
    yield _op("split", GIVEN, kind, "tensor split_size_or_sections dim", "torch", also="Tensor.split")
    yield _op("unbind", GIVEN, kind, "input dim", at)
    yield _op("tensor_split", GIVEN, kind, "input indices_or_sections dim", at)
    yield _op("index_select", GIVEN, kind, "input dim index", at)
    yield _op("gather", GIVEN, kind, "input dim index", at)
    yield _op("take_along_dim", GIVEN, kind, "input indices dim", at)
    yield _op("masked_select", GIVEN, kind, "input mask", at)
    yield _op("take", GIVEN, kind, "input index", at)
    yield _op("diagonal", GIVEN, kind, "input", at)
    yield _op("unfold", GIVEN, kind, "input kernel_size", "F", modules="Unfold")
    yield _op("pixel_shuffle", GIVEN, kind, "input upscale_factor", "F torch", modules="PixelShuffle")
    yield _op("pixel_unshuffle", GIVEN, kind, "input downscale_factor", "F torch", modules="PixelUnshuffle")
    yield _op("cat concat concatenate", GIVEN, kind, "tensors dim", "torch")
    yield _op("stack", GIVEN, kind, "tensors dim", "torch")
    yield from _ops("hstack vstack dstack column_stack row_stack block_diag", GIVEN, kind, "tensors", "torch")
    yield _op("meshgrid", GIVEN, kind, "tensors indexing", "torch")
    yield _op(
        "device_move",
        GIVEN,
        kind,
        "input device",
        "",
        also="Tensor.cuda Tensor.cpu Tensor.pin_memory Tensor.requires_grad_ Tensor.data Tensor.grad",
    )
    # zeros come in as well
    fills = Kind.ELEMENTWISE
    yield from _ops("tril triu", GIVEN, fills, "input diagonal", at)
    yield _op("diag", GIVEN, fills, "input diagonal", at)
    yield _op("diag_embed", GIVEN, fills, "input", at)
    yield _op("pad", GIVEN, fills, "input pad mode value", "F")
    yield _op("fold", GIVEN, fills, "input output_size kernel_size", "F", modules="Fold")


def _casts() -> Iterable[Operation]:
    yield _op("float", GIVEN, Kind.CAST, "input", "method")
    yield _op("half", GIVEN, Kind.CAST, "input", "method")
    yield _op("bfloat16", GIVEN, Kind.CAST, "input", "method")
    yield _op("double", GIVEN, Kind.CAST, "input", "method")
    yield from _ops("int long short bool char byte", GIVEN, Kind.CAST, "input", "method")
    yield _op("to", GIVEN, Kind.CAST, "input dtype", "method")
    yield _op("type", GIVEN, Kind.CAST, "input dtype", "method")
    yield _op("type_as", GIVEN, Kind.CAST, "input other", "method")


def _creations() -> Iterable[Operation]:
    kind = Kind.CREATE
    yield _op("tensor", GIVEN, kind, "data dtype", "torch")
    yield _op("as_tensor", GIVEN, kind, "data dtype", "torch", also="torch.asarray")
    yield _op("from_numpy", GIVEN, kind, "ndarray", "torch")
    yield _op("scalar_tensor", GIVEN, kind, "s dtype", "torch")
    yield _op("zeros", GIVEN, kind, "size dtype", "torch", range=Range(0.0, 0.0, True, True))
    yield _op("ones", GIVEN, kind, "size dtype", "torch", range=Range(1.0, 1.0, True, True))
    yield _op("full", GIVEN, kind, "size fill_value dtype", "torch")
    yield _op("empty", GIVEN, kind, "size dtype", "torch")
    yield _op("rand", GIVEN, kind, "size dtype", "torch", range=Range(0.0, 1.0, lower_attained=True))
    yield _op("randn", GIVEN, kind, "size dtype", "torch")
    yield _op("randint", GIVEN, kind, "low high size dtype", "torch", result="int64")
    yield _op("randperm", GIVEN, kind, "n dtype", "torch", range=_AT_LEAST_0, result="int64")
    yield _op("arange", GIVEN, kind, "start end step dtype", "torch")
    yield _op("linspace", GIVEN, kind, "start end steps dtype", "torch")
    yield _op("logspace", GIVEN, kind, "start end steps base dtype", "torch", range=_ABOVE_0)
    yield _op("eye", GIVEN, kind, "n m dtype", "torch", range=_0_TO_1)
    yield _op("normal", GIVEN, kind, "mean std size dtype", "torch")
    # in the dtype of a tensor that is given
    yield _op("zeros_like", GIVEN, kind, "input dtype", "torch", range=Range(0.0, 0.0, True, True))
    yield _op("ones_like", GIVEN, kind, "input dtype", "torch", range=Range(1.0, 1.0, True, True))
    yield _op("full_like", GIVEN, kind, "input fill_value dtype", "torch")
    yield _op("empty_like", GIVEN, kind, "input dtype", "torch")
    yield _op("rand_like", GIVEN, kind, "input dtype", "torch", range=Range(0.0, 1.0, lower_attained=True))
    yield _op("randn_like", GIVEN, kind, "input dtype", "torch")
    yield _op("bernoulli", GIVEN, kind, "input p", "torch method", range=_0_TO_1)
    yield _op("new_zeros", GIVEN, kind, "input size dtype", "method", range=Range(0.0, 0.0, True, True))
    yield _op("new_ones", GIVEN, kind, "input size dtype", "method", range=Range(1.0, 1.0, True, True))
    yield _op("new_full", GIVEN, kind, "input size fill_value dtype", "method")
    yield _op("new_empty", GIVEN, kind, "input size dtype", "method")
    yield _op("new_tensor", GIVEN, kind, "input data dtype", "method")


def _scatters() -> Iterable[Operation]:
    kind = Kind.SCATTER
    at = "torch method"
    yield _op("setitem", GIVEN, kind, "input index value", "", operators="[]=")
    yield _op("scatter_add", WIDEST, kind, "input dim index src", at)
    yield _op("index_put", WIDEST, kind, "input indices values accumulate", at)
    yield _op("scatter", GIVEN, kind, "input dim index src", at)
    yield _op("scatter_reduce", GIVEN, kind, "input dim index src reduce", at)
    yield _op("index_add", GIVEN, kind, "input dim index source", at)
    yield _op("index_copy", GIVEN, kind, "input dim index source", at)
    yield _op("index_fill", GIVEN, kind, "input dim index value", at)
    yield _op("masked_scatter", GIVEN, kind, "input mask source", at)
    yield _op("copy_", GIVEN, kind, "input src", "method")
    yield _op("fill_", GIVEN, kind, "input value", "method")
    yield _op("zero_", GIVEN, kind, "input", "method", range=Range(0.0, 0.0, True, True))


def _norms() -> Iterable[Operation]:
    kind = Kind.NORM
    yield _op(
        "layer_norm",
        F32,
        kind,
        "input normalized_shape weight bias eps",
        "F",
        modules="LayerNorm",
        aten="layer_norm native_layer_norm",
    )
    yield _op("group_norm", F32, kind, "input num_groups weight bias eps", "F", modules="GroupNorm")
    yield _op(
        "rms_norm",
        F32,
        kind,
        "input normalized_shape weight eps",
        "F",
        modules="RMSNorm",
        # composite until 2.8: its pow is listed for float32; then a kernel of its own, not listed at first
        earlier=(((2, 8), F32), ((2, 13), GIVEN)),
    )
    running = "input running_mean running_var weight bias training momentum eps"
    yield _op(
        "batch_norm",
        GIVEN,
        kind,
        running,
        "F",
        modules="BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d",
    )
    yield _op(
        "instance_norm",
        GIVEN,
        kind,
        "input running_mean running_var weight bias use_input_stats momentum eps",
        "F",
        modules="InstanceNorm1d InstanceNorm2d InstanceNorm3d",
    )
    yield _op(
        "local_response_norm",
        F32,
        kind,
        "input size alpha beta k",
        "F",
        modules="LocalResponseNorm",
        composite=True,
    )
    yield _op("normalize", F32, kind, "input p dim eps", "F", range=_1_TO_1, composite=True)


def _pools() -> Iterable[Operation]:
    picks = Kind.SELECTION
    for n in "123":
        yield _op(f"max_pool{n}d", GIVEN, picks, "input kernel_size", "F", modules=f"MaxPool{n}d")
        yield _op(f"avg_pool{n}d", GIVEN, picks, "input kernel_size", "F", modules=f"AvgPool{n}d")
        yield _op(f"adaptive_avg_pool{n}d", GIVEN, picks, "input output_size", "F", modules=f"AdaptiveAvgPool{n}d")
        yield _op(f"adaptive_max_pool{n}d", GIVEN, picks, "input output_size", "F", modules=f"AdaptiveMaxPool{n}d")
    for n in "12":
        yield _op(
            f"lp_pool{n}d",
            F32,
            Kind.REDUCTION,
            "input norm_type kernel_size",
            "F",
            modules=f"LPPool{n}d",
            range=_AT_LEAST_0,
            composite=True,
        )
    yield _op(
        "interpolate",
        F32,  # but mode="area" is adaptive_avg_pool, as given
        Kind.LAYER,
        "input size scale_factor mode",
        "F",
        also="torch.nn.functional.upsample torch.nn.functional.upsample_nearest torch.nn.functional.upsample_bilinear",
        modules="Upsample UpsamplingNearest2d UpsamplingBilinear2d",
        aten="upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d"
        " _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d"
        " _upsample_bilinear2d_aa _upsample_bicubic2d_aa",
    )
    yield _op("grid_sample", WIDEST, Kind.LAYER, "input grid mode", "F", aten="grid_sampler")
    yield _op("affine_grid", F16, Kind.LAYER, "theta size", "F", composite=True)


def _losses() -> Iterable[Operation]:
    kind = Kind.LOSS
    plain = "input target"
    yield _op(
        "cross_entropy",
        GIVEN,
        kind,
        "input target weight",
        "F",
        modules="CrossEntropyLoss",
        range=_AT_LEAST_0,
        returns=F32,
    )
    yield _op(
        "nll_loss",
        F32,
        kind,
        "input target weight",
        "F",
        modules="NLLLoss NLLLoss2d",
        aten="nll_loss nll_loss2d",
    )
    yield _op("binary_cross_entropy", BANNED, kind, "input target weight", "F", modules="BCELoss", range=_AT_LEAST_0)
    yield _op(
        "binary_cross_entropy_with_logits",
        F32,
        kind,
        "input target weight",
        "F",
        modules="BCEWithLogitsLoss",
        range=_AT_LEAST_0,
    )
    yield _op("mse_loss", F32, kind, plain, "F", modules="MSELoss", range=_AT_LEAST_0)
    yield _op("l1_loss", F32, kind, plain, "F", modules="L1Loss", range=_AT_LEAST_0)
    yield _op("smooth_l1_loss", F32, kind, plain, "F", modules="SmoothL1Loss", range=_AT_LEAST_0)
    yield _op("huber_loss", F32, kind, plain, "F", modules="HuberLoss", range=_AT_LEAST_0)
    yield _op("kl_div", F32, kind, plain, "F", modules="KLDivLoss")
    yield _op("poisson_nll_loss", F32, kind, plain, "F", modules="PoissonNLLLoss")
    yield _op(
        "gaussian_nll_loss",
        GIVEN,
        kind,
        "input target var full eps",
        "F",
        modules="GaussianNLLLoss",
        returns=F32,
    )
    yield _op("soft_margin_loss", F32, kind, plain, "F", modules="SoftMarginLoss", range=_AT_LEAST_0)
    yield _op("hinge_embedding_loss", F32, kind, plain, "F", modules="HingeEmbeddingLoss")
    yield _op(
        "margin_ranking_loss",
        F32,
        kind,
        "input1 input2 target",
        "F",
        modules="MarginRankingLoss",
        range=_AT_LEAST_0,
    )
    yield _op("multilabel_margin_loss", F32, kind, plain, "F", modules="MultiLabelMarginLoss", range=_AT_LEAST_0)
    yield _op(
        "multilabel_soft_margin_loss",
        GIVEN,
        kind,
        plain,
        "F",
        modules="MultiLabelSoftMarginLoss",
        range=_AT_LEAST_0,
    )
    yield _op("multi_margin_loss", F32, kind, plain, "F", modules="MultiMarginLoss", range=_AT_LEAST_0)
    triplet = "anchor positive negative margin"
    yield _op("triplet_margin_loss", F32, kind, triplet, "F", modules="TripletMarginLoss", range=_AT_LEAST_0)
    yield _op(
        "triplet_margin_with_distance_loss",
        F32,
        kind,
        "anchor positive negative",
        "F",
        modules="TripletMarginWithDistanceLoss",
        range=_AT_LEAST_0,
        composite=True,
    )
    yield _op(
        "cosine_embedding_loss",
        F32,
        kind,
        "input1 input2 target",
        "F",
        modules="CosineEmbeddingLoss",
        range=_AT_LEAST_0,
    )
    yield _op(
        "ctc_loss",
        GIVEN,
        kind,
        "log_probs targets input_lengths target_lengths",
        "F",
        modules="CTCLoss",
        half=False,
    )


def _linalg() -> Iterable[Operation]:
    kind = Kind.LINALG
    names = "det slogdet cholesky qr svd matrix_exp"
    yield from _ops(names, GIVEN, kind, "A", "linalg torch method", half=False)
    yield _op("inv", GIVEN, kind, "A", "linalg", also="torch.inverse Tensor.inverse", half=False)
    yield _op("pinv", GIVEN, kind, "A", "linalg", also="torch.pinverse Tensor.pinverse", half=False)
    names = "cholesky_ex inv_ex svdvals eig eigvals eigh eigvalsh matrix_rank cond lu lu_factor lu_factor_ex ldl_factor"
    yield from _ops(names, GIVEN, kind, "A", "linalg", half=False)
    yield from _ops("solve lstsq tensorsolve", GIVEN, kind, "A B", "linalg", half=False)
    yield _op("solve_triangular", GIVEN, kind, "A B upper", "linalg", half=False)
    yield from _ops("logdet cholesky_inverse geqrf", GIVEN, kind, "input", "torch method", half=False)
    yield _op("matrix_power", F16, Kind.MATMUL, "A n", "linalg torch method", composite=True)
    yield _op("matrix_sqrth", F32, kind, "A", "", aten="linalg_matrix_sqrth", half=False)


def _fft() -> Iterable[Operation]:
    yield from _ops(
        "fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn",
        GIVEN,
        Kind.FFT,
        "input n dim",
        "fft",
    )
    yield _op("stft", GIVEN, Kind.FFT, "input n_fft", "torch method")
    yield _op("istft", GIVEN, Kind.FFT, "input n_fft", "torch method")


OPERATIONS: tuple[Operation, ...] = (
    *_matmuls(),
    *_layers(),
    *_arithmetic(),
    *_elementwise(),
    *_softmaxes(),
    *_reductions(),
    *_comparisons(),
    *_shapes(),
    *_casts(),
    *_creations(),
    *_scatters(),
    *_norms(),
    *_pools(),
    *_losses(),
    *_linalg(),
    *_fft(),
)

_BY_NAME = {op.name: op for op in OPERATIONS}
_BY_FUNCTION = {dotted: op for op in OPERATIONS for dotted in op.functions}
_BY_METHOD = {name: op for op in OPERATIONS for name in op.methods}
_BY_MODULE = {dotted: op for op in OPERATIONS for dotted in op.modules}
_BY_OPERATOR = {symbol: op for op in OPERATIONS for symbol in op.operators}


def by_name(name: str) -> Operation | None:
    """The row of that canonical name."""
    return _BY_NAME.get(name)


def by_function(dotted: str) -> Operation | None:
    """The operation that a torch function is, `torch.nn.functional.relu_` and other in-place ones included."""
    return _BY_FUNCTION.get(dotted) or _in_place(dotted, methods=False)


def by_method(name: str) -> Operation | None:
    """The operation that a method of `torch.Tensor` is, in-place ones included."""
    return _BY_METHOD.get(name) or _in_place(name, methods=True)


def by_module(dotted: str) -> Operation | None:
    """The operation that calling an instance of a `torch.nn` class is."""
    return _BY_MODULE.get(dotted)


def by_operator(symbol: str) -> Operation | None:
    """The operation that a Python operator on tensors is.

    Binary ones by their symbol; `-tensor` and `+tensor` the unary ones; `[]` and `[]=` indexing; `number/tensor`
    a Python number divided by a tensor, which torch runs as reciprocal.
    """
    return _BY_OPERATOR.get(symbol)


def cast_policy(name: str, torch_version: Version = NEWEST) -> Cast:
    """The CUDA cast policy of an operation by its canonical name; `Cast.AS_GIVEN` if the table has no such row."""
    op = _BY_NAME.get(name)
    return Cast.AS_GIVEN if op is None else op.policy(torch_version)


@lru_cache(maxsize=None)
def _in_place(spelling: str, methods: bool) -> Operation | None:
    if not spelling.endswith("_") or spelling.endswith("__"):
        return None
    op = (_BY_METHOD if methods else _BY_FUNCTION).get(spelling[:-1])
    if op is None:
        return None
    return replace(op, cast=Cast.AS_GIVEN, returns=None, earlier=(), in_place=True)
