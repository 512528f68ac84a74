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
    drop: float | None = Field(
        description="Drop compared with the job's own float model; negative if the quantized model is better."
    )


class ComparedJob(BaseModel):
    """What one job gave."""

    id: str
    name: str | None
    labels: dict[str, str]
    model_id: str | None
    model: str | None = Field(description="Model as NAME@VERSION.")
    preset: str | None
    algorithms: tuple[str, ...] = Field(default=(), description="Methods of the algorithms in the config, in order.")
    calibration_dataset_id: str | None = None
    evaluation_dataset_id: str | None = None
    verdict: Verdict
    seconds: float | None = Field(description="Duration of the last attempt, in seconds.")
    engine_version: str
    metrics: tuple[ComparedMetric, ...]
    sqnr_db: float | None
    top1_agreement: float | None = Field(description="Top-1 agreement with the job's float model, in percent.")
    float_size_bytes: int | None = Field(
        description="Size of the float model; null for an evaluation without a reference model."
    )
    quantized_size_bytes: int
    latency_ratio: float | None = Field(
        description="Quantized latency divided by float latency; null if latency was not measured."
    )
    latency_ratio_interval: Interval | None
    latency_not_representative: bool = Field(
        default=False, description="The target was simulated on this CPU: the ratio does not predict its latency."
    )
    collapsed: bool = Field(default=False, description="The quantized model lost most of what the float model can do.")
    critical_findings: int = Field(default=0, description="Number of critical findings in its report.")


class ConfigDifference(BaseModel):
    """A place of the resolved configs where the jobs differ."""

    pointer: str = Field(description="JSON Pointer into the config.")
    values: tuple[Any, ...] = Field(description="One value per job; null also if the config does not have this field.")


class SampleFlip(BaseModel):
    """A sample that one of two quantized models gets right and the other wrong."""

    index: int = Field(description="Index of the sample in the evaluation data, starting at 0.")
    expected: int = Field(description="Label of the sample; without labels, the float model's prediction.")
    first: int = Field(description="Prediction of the first job's quantized model.")
    second: int


class PairedMetric(BaseModel):
    """A metric of the first job's quantized model against another's, on the same samples."""

    name: str
    unit: str
    better: Literal["higher", "lower"]
    drop: float = Field(description="How much worse the other job is, in the metric's unit; negative if it is better.")
    interval: Interval = Field(description="Of ``drop``.")
    p_value: float = Field(
        description="Chance of a difference as large if neither was better: by McNemar's exact test for top1, where "
        "the data has labels; by the paired bootstrap for other metrics."
    )
    significant: bool = Field(description="True if ``p_value`` is 0.05 or less.")


class ComparedPair(BaseModel):
    """The first job and another one, sample by sample."""

    first: str = Field(description="Id of the first job.")
    second: str
    measure: Literal["accuracy", "agreement"] | None = Field(
        description="How predictions count as correct: they match the label (accuracy) or the float model's "
        "prediction (agreement)."
    )
    reason: str | None = Field(description="Why the two jobs cannot be compared sample by sample; null if they were.")
    drop_percent: float | None = Field(
        default=None,
        description="Share of correct predictions of the first job minus that of the second, in percentage points.",
    )
    interval: Interval | None = Field(default=None, description="Of ``drop_percent``.")
    p_value: float | None = Field(
        default=None,
        description="Probability of a difference at least this large if the two models were equally good (exact "
        "McNemar test).",
    )
    significant: bool | None = Field(default=None, description="True if ``p_value`` is 0.05 or less.")
    flips: Flips | None = None
    samples: int | None = None
    flipped: tuple[SampleFlip, ...] = Field(
        default=(), description="Prediction flips, ordered by sample; at most ``flips=`` of them."
    )
    flipped_more: int = Field(default=0, description="Number of prediction flips that are not listed.")
    metrics: tuple[PairedMetric, ...] = Field(
        default=(),
        description="Metrics for which both jobs store one value per sample, including metrics without classes.",
    )


class ComparedLayer(BaseModel):
    """A layer that several jobs quantized, or left in float."""

    name: str
    op: str
    sqnr_db: tuple[float | None, ...] = Field(
        description="SQNR of the layer in dB, one value per job; null if the job keeps the layer in float or does not "
        "have it."
    )
    spread_db: float = Field(description="Difference between the highest and the lowest SQNR.")


class Comparison(BaseModel):
    """Jobs side by side, in the order asked for."""

    jobs: tuple[ComparedJob, ...]
    config_differences: tuple[ConfigDifference, ...]
    pairs: tuple[ComparedPair, ...] = Field(description="The first job compared with each of the other jobs.")
    layers: tuple[ComparedLayer, ...] = Field(
        description=f"The {MOST_LAYERS} layers that differ most, in descending order."
    )
    layers_more: int = Field(description="Number of further layers that differ and are not listed.")
