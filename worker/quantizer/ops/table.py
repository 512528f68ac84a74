"""The ONNX operators that the engine knows something of, one record each.

An operator that is not here has a record that claims nothing: it stays in float, and nothing is told of its results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from worker.quantizer.ops.record import Family, Float16, Operator, Reconstruction, Scores, Sign

# Defaults of attributes are those of the ONNX operator reference.
_ACTIVATIONS: Mapping[str, Operator] = {
    "Celu": Operator(Family.ACTIVATION, torch="celu", attributes={"alpha": ("alpha", 1.0)}),
    "Clip": Operator(
        Family.ACTIVATION, limits=True, pointwise=True, carries=True, reconstruction=Reconstruction.FOLLOWS
    ),
    "Elu": Operator(Family.ACTIVATION, pointwise=True, torch="elu", attributes={"alpha": ("alpha", 1.0)}),
    "Gelu": Operator(
        Family.ACTIVATION,
        pointwise=True,
        reconstruction=Reconstruction.FOLLOWS,
        torch="gelu",
        attributes={"approximate": ("approximate", "none")},
    ),
    "HardSigmoid": Operator(
        Family.ACTIVATION,
        sign=Sign.NEVER_NEGATIVE,
        within_one=True,
        pointwise=True,
        reconstruction=Reconstruction.FOLLOWS,
        torch=lambda x, alpha, beta: (x * alpha + beta).clamp(0.0, 1.0),
        attributes={"alpha": ("alpha", 0.2), "beta": ("beta", 0.5)},
    ),
    "HardSwish": Operator(Family.ACTIVATION, pointwise=True, reconstruction=Reconstruction.FOLLOWS, torch="hardswish"),
    "LeakyRelu": Operator(
        Family.ACTIVATION,
        pointwise=True,
        homogeneous=True,
        reconstruction=Reconstruction.FOLLOWS,
        torch="leaky_relu",
        attributes={"negative_slope": ("alpha", 0.01)},
    ),
    "Mish": Operator(Family.ACTIVATION, pointwise=True, torch="mish"),
    "PRelu": Operator(
        Family.ACTIVATION,
        pointwise=True,
        trained=(1,),
        reconstruction=Reconstruction.FOLLOWS,
        torch=lambda x, slope: (x * slope).where(x < 0.0, x),
    ),
    "Relu": Operator(
        Family.ACTIVATION,
        sign=Sign.NEVER_NEGATIVE,
        limits=True,
        pointwise=True,
        homogeneous=True,
        scores=Scores.NO,
        reconstruction=Reconstruction.FOLLOWS,
        torch="relu",
    ),
    "Selu": Operator(Family.ACTIVATION, pointwise=True),
    "Shrink": Operator(Family.ACTIVATION),
    "Sigmoid": Operator(
        Family.ACTIVATION,
        sign=Sign.NEVER_NEGATIVE,
        within_one=True,
        exponential=True,
        pointwise=True,
        scores=Scores.BY_SHAPE,
        reconstruction=Reconstruction.FOLLOWS,
        torch="sigmoid",
    ),
    "Softplus": Operator(
        Family.ACTIVATION,
        sign=Sign.NEVER_NEGATIVE,
        pointwise=True,
        reconstruction=Reconstruction.FOLLOWS,
        torch="softplus",
    ),
    "Softsign": Operator(Family.ACTIVATION, pointwise=True, torch="softsign"),
    "Swish": Operator(
        Family.ACTIVATION,
        pointwise=True,
        reconstruction=Reconstruction.FOLLOWS,
        torch=lambda x, alpha: x * (x * alpha).sigmoid(),
        attributes={"alpha": ("alpha", 1.0)},
    ),
    "Tanh": Operator(
        Family.ACTIVATION, pointwise=True, scores=Scores.NO, reconstruction=Reconstruction.FOLLOWS, torch="tanh"
    ),
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
    "Conv": Operator(
        Family.CONVOLUTION,
        bias=2,
        trained=(1, 2),
        channel_axis=1,
        scores=Scores.BY_SHAPE,
        reconstruction=Reconstruction.WEIGHT,
        integer_form="ConvInteger",
    ),
    "ConvTranspose": Operator(
        Family.CONVOLUTION, bias=2, trained=(1, 2), channel_axis=1, reconstruction=Reconstruction.WEIGHT
    ),
    "Gemm": Operator(
        Family.PRODUCT,
        bias=2,
        trained=(1, 2),
        channel_axis=-1,
        scores=Scores.BY_SHAPE,
        reconstruction=Reconstruction.WEIGHT,
        integer_form="MatMulInteger",
    ),
    "MatMul": Operator(
        Family.PRODUCT,
        trained=(1,),
        channel_axis=-1,
        scores=Scores.BY_SHAPE,
        reconstruction=Reconstruction.WEIGHT,
        integer_form="MatMulInteger",
    ),
    "BatchNormalization": Operator(Family.AFFINE, parameters=(1, 2), trained=(1, 2), channel_axis=1),
    # Before opset 21 its parameters belong to groups, not to channels.
    "GroupNormalization": Operator(Family.NORMALIZATION, trained=(1, 2)),
    "InstanceNormalization": Operator(
        Family.NORMALIZATION,
        parameters=(1, 2),
        trained=(1, 2),
        channel_axis=1,
        scores=Scores.NO,
        reconstruction=Reconstruction.NORM,
    ),
    "LayerNormalization": Operator(
        Family.NORMALIZATION,
        parameters=(1, 2),
        trained=(1, 2),
        channel_axis=-1,
        scores=Scores.NO,
        reconstruction=Reconstruction.NORM,
    ),
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
    "Add": Operator(
        Family.ARITHMETIC,
        sign=Sign.AS_ALL,
        pointwise=True,
        carries=True,
        joins_shapes=True,
        scores=Scores.BY_SHAPE,
        reconstruction=Reconstruction.INSIDE,
    ),
    "Div": Operator(Family.ARITHMETIC, sign=Sign.AS_ALL, needs_digits=True, pointwise=True, divisor=1),
    "Mul": Operator(
        Family.ARITHMETIC,
        sign=Sign.AS_ALL,
        pointwise=True,
        carries=True,
        joins_shapes=True,
        reconstruction=Reconstruction.INSIDE,
    ),
    "Sub": Operator(Family.ARITHMETIC, pointwise=True, carries=True, joins_shapes=True),
    "Max": Operator(
        Family.EXTREMUM,
        sign=Sign.AS_ANY,
        pointwise=True,
        carries=True,
        keeps_scale=True,
        reconstruction=Reconstruction.INSIDE,
    ),
    "Min": Operator(
        Family.EXTREMUM,
        sign=Sign.AS_ALL,
        pointwise=True,
        carries=True,
        keeps_scale=True,
        reconstruction=Reconstruction.INSIDE,
    ),
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
    "Flatten": Operator(Family.REARRANGEMENT, sign=Sign.AS_FIRST, keeps_values=True, keeps_scale=True),
    "Identity": Operator(
        Family.REARRANGEMENT,
        sign=Sign.AS_FIRST,
        carries=True,
        keeps_values=True,
        keeps_scale=True,
        joins_shapes=True,
        reconstruction=Reconstruction.INSIDE,
    ),
    "Reshape": Operator(
        Family.REARRANGEMENT, sign=Sign.AS_FIRST, carries=True, keeps_values=True, keeps_scale=True, joins_shapes=True
    ),
    "Squeeze": Operator(
        Family.REARRANGEMENT, sign=Sign.AS_FIRST, carries=True, keeps_values=True, keeps_scale=True, joins_shapes=True
    ),
    "Transpose": Operator(Family.REARRANGEMENT, sign=Sign.AS_FIRST, carries=True, keeps_values=True, keeps_scale=True),
    "Unsqueeze": Operator(
        Family.REARRANGEMENT, sign=Sign.AS_FIRST, carries=True, keeps_values=True, keeps_scale=True, joins_shapes=True
    ),
    "DepthToSpace": Operator(Family.SHUFFLE, sign=Sign.AS_FIRST, keeps_scale=True),
    "SpaceToDepth": Operator(Family.SHUFFLE, sign=Sign.AS_FIRST, keeps_scale=True),
    "Expand": Operator(
        Family.SELECTION, sign=Sign.AS_FIRST, carries=True, keeps_values=True, keeps_scale=True, grows_by_values=True
    ),
    "Gather": Operator(Family.SELECTION, sign=Sign.AS_FIRST, carries=True, keeps_scale=True, joins_shapes=True),
    "GatherElements": Operator(Family.SELECTION, keeps_scale=True),
    "GatherND": Operator(Family.SELECTION, keeps_scale=True),
    "Slice": Operator(Family.SELECTION, sign=Sign.AS_FIRST, carries=True, keeps_scale=True, joins_shapes=True),
    "Split": Operator(Family.SELECTION, sign=Sign.AS_FIRST, carries=True, keeps_scale=True),
    "Tile": Operator(Family.SELECTION, sign=Sign.AS_FIRST, carries=True, keeps_scale=True, grows_by_values=True),
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
