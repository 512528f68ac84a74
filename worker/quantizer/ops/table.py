"""What the engine knows of ONNX operators: one record each; of those that are not here it claims nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from functools import partial
from typing import Any


class Family(Enum):
    """What an operator is."""

    CONVOLUTION = "multiplies patches by a weight"
    PRODUCT = "multiplies matrices"
    AFFINE = "scales and shifts each channel by stored numbers"
    NORMALIZATION = "divides by a deviation or a length that it takes of its data"
    RECURRENT = "goes along a sequence with a state"
    ACTIVATION = "an activation function: each element from one element"
    SOFTMAX = "makes probabilities along an axis"
    ARITHMETIC = "adds, subtracts, multiplies or divides two operands"
    EXTREMUM = "takes the larger or the smaller of its operands"
    FUNCTION = "another function of each element"
    POOL = "reduces windows"
    GLOBAL_POOL = "reduces all positions"
    REDUCTION = "reduces axes"
    REARRANGEMENT = "hands on every element once, in another shape or along other axes"
    SHUFFLE = "moves elements between channels and positions"
    SELECTION = "hands on some elements, or some several times"
    OTHER = "anything else"


class Sign(Enum):
    """When no element of the results is negative."""

    UNKNOWN = "cannot be told"
    NEVER_NEGATIVE = "always"
    AS_FIRST = "if none of the first operand is"
    AS_ALL = "if none of any operand is"
    AS_ANY = "if none of at least one operand is"


class Scores(Enum):
    """Whether an output that the operator makes holds class scores."""

    YES = "it does"
    NO = "it does not"
    BY_SHAPE = "if it is a row of classes"


class Float16(Enum):
    """Whether float32 that the operator computes may become float16; kernels that are missing aside."""

    BY_SCHEMA = "where its schema lets a type be either"
    NEVER = "its definition has float32 constants"
    UNREDUCED = "unless it reduces what meets at one place, for which there is no kernel"


class Reconstruction(Enum):
    """What a unit of AdaRound or AdaQuant does with the operator (see ``finetune/blocks.py``)."""

    WEIGHT = "its weight is rounded again"
    NORM = "its scales are learned"
    FOLLOWS = "it ends a layer's unit"
    INSIDE = "it may be inside a block"


# A function of tensors, or the name of one in torch.nn.functional.
TorchForm = str | Callable[..., Any]


@dataclass(frozen=True)
class Operator:
    """What the engine knows of an operator of the default ONNX domain.

    The defaults claim nothing. Fields name facts of the operator, not who reads them; what a target computes in
    integers is told by ``plan/targets``, and how channels pass by ``channels``.
    """

    family: Family = Family.OTHER  # what it is
    _: KW_ONLY
    sign: Sign = Sign.UNKNOWN  # when its results are not negative
    within_one: bool = False  # its results lie within [0, 1]
    exponential: bool = False  # a rounding step of its operand is a relative error of its result, however small that is
    needs_digits: bool = False  # it makes so much of small differences that 8 or 16 bits are too few
    limits: bool = False  # it hands on what lies within two limits, and the nearest of these for anything else
    pointwise: bool = False  # each element of the result is made of those of the operands at the same place
    homogeneous: bool = False  # a positive factor per channel before it is the same factor behind it
    # its results are elements of its operands, sums or products of them, and keep a large one large
    carries: bool = False
    keeps_values: bool = False  # its results are the elements of the first operand, each at least once
    keeps_scale: bool = False  # integers that it reads with one scale and zero point stand for what it makes with these
    size_by_values: bool = False  # how many elements it makes hangs on the values that it reads, not on shapes
    # an operand says how large its result is; without a constant there that cannot be told
    grows_by_values: bool = False
    computes_shapes: bool = False  # it makes shapes, or what has a shape that it is given
    joins_shapes: bool = False  # onnx's shape inference carries the values of shapes through it
    repeats_body: bool = False  # it runs a sub-graph several times
    slow_reference: bool = False  # onnx's reference implementation loops over elements in Python
    divisor: int | None = None  # which input is divided by, or of which a logarithm is taken; None for others
    bias: int | None = None  # which input is added per output channel; None for others
    parameters: tuple[int, ...] = ()  # which inputs scale and shift channels; none for weights of products
    trained: tuple[int, ...] = ()  # which inputs quantization-aware training moves
    channel_axis: int | None = None  # axis of the channels in what it makes; None where that follows from what it reads
    scores: Scores | None = None  # whether it makes class scores; None where that follows from nothing
    float16: Float16 = Float16.BY_SCHEMA  # what becomes of it in float16
    reconstruction: Reconstruction | None = None  # what it is in a unit that is reconstructed; None: no unit holds it
    integer_form: str | None = None  # operator that computes it on integers whose grid is found at run time
    # its form in torch, called with its inputs and its ``attributes``; None where ``autodiff`` has the form, or nothing
    # has
    torch: TorchForm | None = None
    # by argument of ``torch``: attribute of the node, and its default
    attributes: Mapping[str, tuple[str, float | int | str]] = field(default_factory=dict)

    @property
    def is_linear(self) -> bool:
        """True for products with a weight: Conv, ConvTranspose, Gemm, MatMul."""
        return self.family in (Family.CONVOLUTION, Family.PRODUCT)


# What groups of operators have in common.
_followed = partial(Operator, Family.ACTIVATION, pointwise=True, reconstruction=Reconstruction.FOLLOWS)
_weighted = partial(Operator, reconstruction=Reconstruction.WEIGHT)
_normalizing = partial(
    Operator,
    Family.NORMALIZATION,
    parameters=(1, 2),
    trained=(1, 2),
    scores=Scores.NO,
    reconstruction=Reconstruction.NORM,
)
_combining = partial(Operator, pointwise=True, carries=True, reconstruction=Reconstruction.INSIDE)
_rearranging = partial(Operator, Family.REARRANGEMENT, sign=Sign.AS_FIRST, keeps_values=True, keeps_scale=True)
_selecting = partial(Operator, Family.SELECTION, sign=Sign.AS_FIRST, carries=True, keeps_scale=True)

# Defaults of attributes are those of the ONNX operator reference.
_ACTIVATIONS: Mapping[str, Operator] = {
    "Celu": Operator(Family.ACTIVATION, torch="celu", attributes={"alpha": ("alpha", 1.0)}),
    "Clip": _followed(limits=True, carries=True),
    "Elu": Operator(Family.ACTIVATION, pointwise=True, torch="elu", attributes={"alpha": ("alpha", 1.0)}),
    "Gelu": _followed(torch="gelu", attributes={"approximate": ("approximate", "none")}),
    "HardSigmoid": _followed(
        sign=Sign.NEVER_NEGATIVE,
        within_one=True,
        torch=lambda x, alpha, beta: (x * alpha + beta).clamp(0.0, 1.0),
        attributes={"alpha": ("alpha", 0.2), "beta": ("beta", 0.5)},
    ),
    "HardSwish": _followed(torch="hardswish"),
    "LeakyRelu": _followed(homogeneous=True, torch="leaky_relu", attributes={"negative_slope": ("alpha", 0.01)}),
    "Mish": Operator(Family.ACTIVATION, pointwise=True, torch="mish"),
    "PRelu": _followed(trained=(1,), torch=lambda x, slope: (x * slope).where(x < 0.0, x)),
    "Relu": _followed(sign=Sign.NEVER_NEGATIVE, limits=True, homogeneous=True, scores=Scores.NO, torch="relu"),
    "Selu": Operator(Family.ACTIVATION, pointwise=True),
    "Shrink": Operator(Family.ACTIVATION),
    "Sigmoid": _followed(
        sign=Sign.NEVER_NEGATIVE, within_one=True, exponential=True, scores=Scores.BY_SHAPE, torch="sigmoid"
    ),
    "Softplus": _followed(sign=Sign.NEVER_NEGATIVE, torch="softplus"),
    "Softsign": Operator(Family.ACTIVATION, pointwise=True, torch="softsign"),
    "Swish": _followed(torch=lambda x, alpha: x * (x * alpha).sigmoid(), attributes={"alpha": ("alpha", 1.0)}),
    "Tanh": _followed(scores=Scores.NO, torch="tanh"),
    "ThresholdedRelu": Operator(
        Family.ACTIVATION, torch=lambda x, alpha: x.masked_fill(x <= alpha, 0.0), attributes={"alpha": ("alpha", 1.0)}
    ),
    "LogSoftmax": Operator(
        Family.SOFTMAX, exponential=True, scores=Scores.YES, torch="log_softmax", attributes={"dim": ("axis", -1)}
    ),
    "Softmax": Operator(
        Family.SOFTMAX,
        sign=Sign.NEVER_NEGATIVE,
        within_one=True,
        exponential=True,
        scores=Scores.YES,
        reconstruction=Reconstruction.FOLLOWS,
        torch="softmax",
        attributes={"dim": ("axis", -1)},
    ),
}

_LAYERS: Mapping[str, Operator] = {
    "Conv": _weighted(
        Family.CONVOLUTION, bias=2, trained=(1, 2), channel_axis=1, scores=Scores.BY_SHAPE, integer_form="ConvInteger"
    ),
    "ConvTranspose": _weighted(Family.CONVOLUTION, bias=2, trained=(1, 2), channel_axis=1),
    "Gemm": _weighted(
        Family.PRODUCT, bias=2, trained=(1, 2), channel_axis=-1, scores=Scores.BY_SHAPE, integer_form="MatMulInteger"
    ),
    "MatMul": _weighted(
        Family.PRODUCT, trained=(1,), channel_axis=-1, scores=Scores.BY_SHAPE, integer_form="MatMulInteger"
    ),
    "BatchNormalization": Operator(Family.AFFINE, parameters=(1, 2), trained=(1, 2), channel_axis=1),
    # Before opset 21 its parameters belong to groups, not to channels.
    "GroupNormalization": Operator(Family.NORMALIZATION, trained=(1, 2)),
    "InstanceNormalization": _normalizing(channel_axis=1),
    "LayerNormalization": _normalizing(channel_axis=-1),
    "RMSNormalization": Operator(Family.NORMALIZATION, parameters=(1,), channel_axis=-1),
    "LRN": Operator(slow_reference=True),
    "LpNormalization": Operator(scores=Scores.NO),
    "MeanVarianceNormalization": Operator(float16=Float16.NEVER),
    "GRU": Operator(Family.RECURRENT, slow_reference=True),
    "LSTM": Operator(Family.RECURRENT, slow_reference=True),
    "RNN": Operator(Family.RECURRENT, slow_reference=True),
}
_POOLS: Mapping[str, Operator] = {
    "AveragePool": Operator(Family.POOL, sign=Sign.AS_FIRST, slow_reference=True, scores=Scores.BY_SHAPE),
    "LpPool": Operator(Family.POOL, sign=Sign.AS_FIRST, slow_reference=True),
    "MaxPool": Operator(Family.POOL, sign=Sign.AS_FIRST, keeps_scale=True, slow_reference=True),
    "GlobalAveragePool": Operator(
        Family.GLOBAL_POOL,
        sign=Sign.AS_FIRST,
        channel_axis=1,
        scores=Scores.BY_SHAPE,
        reconstruction=Reconstruction.INSIDE,
    ),
    "GlobalMaxPool": Operator(Family.GLOBAL_POOL, sign=Sign.AS_FIRST),
    "ReduceL1": Operator(Family.REDUCTION, sign=Sign.NEVER_NEGATIVE),
    "ReduceL2": Operator(Family.REDUCTION, sign=Sign.NEVER_NEGATIVE),
    "ReduceMax": Operator(Family.REDUCTION, sign=Sign.AS_FIRST, keeps_scale=True),
    "ReduceMean": Operator(Family.REDUCTION, sign=Sign.AS_FIRST, scores=Scores.BY_SHAPE),
    "ReduceMin": Operator(Family.REDUCTION, sign=Sign.AS_FIRST, keeps_scale=True),
    "ReduceProd": Operator(Family.REDUCTION, sign=Sign.AS_FIRST),
    "ReduceSum": Operator(Family.REDUCTION, sign=Sign.AS_FIRST),
    "ReduceSumSquare": Operator(Family.REDUCTION, sign=Sign.NEVER_NEGATIVE),
}
_ARITHMETIC: Mapping[str, Operator] = {
    "Add": _combining(Family.ARITHMETIC, sign=Sign.AS_ALL, joins_shapes=True, scores=Scores.BY_SHAPE),
    "Div": Operator(Family.ARITHMETIC, sign=Sign.AS_ALL, needs_digits=True, pointwise=True, divisor=1),
    "Mul": _combining(Family.ARITHMETIC, sign=Sign.AS_ALL, joins_shapes=True),
    "Sub": Operator(Family.ARITHMETIC, pointwise=True, carries=True, joins_shapes=True),
    "Max": _combining(Family.EXTREMUM, sign=Sign.AS_ANY, keeps_scale=True),
    "Min": _combining(Family.EXTREMUM, sign=Sign.AS_ALL, keeps_scale=True),
    "Abs": Operator(Family.FUNCTION, sign=Sign.NEVER_NEGATIVE, pointwise=True, homogeneous=True),
    "Erf": Operator(Family.FUNCTION, pointwise=True),
    "Exp": Operator(Family.FUNCTION, sign=Sign.NEVER_NEGATIVE, exponential=True, needs_digits=True, pointwise=True),
    "Log": Operator(Family.FUNCTION, needs_digits=True, divisor=0),
    "Neg": Operator(Family.FUNCTION, pointwise=True, homogeneous=True),
    "Pow": Operator(Family.FUNCTION, needs_digits=True, pointwise=True, divisor=0),
    "Reciprocal": Operator(Family.FUNCTION, needs_digits=True, divisor=0),
    "Sqrt": Operator(Family.FUNCTION, sign=Sign.NEVER_NEGATIVE, needs_digits=True),
    "Mean": Operator(sign=Sign.AS_ALL),
    "Sum": Operator(sign=Sign.AS_ALL),
    "CumSum": Operator(slow_reference=True),
}
_MOVERS: Mapping[str, Operator] = {
    "Cast": Operator(carries=True, keeps_values=True, joins_shapes=True),
    "Dropout": Operator(sign=Sign.AS_FIRST, homogeneous=True, keeps_values=True),
    "Flatten": _rearranging(),
    "Identity": _rearranging(carries=True, joins_shapes=True, reconstruction=Reconstruction.INSIDE),
    "Reshape": _rearranging(carries=True, joins_shapes=True),
    "Squeeze": _rearranging(carries=True, joins_shapes=True),
    "Transpose": _rearranging(carries=True),
    "Unsqueeze": _rearranging(carries=True, joins_shapes=True),
    "DepthToSpace": Operator(Family.SHUFFLE, sign=Sign.AS_FIRST, keeps_scale=True),
    "SpaceToDepth": Operator(Family.SHUFFLE, sign=Sign.AS_FIRST, keeps_scale=True),
    "Expand": _selecting(keeps_values=True, grows_by_values=True),
    "Gather": _selecting(joins_shapes=True),
    "GatherElements": Operator(Family.SELECTION, keeps_scale=True),
    "GatherND": Operator(Family.SELECTION, keeps_scale=True),
    "Slice": _selecting(joins_shapes=True),
    "Split": _selecting(),
    "Tile": _selecting(grows_by_values=True),
    "Concat": Operator(sign=Sign.AS_ALL, carries=True, keeps_scale=True, joins_shapes=True),
    "Pad": Operator(grows_by_values=True),
    "Resize": Operator(keeps_scale=True, grows_by_values=True, slow_reference=True),
    "ScatterElements": Operator(float16=Float16.UNREDUCED),
    "ScatterND": Operator(float16=Float16.UNREDUCED),
    "Trilu": Operator(grows_by_values=True),
    "Upsample": Operator(grows_by_values=True, slow_reference=True),
    "Where": Operator(carries=True, keeps_scale=True),
}
_OTHERS: Mapping[str, Operator] = {
    "ConstantOfShape": Operator(computes_shapes=True, grows_by_values=True),
    "Shape": Operator(sign=Sign.NEVER_NEGATIVE, computes_shapes=True),
    "Size": Operator(sign=Sign.NEVER_NEGATIVE),
    "OneHot": Operator(grows_by_values=True),
    "Range": Operator(grows_by_values=True),
    "Compress": Operator(size_by_values=True),
    "NonMaxSuppression": Operator(size_by_values=True, slow_reference=True),
    "NonZero": Operator(size_by_values=True),
    "Unique": Operator(size_by_values=True),
    "If": Operator(size_by_values=True),
    "Loop": Operator(size_by_values=True, repeats_body=True),
    "Scan": Operator(repeats_body=True, slow_reference=True),
    "SequenceMap": Operator(repeats_body=True),
    **dict.fromkeys(
        ("AffineGrid", "Col2Im", "DeformConv", "GridSample", "MaxRoiPool", "MaxUnpool", "RoiAlign"),
        Operator(slow_reference=True),
    ),
    **dict.fromkeys(("StringNormalizer", "TfIdfVectorizer"), Operator(slow_reference=True)),
}
OPERATORS: Mapping[str, Operator] = {**_ACTIVATIONS, **_LAYERS, **_POOLS, **_ARITHMETIC, **_MOVERS, **_OTHERS}
_UNKNOWN = Operator()


def operator(op_type: str) -> Operator:
    """The record of an operator; one that claims nothing where there is none."""
    return OPERATORS.get(op_type, _UNKNOWN)


def named(fits: Callable[[Operator], object]) -> tuple[str, ...]:
    """Names of the operators whose record fits."""
    return tuple(op_type for op_type, record in OPERATORS.items() if fits(record))
