"""What each torch operation is: its spellings, its dtype under CUDA autocast, the values it can return.

A table, used by the linter's value analysis and by the simulated CUDA alike. It needs neither torch nor
anything slow, and is read at the first look-up. `tests/test_torch_ops.py` derives the policy of each row from
the AutocastCUDA kernels of the installed torch, so that a release which changes one shows up there.

Source of the cast policy: `aten/src/ATen/autocast_mode.h` of torch 2.4 to 2.14. An operation not listed there
runs in the dtype it is given; so does every in-place and `out=` variant of one that is.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import inf, pi

Version = tuple[int, int]

NEWEST: Version = (2, 13)
"""The torch release whose behaviour a row describes; `Operation.earlier` holds what differed before."""


class Cast(enum.Enum):
    """The dtype in which CUDA autocast runs an operation on floating-point operands other than float64."""

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
    LAYER = "linear, convolution, recurrent, attention, embedding, resampling"
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
    """One operation: a row of the table."""

    name: str
    cast: Cast
    kind: Kind
    parameters: tuple[str, ...]
    """In order; for a method the first is the tensor it is called on."""
    functions: tuple[str, ...] = ()
    """Dotted names as torch documents them."""
    methods: tuple[str, ...] = ()
    """Methods and properties of `torch.Tensor`."""
    modules: tuple[str, ...] = ()
    """Classes whose instances compute it when called."""
    operators: tuple[str, ...] = ()
    """Python's; see `by_operator`."""
    range: Range = Range()
    aten: tuple[str, ...] = ()
    """The overload packets listed for CUDA autocast that the row stands for."""
    returns: Cast | None = None
    """Set where a composite operation returns another dtype than it computes in."""
    result: str = ""
    """"bool", "int64" or "number" where the result does not follow from the operands."""
    half: bool = True
    """Whether CUDA has a float16 kernel."""
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


def operations() -> tuple[Operation, ...]:
    """All rows, in the order of the table."""
    return _index().rows


def by_name(name: str) -> Operation | None:
    """The operation of that canonical name."""
    return _index().names.get(name)


def by_function(dotted: str) -> Operation | None:
    """The operation that a torch function is, in-place ones such as `torch.relu_` included."""
    return _index().functions.get(dotted) or _in_place(dotted, is_method=False)


def by_method(name: str) -> Operation | None:
    """The operation that a method of `torch.Tensor` is, in-place ones included."""
    return _index().methods.get(name) or _in_place(name, is_method=True)


def by_module(dotted: str) -> Operation | None:
    """The operation that calling an instance of a `torch.nn` class is."""
    return _index().modules.get(dotted)


def by_operator(symbol: str) -> Operation | None:
    """The operation that a Python operator on tensors is.

    Binary ones by their symbol; `-tensor`, `+tensor` and `~tensor` the unary ones; `[]` and `[]=` indexing;
    `number/tensor` a Python number divided by a tensor, which torch runs as reciprocal.
    """
    return _index().operators.get(symbol)


def cast_policy(name: str, torch_version: Version = NEWEST) -> Cast:
    """The CUDA cast policy of an operation by its canonical name; as given if the table has no such row."""
    operation = by_name(name)
    return Cast.AS_GIVEN if operation is None else operation.policy(torch_version)


# A section gives the cast and the kind of its rows. A row is
#     names | parameters | places | range | notes
# where a comma separates operations that are alike and `=` aliases of one; each name is found in every place
# (F is torch.nn.functional, method torch.Tensor). An indented line continues the row above it. Notes:
#     also:…     spellings found in one place only       nn:…        modules
#     op:…       Python operators                        aten:…      the listed packets, if not the name itself
#     composite  has its policy from what it calls       returns:…   another dtype than it computes in
#     no-half    no float16 kernel on CUDA               bool, int64, number   what it returns
#     before-2.9:…   the policy in torch releases before that one
_TABLE = """
[float16 matmul]
matmul          | input other         | torch linalg method |  | op:@
mm, bmm         | input mat2          | torch method
mv              | input vec           | torch method
addmm           | input mat1 mat2     | torch method
addmv           | input mat vec       | torch method
addr            | input vec1 vec2     | torch method
addbmm, baddbmm | input batch1 batch2 | torch method
chain_matmul    | matrices            | torch
multi_dot       | tensors             | linalg              |  | aten:linalg_multi_dot
vecdot          | x y                 | linalg              |  | aten:linalg_vecdot
einsum          | equation operands   | torch
matrix_power    | A n                 | torch linalg method |  | composite

[float16 layer]
linear           | input weight bias     | F       |  | nn:Linear,LazyLinear
conv1d           | input weight bias stride padding dilation groups | torch F |  | nn:Conv1d,LazyConv1d
conv2d | input weight bias stride padding dilation groups | torch F | |
    nn:Conv2d,LazyConv2d aten:conv2d,_convolution,convolution,cudnn_convolution
conv3d           | input weight bias stride padding dilation groups | torch F |  | nn:Conv3d,LazyConv3d
conv_tbc         | input weight bias pad | torch F
conv_transpose1d | input weight bias stride padding output_padding groups dilation | torch F | |
    nn:ConvTranspose1d,LazyConvTranspose1d
conv_transpose2d | input weight bias stride padding output_padding groups dilation | torch F | |
    nn:ConvTranspose2d,LazyConvTranspose2d aten:conv_transpose2d,cudnn_convolution_transpose
conv_transpose3d | input weight bias stride padding output_padding groups dilation | torch F | |
    nn:ConvTranspose3d,LazyConvTranspose3d
lstm             | input hx              |         |  | nn:LSTM aten:lstm,_cudnn_rnn
gru              | input hx              |         |  | nn:GRU
rnn              | input hx              |         |  | nn:RNN aten:rnn_tanh,rnn_relu
lstm_cell        | input hx              | torch   |  | nn:LSTMCell aten:lstm_cell,_thnn_fused_lstm_cell
gru_cell         | input hx              | torch   |  | nn:GRUCell aten:gru_cell,_thnn_fused_gru_cell
rnn_cell | input hx |  | |
    also:torch.rnn_tanh_cell,torch.rnn_relu_cell nn:RNNCell aten:rnn_tanh_cell,rnn_relu_cell
scaled_dot_product_attention | query key value attn_mask dropout_p is_causal scale | F | |
    aten:scaled_dot_product_attention,_scaled_dot_product_flash_attention
multi_head_attention_forward | query key value       | F       |  | nn:MultiheadAttention composite

[float16 elementwise]
prelu | input weight | torch F method |  | nn:PReLU

[float32 arithmetic]
pow | input exponent | torch method |  | op:**

[float32 elementwise]
acos=arccos    | input                | torch method         | [0, pi]
asin=arcsin    | input                | torch method         | [-pi/2, pi/2]
cosh           | input                | torch method         | [1, inf)
sinh, tan, log, log10, log2 | input                | torch method
erfinv, log1p  | input                | torch special method
exp, rsqrt     | input                | torch method         | (0, inf)
expm1          | input                | torch special method | (-1, inf)
reciprocal     | input                | torch method         |               | op:number/tensor
square         | input                | torch method         | [0, inf)      | composite
softplus       | input beta threshold | F                    | (0, inf)      | nn:Softplus
gumbel_softmax | logits tau hard dim  | F                    | [0, 1]        | composite

[float32 reduction]
logsumexp         | input dim keepdim           | torch special method
nuclear_norm      | input keepdim               | torch                | [0, inf)
renorm            | input p dim maxnorm         | torch method
dist              | input other p               | torch method         | [0, inf)
cdist             | x1 x2 p                     | torch                | [0, inf) | no-half
pdist             | input p                     | torch F              | [0, inf) | no-half
cosine_similarity | x1 x2 dim eps               | torch F              | [-1, 1]  | nn:CosineSimilarity
pairwise_distance | x1 x2 p eps                 | F                    | [0, inf) | nn:PairwiseDistance composite
lp_pool1d         | input norm_type kernel_size | F                    | [0, inf) | nn:LPPool1d composite
lp_pool2d         | input norm_type kernel_size | F                    | [0, inf) | nn:LPPool2d composite

[float32 norm]
layer_norm | input normalized_shape weight bias eps | F | |
    nn:LayerNorm aten:layer_norm,native_layer_norm
group_norm          | input num_groups weight bias eps  | F |         | nn:GroupNorm
rms_norm | input normalized_shape weight eps | F | |
    nn:RMSNorm before-2.9:float32 before-2.13:as_given
local_response_norm | input size alpha beta k           | F |         | nn:LocalResponseNorm composite
normalize           | input p dim eps                   | F | [-1, 1] | composite

[float32 layer]
interpolate=upsample=upsample_nearest=upsample_bilinear | input size scale_factor mode | F | |
    nn:Upsample,UpsamplingNearest2d,UpsamplingBilinear2d
    aten:upsample_nearest1d,upsample_nearest2d,upsample_nearest3d,upsample_linear1d,upsample_bilinear2d
    aten:upsample_trilinear3d,upsample_bicubic2d,_upsample_nearest_exact1d,_upsample_nearest_exact2d
    aten:_upsample_nearest_exact3d,_upsample_bilinear2d_aa,_upsample_bicubic2d_aa

[float32 loss]
nll_loss | input target weight | F | |
    nn:NLLLoss,NLLLoss2d aten:nll_loss,nll_loss2d
binary_cross_entropy_with_logits | input target weight             | F | [0, inf) | nn:BCEWithLogitsLoss
mse_loss               | input target                    | F | [0, inf) | nn:MSELoss
l1_loss                | input target                    | F | [0, inf) | nn:L1Loss
smooth_l1_loss         | input target                    | F | [0, inf) | nn:SmoothL1Loss
huber_loss             | input target                    | F | [0, inf) | nn:HuberLoss
kl_div                 | input target                    | F |          | nn:KLDivLoss
poisson_nll_loss       | input target                    | F |          | nn:PoissonNLLLoss
soft_margin_loss       | input target                    | F | [0, inf) | nn:SoftMarginLoss
hinge_embedding_loss   | input target                    | F |          | nn:HingeEmbeddingLoss
margin_ranking_loss    | input1 input2 target            | F | [0, inf) | nn:MarginRankingLoss
multilabel_margin_loss | input target                    | F | [0, inf) | nn:MultiLabelMarginLoss
multi_margin_loss      | input target                    | F | [0, inf) | nn:MultiMarginLoss
triplet_margin_loss    | anchor positive negative margin | F | [0, inf) | nn:TripletMarginLoss
triplet_margin_with_distance_loss | anchor positive negative | F | [0, inf) |
    nn:TripletMarginWithDistanceLoss composite
cosine_embedding_loss  | input1 input2 target            | F | [0, inf) | nn:CosineEmbeddingLoss

[float32 linalg]
matrix_sqrth | A |  |  | aten:linalg_matrix_sqrth no-half

[float32_unless_dtype elementwise]
softmax     | input dim dtype | torch F special method | [0, 1]    | nn:Softmax,Softmax2d
log_softmax | input dim dtype | torch F special method | (-inf, 0] | nn:LogSoftmax
softmin     | input dim dtype | F | [0, 1]    | nn:Softmin composite

[float32_unless_dtype reduction]
sum, prod         | input dim keepdim dtype   | torch method
cumsum, cumprod   | input dim dtype           | torch method
norm              | input p dim keepdim dtype | torch method | [0, inf) | aten:norm,frobenius_norm
linalg_norm       | A ord dim keepdim dtype   |              | [0, inf) | also:torch.linalg.norm composite
vector_norm       | x ord dim keepdim dtype   | linalg       | [0, inf) | aten:linalg_vector_norm
matrix_norm       | A ord dim keepdim dtype   | linalg       | [0, inf) | aten:linalg_matrix_norm

[widest matmul]
dot       | input tensor    | torch method
vdot      | input other     | torch method
tensordot | a b dims        | torch
cross     | input other dim | torch method
inner     | input other     | torch method |  | composite

[widest layer]
bilinear    | input1 input2 weight bias | F |  | nn:Bilinear
grid_sample | input grid mode           | F |  | aten:grid_sampler

[widest arithmetic]
atan2=arctan2    | input other           | torch method | [-pi, pi]
addcmul, addcdiv | input tensor1 tensor2 | torch method

[widest scatter]
scatter_add | input dim index src             | torch method
index_put   | input indices values accumulate | torch method

[banned loss]
binary_cross_entropy | input target weight | F | [0, inf) | nn:BCELoss

[as_given matmul]
outer=ger | input vec2  | torch method
kron      | input other | torch method

[as_given layer]
embedding     | input weight | F |  | nn:Embedding
embedding_bag | input weight | F |  | nn:EmbeddingBag
affine_grid   | theta size   | F

[as_given arithmetic]
add                    | input other alpha         | torch method         |          | op:+
sub=subtract           | input other alpha         | torch method         |          | op:-
rsub                   | input other alpha         | torch
mul=multiply           | input other               | torch method         |          | op:*
div=divide=true_divide | input other rounding_mode | torch method         |          | op:/
floor_divide           | input other               | torch method         |          | op://
remainder              | input other               | torch method         |          | op:%
fmod, maximum, minimum, fmax, fmin, logaddexp, logaddexp2, copysign, nextafter
    | input other | torch method
float_power            | input exponent            | torch method
lerp                   | input end weight          | torch method
hypot                  | input other               | torch method         | [0, inf)
xlogy                  | input other               | torch special method
xlog1py                | input other               | special
where                  | condition input other     | torch
where                  | input condition other     | method
heaviside              | input values              | torch method

[as_given elementwise]
sigmoid | input | torch F method | (0, 1) |
    also:torch.special.expit nn:Sigmoid
tanh                  | input                         | torch F method       | (-1, 1)        | nn:Tanh
logsigmoid            | input                         | F                    | (-inf, 0)      | nn:LogSigmoid
relu                  | input                         | torch F method       | [0, inf)       | nn:ReLU
relu6                 | input                         | F                    | [0, 6]         | nn:ReLU6
gelu                  | input approximate             | F                    | (-0.17, inf)   | nn:GELU
silu                  | input                         | F                    | (-0.2785, inf) | nn:SiLU
mish                  | input                         | F                    | (-0.3089, inf) | nn:Mish
elu                   | input alpha                   | F                    |                | nn:ELU
selu                  | input                         | torch F              | (-1.7581, inf) | nn:SELU
celu                  | input alpha                   | torch F              |                | nn:CELU
leaky_relu            | input negative_slope          | F                    |                | nn:LeakyReLU
rrelu                 | input lower upper training    | torch F              |                | nn:RReLU
glu                   | input dim                     | F                    |                | nn:GLU
hardtanh              | input min_val max_val         | F                    |                | nn:Hardtanh
hardsigmoid           | input                         | F                    | [0, 1]         | nn:Hardsigmoid
hardswish             | input                         | F                    | [-0.375, inf)  | nn:Hardswish
softsign              | input                         | F                    | (-1, 1)        | nn:Softsign
tanhshrink            | input                         | F                    |                | nn:Tanhshrink
hardshrink            | input lambd                   | torch F method       |                | nn:Hardshrink
softshrink            | input lambd                   | F                    |                | nn:Softshrink
threshold             | input threshold value         | torch F              |                | nn:Threshold
sqrt, acosh=arccosh   | input                         | torch method         | [0, inf)
abs=absolute          | input                         | torch method         | [0, inf)       | also:builtins.abs
neg=negative          | input                         | torch method         |                | op:-tensor
positive              | input                         | torch method         |                | op:+tensor
clamp=clip            | input min max                 | torch method
clamp_min             | input min                     | torch method
clamp_max             | input max                     | torch method
masked_fill           | input mask value              | torch method
nan_to_num            | input nan posinf neginf       | torch method
exp2                  | input                         | torch special method | (0, inf)
logit                 | input eps                     | torch special method
erf                   | input                         | torch special method | (-1, 1)
erfc                  | input                         | torch special method | (0, 2)
atan=arctan           | input                         | torch method         | (-pi/2, pi/2)
sin, cos, sign, sgn   | input                         | torch method         | [-1, 1]
sinc                  | input                         | torch special method | (-0.2173, 1]
frac                  | input                         | torch method         | (-1, 1)
i0                    | input                         | torch special method | [1, inf)
entr, log_ndtr        | input                         | special
ndtr                  | input                         | special              | (0, 1)
asinh=arcsinh, atanh=arctanh, digamma, lgamma, deg2rad, rad2deg, ceil, floor, trunc, diag_embed
    | input | torch method
round                 | input decimals                | torch method
dropout               | input p training              | F                    |                | nn:Dropout
dropout1d             | input p training              | F                    |                | nn:Dropout1d
dropout2d             | input p training              | F                    |                | nn:Dropout2d
dropout3d             | input p training              | F                    |                | nn:Dropout3d
alpha_dropout | input p training | F | |
    nn:AlphaDropout
feature_alpha_dropout | input p training | F | |
    nn:FeatureAlphaDropout
tril, triu, diag      | input diagonal                | torch method
pad                   | input pad mode value          | F
fold                  | input output_size kernel_size | F                    |                | nn:Fold

[as_given shape]
identity                   | input                             |              |  | nn:Identity
getitem                    | input index                       |              |  | op:[]
view                       | input shape                       | method
reshape                    | input shape                       | torch method
flatten                    | input start_dim end_dim           | torch method |  | nn:Flatten
unflatten                  | input dim sizes                   | torch method |  | nn:Unflatten
ravel, fliplr, flipud, clone, detach, diagonal | input                             | torch method
squeeze, unsqueeze, unbind | input dim                         | torch method
transpose=swapaxes=swapdims | input dim0 dim1                   | torch method
t                          | input                             | torch method |  | also:Tensor.T,Tensor.mT,Tensor.H,Tensor.mH
permute, tile, flip        | input dims                        | torch method
movedim=moveaxis           | input source destination          | torch method
expand                     | input size                        | method
expand_as, view_as, reshape_as | input other                       | method
broadcast_to               | input size                        | torch method
repeat                     | input repeats                     | method
repeat_interleave          | input repeats dim                 | torch method
roll                       | input shifts dims                 | torch method
contiguous                 | input                             | method
narrow                     | input dim start length            | torch method
select, index_select, gather | input dim index                   | torch method
chunk                      | input chunks dim                  | torch method
split                      | tensor split_size_or_sections dim | torch method
tensor_split               | input indices_or_sections dim     | torch method
take_along_dim             | input indices dim                 | torch method
masked_select              | input mask                        | torch method
take                       | input index                       | torch method
unfold                     | input kernel_size                 | F            |  | nn:Unfold
pixel_shuffle              | input upscale_factor              | torch F      |  | nn:PixelShuffle
pixel_unshuffle            | input downscale_factor            | torch F      |  | nn:PixelUnshuffle
cat=concat=concatenate, stack | tensors dim                       | torch
hstack, vstack, dstack, column_stack, row_stack, block_diag | tensors                           | torch
meshgrid                   | tensors indexing                  | torch
cuda, cpu                  | input device                      | method
pin_memory, requires_grad_, data | input                             | method

[as_given reduction]
nansum               | input dim keepdim dtype      | torch method
logcumsumexp         | input dim                    | torch method
var, std             | input dim correction keepdim | torch method | [0, inf)
var_mean, std_mean   | input dim correction keepdim | torch
cov, corrcoef, trace | input                        | torch method
diff                 | input n dim                  | torch method

[as_given selection]
mean, nanmean         | input dim keepdim dtype | torch method
median, nanmedian, max, min, mode | input dim keepdim | torch method
sort                  | input dim descending    | torch method
aminmax, unique       | input                   | torch method
amax, amin            | input dim keepdim       | torch method
cummax, cummin        | input dim               | torch method
topk, kthvalue        | input k dim             | torch method
quantile, nanquantile | input q dim             | torch method |  | no-half
max_pool1d            | input kernel_size       | F            |  | nn:MaxPool1d
avg_pool1d            | input kernel_size       | F            |  | nn:AvgPool1d
adaptive_avg_pool1d   | input output_size       | F            |  | nn:AdaptiveAvgPool1d
adaptive_max_pool1d   | input output_size       | F            |  | nn:AdaptiveMaxPool1d
max_pool2d            | input kernel_size       | F            |  | nn:MaxPool2d
avg_pool2d            | input kernel_size       | F            |  | nn:AvgPool2d
adaptive_avg_pool2d   | input output_size       | F            |  | nn:AdaptiveAvgPool2d
adaptive_max_pool2d   | input output_size       | F            |  | nn:AdaptiveMaxPool2d
max_pool3d            | input kernel_size       | F            |  | nn:MaxPool3d
avg_pool3d            | input kernel_size       | F            |  | nn:AvgPool3d
adaptive_avg_pool3d   | input output_size       | F            |  | nn:AdaptiveAvgPool3d
adaptive_max_pool3d   | input output_size       | F            |  | nn:AdaptiveMaxPool3d

[as_given comparison]
eq               | input other           | torch method | [0, 1]   | op:== bool
ne=not_equal     | input other           | torch method | [0, 1]   | op:!= bool
lt=less          | input other           | torch method | [0, 1]   | op:< bool
le=less_equal    | input other           | torch method | [0, 1]   | op:<= bool
gt=greater       | input other           | torch method | [0, 1]   | op:> bool
ge=greater_equal | input other           | torch method | [0, 1]   | op:>= bool
isnan, isinf, isfinite, isposinf, isneginf, signbit, logical_not
    | input | torch method | [0, 1] | bool
any, all         | input dim keepdim     | torch method | [0, 1]   | bool
logical_and, logical_or, logical_xor, isclose | input other           | torch method | [0, 1]   | bool
argmax, argmin   | input dim keepdim     | torch method | [0, inf) | int64
count_nonzero    | input dim             | torch method | [0, inf) | int64
nonzero          | input                 | torch method | [0, inf) | int64
argsort          | input dim descending  | torch method | [0, inf) | int64
searchsorted     | sorted_sequence input | torch        | [0, inf) | int64
bucketize        | input boundaries      | torch        | [0, inf) | int64
one_hot          | tensor num_classes    | F            | [0, 1]   | int64
bitwise_and      | input other           | torch method |          | op:&
bitwise_or       | input other           | torch method |          | op:|
bitwise_xor      | input other           | torch method |          | op:^
bitwise_not      | input                 | torch method |          | op:~tensor
multinomial      | input num_samples     | torch method | [0, inf) | int64

[as_given cast]
float, half, bfloat16, double, int, long, short, bool, char, byte | input       | method
to, type     | input dtype | method
item, tolist | input       | method |  | number
type_as      | input other | method

[as_given create]
tensor, as_tensor=asarray | data dtype                  | torch
from_numpy                | ndarray                     | torch
scalar_tensor             | s dtype                     | torch
zeros                     | size dtype                  | torch        | [0, 0]
ones                      | size dtype                  | torch        | [1, 1]
full                      | size fill_value dtype       | torch
empty, randn              | size dtype                  | torch
rand                      | size dtype                  | torch        | [0, 1)
randint                   | low high size dtype         | torch        |          | int64
randperm                  | n dtype                     | torch        | [0, inf) | int64
arange                    | start end step dtype        | torch
linspace                  | start end steps dtype       | torch
logspace                  | start end steps base dtype  | torch        | (0, inf)
eye                       | n m dtype                   | torch        | [0, 1]
normal                    | mean std size dtype         | torch
zeros_like                | input dtype                 | torch        | [0, 0]
ones_like                 | input dtype                 | torch        | [1, 1]
full_like                 | input fill_value dtype      | torch
empty_like, randn_like    | input dtype                 | torch
rand_like                 | input dtype                 | torch        | [0, 1)
bernoulli                 | input p                     | torch method | [0, 1]
new_zeros                 | input size dtype            | method       | [0, 0]
new_ones                  | input size dtype            | method       | [1, 1]
new_full                  | input size fill_value dtype | method
new_empty                 | input size dtype            | method
new_tensor                | input data dtype            | method

[as_given scatter]
setitem               | input index value          |              |        | op:[]=
scatter               | input dim index src        | torch method
scatter_reduce        | input dim index src reduce | torch method
index_add, index_copy | input dim index source     | torch method
index_fill            | input dim index value      | torch method
masked_scatter        | input mask source          | torch method
copy_                 | input src                  | method
fill_                 | input value                | method
zero_                 | input                      | method       | [0, 0]
uniform_              | input from to              | method
normal_               | input mean std             | method

[as_given norm]
batch_norm | input running_mean running_var weight bias training momentum eps | F | |
    nn:BatchNorm1d,BatchNorm2d,BatchNorm3d,SyncBatchNorm,LazyBatchNorm1d,LazyBatchNorm2d,LazyBatchNorm3d
instance_norm | input running_mean running_var weight bias use_input_stats momentum eps | F | |
    nn:InstanceNorm1d,InstanceNorm2d,InstanceNorm3d

[as_given loss]
cross_entropy     | input target weight       | F | [0, inf) | nn:CrossEntropyLoss returns:float32
gaussian_nll_loss | input target var full eps | F |          | nn:GaussianNLLLoss returns:float32
multilabel_soft_margin_loss | input target | F | [0, inf) |
    nn:MultiLabelSoftMarginLoss returns:float32
ctc_loss          | log_probs targets input_lengths target_lengths | F |          | nn:CTCLoss no-half

[as_given linalg]
det, slogdet, cholesky, qr, svd, matrix_exp | A         | torch linalg method |  | no-half
inv                       | A         | linalg              |  | also:torch.inverse,Tensor.inverse no-half
pinv                      | A         | linalg              |  | also:torch.pinverse,Tensor.pinverse no-half
cholesky_ex, inv_ex, svdvals, eig, eigvals, eigh, eigvalsh, matrix_rank, cond, lu, lu_factor, lu_factor_ex
    | A | linalg | | no-half
ldl_factor                | A         | linalg              |  | no-half
solve, lstsq, tensorsolve | A B       | linalg              |  | no-half
solve_triangular          | A B upper | linalg              |  | no-half
cholesky_solve            | input L   | torch method        |  | no-half
logdet, cholesky_inverse, geqrf | input     | torch method        |  | no-half

[as_given fft]
fft, ifft, rfft, irfft, hfft, ihfft | input n dim | fft
fft2, ifft2, rfft2, irfft2, fftn, ifftn, rfftn, irfftn | input s dim | fft
stft, istft | input n_fft | torch method
"""

_PLACES = {
    "torch": "torch.",
    "F": "torch.nn.functional.",
    "special": "torch.special.",
    "linalg": "torch.linalg.",
    "fft": "torch.fft.",
    "method": "Tensor.",
}
_RESULTS = ("bool", "int64", "number")


@dataclass(frozen=True, slots=True)
class _Index:
    rows: tuple[Operation, ...]
    names: dict[str, Operation]
    functions: dict[str, Operation]
    methods: dict[str, Operation]
    modules: dict[str, Operation]
    operators: dict[str, Operation]


@cache
def _index() -> _Index:
    rows = tuple(_parse(_TABLE))
    return _Index(
        rows=rows,
        names={row.name: row for row in reversed(rows)},
        functions={spelling: row for row in rows for spelling in row.functions},
        methods={spelling: row for row in rows for spelling in row.methods},
        modules={spelling: row for row in rows for spelling in row.modules},
        operators={symbol: row for row in rows for symbol in row.operators},
    )


def _parse(table: str) -> Iterator[Operation]:
    cast, kind = Cast.AS_GIVEN, Kind.ELEMENTWISE
    for line in table.replace("\n    ", " ").splitlines():
        if line.startswith("["):
            cast_name, kind_name = line.strip("[]").split()
            cast, kind = Cast[cast_name.upper()], Kind[kind_name.upper()]
        elif line:
            names, parameters, places, interval, notes = (line.split("|", 4) + [""] * 3)[:5]
            for name in names.split(","):
                yield _row(name.strip().split("="), cast, kind, parameters.split(), places.split(), interval, notes)


def _row(
    names: list[str],
    cast: Cast,
    kind: Kind,
    parameters: list[str],
    places: list[str],
    interval: str,
    notes: str,
) -> Operation:
    noted: dict[str, list[str]] = {}
    for note in notes.split():
        key, _, value = note.partition(":")
        noted.setdefault(key, []).extend(value.split(","))
    spellings = [_PLACES[place] + name for place in places for name in names] + noted.get("also", [])
    listed = cast is not Cast.AS_GIVEN and "composite" not in noted
    return Operation(
        name=names[0],
        cast=cast,
        kind=kind,
        parameters=tuple(parameters),
        functions=tuple(s for s in spellings if not s.startswith("Tensor.")),
        methods=tuple(s.removeprefix("Tensor.") for s in spellings if s.startswith("Tensor.")),
        modules=tuple("torch.nn." + module for module in noted.get("nn", [])),
        operators=tuple(noted.get("op", [])),
        range=_range(interval.strip()),
        aten=tuple(noted.get("aten", names[:1] if listed else [])),
        returns=Cast[noted["returns"][0].upper()] if "returns" in noted else None,
        result=next((result for result in _RESULTS if result in noted), ""),
        half="no-half" not in noted,
        earlier=tuple((_version(key), Cast[value[0].upper()]) for key, value in noted.items() if "before-" in key),
    )


def _range(interval: str) -> Range:
    if not interval:
        return Range()
    lower, upper = (_number(end) for end in interval[1:-1].split(","))
    return Range(lower, upper, interval[0] == "[", interval[-1] == "]")


def _number(text: str) -> float:
    numerator, _, denominator = text.strip().replace("pi", str(pi)).partition("/")
    return float(numerator) / float(denominator or 1)


def _version(note: str) -> Version:
    major, minor = note.removeprefix("before-").split(".")
    return int(major), int(minor)


@cache
def _in_place(spelling: str, is_method: bool) -> Operation | None:
    if not spelling.endswith("_") or spelling.endswith("__"):
        return None
    index = _index()
    operation = (index.methods if is_method else index.functions).get(spelling[:-1])
    if operation is None:
        return None
    return replace(operation, cast=Cast.AS_GIVEN, returns=None, earlier=(), in_place=True)
