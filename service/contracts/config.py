"""The config of a quantization: one frozen model, ranges and merge patches (RFC 7396) for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from service.contracts.algorithms import (
    Algorithm,
    BiasCorrection,
    QuantizationAwareTraining,
    algorithm_contradictions,
    with_levels,
)
from service.contracts.algorithms.union import ALGORITHMS, MaxSeconds
from service.contracts.base import Contract
from service.contracts.dataset import RandomCalibration
from service.contracts.errors import InvalidConfigError, problem_summary
from service.contracts.evaluation import EvaluationSpec, Gate
from service.contracts.preparation import PreparationSpec
from service.contracts.presets import DEFAULT_PRESET, PRESETS, find_preset, missing_preset
from service.contracts.selectors import NodeSelector, OpTypeSelector, Selector
from service.contracts.specs import (
    ActivationSpec,
    BiasSpec,
    MinMaxCalibration,
    PercentileCalibration,
    TensorRange,
    WeightSpec,
    has_integer_kernels,
    is_same_kind,
    merged,
    with_calibration,
)
from service.contracts.targets import TargetName, check_target_options
from service.contracts.validation import (
    BELOW,
    MOST_RANGES,
    MOST_SELECTORS,
    Contradiction,
    field_problems,
    require_bounded,
)

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
    "parse_config",
]


# Where the rest of an override's spec is taken from.
_SPEC_OF = {"activation": "activation", "input_activation": "activation", "weight": "weight", "bias": "bias"}


def completed(data: dict[str, Any]) -> dict[str, Any]:
    """The document with everything that its preset says and it does not; nothing is validated."""
    name, given = data.get("preset", DEFAULT_PRESET), data.get("algorithms")
    preset = find_preset(name) if isinstance(name, str) else None
    own = data.get("activation")
    chosen = isinstance(own, Mapping) and "calibration" in own
    if own is not None:
        data = {**data, "activation": with_calibration(own)}
    if preset is not None:
        own_mode = preset.settings.get("mode", "static")
        if data.get("mode", own_mode) != own_mode:
            data = {"algorithms": [], **data}  # the preset's are for its own mode
        data = merged(preset.settings, {**data, "preset": preset.name})
    if isinstance(given, list | tuple):
        data = {**data, "algorithms": _spelled_out(data, given)}
    return {**data, "overrides": _complete_overrides(data, chosen)} if data.get("overrides") else data


def _spelled_out(data: dict[str, Any], given: Sequence[Any]) -> list[Any]:
    """The algorithms; what an entry says in short is not to be taken from the preset's entry of its method.

    Nor is the condition on it: who names an algorithm asks for it.
    """
    found = []
    for entry, own in zip(data["algorithms"], given, strict=True):
        if isinstance(entry, dict) and isinstance(own, Mapping) and own.get("combination") is not None:
            entry = {key: value for key, value in entry.items() if key not in ("high", "low") or key in own}
        if isinstance(entry, dict) and isinstance(own, Mapping) and "when" not in own:
            entry = {key: value for key, value in entry.items() if key != "when"}
        found.append(with_levels(entry, data.get("activation"), data.get("weight")))
    return found


def _complete_overrides(data: dict[str, Any], chosen: bool) -> Any:
    """Every override's specs in full: what they leave out is taken from the config's own.

    Unless the document has chosen a calibration for all its activations, an override's type asks for its own.
    """
    overrides = data["overrides"]
    if not isinstance(overrides, list | tuple):
        return overrides
    found = []
    for override in overrides:
        if isinstance(override, dict):
            override = {
                key: _complete_spec(data, key, value, chosen) if key in _SPEC_OF and isinstance(value, dict) else value
                for key, value in override.items()
            }
        found.append(override)
    return found


def _complete_spec(data: dict[str, Any], key: str, given: dict[str, Any], chosen: bool) -> dict[str, Any]:
    part = _SPEC_OF[key]
    wanted = with_calibration(given) if part == "activation" and not chosen else given
    return merged(data.get(part) or {}, wanted)


CONFIG_SCHEMA_VERSION = 1
# The target whose rules concern nothing but static quantization, and which need not be asked for.
_DEFAULT_TARGET = "onnxruntime_cpu"
Mode = Literal["static", "dynamic", "weights_only", "float16"]


class Override(Contract):
    """Other quantizer specs for the nodes that ``match`` selects; fields left out are as for all nodes.

    ``activation`` applies to the tensors that these nodes produce, and the model inputs that they read;
    ``input_activation`` to the tensors that they read, whatever produces them. A tensor has one representation for all
    its readers.
    """

    match: Selector
    activation: ActivationSpec | None = None
    input_activation: ActivationSpec | None = None
    weight: WeightSpec | None = None
    bias: BiasSpec | None = None


class QuantizationConfig(Contract):
    """The configuration of a quantization."""

    schema_version: Literal[1] = 1
    preset: str = Field(default=DEFAULT_PRESET, description="Preset: named defaults for all fields left out.")
    target: TargetName = Field(default="onnxruntime_cpu", description="Runtime or hardware that will run the model.")
    target_options: dict[str, bool] = Field(
        default_factory=dict, max_length=100, description="Rules of the target to switch on or off, by name."
    )
    mode: Mode = Field(
        default="static",
        description=(
            "static: activation ranges from calibration; dynamic: activation ranges computed at run time; "
            "weights_only: activations stay float; float16: the whole model is converted."
        ),
    )
    format: Literal["qdq", "qoperator"] = Field(
        default="qdq", description="QuantizeLinear/DequantizeLinear pairs, or QLinear operators (static, 8 bits)."
    )
    float_dtype: Literal["auto", "float32", "float16"] = Field(
        default="auto",
        description=(
            "Type of float computation next to quantized nodes (mode static, format qdq). float16: Q/DQ pairs and"
            " float operators in 16 bits, except values that do not fit; auto: float16 for target tensorrt, else "
            "float32."
        ),
    )
    interface: Literal["float32", "float16"] = Field(
        default="float32",
        description="Type of float32 inputs and outputs if the model computes in float16: kept, or converted.",
    )
    subgraphs: Literal["float", "weights"] = Field(
        default="float",
        description=(
            "Nodes inside sub-graphs (bodies of If, Loop and Scan). float: left unchanged; weights: the constant "
            "weights of Conv, ConvTranspose, Gemm and MatMul are quantized there (modes static and weights_only),"
            " while activations stay in float, because calibration observes only the main graph."
        ),
    )
    activation: ActivationSpec = Field(default_factory=ActivationSpec)
    weight: WeightSpec = Field(default_factory=WeightSpec)
    embedding: WeightSpec | None = Field(
        default=None,
        description=(
            "Quantizer of embedding tables (rows looked up by Gather) and tied weights; per_channel is per row; "
            "null: as for weights."
        ),
    )
    bias: BiasSpec = Field(default_factory=BiasSpec)
    algorithms: tuple[Algorithm, ...] = Field(
        default=(), max_length=16, description="Algorithms after calibration, in order."
    )
    include: tuple[Selector, ...] = Field(
        default=(), max_length=MOST_SELECTORS, description="Nodes to quantize; empty: all."
    )
    exclude: tuple[Selector, ...] = Field(
        default=(), max_length=MOST_SELECTORS, description="Nodes to leave in float; takes precedence over include."
    )
    overrides: tuple[Override, ...] = Field(
        default=(),
        max_length=MOST_SELECTORS,
        description="Other specs for some nodes; the first match applies, field by field.",
    )
    preparation: PreparationSpec = Field(default_factory=PreparationSpec)
    tensor_ranges: dict[str, TensorRange] = Field(
        default_factory=dict,
        max_length=MOST_RANGES,
        description="Ranges by tensor name, used instead of calibrated ones.",
    )
    calibration_samples: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Use only the first n samples."
    )
    outlier_ratio: float | None = Field(
        default=32.0,
        gt=1.0,
        le=1e6,
        description=(
            "Threshold for outlier channels, as a multiple of the median channel's range: the report names them, and "
            "outlier_channels treats them, if few. At 32 a typical channel keeps 8 of 256 steps. null: no check."
        ),
    )
    max_seconds: MaxSeconds = None
    random_calibration: RandomCalibration | None = Field(
        default=None,
        description="Random inputs instead of a calibration dataset; shows nothing about accuracy.",
    )
    evaluation: EvaluationSpec = Field(default_factory=EvaluationSpec)
    seed: int = Field(default=0, ge=0, le=2**32 - 1)

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        require_bounded(data)
        return completed(data)

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

    @property
    def has_float16(self) -> bool:
        """True if floats beside quantized tensors are float16."""
        by_target = self.float_dtype == "auto" and self.target == "tensorrt"
        return self.mode == "static" and self.format == "qdq" and (self.float_dtype == "float16" or by_target)

    @property
    def graph_models(self) -> tuple[str, ...]:
        """Ids of the uploaded models that metrics and losses are given as, each once."""
        of_losses = [
            source.model_id
            for algorithm in self.algorithms
            if isinstance(algorithm, QuantizationAwareTraining)
            for source in algorithm.graph_sources()
        ]
        return tuple(dict.fromkeys((*self.evaluation.graph_models, *(name for name in of_losses if name is not None))))

    def _contradictions(self) -> Iterator[Contradiction]:
        included = set(self.include)
        for place, selector in enumerate(self.exclude):
            if selector in included:
                told = f"{selector.model_dump()} is in include and in exclude"
                yield Contradiction(f"/exclude/{place}", told)
        yield from _mode_contradictions(self)
        weights = [self.weight, *(override.weight for override in self.overrides if override.weight)]
        yield from algorithm_contradictions(
            [algorithm.method for algorithm in self.algorithms], [weight.dtype for weight in weights]
        )


def _mode_contradictions(config: QuantizationConfig) -> Iterator[Contradiction]:
    """One per setting that ``config.mode`` or ``config.format`` rules out."""
    if config.mode == "dynamic":
        yield from _dynamic(config)
    if config.mode != "static":
        yield from _not_static(config)
    yield from _algorithms_of_modes(config)
    yield from _half_scales(config)
    if config.float_dtype == "float16" and not config.has_float16:
        told = "float_dtype float16 needs mode static and format qdq; mode float16 turns the whole model"
        yield Contradiction("/float_dtype", told)
    if config.interface == "float16" and not (config.has_float16 or config.mode == "float16"):
        yield Contradiction("/interface", "interface float16 needs mode float16, or float_dtype float16")
    if config.subgraphs == "weights" and config.mode not in ("static", "weights_only"):
        told = f"mode {config.mode} leaves sub-graphs in float; leave subgraphs out, or choose mode weights_only"
        yield Contradiction("/subgraphs", told)
    if config.format == "qoperator":
        if config.mode != "static":
            yield Contradiction("/format", "format qoperator needs mode static")
        dtypes = [(at, spec.dtype) for at, spec in _activations(config)]
        for at, dtype in (*dtypes, *((at, spec.dtype) for at, spec in _weights(config))):
            if not has_integer_kernels(dtype):
                yield Contradiction(f"{at}/dtype", f"format qoperator needs 8-bit integers, not {dtype}")


def _dynamic(config: QuantizationConfig) -> Iterator[Contradiction]:
    for at, weight in _weights(config):
        if not has_integer_kernels(weight.dtype):
            yield Contradiction(f"{at}/dtype", f"mode dynamic needs int8 or uint8 weights, not {weight.dtype}")
        if weight.granularity == "per_block":
            told = "mode dynamic needs one weight scale per tensor or per channel, not per block"
            yield Contradiction(f"{at}/granularity", told)


def _not_static(config: QuantizationConfig) -> Iterator[Contradiction]:
    mode = config.mode
    if config.tensor_ranges:
        yield Contradiction("/tensor_ranges", f"mode {mode} uses no calibrated ranges; leave tensor_ranges out")
    if config.target != _DEFAULT_TARGET:
        told = f"mode {mode} has no target rules; remove {config.target} (target: {_DEFAULT_TARGET})"
        yield Contradiction("/target", f"{told}, or choose mode static")
    for name in config.target_options:
        told = f"mode {mode} has no target rules; remove {name}"
        hint = " and set weight.reduce_range" if name == "x86_without_vnni" else ""
        yield Contradiction("/target_options", told + hint)


def _algorithms_of_modes(config: QuantizationConfig) -> Iterator[Contradiction]:
    mode = config.mode
    methods = ", ".join(algorithm.method for algorithm in config.algorithms if mode not in algorithm.modes)
    if methods:
        known = [method for method, algorithm in ALGORITHMS.items() if mode in algorithm.modes]
        told = f"runs no algorithms but {', '.join(known)}" if known else "runs no algorithms"
        rest = "" if known else " (algorithms: [])"
        yield Contradiction("/algorithms", f"mode {mode} {told}; remove {methods}{rest}")


def _half_scales(config: QuantizationConfig) -> Iterator[Contradiction]:
    tables = [("/embedding", config.embedding)] if config.embedding is not None else []
    for at, weight in (*_weights(config), *tables):
        if weight.scale == "float16" and config.mode != "weights_only":
            yield Contradiction(f"{at}/scale", f"mode {config.mode} has no scales of 16 bits; mode weights_only has")
        if weight.kernel == "matmul_nbits" and config.mode != "weights_only":
            told = f"mode {config.mode} computes with activations that are no floats; kernel matmul_nbits needs floats"
            yield Contradiction(f"{at}/kernel", f"{told}: choose mode weights_only")


def _weights(config: QuantizationConfig) -> Iterator[tuple[str, WeightSpec]]:
    yield "/weight", config.weight
    for place, override in enumerate(config.overrides):
        if override.weight:
            yield f"/overrides/{place}/weight", override.weight


def _activations(config: QuantizationConfig) -> Iterator[tuple[str, ActivationSpec]]:
    yield "/activation", config.activation
    for place, override in enumerate(config.overrides):
        if override.activation:
            yield f"/overrides/{place}/activation", override.activation
        if override.input_activation:
            yield f"/overrides/{place}/input_activation", override.input_activation


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
        of_preset = all(problem.pointer == f"{pointer}/preset" for problem in problems)
        hint = "GET /v1/presets lists the presets." if of_preset else "docs/config.md describes every key."
        raise InvalidConfigError(problem_summary(problems), errors=problems, hint=hint) from None


def with_ranges(
    config: QuantizationConfig, ranges: Mapping[str, TensorRange], *, pointer: str = ""
) -> QuantizationConfig:
    """``config`` with these ``tensor_ranges``; those that it has itself stay.

    Args:
        config: resolved.
        ranges: ``tensor_ranges`` of a report.
        pointer: JSON pointer of the config within the request's body.

    Raises:
        InvalidConfigError: the config's mode takes no ranges.
    """
    taken = {**ranges, **config.tensor_ranges}
    document = {name: found.model_dump(mode="json") for name, found in taken.items()}
    return parse_config({**config.model_dump(mode="json"), "tensor_ranges": document}, pointer=pointer)


def patched(document: Any, patch: Any) -> Any:
    """``document`` with a merge patch applied (RFC 7396, section 2); both stay as they are.

    Objects are merged, null removes a key, and everything else, lists included, is replaced whole; beyond the RFC, so
    is an object that gets another ``method`` or ``kind``.
    """
    if not isinstance(patch, Mapping):
        return patch
    result = dict(document) if isinstance(document, Mapping) and is_same_kind(document, patch) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = patched(result.get(key), value)
    return result


def patch_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The smallest merge patch that makes ``after`` of ``before``, but that what is null in ``after`` is left out."""
    patch: dict[str, Any] = dict.fromkeys(key for key in before if key not in after)
    for key, new in after.items():
        old = before.get(key)
        if old != new:
            merges = isinstance(old, Mapping) and isinstance(new, Mapping) and is_same_kind(old, new)
            patch[key] = patch_between(old, new) if merges else new  # type: ignore[arg-type]
    return patch


def advised_config(config: QuantizationConfig, patch: Mapping[str, Any]) -> QuantizationConfig:
    """The config of a report with a piece of advice applied, resolved.

    Args:
        config: the report's ``manifest.config``.
        patch: the advice's ``config``.

    Raises:
        InvalidConfigError: they do not go together; names the fields.
    """
    return parse_config(patched(config.model_dump(mode="json"), dict(patch)))
