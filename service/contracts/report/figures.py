"""Figures of both models: metrics, distance from the float model, latency."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.contracts.base import Contract
from service.contracts.report.statistics import Flips, Interval


class ModelFigures(Contract):
    """Figures of one model. Latency is the median of one run at batch 1, both models taken in turn."""

    metrics: dict[str, float] = Field(
        default_factory=dict, description="By name, in the units that the report's metrics tell; percent by default."
    )
    metric_details: dict[str, dict[str, float]] = Field(
        default_factory=dict, description="Figures behind the metrics, such as one per class, by name of the metric."
    )
    size_bytes: int
    latency_ms: float | None = None


class MetricFigures(Contract):
    """One metric of both models."""

    name: str
    kind: str
    unit: str = Field(description="'%', 'dB', 'nats'; empty for none, or the target's own.")
    better: Literal["higher", "lower"]
    float_: float | None = Field(
        alias="float",
        serialization_alias="float",
        description="Of the float model; null for what compares with it, and for what is undefined.",
    )
    quantized: float | None = Field(description="Of the quantized model; null: undefined.")
    drop: float | None = Field(
        description="Change for the worse, in the metric's unit; negative: better than float. Null: not defined."
    )
    samples: int | None = Field(default=None, description="That it was measured on; null: not known.")
    float_interval: Interval | None = Field(default=None, description="Of the float model's value.")
    quantized_interval: Interval | None = Field(default=None, description="Of the quantized model's value.")
    drop_interval: Interval | None = Field(
        default=None, description="Of the drop, both models compared on the same samples in pairs."
    )
    p_value: float | None = Field(
        default=None, ge=0, le=1, description="Chance of a difference as large as this if neither model was better."
    )
    flips: Flips | None = Field(default=None, description="Of a share of samples: which of them changed sides.")
    chance: float | None = Field(default=None, description="What guessing would reach; null where nobody knows.")


class OutputFidelity(Contract):
    """Distance of one model output from the float model's; None where undefined (e.g. not a float tensor)."""

    name: str
    sqnr_db: float | None
    cosine: float | None
    top1_agreement: float | None


class Fidelity(Contract):
    """Distance of the quantized outputs from the float outputs over the evaluation data. ``sqnr_db`` is the worst
    output's.
    """

    sqnr_db: float | None
    cosine: float | None
    top1_agreement: float | None = Field(
        description="Share of samples with the same arg max, in percent; of the first output. Null where that holds no "
        "class scores."
    )
    sqnr_interval_db: Interval | None = Field(default=None, description="Of ``sqnr_db``.")
    top1_agreement_interval: Interval | None = Field(default=None, description="Of ``top1_agreement``.")
    samples: int
    source: Literal["evaluation", "calibration", "random"] = Field(
        description="Which data the figures were measured on; random tells nothing of accuracy."
    )
    outputs: tuple[OutputFidelity, ...]


class MachineLoad(Contract):
    """What else the machine did while something was timed; null where the system does not tell."""

    cpu_count: int = Field(ge=1, description="CPUs that this process may use.")
    load_average: float | None = Field(default=None, description="Of the last minute.")
    other_busy_percent: float | None = Field(
        default=None, ge=0, le=100, description="Share of all CPU time that other processes took meanwhile."
    )


class LatencyFigures(Contract):
    """Both models timed in turn, run by run, so that what else the machine does hits either alike."""

    float_ms: float = Field(description="Median of one run.")
    quantized_ms: float
    float_interval_ms: Interval
    quantized_interval_ms: Interval
    ratio: float = Field(
        description="Quantized over float: of the fastest runs of blocks that followed each other, the median."
    )
    ratio_interval: Interval
    verdict: Literal["faster", "slower", "undecided"] = Field(
        description="Of the quantized model; undecided where the interval of the ratio holds 1."
    )
    runs: int = Field(ge=1, description="Timed runs of either model.")
    batch_size: int = Field(ge=1)
    threads: int = Field(ge=1)
    load: MachineLoad
