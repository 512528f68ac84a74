"""How tensors are represented: number types, quantizer specs, calibration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from service.contracts.base import SEARCH_SPACE, Contract

FloatDtype = Literal["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
BlockDtype = Literal[
    "bfp16",
    "mx4",
    "mx6",
    "mx9",
    "mxint8",
    "mxfp8_e4m3",
    "mxfp8_e5m2",
    "mxfp6_e3m2",
    "mxfp6_e2m3",
    "mxfp4_e2m1",
]
ActivationDtype = Literal["uint8", "int8", "uint16", "int16", "uint4", "int4", FloatDtype, BlockDtype]
WeightDtype = Literal["int8", "uint8", "int16", "uint16", "int4", "uint4", "int2", "uint2", FloatDtype, BlockDtype]
HalfDtype = Literal["float16", "bfloat16"]
BiasDtype = Literal["int32", "int16", "int8", "float32", HalfDtype]

FLOAT_DTYPES: tuple[str, ...] = get_args(FloatDtype)
BLOCK_DTYPES: tuple[str, ...] = get_args(BlockDtype)
HALF_DTYPES: tuple[str, ...] = get_args(HalfDtype)


@dataclass(frozen=True)
class NumberType:
    """A number type and its properties."""

    name: str  # as in a config
    # integer (scale and zero point), float8 (a scale), float (neither), block (elements share an exponent block by
    # block)
    kind: Literal["integer", "float8", "float", "block"]
    bits: float  # of one value, shared exponents of its block counted in; scales of integers are not
    opset: int  # lowest one of ONNX's own domain that can hold weights and activations of it
    any_opset: bool = False  # below that, onnxruntime's own domain has QuantizeLinear and DequantizeLinear for it
    limits: tuple[int, int] | None = None  # smallest and largest integer; None for other kinds
    # the same with one bit less, as onnxruntime reduces ranges: sums of two products then fit into 16 (32) bits. None
    # where no bit is to spare.
    reduced: tuple[int, int] | None = None
    # onnxruntime has DequantizeLinear for it, but fuses it wrongly with what follows (1.31: a MatMulNBits of it is off,
    # a QLinearConv fails to load); weights are restored by Cast and Mul
    cast_only: bool = False
    # onnxruntime's CPU provider multiplies its integers; any other type it dequantizes, or rounds by standard
    # operators, and computes in float32
    integer_kernels: bool = False


def _integer(bits: int, opset: int, reduced: tuple[int, int] | None = None, **more: bool) -> NumberType:
    limits = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return NumberType(f"int{bits}", "integer", bits, opset, limits=limits, reduced=reduced, **more)


def _unsigned(bits: int, opset: int, **more: bool) -> NumberType:
    limits, reduced = (0, 2**bits - 1), (0, 2 ** (bits - 1) - 1)
    return NumberType(f"uint{bits}", "integer", bits, opset, limits=limits, reduced=reduced, **more)


# The opsets: Cast knows bfloat16 from 13 on and float8 from 19, Shape takes a start and an end from 15 on.
NUMBER_TYPES: dict[str, NumberType] = {
    each.name: each
    for each in (
        _integer(2, 25, cast_only=True),
        _unsigned(2, 25, cast_only=True),
        _integer(4, 21, (-4, 3), any_opset=True),
        _unsigned(4, 21, any_opset=True),
        _integer(8, 13, (-64, 64), integer_kernels=True),
        _unsigned(8, 13, integer_kernels=True),
        _integer(16, 21, (-(2**14), 2**14), any_opset=True),
        _unsigned(16, 21, any_opset=True),
        _integer(32, 13),
        NumberType("float8_e4m3fn", "float8", 8, 19),
        NumberType("float8_e5m2", "float8", 8, 19),
        NumberType("float16", "float", 16, 13),
        NumberType("bfloat16", "float", 16, 13),
        NumberType("float32", "float", 32, 13),
        NumberType("bfp16", "block", 9, 15),  # 8 bits, and an exponent of 8 for every 8 values
        NumberType("mx4", "block", 4, 15),
        NumberType("mx6", "block", 6, 15),
        NumberType("mx9", "block", 9, 15),
        NumberType("mxint8", "block", 8.25, 15),  # an exponent of 8 bits for every 32 values
        NumberType("mxfp8_e4m3", "block", 8.25, 19),
        NumberType("mxfp8_e5m2", "block", 8.25, 19),
        NumberType("mxfp6_e3m2", "block", 6.25, 19),
        NumberType("mxfp6_e2m3", "block", 6.25, 19),
        NumberType("mxfp4_e2m1", "block", 4.25, 15),
    )
}


def _is(dtype: str, *kinds: str) -> bool:
    found = NUMBER_TYPES.get(dtype)
    return found is not None and found.kind in kinds


def is_integer(dtype: str) -> bool:
    """True for types with a scale and a zero point."""
    return _is(dtype, "integer")


def is_block(dtype: str) -> bool:
    """True for types whose elements share an exponent block by block."""
    return _is(dtype, "block")


def is_float8(dtype: str) -> bool:
    """True for 8-bit floats, which have a scale but no zero point."""
    return _is(dtype, "float8")


def needs_calibration(dtype: str) -> bool:
    """True if the type's grid depends on the range of the data."""
    return _is(dtype, "integer", "float8")


def has_integer_kernels(dtype: str) -> bool:
    """True if onnxruntime's CPU provider multiplies integers of the type."""
    return NUMBER_TYPES[dtype].integer_kernels


def bits_of(dtype: str) -> float:
    """Bits of one value, shared exponents of its block counted in; scales of integers are not."""
    return NUMBER_TYPES[dtype].bits


class MinMaxCalibration(Contract):
    """The range is the minimum and maximum over the calibration data."""

    method: Literal["minmax"] = "minmax"
    moving_average: float | None = Field(
        default=None,
        gt=0.0,
        le=1.0,
        description="Weight of each sample in a moving average of the extremes; null: the extremes of all samples.",
    )


class PercentileCalibration(Contract):
    """Range = central share of all observed values, in percent; (100 - percentile) / 2 is clipped on either side."""

    method: Literal["percentile"] = "percentile"
    percentile: float = Field(
        default=99.999,
        gt=50.0,
        le=100.0,
        description="Share of values inside the range, in percent.",
        json_schema_extra={SEARCH_SPACE: [99.99]},
    )


class LayerwisePercentileCalibration(Contract):
    """Percentile, with the candidate chosen per tensor by the smallest quantization error."""

    method: Literal["layerwise_percentile"] = "layerwise_percentile"
    candidates: tuple[Annotated[float, Field(gt=50.0, le=100.0)], ...] = Field(
        default=(99.99, 99.999, 99.99999), min_length=1, max_length=16, description="Percentiles to try, in percent."
    )
    metric: Literal["mae", "mse"] = Field(default="mae", description="Error to minimize.")


class EntropyCalibration(Contract):
    """The range whose quantized histogram has the lowest Kullback-Leibler divergence from the float histogram. Only
    ranges whose mean square error does not exceed that of the full range are considered.
    """

    method: Literal["entropy"] = "entropy"
    bins: int = Field(default=2048, ge=128, le=65536, description="Number of histogram bins.")
    quantized_bins: int = Field(default=128, ge=16, le=8192, description="Number of levels of the quantized histogram.")


class DistributionCalibration(Contract):
    """The range for which the tensor and its type have the same standard deviation ('distribution' in onnxruntime).
    This applies to 8-bit floats; integer types use the observed range, made symmetric, as in onnxruntime.
    """

    method: Literal["distribution"] = "distribution"
    bins: int = Field(
        default=2048, ge=128, le=65536, description="The range is computed from a sample of 16 * bins values."
    )


class MseCalibration(Contract):
    """Range with the smallest mean squared error between a tensor and its quantized values.

    With scale power_of_two every relevant exponent is tried (MinMSE). Ranges of the network's inputs are refined
    further as long as that brings its outputs closer.
    """

    method: Literal["mse"] = "mse"
    bins: int = Field(
        default=2048, ge=128, le=65536, description="The range is computed from 16 * bins values, including outliers."
    )


class NonOverflowCalibration(Contract):
    """The smallest power-of-two scale that covers minimum and maximum: no value saturates on the calibration data."""

    method: Literal["non_overflow"] = "non_overflow"


Candidate = Annotated[
    MinMaxCalibration | PercentileCalibration | LayerwisePercentileCalibration | EntropyCalibration | MseCalibration,
    Field(discriminator="method"),
]


class AutoCalibration(Contract):
    """The candidate whose ranges bring the outputs of the network closest to those of the float one.

    Each is tried on calibration data with quantized activations and float weights, before any algorithm; the report
    has the score of each. For mode static.
    """

    method: Literal["auto"] = "auto"
    candidates: tuple[Candidate, ...] = Field(
        default=(
            MinMaxCalibration(),
            PercentileCalibration(percentile=99.99),
            PercentileCalibration(percentile=99.999),
            MseCalibration(),
        ),
        min_length=1,
        max_length=8,
        description="Methods to try; the first of equal ones is used.",
    )


ActivationCalibration = Annotated[
    MinMaxCalibration
    | PercentileCalibration
    | LayerwisePercentileCalibration
    | EntropyCalibration
    | DistributionCalibration
    | MseCalibration
    | NonOverflowCalibration
    | AutoCalibration,
    Field(discriminator="method"),
]

WeightCalibration = Annotated[
    MinMaxCalibration | PercentileCalibration | MseCalibration | NonOverflowCalibration,
    Field(discriminator="method"),
]


class TensorRange(Contract):
    """A given range, used instead of a calibrated one."""

    minimum: float = Field(allow_inf_nan=False)
    maximum: float = Field(allow_inf_nan=False)


Scale = Literal["float32", "power_of_two", "int16"]
WeightScale = Literal["float32", "power_of_two", "int16", "float16"]
_SCALE_HELP = "float32: any; power_of_two: 2^n; int16: M / 2^N with a 16-bit M (integers only)."
_FEW_LEVELS = ("uint4", "int4")
_REDUCE_HELP = "Use 7 of 8 (15 of 16) bits: for CPUs whose 8-bit products saturate (x86 without VNNI)."


class ActivationSpec(Contract):
    """The quantizer of activations. ``symmetric``, ``scale`` and ``reduce_range`` apply to integer types only."""

    dtype: ActivationDtype = Field(default="uint8", description="Type of activations.")
    symmetric: bool = Field(
        default=False, description="Symmetric range around zero (zero_point 128 for uint8, 0 for int8)."
    )
    scale: Scale = Field(default="float32", description=_SCALE_HELP)
    granularity: Literal["per_tensor"] = "per_tensor"
    reduce_range: bool = Field(default=False, description=_REDUCE_HELP)
    calibration: ActivationCalibration = Field(
        default_factory=MinMaxCalibration,
        description="Calibration method. A 4-bit type without one uses mse, in every preset.",
    )

    @model_validator(mode="before")
    @classmethod
    def _calibrated(cls, data: Any) -> Any:
        return with_calibration(data)

    @model_validator(mode="after")
    def _fits(self) -> ActivationSpec:
        _check_scale(self.dtype, self.scale, self.calibration.method)
        return self


_WEIGHT_SCALE_HELP = (
    f"{_SCALE_HELP} float16: stored in 16 bits (mode weights_only), which saves half a bit per weight in blocks of 32."
)


class WeightSpec(Contract):
    """The quantizer of weights. ``symmetric``, ``scale`` and ``reduce_range`` apply to integer types only.

    Symmetric signed weights are in [-127, 127] (int8) or [-7, 7] (int4), zero_point 0.
    """

    dtype: WeightDtype = Field(default="int8", description="Type of weights.")
    symmetric: bool = Field(default=True, description="Symmetric range around zero.")
    scale: WeightScale = Field(default="float32", description=_WEIGHT_SCALE_HELP)
    granularity: Literal["per_tensor", "per_channel", "per_block"] = Field(
        default="per_channel",
        description="One scale per tensor, per output channel, or per block of inputs of a channel.",
    )
    block_size: int = Field(
        default=32, ge=2, le=65536, description="Number of weights that share a scale, with granularity per_block."
    )
    reduce_range: bool = Field(default=False, description=_REDUCE_HELP)
    kernel: Literal["auto", "standard", "matmul_nbits"] = Field(
        default="auto",
        description=(
            "Operators for products with block-quantized weights in mode weights_only. standard: DequantizeLinear"
            " and MatMul, for every runtime; matmul_nbits: com.microsoft.MatMulNBits and GatherBlockQuantized, 4 "
            "and 8 bits; auto: standard, which onnxruntime fuses into the same kernel at load time."
        ),
    )
    accuracy_level: int = Field(
        default=0,
        ge=0,
        le=4,
        description=(
            "accuracy_level of MatMulNBits: the type it computes in. 0: its choice; 1: float32; 4: 8-bit integers."
        ),
    )
    calibration: WeightCalibration = Field(default_factory=MinMaxCalibration)

    @model_validator(mode="after")
    def _fits(self) -> WeightSpec:
        _check_scale(self.dtype, self.scale, self.calibration.method)
        if self.reduce_range and is_integer(self.dtype) and NUMBER_TYPES[self.dtype].reduced is None:
            raise ValueError(f"reduce_range leaves {self.dtype} no values but 0")
        if self.granularity == "per_block" and not is_integer(self.dtype):
            raise ValueError(f"granularity per_block needs an integer dtype, not {self.dtype}")
        if self.kernel == "matmul_nbits":
            self._check_kernel()
        return self

    def _check_kernel(self) -> None:
        """Whether onnxruntime's operators for weights of few bits take these."""
        if self.granularity != "per_block" or NUMBER_TYPES[self.dtype].bits not in (4, 8):
            raise ValueError("kernel matmul_nbits needs integers of 4 or 8 bits with granularity per_block")
        if self.block_size < 16 or self.block_size & (self.block_size - 1):
            raise ValueError(f"kernel matmul_nbits needs blocks of 16, 32, 64 ... weights, not {self.block_size}")


class BiasSpec(Contract):
    """The quantizer of biases.

    int32: scale = input scale * weight scale, zero_point 0. int8 and int16: own grids, like a weight's. float16 and
    bfloat16: stored so, added in float32. float32: unchanged.
    """

    dtype: BiasDtype = Field(default="int32", description="Type of biases.")


def with_calibration(activation: Any) -> Any:
    """A given spec of activations with the calibration of a type that it names, if it names none itself.

    Types of 4 bits get least square error, blocks none of the preset's, as their exponents come from the data itself.
    16 levels spread over the extremes leave a network next to nothing: KWT-1 falls from 97.4 to 13.7 % with ``minmax``
    and to 80.9 with ``mse``.
    """
    if not isinstance(activation, dict) or "calibration" in activation:
        return activation
    dtype = activation.get("dtype")
    if dtype in _FEW_LEVELS:
        return {**activation, "calibration": {"method": "mse"}}
    block = isinstance(dtype, str) and dtype in NUMBER_TYPES and is_block(dtype)
    return {**activation, "calibration": {"method": "minmax"}} if block else activation


def _check_scale(dtype: str, scale: str, method: str) -> None:
    if scale != "float32" and not is_integer(dtype):
        raise ValueError(f"scale {scale} needs an integer dtype, not {dtype}")
    if method == "non_overflow" and scale != "power_of_two":
        raise ValueError("calibration non_overflow needs scale power_of_two")
    if is_block(dtype) and method != "minmax":
        raise ValueError(f"{dtype} is not calibrated: its exponents come from the data itself; leave calibration out")


def is_same_kind(base: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """False if ``given`` names another ``method`` or ``kind``: the other keys of ``base`` belong to its own."""
    return all(given.get(word, base.get(word)) == base.get(word) for word in ("method", "kind"))


def merged(defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Deep merge; a given object of another ``method`` or ``kind`` replaces the default one whole.

    Lists are replaced, but an algorithm takes what it leaves out from the default one of its method.
    """
    result = dict(defaults)
    for key, value in given.items():
        base = result.get(key)
        if key == "algorithms" and isinstance(value, list | tuple):
            result[key] = [_completed(entry, base or ()) for entry in value]
        elif isinstance(base, dict) and isinstance(value, dict) and is_same_kind(base, value):
            result[key] = merged(base, value)
        else:
            result[key] = value
    return result


def _completed(entry: Any, defaults: Iterable[dict[str, Any]]) -> Any:
    """An entry of ``algorithms`` with what it leaves out from the entry of its method in ``defaults``."""
    method = entry.get("method") if isinstance(entry, dict) else None
    return next((merged(default, entry) for default in defaults if default["method"] == method), entry)
