"""Quantizer specs: how activations, weights and biases are represented."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field, model_validator

from service.contracts.base import Contract
from service.contracts.calibration import ActivationCalibration, MinMaxCalibration, WeightCalibration
from service.contracts.dtypes import NUMBER_TYPES, ActivationDtype, BiasDtype, WeightDtype, is_block, is_integer

Scale = Literal["float32", "power_of_two", "int16"]
WeightScale = Literal["float32", "power_of_two", "int16", "float16"]
_SCALE_HELP = "float32: any; power_of_two: 2^n; int16: M / 2^N with a 16-bit M (integers only)."
_FEW_LEVELS = ("uint4", "int4")
_REDUCE_HELP = "Use 7 of 8 (15 of 16) bits: for CPUs whose 8-bit products saturate (x86 without VNNI)."


class ActivationSpec(Contract):
    """How activations are represented. ``symmetric``, ``scale`` and ``reduce_range`` concern integer types only."""

    dtype: ActivationDtype = Field(default="uint8", description="Type of activations.")
    symmetric: bool = Field(
        default=False, description="Symmetric range around zero (zero_point 128 for uint8, 0 for int8)."
    )
    scale: Scale = Field(default="float32", description=_SCALE_HELP)
    granularity: Literal["per_tensor"] = "per_tensor"
    reduce_range: bool = Field(default=False, description=_REDUCE_HELP)
    calibration: ActivationCalibration = Field(
        default_factory=MinMaxCalibration,
        description="How ranges are found. A 4-bit type whose calibration is not given has mse, whatever the preset.",
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
    """How weights are represented. ``symmetric``, ``scale`` and ``reduce_range`` concern integer types only.

    Symmetric signed weights keep to [-127, 127] (int8) or [-7, 7] (int4), zero_point 0.
    """

    dtype: WeightDtype = Field(default="int8", description="Type of weights.")
    symmetric: bool = Field(default=True, description="Symmetric range around zero.")
    scale: WeightScale = Field(default="float32", description=_WEIGHT_SCALE_HELP)
    granularity: Literal["per_tensor", "per_channel", "per_block"] = Field(
        default="per_channel",
        description="One scale for the tensor, for each output channel, or for each block of inputs of a channel.",
    )
    block_size: int = Field(
        default=32, ge=2, le=65536, description="Weights that share a scale, with granularity per_block."
    )
    reduce_range: bool = Field(default=False, description=_REDUCE_HELP)
    kernel: Literal["auto", "standard", "matmul_nbits"] = Field(
        default="auto",
        description=(
            "How products with weights in blocks are written in mode weights_only. standard: DequantizeLinear and "
            "MatMul, for every runtime; matmul_nbits: com.microsoft.MatMulNBits and GatherBlockQuantized, 4 and 8 "
            "bits; auto: standard, of which onnxruntime makes the same kernel when it loads the model."
        ),
    )
    accuracy_level: int = Field(
        default=0,
        ge=0,
        le=4,
        description="Of MatMulNBits: what it computes in. 0: its choice; 1: float32; 4: 8-bit integers.",
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
    """How biases are represented.

    int32: scale = input scale * weight scale, zero_point 0. int8 and int16: a grid of their own, like a weight's.
    float16 and bfloat16: stored so, and added in float32. float32: left as it is.
    """

    dtype: BiasDtype = Field(default="int32", description="Type of biases.")


def with_calibration(activation: Any) -> Any:
    """A given spec of activations; one that names a 4-bit type and no calibration gets least square error.

    16 levels spread over the extremes leave a network next to nothing: KWT-1 falls from 97.4 to 13.7 % with ``minmax``
    and to 80.9 with ``mse``.
    """
    if isinstance(activation, dict) and activation.get("dtype") in _FEW_LEVELS and "calibration" not in activation:
        return {**activation, "calibration": {"method": "mse"}}
    return activation


def _check_scale(dtype: str, scale: str, method: str) -> None:
    if scale != "float32" and not is_integer(dtype):
        raise ValueError(f"scale {scale} needs an integer dtype, not {dtype}")
    if method == "non_overflow" and scale != "power_of_two":
        raise ValueError("calibration non_overflow needs scale power_of_two")
    if is_block(dtype) and method != "minmax":
        raise ValueError(f"{dtype} is not calibrated: its exponents come from the data itself; leave calibration out")


def merged(defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Deep merge; a given object of another ``method`` or ``kind`` replaces the default one whole.

    Lists are replaced, but an algorithm takes what it leaves out from the default one of its method.
    """
    result = dict(defaults)
    for key, value in given.items():
        base = result.get(key)
        if key == "algorithms" and isinstance(value, list | tuple):
            result[key] = [_completed(entry, base or ()) for entry in value]
        elif (
            isinstance(base, dict)
            and isinstance(value, dict)
            and all(value.get(word, base.get(word)) == base.get(word) for word in ("method", "kind"))
        ):
            result[key] = merged(base, value)
        else:
            result[key] = value
    return result


def _completed(entry: Any, defaults: Iterable[dict[str, Any]]) -> Any:
    """An entry of ``algorithms`` with what it leaves out from the entry of its method in ``defaults``."""
    method = entry.get("method") if isinstance(entry, dict) else None
    return next((merged(default, entry) for default in defaults if default["method"] == method), entry)
