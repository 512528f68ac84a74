"""Figures of a report: metrics, sizes, latency and kernels of both models, the verdict, the fallback."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.contracts.base import Contract


class Interval(Contract):
    """Where a figure lies with ``confidence``, in the figure's own unit."""

    low: float
    high: float
    confidence: float = Field(default=0.95, gt=0, lt=1)
    method: Literal["wilson", "mcnemar", "bootstrap", "order_statistics", "student", "rule_of_three"] = Field(
        description="How it was found: Wilson's score interval of a share, the paired difference of two shares, a "
        "seeded bootstrap by sample, order statistics of repeated runs, Student's t over parts of the samples, or the "
        "rule of three where no sample differs."
    )
    samples: int = Field(ge=1, description="Independent samples, or runs, that it rests on.")


class Flips(Contract):
    """Samples that one model gets right and the other one wrong; all others speak for neither model."""

    lost: int = Field(ge=0, description="Right in the float model, wrong in the quantized one.")
    won: int = Field(ge=0, description="Wrong in the float model, right in the quantized one.")
    confident: int | None = Field(
        default=None,
        ge=0,
        description="Lost ones that the float model gave at least 90 % of its probability; null: not known.",
    )


class ModelFigures(Contract):
    """Figures of one model. Latency is the median of one run at batch 1, both models taken in turn."""

    metrics: dict[str, float] = Field(
        default_factory=dict, description="By name, in the units of the report's metrics; percent by default."
    )
    metric_details: dict[str, dict[str, float]] = Field(
        default_factory=dict, description="Details of the metrics, such as one value per class, by name of the metric."
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
    flips: Flips | None = Field(default=None, description="Prediction flips, where the metric is a share of samples.")
    chance: float | None = Field(
        default=None,
        description="Chance level: what decisions that ignore the input reach; null where it is not known.",
    )


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
        description="Top-1 agreement: share of samples with the same top class, in percent; of the first output. "
        "Null where that has no class scores."
    )
    sqnr_interval_db: Interval | None = Field(default=None, description="Of ``sqnr_db``.")
    top1_agreement_interval: Interval | None = Field(default=None, description="Of ``top1_agreement``.")
    samples: int
    source: Literal["evaluation", "calibration", "random"] = Field(
        description="Data that the figures were measured on; random data shows nothing about accuracy."
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
        description="Of the quantized model; undecided where the interval of the ratio contains 1."
    )
    not_representative: str | None = Field(
        default=None,
        description="Why these figures do not predict latency on the target, such as a preset that is simulated on "
        "this CPU; null: they do.",
    )
    runs: int = Field(ge=1, description="Timed runs of either model.")
    batch_size: int = Field(ge=1)
    threads: int = Field(ge=1)
    load: MachineLoad


Verdict = Literal["pass", "fail", "undecided", "none"]


# The clause of the sanity check, which every job has.
SANITY = "sanity"


class GateClause(Contract):
    """One condition of the gate and whether it held; ``metric`` is what max_drop, min_value and max_value judge."""

    clause: str
    metric: str | None = None
    wanted: float
    got: float | None
    holds: bool | None = Field(description="Null: undecided on these samples or runs; see ``why``.")
    interval: Interval | None = Field(default=None, description="Confidence interval of ``got``.")
    confidence: float | None = Field(default=None, description="Required confidence; null: ``got`` itself decided.")
    samples_needed: int | None = Field(
        default=None, ge=1, description="Number of samples that would decide it, about; null: decided, or not known."
    )
    why: str | None = Field(default=None, description="Why it is undecided.")

    @property
    def is_collapse(self) -> bool:
        """Whether it tells that the quantized model has lost most of what the float model can do."""
        return self.clause == SANITY and self.holds is False


class KernelFigures(Contract):
    """One form: standard is DequantizeLinear and MatMul, matmul_nbits is com.microsoft.MatMulNBits."""

    form: Literal["standard", "matmul_nbits"]
    emitted: bool = Field(description="True for the form that the model is written in.")
    accuracy_level: int | None = Field(
        default=None,
        description="Of MatMulNBits, as configured; null for the standard form, where the runtime decides.",
    )
    float_ms: float = Field(description="Of the float model, timed in turn with this form.")
    latency_ms: float
    ratio: float = Field(description="Over the float model's latency.")
    ratio_interval: Interval
    sqnr_db: float | None = Field(
        description="Of the worst output against the float model, by onnxruntime; null where it has none."
    )
    samples: int = Field(ge=1, description="That the SQNR was measured on, the same for both forms.")


class Kernels(Contract):
    """Both forms, measured, or why only one was."""

    products: int = Field(ge=1, description="Nodes that may be written in either form.")
    forms: tuple[KernelFigures, ...] = ()
    reason: str | None = Field(default=None, description="Why they were not compared.")
    reason_code: str | None = Field(default=None, description="Stable code of the reason; docs/reasons.md lists them.")


FallbackKind = Literal["planned", "reduced", "float"]


class RegionFigures(Contract):
    """Quantized nodes whose Q/DQ pairs were taken off to see what they cost."""

    kind: str = Field(description="What its nodes do: convolution, elementwise ...; or region, of all kinds.")
    nodes: tuple[str, ...]
    ratio: float | None = Field(
        default=None, description="Latency of the model without its pairs over that of the model with them."
    )
    ratio_interval: Interval | None = None
    outcome: Literal["taken_off", "kept", "untried"] = Field(
        description=(
            "taken_off: the model without its pairs is faster by the whole interval, also together with all others."
        )
    )
    why: str | None = Field(default=None, description="Why it was not tried.")


class FallbackCandidate(Contract):
    """A model that might be returned."""

    kind: FallbackKind = Field(description="As planned, with fewer Q/DQ pairs, or the float model.")
    nodes_taken_off: int = Field(ge=0, description="Quantized nodes of the plan that are in float in it.")
    size_bytes: int
    latency_ratio: float = Field(description="Over the float model's; of that itself 1.")
    latency_interval: Interval | None = Field(default=None, description="None for the float model.")
    gate: tuple[GateClause, ...] = Field(
        default=(), description="All conditions but those of latency, with the goal and the bytes of a search."
    )
    holds: bool | None = Field(description="Whether all of them are met; null: not measured for lack of time.")
    chosen: bool = False


class Fallback(Contract):
    """Why another model than the planned one was looked for, what was tried, and what is returned."""

    because: str = Field(description="The condition that the planned model broke, with its figures.")
    reason: str = Field(description="Why the chosen one was.")
    candidates: tuple[FallbackCandidate, ...] = Field(description="The planned model, reduced ones, the float model.")
    regions: tuple[RegionFigures, ...] = Field(default=(), description="In the order in which they were tried.")
    why_no_regions: str | None = Field(default=None, description="Why pairs were not removed region by region.")
    seconds: float = Field(ge=0)

    @property
    def chosen(self) -> FallbackCandidate:
        """The one that is returned."""
        return next(candidate for candidate in self.candidates if candidate.chosen)
