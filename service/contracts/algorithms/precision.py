"""Algorithms that choose types: sensitivity, mixed precision, autopilot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, field_validator, model_validator

from service.contracts.algorithms.base import AlgorithmBase
from service.contracts.base import Contract
from service.contracts.metrics.base import OutputRef
from service.contracts.selectors import Selector
from service.contracts.specs import ActivationSpec, WeightSpec

Combination = Literal["A16W16_A8W16", "A16W16_A16W8", "A16W16_A8W8", "A16W8_A8W8", "A8W16_A8W8"]
RankingSamples = Annotated[
    int | None,
    Field(ge=1, le=4096, description="Samples that layers are ranked on; null: by the number of layers."),
]
Verified = Annotated[
    int,
    Field(
        ge=0,
        le=10_000,
        description="Number of most sensitive layers that are checked by models in which only they are quantized.",
    ),
]


class Level(Contract):
    """How a layer is represented at one level of precision."""

    activation: ActivationSpec | Literal["float32"] = Field(description="Of its input; float32: not quantized.")
    weight: WeightSpec | Literal["float32"] = Field(description="Of its weight; float32: not quantized.")

    @model_validator(mode="after")
    def _both_or_none(self) -> Level:
        if self.activation == "float32" and self.weight != "float32":
            raise ValueError("a layer whose input stays float keeps its weight in float too; use mode weights_only")
        return self

    @property
    def is_float(self) -> bool:
        """True if a layer at this level is left in float."""
        return self.weight == "float32"


class DistanceGoal(Contract):
    """Largest accepted distance of the quantized network's output from the float one's.

    sqnr and psnr in dB and cosine are smallest accepted values; l2 is ||x - x~|| / ||x||, kl the mean divergence of the
    soft-maxed rows in nats.
    """

    kind: Literal["distance"] = "distance"
    metric: Literal["sqnr", "psnr", "cosine", "l2", "kl"] = "sqnr"
    limit: float


class DropGoal(Contract):
    """Largest accepted loss of a metric, in points of it."""

    kind: Literal["drop"] = "drop"
    metric: str = Field(default="top1", description="top1, or the name of a metric of evaluation.metrics.")
    max_drop: float = Field(ge=0.0)


class PrecisionBudget(Contract):
    """What the mixed model may cost; null: no limit."""

    max_weight_bytes: int | None = Field(default=None, ge=1, description="Bytes of all weights.")
    max_mean_bits: float | None = Field(default=None, gt=0, description="Mean bits of a weight.")
    max_latency_ratio: float | None = Field(
        default=None, gt=0, description="Latency over that of the float model, measured on this machine."
    )
    max_seconds: float | None = Field(default=None, gt=0, description="Time of the search; then the best so far.")


class MixedPrecision(AlgorithmBase):
    """Chooses the precision of every layer by what it does to the output.

    Layers are ranked by sensitivity, the network's output error when they alone are at the lower level; then as many as
    the goal allows are lowered (``optimize`` speed) or as few as it needs are raised (quality), with real evaluations
    deciding where to stop. Layers that share a tensor move together.
    """

    place = 2
    starts_afresh = True
    choice = "the types that mixed_precision has chosen"
    may_give_integers = True

    method: Literal["mixed_precision"] = "mixed_precision"
    combination: Combination | None = Field(
        default=None,
        description=(
            "Short for high and low: 16-bit or 8-bit activations (A) and weights (W), int16, uint8 and int8 unless the "
            "config has another type of that width; scale, granularity and calibration are the config's."
        ),
    )
    high: Level = Field(description="May be left out where combination is given.")
    low: Level = Field(description="May be left out where combination is given.")
    optimize: Literal["speed", "quality"] = Field(
        default="speed", description="speed: begin high, lower what can be; quality: begin low, raise what must be."
    )
    goal: Annotated[DropGoal | DistanceGoal, Field(discriminator="kind")] = Field(
        default_factory=lambda: DropGoal(max_drop=0.5)
    )
    budget: PrecisionBudget = Field(default_factory=PrecisionBudget)
    output_index: OutputRef = Field(default=0, description="Output that a distance is measured on: index or name.")
    include: tuple[Selector, ...] = Field(default=(), max_length=10_000, description="Only these; empty: all.")
    exclude: tuple[Selector, ...] = Field(default=(), max_length=10_000, description="These stay at the higher level.")
    sensitivity_samples: RankingSamples = None
    verify: Verified = 3

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("combination"), str):
            return data
        high, _, low = data["combination"].partition("_")
        expanded = {"high": level_document(high), "low": level_document(low)}
        return {**expanded, **data}

    @model_validator(mode="after")
    def _levels_differ(self) -> MixedPrecision:
        if self.low.is_float:
            raise ValueError("low cannot be float32: there would be nothing to lower")
        if self.high == self.low:
            raise ValueError("high and low are the same")
        return self


def with_levels(entry: Any, activation: Any, weight: Any) -> Any:
    """An entry of ``algorithms`` whose ``combination`` is spelled out on top of the config's own specs.

    Calibration, scale and granularity are the config's; a type of the same width stays what the config says.

    Args:
        entry: as given, not validated.
        activation: the config's own spec, not validated; None: not given.
        weight: likewise.
    """
    own = [spec.model_dump(mode="json") if isinstance(spec, Contract) else spec or {} for spec in (activation, weight)]
    if not isinstance(entry, Mapping) or not all(isinstance(spec, Mapping) for spec in own):
        return entry
    if entry.get("method") != "mixed_precision" or entry.get("combination") not in get_args(Combination):
        return entry
    activation, weight = own
    high, _, low = entry["combination"].partition("_")
    return {"high": level_document(high, activation, weight), "low": level_document(low, activation, weight), **entry}


def level_document(
    word: str, activation: Mapping[str, Any] | None = None, weight: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A16W8 and the like as a level: 16-bit activations around zero, 8-bit ones wherever their range lies.

    Args:
        word: bits of activations and weights.
        activation: the spec whose type is exchanged, unless it has that width; None: the default one.
        weight: likewise.
    """
    activation_bits, _, weight_bits = word.removeprefix("A").partition("W")
    wide = {"dtype": "int16", "symmetric": True}
    narrow = {"dtype": "uint8", "symmetric": False}
    types = wide if activation_bits == "16" else narrow
    own, own_weight = dict(activation or {}), dict(weight or {})
    if own.get("dtype") in (f"int{activation_bits}", f"uint{activation_bits}"):
        types = {}
    weight_types = {"dtype": f"int{weight_bits}", "symmetric": True}
    if own_weight.get("dtype") in (f"int{weight_bits}", f"uint{weight_bits}"):
        weight_types = {}
    return {"activation": {**own, **types}, "weight": {**own_weight, **weight_types}}


class SearchBudget(Contract):
    """What the search and its model may cost; null: no limit."""

    max_seconds: float | None = Field(default=600.0, gt=0, description="Time; then the best so far is returned.")
    max_trials: int | None = Field(default=None, ge=1, description="Recipes tried.")
    max_size_bytes: int | None = Field(default=None, ge=1, description="Bytes of the model file.")
    max_latency_ratio: float | None = Field(default=None, gt=0, description="Latency over that of the float model.")


class Autopilot(AlgorithmBase):
    """Searches for the smallest or fastest model that meets a goal.

    Recipes are tried cheap ones first, judged by the distance of their outputs on samples held back; what two recipes
    have in common is done once. The best are refined further, and the finalists alone are evaluated in full. The last
    resort, where the budget sets a time, is to train the nearest for most of what is left of it.
    Differences within chance are not taken for gains. All models that no other beats in accuracy, bytes and latency at
    once come as files of the job. The verdict is ``pass`` only if the goal is met within the budget's bytes and
    latency.
    """

    place = 2
    starts_afresh = True
    choice = "the recipe that autopilot has chosen"
    excludes: ClassVar[dict[str, str]] = {"mixed_precision": "types"}

    method: Literal["autopilot"] = "autopilot"
    goal: Annotated[DropGoal | DistanceGoal, Field(discriminator="kind")] = Field(
        default_factory=lambda: DropGoal(max_drop=0.5)
    )
    budget: SearchBudget = Field(default_factory=SearchBudget)
    objective: Literal["size", "latency"] = Field(
        default="latency", description="What to make small once the goal is met."
    )
    output_index: OutputRef = Field(default=0, description="Output that a distance is measured on: index or name.")
    finalists: int = Field(default=3, ge=1, le=16, description="Recipes that are evaluated in full.")


class SensitivityAnalysis(AlgorithmBase):
    """Tells what every layer's precision does to the output, and changes nothing.

    The ranking, as JSON and CSV, is a file of the job.
    """

    place = 2

    method: Literal["sensitivity"] = "sensitivity"
    levels: dict[str, Level] = Field(
        default_factory=dict,
        max_length=16,
        description=(
            "Candidates by name; the last one's errors are propagated to the output and the others estimated from "
            "them. Empty: A16W16, A8W16, A16W8 and A8W8, on top of the config's own specs."
        ),
    )
    samples: RankingSamples = None
    verify: Verified = 3
    output_index: OutputRef = Field(default=0, description="Output that errors are measured on: index or name.")

    @field_validator("levels")
    @classmethod
    def _last_has_errors(cls, levels: dict[str, Level]) -> dict[str, Level]:
        if levels and next(reversed(levels.values())).is_float:
            raise ValueError("the last level's errors are propagated: it cannot be float32")
        return levels
