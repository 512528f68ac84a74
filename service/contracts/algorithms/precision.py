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
    Field(ge=1, le=4096, description="Samples for ranking layers; null: by the number of layers."),
]
Verified = Annotated[
    int,
    Field(
        ge=0,
        le=10_000,
        description="Number of the most sensitive layers to verify with models in which only they are quantized.",
    ),
]


class Level(Contract):
    """The types of a layer at one level of precision."""

    activation: ActivationSpec | Literal["float32"] = Field(description="Type of its input; float32: not quantized.")
    weight: WeightSpec | Literal["float32"] = Field(description="Type of its weight; float32: not quantized.")

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
    """Largest accepted distance between the outputs of the quantized and the float network.

    sqnr and psnr in dB and cosine are smallest accepted values; l2 is ||x - x~|| / ||x||, kl the mean divergence of
    the softmax rows in nats.
    """

    kind: Literal["distance"] = "distance"
    metric: Literal["sqnr", "psnr", "cosine", "l2", "kl"] = "sqnr"
    limit: float


class DropGoal(Contract):
    """Largest accepted drop of a metric, in points."""

    kind: Literal["drop"] = "drop"
    metric: str = Field(default="top1", description="top1, or the name of a metric in evaluation.metrics.")
    max_drop: float = Field(ge=0.0)


class PrecisionBudget(Contract):
    """Limits of the mixed model; null: no limit."""

    max_weight_bytes: int | None = Field(default=None, ge=1, description="Largest size of all weights, in bytes.")
    max_mean_bits: float | None = Field(default=None, gt=0, description="Largest mean number of bits per weight.")
    max_latency_ratio: float | None = Field(
        default=None, gt=0, description="Largest latency relative to the float model, measured on this machine."
    )
    max_seconds: float | None = Field(
        default=None, gt=0, description="Time limit of the search, in seconds; then the best model so far is used."
    )


class MixedPrecision(AlgorithmBase):
    """Mixed precision: chooses the precision of every layer by its effect on the output.

    Layers are ranked by sensitivity: the network's output error when only they are at the lower level. Then as many as
    the goal allows are lowered (``optimize`` speed), or as few as needed are raised (quality); evaluations decide
    where to stop. Layers that share a tensor change together.
    """

    place = 2
    starts_afresh = True
    choice = "the types that mixed_precision has chosen"
    may_give_integers = True

    method: Literal["mixed_precision"] = "mixed_precision"
    combination: Combination | None = Field(
        default=None,
        description=(
            "Shorthand for high and low: 16-bit or 8-bit activations (A) and weights (W): int16, uint8 and int8 "
            "unless the config has another type of that width. Scale, granularity and calibration are the "
            "config's."
        ),
    )
    high: Level = Field(description="Optional if combination is set.")
    low: Level = Field(description="Optional if combination is set.")
    optimize: Literal["speed", "quality"] = Field(
        default="speed",
        description=(
            "speed: start high and lower as many layers as possible; quality: start low and raise as few as necessary."
        ),
    )
    goal: Annotated[DropGoal | DistanceGoal, Field(discriminator="kind")] = Field(
        default_factory=lambda: DropGoal(max_drop=0.5)
    )
    budget: PrecisionBudget = Field(default_factory=PrecisionBudget)
    output_index: OutputRef = Field(default=0, description="Output for distances: index or name.")
    include: tuple[Selector, ...] = Field(default=(), max_length=10_000, description="Nodes to consider; empty: all.")
    exclude: tuple[Selector, ...] = Field(
        default=(), max_length=10_000, description="Nodes that stay at the higher level."
    )
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


class SelectivePrecision(AlgorithmBase):
    """Selective precision: raises the few layers whose quantization costs most output error for their bytes.

    Each weight and each tensor is rounded alone, and its error carried to the output. Weights below 8 bits are raised
    to 8 bits, other layers and products of two activations to float, within a budget of bytes and multiply-accumulates:
    the smallest set that brings most of the gain. Targets that run the whole network on integers are left as they are.
    """

    place = 2
    needs_data = False
    modes: ClassVar[tuple[str, ...]] = ("static", "weights_only", "dynamic")

    method: Literal["selective_precision"] = "selective_precision"
    max_weight_growth: float = Field(
        default=0.05, gt=0.0, le=8.0, description="Budget: largest growth of all quantized weights, as a share of them."
    )
    max_weight_bytes: int | None = Field(
        default=None,
        ge=1,
        description=(
            "Budget: largest size of all quantized weights with their scales, in bytes, in place of"
            " max_weight_growth. As many weights as fit get 8 bits; null: only those that gain more than a bit more"
            " for every weight would gain for the same bytes."
        ),
    )
    max_float_share: float = Field(
        default=0.05,
        ge=0.0,
        le=1.0,
        description=(
            "Budget: largest share of the multiply-accumulates of layers with weights that may return to float. "
            "Products of two activations do not count: integers hardly make them faster. In mode weights_only nothing "
            "counts: all layers compute in float."
        ),
    )
    min_gain_db: float = Field(
        default=1.0,
        ge=0.0,
        description=(
            "Smallest gain of SQNR on held-out samples that is worth the bytes, in dB; a metric that is surely better "
            "counts, too."
        ),
    )
    samples: RankingSamples = None

    @property
    def least_gain_db(self) -> float:
        """What it must gain to be kept."""
        return self.min_gain_db


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
    """Limits of the search and its model; null: no limit."""

    max_seconds: float | None = Field(
        default=600.0, gt=0, description="Time limit, in seconds; then the best model so far is returned."
    )
    max_trials: int | None = Field(default=None, ge=1, description="Number of recipes to try.")
    max_size_bytes: int | None = Field(default=None, ge=1, description="Largest size of the model file, in bytes.")
    max_latency_ratio: float | None = Field(
        default=None, gt=0, description="Largest latency relative to the float model."
    )


class Autopilot(AlgorithmBase):
    """Autopilot: searches for the smallest or fastest model that meets a goal.

    Recipes are tried in order of cost and judged by the distance of their outputs on held-out samples; steps that two
    recipes share run once. The best are refined, and only the finalists are evaluated in full. If the budget sets a
    time, the last resort is to train the closest one for most of the remaining time. Differences that are not
    significant do not count as gains: then the smaller error of the outputs wins. All models on the Pareto front of
    accuracy, bytes and latency are files of the job. The verdict is ``pass`` only if the goal is met within the
    budget's bytes and latency; a drop that one sample more or less would put on the other side of the goal is
    undecided.
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
        default="latency", description="What to minimize once the goal is met."
    )
    output_index: OutputRef = Field(default=0, description="Output for distances: index or name.")
    finalists: int = Field(default=3, ge=1, le=16, description="Number of recipes to evaluate in full.")


class SensitivityAnalysis(AlgorithmBase):
    """Sensitivity analysis: ranks layers by the effect of their precision on the output; changes nothing.

    The ranking, as JSON and CSV, is a file of the job.
    """

    place = 2

    method: Literal["sensitivity"] = "sensitivity"
    levels: dict[str, Level] = Field(
        default_factory=dict,
        max_length=16,
        description=(
            "Candidates by name; the errors of the last one are propagated to the output and the others are "
            "estimated from them. Empty: A16W16, A8W16, A16W8 and A8W8, on top of the config's own specs."
        ),
    )
    samples: RankingSamples = None
    verify: Verified = 3
    output_index: OutputRef = Field(default=0, description="Output for errors: index or name.")

    @field_validator("levels")
    @classmethod
    def _last_has_errors(cls, levels: dict[str, Level]) -> dict[str, Level]:
        if levels and next(reversed(levels.values())).is_float:
            raise ValueError("the last level's errors are propagated: it cannot be float32")
        return levels
