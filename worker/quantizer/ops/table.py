"""The ONNX operators that the engine knows something of, one record each.

An operator that is not here has a record that claims nothing: it stays in float, and nothing is told of its results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from worker.quantizer.ops.record import Family, Float16, Operator, Reconstruction, Scores, Sign

# Defaults of attributes are those of the ONNX operator reference.
_ACTIVATIONS: Mapping[str, Operator] = {
    "Celu": Operator(family=Family.ACTIVATION, torch="celu", attributes={"alpha": ("alpha", 1.0)}),
    "Clip": Operator(
        family=Family.ACTIVATION, limits=True, pointwise=True, carries=True, reconstruction=Reconstruction.FOLLOWS
    ),
    "Elu": Operator(family=Family.ACTIVATION, pointwise=True, torch="elu", attributes={"alpha": ("alpha", 1.0)}),
    "Gelu": Operator(
        family=Family.ACTIVATION,
        pointwise=True,
        reconstruction=Reconstruction.FOLLOWS,
        torch="gelu",
        attributes={"approximate": ("approximate", "none")},
    ),
    "HardSigmoid": Operator(
        family=Family.ACTIVATION,
        sign=Sign.NEVER_NEGATIVE,
        within_one=True,
        pointwise=True,
        reconstruction=Reconstruction.FOLLOWS,
        torch=lambda x, alpha, beta: (x * alpha + beta).clamp(0.0, 1.0),
        attributes={"alpha": ("alpha", 0.2), "beta": ("beta", 0.5)},
    ),
    "HardSwish": Operator(
        family=Family.ACTIVATION, pointwise=True, reconstruction=Reconstruction.FOLLOWS, torch="hardswish"
    ),
    "LeakyRelu": Operator(
        family=Family.ACTIVATION,
        pointwise=True,
        homogeneous=True,
        reconstruction=Reconstruction.FOLLOWS,
        torch="leaky_relu",
        attributes={"negative_slope": ("alpha", 0.01)},
    ),
    "Mish": Operator(family=Family.ACTIVATION, pointwise=True, torch="mish"),
    "PRelu": Operator(
        family=Family.ACTIVATION,
        pointwise=True,
        trained=(1,),
        reconstruction=Reconstruction.FOLLOWS,
        torch=lambda x, slope: (x * slope).where(x < 0.0, x),
    ),
    "Relu": Operator(
        family=Family.ACTIVATION,
        sign=Sign.NEVER_NEGATIVE,
        limits=True,
        pointwise=True,
        homogeneous=True,
        scores=Scores.NO,
        reconstruction=Reconstruction.FOLLOWS,
        torch="relu",
    ),
    "Selu": Operator(family=Family.ACTIVATION, pointwise=True),
    "Shrink": Operator(family=Family.ACTIVATION),
    "Sigmoid": Operator(
        family=Family.ACTIVATION,
        sign=Sign.NEVER_NEGATIVE,
        within_one=True,
        exponential=True,
        pointwise=True,
        scores=Scores.BY_SHAPE,
        reconstruction=Reconstruction.FOLLOWS,
        torch="sigmoid",
    ),
    "Softplus": Operator(
        family=Family.ACTIVATION,
        sign=Sign.NEVER_NEGATIVE,
        pointwise=True,
        reconstruction=Reconstruction.FOLLOWS,
        torch="softplus",
    ),
    "Softsign": Operator(family=Family.ACTIVATION, pointwise=True, torch="softsign"),
    "Swish": Operator(
        family=Family.ACTIVATION,
        pointwise=True,
        reconstruction=Reconstruction.FOLLOWS,
        torch=lambda x, alpha: x * (x * alpha).sigmoid(),
        attributes={"alpha": ("alpha", 1.0)},
    ),
    "Tanh": Operator(
        family=Family.ACTIVATION,
        pointwise=True,
        scores=Scores.NO,
        reconstruction=Reconstruction.FOLLOWS,
        torch="tanh",
    ),
    "ThresholdedRelu": Operator(
        family=Family.ACTIVATION,
        torch=lambda x, alpha: x.masked_fill(x <= alpha, 0.0),
        attributes={"alpha": ("alpha", 1.0)},
    ),
    "LogSoftmax": Operator(
        family=Family.SOFTMAX,
        exponential=True,
        scores=Scores.YES,
        torch="log_softmax",
        attributes={"dim": ("axis", -1)},
    ),
    "Softmax": Operator(
        family=Family.SOFTMAX,
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
        family=Family.CONVOLUTION,
        bias=2,
        trained=(1, 2),
        channel_axis=1,
        scores=Scores.BY_SHAPE,
        reconstruction=Reconstruction.WEIGHT,
        integer_form="ConvInteger",
    ),
    "ConvTranspose": Operator(
        family=Family.CONVOLUTION,
        bias=2,
        trained=(1, 2),
        channel_axis=1,
        reconstruction=Reconstruction.WEIGHT,
    ),
    "Gemm": Operator(
        family=Family.PRODUCT,
        bias=2,
        trained=(1, 2),
        channel_axis=-1,
        scores=Scores.BY_SHAPE,
        reconstruction=Reconstruction.WEIGHT,
        integer_form="MatMulInteger",
    ),
    "MatMul": Operator(
        family=Family.PRODUCT,
        trained=(1,),
        channel_axis=-1,
        scores=Scores.BY_SHAPE,
        reconstruction=Reconstruction.WEIGHT,
        integer_form="MatMulInteger",
    ),
    "BatchNormalization": Operator(family=Family.AFFINE, parameters=(1, 2), trained=(1, 2), channel_axis=1),
    # Before opset 21 its parameters belong to groups, not to channels.
    "GroupNormalization": Operator(family=Family.NORMALIZATION, trained=(1, 2)),
    "InstanceNormalization": Operator(
        family=Family.NORMALIZATION,
        parameters=(1, 2),
        trained=(1, 2),
        channel_axis=1,
        scores=Scores.NO,
        reconstruction=Reconstruction.NORM,
    ),
    "LayerNormalization": Operator(
        family=Family.NORMALIZATION,
        parameters=(1, 2),
        trained=(1, 2),
        channel_axis=-1,
        scores=Scores.NO,
        reconstruction=Reconstruction.NORM,
    ),
    "RMSNormalization": Operator(family=Family.NORMALIZATION, parameters=(1,), channel_axis=-1),
    "LRN": Operator(slow_reference=True),
    "LpNormalization": Operator(scores=Scores.NO),
    "MeanVarianceNormalization": Operator(float16=Float16.NEVER),
    "GRU": Operator(family=Family.RECURRENT, slow_reference=True),
    "LSTM": Operator(family=Family.RECURRENT, slow_reference=True),
    "RNN": Operator(family=Family.RECURRENT, slow_reference=True),
}

_POOLS: Mapping[str, Operator] = {
    "AveragePool": Operator(family=Family.POOL, sign=Sign.AS_FIRST, slow_reference=True, scores=Scores.BY_SHAPE),
    "LpPool": Operator(family=Family.POOL, sign=Sign.AS_FIRST, slow_reference=True),
    "MaxPool": Operator(family=Family.POOL, sign=Sign.AS_FIRST, keeps_scale=True, slow_reference=True),
    "GlobalAveragePool": Operator(
        family=Family.GLOBAL_POOL,
        sign=Sign.AS_FIRST,
        channel_axis=1,
        scores=Scores.BY_SHAPE,
        reconstruction=Reconstruction.INSIDE,
    ),
    "GlobalMaxPool": Operator(family=Family.GLOBAL_POOL, sign=Sign.AS_FIRST),
    "ReduceL1": Operator(family=Family.REDUCTION, sign=Sign.NEVER_NEGATIVE),
    "ReduceL2": Operator(family=Family.REDUCTION, sign=Sign.NEVER_NEGATIVE),
    "ReduceMax": Operator(family=Family.REDUCTION, sign=Sign.AS_FIRST, keeps_scale=True),
    "ReduceMean": Operator(family=Family.REDUCTION, sign=Sign.AS_FIRST, scores=Scores.BY_SHAPE),
    "ReduceMin": Operator(family=Family.REDUCTION, sign=Sign.AS_FIRST, keeps_scale=True),
    "ReduceProd": Operator(family=Family.REDUCTION, sign=Sign.AS_FIRST),
    "ReduceSum": Operator(family=Family.REDUCTION, sign=Sign.AS_FIRST),
    "ReduceSumSquare": Operator(family=Family.REDUCTION, sign=Sign.NEVER_NEGATIVE),
}

_ARITHMETIC: Mapping[str, Operator] = {
    "Add": Operator(
        family=Family.ARITHMETIC,
        sign=Sign.AS_ALL,
        pointwise=True,
        carries=True,
        joins_shapes=True,
        scores=Scores.BY_SHAPE,
        reconstruction=Reconstruction.INSIDE,
    ),
    "Div": Operator(family=Family.ARITHMETIC, sign=Sign.AS_ALL, needs_digits=True, pointwise=True, divisor=1),
    "Mul": Operator(
        family=Family.ARITHMETIC,
        sign=Sign.AS_ALL,
        pointwise=True,
        carries=True,
        joins_shapes=True,
        reconstruction=Reconstruction.INSIDE,
    ),
    "Sub": Operator(family=Family.ARITHMETIC, pointwise=True, carries=True, joins_shapes=True),
    "Max": Operator(
        family=Family.EXTREMUM,
        sign=Sign.AS_ANY,
        pointwise=True,
        carries=True,
        keeps_scale=True,
        reconstruction=Reconstruction.INSIDE,
    ),
    "Min": Operator(
        family=Family.EXTREMUM,
        sign=Sign.AS_ALL,
        pointwise=True,
        carries=True,
        keeps_scale=True,
        reconstruction=Reconstruction.INSIDE,
    ),
    "Abs": Operator(family=Family.FUNCTION, sign=Sign.NEVER_NEGATIVE, pointwise=True, homogeneous=True),
    "Erf": Operator(family=Family.FUNCTION, pointwise=True),
    "Exp": Operator(
        family=Family.FUNCTION, sign=Sign.NEVER_NEGATIVE, exponential=True, needs_digits=True, pointwise=True
    ),
    "Log": Operator(family=Family.FUNCTION, needs_digits=True, divisor=0),
    "Neg": Operator(family=Family.FUNCTION, pointwise=True, homogeneous=True),
    "Pow": Operator(family=Family.FUNCTION, needs_digits=True, pointwise=True, divisor=0),
    "Reciprocal": Operator(family=Family.FUNCTION, needs_digits=True, divisor=0),
    "Sqrt": Operator(family=Family.FUNCTION, sign=Sign.NEVER_NEGATIVE, needs_digits=True),
    "Mean": Operator(sign=Sign.AS_ALL),
    "Sum": Operator(sign=Sign.AS_ALL),
    "CumSum": Operator(slow_reference=True),
}

_MOVERS: Mapping[str, Operator] = {
    "Cast": Operator(carries=True, keeps_values=True, joins_shapes=True),
    "Dropout": Operator(sign=Sign.AS_FIRST, homogeneous=True, keeps_values=True),
    "Flatten": Operator(family=Family.REARRANGEMENT, sign=Sign.AS_FIRST, keeps_values=True, keeps_scale=True),
    "Identity": Operator(
        family=Family.REARRANGEMENT,
        sign=Sign.AS_FIRST,
        carries=True,
        keeps_values=True,
        keeps_scale=True,
        joins_shapes=True,
        reconstruction=Reconstruction.INSIDE,
    ),
    "Reshape": Operator(
        family=Family.REARRANGEMENT,
        sign=Sign.AS_FIRST,
        carries=True,
        keeps_values=True,
        keeps_scale=True,
        joins_shapes=True,
    ),
    "Squeeze": Operator(
        family=Family.REARRANGEMENT,
        sign=Sign.AS_FIRST,
        carries=True,
        keeps_values=True,
        keeps_scale=True,
        joins_shapes=True,
    ),
    "Transpose": Operator(
        family=Family.REARRANGEMENT, sign=Sign.AS_FIRST, carries=True, keeps_values=True, keeps_scale=True
    ),
    "Unsqueeze": Operator(
        family=Family.REARRANGEMENT,
        sign=Sign.AS_FIRST,
        carries=True,
        keeps_values=True,
        keeps_scale=True,
        joins_shapes=True,
    ),
    "DepthToSpace": Operator(family=Family.SHUFFLE, sign=Sign.AS_FIRST, keeps_scale=True),
    "SpaceToDepth": Operator(family=Family.SHUFFLE, sign=Sign.AS_FIRST, keeps_scale=True),
    "Expand": Operator(
        family=Family.SELECTION,
        sign=Sign.AS_FIRST,
        carries=True,
        keeps_values=True,
        keeps_scale=True,
        grows_by_values=True,
    ),
    "Gather": Operator(family=Family.SELECTION, sign=Sign.AS_FIRST, carries=True, keeps_scale=True, joins_shapes=True),
    "GatherElements": Operator(family=Family.SELECTION, keeps_scale=True),
    "GatherND": Operator(family=Family.SELECTION, keeps_scale=True),
    "Slice": Operator(family=Family.SELECTION, sign=Sign.AS_FIRST, carries=True, keeps_scale=True, joins_shapes=True),
    "Split": Operator(family=Family.SELECTION, sign=Sign.AS_FIRST, carries=True, keeps_scale=True),
    "Tile": Operator(family=Family.SELECTION, sign=Sign.AS_FIRST, carries=True, keeps_scale=True, grows_by_values=True),
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
