"""What is measured after quantization, and what decides the verdict."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from service.contracts.base import Contract, nearest_key
from service.contracts.metrics import GraphMetric, Metric, MetricFacts
from service.contracts.validation import BELOW

MAX_METRICS = 64
# Measured on every pair of models: same decision on the first output.
AGREEMENT = "top1_agreement"
DEFAULT_METRIC = "top1"
# What is measured where no metric is declared and the labels are class numbers.
DEFAULT_METRICS = (DEFAULT_METRIC, "top5")
_PERCENT = MetricFacts()
_AGREEMENT = MetricFacts(against_float=True, ideal=100.0)


class Gate(Contract):
    """Conditions for the verdict ``pass``; all given ones must hold. Without any the verdict is ``none``.

    A condition that the data cannot decide is undecided: latency if the interval of the ratio contains the limit,
    accuracy if a finding rules out a statement, such as a float model at chance level.
    """

    metric: str = Field(
        default=DEFAULT_METRIC,
        min_length=1,
        max_length=64,
        description=(
            "Metric for max_drop, min_value and max_value: the name of a declared metric, or top1_agreement; "
            "top1 or top5 if no metric is declared. Default: the first declared metric, or top1."
        ),
    )
    max_drop: float | None = Field(
        default=None,
        ge=0,
        description="Maximum drop of the metric, in its own unit: points for percentages.",
    )
    min_value: float | None = Field(default=None, description="Minimum value, for metrics where higher is better.")
    max_value: float | None = Field(default=None, description="Maximum value, for metrics where lower is better.")
    min_sqnr_db: float | None = Field(default=None, description="Minimum SQNR of the outputs, in dB.")
    max_size_bytes: int | None = Field(default=None, ge=1)
    max_latency_ratio: float | None = Field(
        default=None, gt=0, description="Maximum ratio of quantized to float latency."
    )
    sanity: bool = Field(
        default=True,
        description="Sanity check: fail a collapsed model, with or without other conditions. Collapsed: more than "
        "half of the float model's margin over chance level is lost; where no metric with a chance level "
        "is measured, of the margin of top-1 agreement over that of independent decisions; where outputs "
        "are no classes, an output SQNR of 0 dB or less. false: no check.",
    )
    confidence: float | None = Field(
        default=None,
        ge=0.5,
        lt=1.0,
        description=(
            "Confidence with which conditions on accuracy (max_drop, min_value, max_value, min_sqnr_db) have "
            "to be met or failed: an interval that contains the limit makes them undecided. Null: the figure "
            "itself decides; its interval is reported."
        ),
    )
    on_undecided: Literal["undecided", "fail"] = Field(
        default="undecided", description="Verdict if a condition is undecided and no condition fails."
    )

    on_fail: Literal["report", "fallback"] = Field(
        default="report",
        description=(
            "What is returned where max_latency_ratio fails, or is undecided and on_undecided is fail. "
            "report: the quantized model; fallback: the fastest measured model that meets all other "
            "conditions: as configured, without Q/DQ pairs that cost more than they save, or the float model."
        ),
    )

    @model_validator(mode="after")
    def _falls_back_from_a_limit(self) -> Gate:
        if self.on_fail == "fallback" and self.max_latency_ratio is None:
            raise _wrong("/on_fail", "fallback is for a model that is too slow: give max_latency_ratio")
        return self

    @property
    def judges_metric(self) -> bool:
        """True if a condition concerns the metric."""
        return (self.max_drop, self.min_value, self.max_value) != (None, None, None)

    @property
    def is_empty(self) -> bool:
        """True without any condition."""
        others = (self.min_sqnr_db, self.max_size_bytes, self.max_latency_ratio)
        return not self.judges_metric and others == (None, None, None)


class EvaluationSpec(Contract):
    """What is measured after quantization, and the gate that decides the verdict."""

    metrics: tuple[Metric, ...] = Field(
        default=(),
        max_length=MAX_METRICS,
        description="Metrics to compute; if empty, top1 and top5 of the first output, provided that the labels are "
        "its classes.",
    )
    gate: Gate = Field(default_factory=Gate)
    layer_samples: int = Field(default=16, ge=1, le=1024, description="Number of samples for the per-layer SQNR.")
    latency_runs: int = Field(
        default=20,
        ge=1,
        le=1000,
        description=(
            "Minimum number of timed runs per model, run alternately; at least 8. If the interval of the "
            "ratio is wide, up to ten times as many runs are timed, for a few seconds."
        ),
    )
    advice_seconds: float = Field(
        default=60.0,
        ge=0.0,
        le=3600.0,
        description="Time limit in seconds for trying advice if accuracy suffered; 0: advice is given untried.",
    )

    fallback_seconds: float = Field(
        default=120.0,
        ge=0.0,
        le=3600.0,
        description=(
            "Time limit in seconds of the search for a faster model, where the gate's on_fail is fallback; "
            "0: no Q/DQ pairs are removed, only the configured and the float model are compared."
        ),
    )

    @property
    def primary(self) -> str:
        """Name of the metric that stands for the others."""
        return self.metrics[0].name if self.metrics else DEFAULT_METRIC

    @property
    def graph_models(self) -> tuple[str, ...]:
        """Ids of the uploaded models that metrics are given as."""
        graphs = [metric.graph for metric in self.metrics if isinstance(metric, GraphMetric)]
        return tuple(dict.fromkeys(graph.model_id for graph in graphs if graph.model_id is not None))

    def facts_of(self, name: str) -> MetricFacts:
        """How the values of a measured metric are to be read.

        Raises:
            KeyError: it is not measured.
        """
        known = {metric.name: metric.facts for metric in self.metrics} or dict.fromkeys(DEFAULT_METRICS, _PERCENT)
        return {**known, AGREEMENT: _AGREEMENT}[name]

    @model_validator(mode="after")
    def _gate_on_the_first(self) -> EvaluationSpec:
        """The gate judges the first declared metric unless it says otherwise."""
        if self.metrics and "metric" not in self.gate.model_fields_set:
            object.__setattr__(self, "gate", self.gate.model_copy(update={"metric": self.primary}))
        return self

    @model_validator(mode="after")
    def _names(self) -> EvaluationSpec:
        names = [metric.name for metric in self.metrics]
        for k, name in enumerate(names):
            if name == AGREEMENT or name in names[:k]:
                why = "always measured" if name == AGREEMENT else "the name of another metric"
                raise _wrong(f"/metrics/{k}/name", f"{name!r} is {why}: give this metric another name")
        return self

    @model_validator(mode="after")
    def _gate_fits(self) -> EvaluationSpec:
        gate = self.gate
        try:
            facts = self.facts_of(gate.metric)
        except KeyError:
            known = [*([metric.name for metric in self.metrics] or DEFAULT_METRICS), AGREEMENT]
            near = nearest_key(gate.metric, known)
            told = f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"
            raise _wrong("/gate/metric", f"no metric {gate.metric!r} is declared; {told}") from None
        if facts.better == "lower" and gate.min_value is not None:
            raise _wrong("/gate/min_value", f"of {gate.metric} less is better: give max_value")
        if facts.better == "higher" and gate.max_value is not None:
            raise _wrong("/gate/max_value", f"of {gate.metric} more is better: give min_value")
        if facts.against_float and facts.ideal is None and gate.max_drop is not None:
            raise _wrong("/gate/max_drop", f"{gate.metric} has no bound that it could drop from: give min_value")
        for word in ("max_drop", "min_value", "max_value"):
            _check_percent(word, getattr(gate, word), facts, gate.metric)
        return self


def _check_percent(word: str, value: float | None, facts: MetricFacts, metric: str) -> None:
    # What less is better of, such as an error rate, may be above 100.
    if value is None or facts.unit != "%":
        return
    if value < 0:
        raise _wrong(f"/gate/{word}", f"must be at least 0: {metric} is in percent")
    if value > 100 and facts.better == "higher":
        raise _wrong(f"/gate/{word}", f"must be at most 100: {metric} is in percent")


def _wrong(place: str, message: str) -> PydanticCustomError:
    return PydanticCustomError("value_error", "{why}", {"why": message, BELOW: place})
