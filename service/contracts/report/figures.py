"""Figures of a report: metrics, sizes, latency and kernels of both models, the verdict, the fallback."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.contracts.base import Contract


class Interval(Contract):
    """Interval that contains a figure with probability ``confidence``, in the figure's unit."""

    low: float
    high: float
    confidence: float = Field(default=0.95, gt=0, lt=1)
    method: Literal["wilson", "mcnemar", "bootstrap", "order_statistics", "student", "rule_of_three"] = Field(
        description="How it was computed: Wilson's score interval of a share, paired difference of two shares "
        "(McNemar), bootstrap over samples with a fixed seed, order statistics of repeated runs, "
        "Student's t over parts of the samples, or the rule of three if no sample differs."
    )
    samples: int = Field(ge=1, description="Number of independent samples or runs.")


class Flips(Contract):
    """Prediction flips: samples that exactly one of the two models predicts correctly."""

    lost: int = Field(ge=0, description="Correct in the float model, wrong in the quantized model.")
    won: int = Field(ge=0, description="Wrong in the float model, correct in the quantized model.")
    confident: int | None = Field(
        default=None,
        ge=0,
        description="Lost samples with a float confidence of at least 90 %; null if unknown.",
    )


class ModelFigures(Contract):
    """Figures of one model. Latency is the median of single runs at batch size 1; both models run alternately."""

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
    unit: str = Field(
        description="Unit, such as '%', 'dB', 'nats' or that of the target; empty if the metric has none."
    )
    better: Literal["higher", "lower"]
    float_: float | None = Field(
        alias="float",
        serialization_alias="float",
        description="Value of the float model; null if undefined, and for metrics that compare with the float model.",
    )
    quantized: float | None = Field(description="Value of the quantized model; null if undefined.")
    drop: float | None = Field(
        description="Drop compared with the float model, in the metric's unit; negative if the quantized model is "
        "better. Null if undefined."
    )
    samples: int | None = Field(default=None, description="Number of samples measured; null if unknown.")
    float_interval: Interval | None = Field(default=None, description="Confidence interval of the float model's value.")
    quantized_interval: Interval | None = Field(
        default=None, description="Confidence interval of the quantized model's value."
    )
    drop_interval: Interval | None = Field(
        default=None,
        description="Confidence interval of the drop; both models are compared on the same samples (paired).",
    )
    p_value: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Probability of a difference at least this large if the two models were equally good.",
    )
    flips: Flips | None = Field(default=None, description="Prediction flips, where the metric is a share of samples.")
    chance: float | None = Field(
        default=None,
        description="Chance level: what decisions that ignore the input reach; null where it is not known.",
    )


class OutputFidelity(Contract):
    """Fidelity of one model output to the float model's; null where undefined, such as for non-float tensors."""

    name: str
    sqnr_db: float | None
    cosine: float | None
    top1_agreement: float | None


class Fidelity(Contract):
    """Fidelity of the quantized outputs to the float outputs over the evaluation data. ``sqnr_db`` is that of the worst
    output.
    """

    sqnr_db: float | None
    cosine: float | None
    top1_agreement: float | None = Field(
        description="Top-1 agreement: share of samples with the same top class, in percent; of the first output. "
        "Null where that has no class scores."
    )
    loss: str | None = Field(
        default=None,
        description="What is lost, estimated without labels: more than 0.5 % of decisions, or less than 26 dB of SQNR "
        "in an output without class scores; null if nothing is.",
    )
    sqnr_interval_db: Interval | None = Field(default=None, description="Of ``sqnr_db``.")
    top1_agreement_interval: Interval | None = Field(default=None, description="Of ``top1_agreement``.")
    samples: int
    source: Literal["evaluation", "calibration", "random"] = Field(
        description="Data that the figures were measured on; random data shows nothing about accuracy."
    )
    outputs: tuple[OutputFidelity, ...]


class MachineLoad(Contract):
    """Load on the machine while latency was measured; null if the system does not report it."""

    cpu_count: int = Field(ge=1, description="Number of CPUs available to the process.")
    load_average: float | None = Field(default=None, description="Load average of the last minute.")
    other_busy_percent: float | None = Field(
        default=None,
        ge=0,
        le=100,
        description="Share of all CPU time that other processes used during the measurement.",
    )


class LatencyFigures(Contract):
    """Latency of both models, run alternately, so that other load on the machine affects both equally."""

    float_ms: float = Field(description="Median of single runs.")
    quantized_ms: float
    float_interval_ms: Interval
    quantized_interval_ms: Interval
    ratio: float = Field(
        description="Quantized divided by float latency: the median over consecutive blocks of the ratio of their "
        "fastest runs."
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
    runs: int = Field(ge=1, description="Number of timed runs per model.")
    batch_size: int = Field(ge=1)
    threads: int = Field(ge=1)
    load: MachineLoad


Verdict = Literal["pass", "fail", "undecided", "none"]


# The clause of the sanity check, which every job has.
SANITY = "sanity"


class GateClause(Contract):
    """One condition of the gate and its result; ``metric`` is the metric of max_drop, min_value and max_value."""

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
    why: str | None = Field(default=None, description="Why the condition is undecided.")

    @property
    def is_collapse(self) -> bool:
        """Whether it tells that the quantized model has lost most of what the float model can do."""
        return self.clause == SANITY and self.holds is False


class KernelFigures(Contract):
    """Figures of one form: standard is DequantizeLinear and MatMul; matmul_nbits is com.microsoft.MatMulNBits."""

    form: Literal["standard", "matmul_nbits"]
    emitted: bool = Field(description="True for the form used in the returned model.")
    accuracy_level: int | None = Field(
        default=None,
        description="Of MatMulNBits, as configured; null for the standard form, where the runtime decides.",
    )
    float_ms: float = Field(description="Latency of the float model, run alternately with this form.")
    latency_ms: float
    ratio: float = Field(description="Latency divided by the float model's latency.")
    ratio_interval: Interval
    sqnr_db: float | None = Field(
        description="SQNR of the worst output compared with the float model, measured with onnxruntime; null if "
        "undefined."
    )
    samples: int = Field(ge=1, description="Number of samples for the SQNR; the same for both forms.")


class Kernels(Contract):
    """Comparison of both forms, or the reason why only one was measured."""

    products: int = Field(ge=1, description="Number of nodes that can be written in either form.")
    forms: tuple[KernelFigures, ...] = ()
    reason: str | None = Field(default=None, description="Why the forms were not compared.")
    reason_code: str | None = Field(default=None, description="Stable code of the reason; docs/reasons.md lists them.")


FallbackKind = Literal["planned", "reduced", "float"]


class RegionFigures(Contract):
    """Quantized nodes whose Q/DQ pairs were removed to measure their cost."""

    kind: str = Field(
        description="Kind of operation, such as convolution or elementwise; region for nodes of different kinds."
    )
    nodes: tuple[str, ...]
    ratio: float | None = Field(
        default=None, description="Latency without the Q/DQ pairs divided by latency with them."
    )
    ratio_interval: Interval | None = None
    outcome: Literal["taken_off", "kept", "untried"] = Field(
        description=(
            "taken_off: the model without its pairs is faster by the whole interval, also together with all others."
        )
    )
    why: str | None = Field(default=None, description="Why the region was not tried.")


class FallbackCandidate(Contract):
    """A candidate for the returned model."""

    kind: FallbackKind = Field(
        description="planned: as planned; reduced: with fewer Q/DQ pairs; float: the float model."
    )
    nodes_taken_off: int = Field(
        ge=0, description="Number of nodes that the plan quantizes and this candidate keeps in float."
    )
    size_bytes: int
    latency_ratio: float = Field(description="Latency divided by the float model's latency; 1 for the float model.")
    latency_interval: Interval | None = Field(default=None, description="Null for the float model.")
    gate: tuple[GateClause, ...] = Field(
        default=(), description="All conditions except latency, including the goal and the size budget of a search."
    )
    holds: bool | None = Field(description="Whether all of them are met; null: not measured for lack of time.")
    chosen: bool = False


class Fallback(Contract):
    """Why a fallback was necessary, which candidates were tried, and which one is returned."""

    because: str = Field(description="The condition that the planned model failed, with its figures.")
    reason: str = Field(description="Why this candidate was chosen.")
    candidates: tuple[FallbackCandidate, ...] = Field(
        description="The planned model, reduced models and the float model."
    )
    regions: tuple[RegionFigures, ...] = Field(default=(), description="Regions in the order in which they were tried.")
    why_no_regions: str | None = Field(default=None, description="Why pairs were not removed region by region.")
    seconds: float = Field(ge=0)

    @property
    def chosen(self) -> FallbackCandidate:
        """The one that is returned."""
        return next(candidate for candidate in self.candidates if candidate.chosen)
