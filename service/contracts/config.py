"""The quantization config: one typed model for HTTP, CLI, docs and stored jobs.

Anything not given comes from the preset; a validated config is therefore always complete ("resolved"), and validating a
resolved config again gives the same config.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from service.contracts.algorithms import Algorithm, BiasCorrection, algorithm_contradictions, with_levels
from service.contracts.base import Contract
from service.contracts.calibration import MinMaxCalibration, PercentileCalibration, TensorRange
from service.contracts.contradiction import Contradiction
from service.contracts.errors import InvalidConfigError
from service.contracts.evaluation import EvaluationSpec, Gate
from service.contracts.modes import mode_contradictions
from service.contracts.preparation import PreparationSpec
from service.contracts.presets import DEFAULT_PRESET, PRESETS, find_preset, missing_preset
from service.contracts.quark import translate_document
from service.contracts.selectors import NodeSelector, OpTypeSelector, Selector
from service.contracts.specs import ActivationSpec, BiasSpec, WeightSpec, merged
from service.contracts.targets import check_target_options
from service.contracts.validation import BELOW, field_problems

CONFIG_SCHEMA_VERSION = 1


TargetName = Literal[
    "onnxruntime_cpu", "onnxruntime_gpu", "tensorrt", "qnn", "openvino", "amd_npu_cnn", "amd_npu_transformer"
]
Mode = Literal["static", "dynamic", "weights_only", "float16"]


class Override(Contract):
    """Other quantizer specs for the nodes that ``match`` selects; what is not given is as for all nodes.

    ``activation`` concerns the tensors that these nodes make, and the model inputs that they read; ``input_activation``
    the tensors that they read, whatever makes them. A tensor has one representation for all that read it.
    """

    match: Selector
    activation: ActivationSpec | None = None
    input_activation: ActivationSpec | None = None
    weight: WeightSpec | None = None
    bias: BiasSpec | None = None


class QuantizationConfig(Contract):
    """The whole recipe of one quantization."""

    schema_version: Literal[1] = 1
    preset: str = Field(default=DEFAULT_PRESET, description="Named defaults for everything not given here.")
    target: TargetName = Field(default="onnxruntime_cpu", description="Runtime or hardware the model is made for.")
    target_options: dict[str, bool] = Field(
        default_factory=dict, max_length=100, description="Rules of the target switched on or off, by name."
    )
    mode: Mode = Field(
        default="static",
        description=(
            "static: activations by calibrated ranges; dynamic: ranges taken at run time; weights_only: activations "
            "stay float; float16: the whole model is converted."
        ),
    )
    format: Literal["qdq", "qoperator"] = Field(
        default="qdq", description="QuantizeLinear/DequantizeLinear pairs, or QLinear operators (static, 8 bits)."
    )
    subgraphs: Literal["float", "weights"] = Field(
        default="float",
        description=(
            "Nodes inside sub-graphs (bodies of If, Loop and Scan): float leaves them as they are; weights quantizes "
            "the constant weights of Conv, ConvTranspose, Gemm and MatMul there (modes static and weights_only), while "
            "activations inside stay in float, because calibration sees the main graph alone."
        ),
    )
    activation: ActivationSpec = Field(default_factory=ActivationSpec)
    weight: WeightSpec = Field(default_factory=WeightSpec)
    bias: BiasSpec = Field(default_factory=BiasSpec)
    algorithms: tuple[Algorithm, ...] = Field(
        default=(), max_length=16, description="Steps beyond calibration, in order."
    )
    include: tuple[Selector, ...] = Field(
        default=(), max_length=10_000, description="Quantize only these; empty means all."
    )
    exclude: tuple[Selector, ...] = Field(
        default=(), max_length=10_000, description="Leave these in float; wins over include."
    )
    overrides: tuple[Override, ...] = Field(
        default=(), max_length=10_000, description="Other specs for some nodes; the first match counts, field by field."
    )
    preparation: PreparationSpec = Field(default_factory=PreparationSpec)
    tensor_ranges: dict[str, TensorRange] = Field(
        default_factory=dict, max_length=100_000, description="Ranges by tensor name, taken instead of calibrated ones."
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
        name, given = data.get("preset", DEFAULT_PRESET), data.get("algorithms")
        preset = find_preset(name) if isinstance(name, str) else None
        if preset is not None:
            if data.get("mode", "static") != preset.settings.get("mode", "static"):
                data = {"algorithms": [], **data}  # the preset's are for its own mode
            data = merged(preset.settings, {**data, "preset": preset.name})
        if isinstance(given, list | tuple):
            data = {**data, "algorithms": _spelled_out(data, given)}
        return {**data, "overrides": _complete_overrides(data)} if data.get("overrides") else data

    @field_validator("preset")
    @classmethod
    def _known_preset(cls, name: str) -> str:
        if name not in PRESETS:
            raise ValueError(missing_preset(name))
        return name

    @model_validator(mode="after")
    def _no_contradiction(self) -> QuantizationConfig:
        check_target_options(self.target, self.target_options)
        contradiction = next(self._contradictions(), None)
        if contradiction is not None:
            context = {"told": contradiction.message, BELOW: contradiction.pointer}
            raise PydanticCustomError("contradiction", "{told}", context)
        return self

    def _contradictions(self) -> Iterator[Contradiction]:
        for place, selector in enumerate(self.exclude):
            if selector in self.include:
                told = f"{selector.model_dump()} stands in include and in exclude"
                yield Contradiction(f"/exclude/{place}", told)
        yield from mode_contradictions(self)
        weights = [self.weight, *(override.weight for override in self.overrides if override.weight)]
        yield from algorithm_contradictions(
            [algorithm.method for algorithm in self.algorithms], [weight.dtype for weight in weights]
        )


# Where the rest of an override's spec is taken from.
_SPEC_OF = {"activation": "activation", "input_activation": "activation", "weight": "weight", "bias": "bias"}


def _spelled_out(data: dict[str, Any], given: Sequence[Any]) -> list[Any]:
    """The algorithms; what an entry says in short is not to be taken from the preset's entry of its method."""
    found = []
    for entry, own in zip(data["algorithms"], given, strict=True):
        if isinstance(entry, dict) and isinstance(own, Mapping) and own.get("combination") is not None:
            entry = {key: value for key, value in entry.items() if key not in ("high", "low") or key in own}
        found.append(with_levels(entry, data.get("activation"), data.get("weight")))
    return found


def _complete_overrides(data: dict[str, Any]) -> Any:
    """Every override's specs in full: what they leave out is taken from the config's own."""
    overrides = data["overrides"]
    if not isinstance(overrides, list | tuple):
        return overrides
    completed = []
    for override in overrides:
        if isinstance(override, dict):
            override = {
                key: merged(data.get(_SPEC_OF[key]) or {}, value)
                if key in _SPEC_OF and isinstance(value, dict)
                else value
                for key, value in override.items()
            }
        completed.append(override)
    return completed


def parse_config(data: Any, *, pointer: str = "") -> QuantizationConfig:
    """Validate and resolve a config.

    Args:
        data: the decoded JSON document, ours or in AMD Quark's envelope (``service.contracts.quark``).
        pointer: JSON pointer of ``data`` within the request body.

    Raises:
        InvalidConfigError: with one problem per offending field; an unknown key names the nearest valid one.
    """
    translation = translate_document(data, pointer)
    try:
        return QuantizationConfig.model_validate(data if translation is None else translation.config)
    except ValidationError as error:
        problems = field_problems(error, QuantizationConfig, pointer=pointer)
        if translation is not None:
            problems = translation.relocated(problems, pointer)
        raise InvalidConfigError(
            "; ".join(f"{p.pointer or '/'}: {p.message}" for p in problems[:5]),
            errors=problems,
            hint="The schema stands at /docs under QuantizationConfig.",
        ) from None


__all__ = [
    "CONFIG_SCHEMA_VERSION",
    "Algorithm",
    "BiasCorrection",
    "EvaluationSpec",
    "Gate",
    "MinMaxCalibration",
    "Mode",
    "NodeSelector",
    "OpTypeSelector",
    "Override",
    "PercentileCalibration",
    "QuantizationConfig",
    "Selector",
    "TargetName",
    "parse_config",
]
