"""The quantization config: one typed model for HTTP, CLI, docs and stored jobs.

Anything not given comes from the preset; a validated config is therefore always complete ("resolved"), and validating a
resolved config again gives the same config.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from service.contracts.base import Contract
from service.contracts.errors import InvalidConfigError
from service.contracts.presets import DEFAULT_PRESET, PRESETS
from service.contracts.validation import field_problems

CONFIG_SCHEMA_VERSION = 1


class MinMaxCalibration(Contract):
    """Range = smallest and largest value seen on the calibration data."""

    method: Literal["minmax"] = "minmax"


class PercentileCalibration(Contract):
    """Range = central share of all values seen, in percent; (100 - percentile) / 2 is cut on either side."""

    method: Literal["percentile"] = "percentile"
    percentile: float = Field(default=99.999, gt=50.0, le=100.0, description="Share of values kept, in percent.")


Calibration = Annotated[MinMaxCalibration | PercentileCalibration, Field(discriminator="method")]


class ActivationSpec(Contract):
    """How activations are represented."""

    dtype: Literal["uint8", "int8"] = Field(default="uint8", description="Integer type of activations.")
    symmetric: bool = Field(
        default=False, description="Symmetric range around zero (zero_point 128 for uint8, 0 for int8)."
    )
    scale: Literal["float32"] = "float32"
    granularity: Literal["per_tensor"] = "per_tensor"
    calibration: Calibration = Field(default_factory=MinMaxCalibration)


class WeightSpec(Contract):
    """How weights are represented. Weights are symmetric: zero_point is 0, integers lie in [-127, 127]."""

    dtype: Literal["int8"] = "int8"
    symmetric: Literal[True] = True
    scale: Literal["float32"] = "float32"
    granularity: Literal["per_tensor", "per_channel"] = Field(
        default="per_channel", description="One scale for the tensor, or one for each output channel."
    )


class BiasSpec(Contract):
    """How biases are represented: int32 with scale = input scale * weight scale and zero_point 0."""

    dtype: Literal["int32"] = "int32"


class BiasCorrection(Contract):
    """Adds to every int32 bias what rounding the weights took from the layer's mean output: b += (W - W~) E[x].

    E[x] is the mean input per channel on the calibration data (closed form; Nagel et al. 2019, Data-Free
    Quantization, section 4.2).
    """

    method: Literal["bias_correction"] = "bias_correction"


class NodeSelector(Contract):
    """Selects the node of this name."""

    node: str = Field(min_length=1)


class OpTypeSelector(Contract):
    """Selects every node of this operator type."""

    op_type: str = Field(min_length=1)


Selector = NodeSelector | OpTypeSelector


class Gate(Contract):
    """Conditions for the verdict ``pass``; all given ones must hold. Without any the verdict is ``none``."""

    metric: Literal["top1", "top5", "top1_agreement"] = Field(
        default="top1", description="The metric that max_drop and min_value judge."
    )
    max_drop: float | None = Field(
        default=None, ge=0, le=100, description="Largest accepted loss of the metric, in points."
    )
    min_value: float | None = Field(
        default=None, ge=0, le=100, description="Smallest accepted value of the metric, in percent."
    )
    min_sqnr_db: float | None = Field(default=None, description="Smallest accepted output SQNR, in dB.")
    max_size_bytes: int | None = Field(default=None, ge=1)
    max_latency_ratio: float | None = Field(default=None, gt=0, description="Largest accepted quantized/float latency.")


class EvaluationSpec(Contract):
    """What is measured after quantization and what decides the verdict."""

    gate: Gate = Field(default_factory=Gate)
    layer_samples: int = Field(default=16, ge=1, le=1024, description="Samples used for the per-layer SQNR.")
    latency_runs: int = Field(default=20, ge=1, le=1000, description="Timed runs of either model, taken in turn.")


class QuantizationConfig(Contract):
    """The whole recipe of one quantization."""

    schema_version: Literal[1] = 1
    preset: str = Field(default=DEFAULT_PRESET, description="Named defaults for everything not given here.")
    target: Literal["onnxruntime_cpu"] = "onnxruntime_cpu"
    activation: ActivationSpec = Field(default_factory=ActivationSpec)
    weight: WeightSpec = Field(default_factory=WeightSpec)
    bias: BiasSpec = Field(default_factory=BiasSpec)
    algorithms: tuple[BiasCorrection, ...] = Field(
        default=(), max_length=16, description="Steps beyond calibration, in order."
    )
    include: tuple[Selector, ...] = Field(
        default=(), max_length=10_000, description="Quantize only these; empty means all."
    )
    exclude: tuple[Selector, ...] = Field(
        default=(), max_length=10_000, description="Leave these in float; wins over include."
    )
    calibration_samples: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Use only the first n samples."
    )
    evaluation: EvaluationSpec = Field(default_factory=EvaluationSpec)
    seed: int = Field(default=0, ge=0, le=2**32 - 1)

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        name = data.get("preset", DEFAULT_PRESET)
        if isinstance(name, str) and name in PRESETS:
            return _merge(PRESETS[name].settings, data)
        return data

    @field_validator("preset")
    @classmethod
    def _known_preset(cls, name: str) -> str:
        if name not in PRESETS:
            raise ValueError(f"unknown preset {name!r}; known: {', '.join(sorted(PRESETS))}")
        return name

    @model_validator(mode="after")
    def _no_contradiction(self) -> QuantizationConfig:
        both = [s for s in self.include if s in self.exclude]
        if both:
            raise ValueError(f"{both[0].model_dump()} stands in include and in exclude")
        methods = [algorithm.method for algorithm in self.algorithms]
        if len(set(methods)) < len(methods):
            raise ValueError(f"an algorithm stands twice in algorithms: {', '.join(methods)}")
        return self


def _merge(defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Deep merge; a given object of another ``method`` replaces the default one whole."""
    merged = dict(defaults)
    for key, value in given.items():
        base = merged.get(key)
        if (
            isinstance(base, dict)
            and isinstance(value, dict)
            and value.get("method", base.get("method")) == base.get("method")
        ):
            merged[key] = _merge(base, value)
        else:
            merged[key] = value
    return merged


def parse_config(data: Any, *, pointer: str = "") -> QuantizationConfig:
    """Validate and resolve a config.

    Args:
        data: the decoded JSON document.
        pointer: JSON pointer of ``data`` within the request body.

    Raises:
        InvalidConfigError: with one problem per offending field; an unknown key names the nearest valid one.
    """
    try:
        return QuantizationConfig.model_validate(data)
    except ValidationError as error:
        problems = field_problems(error, QuantizationConfig, pointer=pointer)
        raise InvalidConfigError(
            "; ".join(f"{p.pointer or '/'}: {p.message}" for p in problems[:5]),
            errors=problems,
            hint="The schema stands at /docs under QuantizationConfig.",
        ) from None
