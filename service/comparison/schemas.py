"""A comparison of jobs as it is told over HTTP."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from service.contracts.report import Flips, Interval, Verdict

MOST_JOBS = 20
MOST_LAYERS = 200
MOST_LISTED = 1000


class ComparedMetric(BaseModel):
    """One metric of one job."""

    name: str
    unit: str
    better: Literal["higher", "lower"]
    float_: float | None = Field(alias="float", serialization_alias="float")
    quantized: float | None
    quantized_interval: Interval | None
    drop: float | None = Field(description="Against the job's own float model; negative: better than float.")


class ComparedJob(BaseModel):
    """What one job gave."""

    id: str
    name: str | None
    labels: dict[str, str]
    model_id: str | None
    model: str | None = Field(description="Name and version: NAME@VERSION.")
    preset: str | None
    algorithms: tuple[str, ...] = Field(default=(), description="Methods of the config's algorithms, in order.")
    calibration_dataset_id: str | None = None
    evaluation_dataset_id: str | None = None
    verdict: Verdict
    seconds: float | None = Field(description="From the start of its last attempt to its end.")
    engine_version: str
    metrics: tuple[ComparedMetric, ...]
    sqnr_db: float | None
    top1_agreement: float | None = Field(description="With its float model, in percent.")
    float_size_bytes: int | None = Field(description="Null: of an evaluation without a reference model.")
    quantized_size_bytes: int
    latency_ratio: float | None = Field(description="Quantized over float; null: not timed.")
    latency_ratio_interval: Interval | None
    latency_not_representative: bool = Field(
        default=False, description="The target was simulated on this CPU: the ratio does not predict its latency."
    )
    collapsed: bool = Field(default=False, description="The quantized model lost most of what the float model can do.")
    critical_findings: int = Field(default=0, description="Number of critical findings in its report.")


class ConfigDifference(BaseModel):
    """A place of the resolved configs where the jobs differ."""

    pointer: str = Field(description="JSON Pointer into the config.")
    values: tuple[Any, ...] = Field(description="One per job; null also where the config has no such place.")


class SampleFlip(BaseModel):
    """A sample that one of two quantized models gets right and the other wrong."""

    index: int = Field(description="Number of the sample in the evaluation data, from 0.")
    expected: int = Field(description="Its label; without labels, what the float model decides.")
    first: int = Field(description="What the first job's quantized model decides.")
    second: int


class PairedMetric(BaseModel):
    """A metric of the first job's quantized model against another's, on the same samples."""

    name: str
    unit: str
    better: Literal["higher", "lower"]
    drop: float = Field(description="So much worse is the other one, in the metric's unit; negative: better.")
    interval: Interval = Field(description="Of ``drop``.")
    p_value: float = Field(
        description="Chance of a difference as large if neither was better: by McNemar's exact test for top1, where "
        "the data has labels; by the paired bootstrap for other metrics."
    )
    significant: bool = Field(description="Whether ``p_value`` is 0.05 or less.")


class ComparedPair(BaseModel):
    """The first job and another one, sample by sample."""

    first: str = Field(description="Id of the first job.")
    second: str
    measure: Literal["accuracy", "agreement"] | None = Field(
        description="Right samples are those decided as labeled (accuracy) or as the float model decides (agreement)."
    )
    reason: str | None = Field(description="Why the two cannot be paired; null: they were.")
    drop_percent: float | None = Field(
        default=None, description="What the first one's share of right samples is above the second's; in percent."
    )
    interval: Interval | None = Field(default=None, description="Of ``drop_percent``.")
    p_value: float | None = Field(
        default=None, description="Chance of a difference as large as this if neither was better (McNemar, exact)."
    )
    significant: bool | None = Field(default=None, description="Whether ``p_value`` is 0.05 or less.")
    flips: Flips | None = None
    samples: int | None = None
    flipped: tuple[SampleFlip, ...] = Field(default=(), description="In their order; at most ``flips=`` of them.")
    flipped_more: int = Field(default=0, description="Flips that are not listed.")
    metrics: tuple[PairedMetric, ...] = Field(
        default=(), description="Those that both keep by sample, whether or not there is one class for each."
    )


class ComparedLayer(BaseModel):
    """A layer that several jobs quantized, or left in float."""

    name: str
    op: str
    sqnr_db: tuple[float | None, ...] = Field(description="One per job; null: in float, or not there.")
    spread_db: float = Field(description="Largest less smallest.")


class Comparison(BaseModel):
    """Jobs side by side, in the order asked for."""

    jobs: tuple[ComparedJob, ...]
    config_differences: tuple[ConfigDifference, ...]
    pairs: tuple[ComparedPair, ...] = Field(description="The first job against each other one.")
    layers: tuple[ComparedLayer, ...] = Field(description=f"The {MOST_LAYERS} that differ most, the most first.")
    layers_more: int = Field(description="Layers that differ, too, and are not listed.")
