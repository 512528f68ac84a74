"""The metrics of both models side by side, each with its interval."""

from __future__ import annotations

from service.contracts.evaluation import DEFAULT_METRICS, EvaluationSpec
from service.contracts.evaluation_checks import find_output
from service.contracts.metrics import MetricFacts
from service.contracts.report import Interval, MetricFigures
from worker.quantizer.evaluation.certainty.figures import Figure, MetricDifference, negated
from worker.quantizer.evaluation.compare import ModelComparison
from worker.quantizer.evaluation.metrics import rounded


def metric_figures(spec: EvaluationSpec, comparison: ModelComparison) -> tuple[MetricFigures, ...]:
    """The metrics of both models, in the order declared."""
    before, after = comparison.float_metrics, comparison.quantized_metrics
    kinds = {metric.name: metric.kind for metric in spec.metrics}
    names = list(kinds) or [name for name in DEFAULT_METRICS if name in before or name in after]
    intervals = _Intervals(spec, comparison)
    found = []
    for name in names:
        facts = spec.facts_of(name)
        reference = facts.ideal if facts.against_float else before.get(name)
        value = after.get(name)
        drop = None
        if reference is not None and value is not None:
            loss = reference - value if facts.better == "higher" else value - reference
            drop = rounded(loss, facts.unit)
        figures = MetricFigures(
            name=name,
            kind=kinds.get(name, name),
            unit=facts.unit,
            better=facts.better,
            float=before.get(name),
            quantized=value,
            drop=drop,
        )
        found.append(figures.model_copy(update=intervals.of(name, facts)))
    return tuple(found)


class _Intervals:
    """What the samples of a comparison can carry.

    Args:
        spec: what was measured.
        comparison: of both models.
    """

    def __init__(self, spec: EvaluationSpec, comparison: ModelComparison) -> None:
        self._confidence = comparison.confidence
        self._samples = comparison.fidelity.samples
        self._float, self._quantized = comparison.float_set.contributions, comparison.quantized_set.contributions
        self._decisions = comparison.decisions
        outputs = [output.name for output in comparison.fidelity.outputs]
        self._outputs = {
            metric.name: find_output(place, outputs)
            for metric in spec.metrics
            for place in [metric.output_refs().get("output")]
            if place is not None
        }
        self._first = next(iter(outputs), None)

    def of(self, name: str, facts: MetricFacts) -> dict[str, object]:
        """The fields of ``MetricFigures`` that tell about samples."""
        is_share = _is_share(facts)
        one, other = (
            None if found is None else Figure(found, is_share=is_share)
            for found in (self._float.get(name), self._quantized.get(name))
        )
        told: dict[str, object] = {"samples": self._samples}
        if one is not None:
            told["float_interval"] = self._told(_possible(one.interval(self._confidence), facts), facts)
        if other is None:
            return told
        interval = other.interval(self._confidence)
        told["quantized_interval"] = self._told(_possible(interval, facts), facts)
        if facts.against_float:
            if facts.ideal is not None:
                loss = negated(interval, facts.ideal)
                loss = loss if facts.better == "higher" else negated(loss)
                told["drop_interval"] = self._told(loss, facts)
            return told
        if one is None:
            return told
        decisions = self._decisions.get(self._outputs.get(name, self._first) or "")
        confident = None if decisions is None else decisions.confident
        return told | self._difference(one.above(other, self._confidence, confident=confident), facts)

    def _difference(self, found: MetricDifference | None, facts: MetricFacts) -> dict[str, object]:
        if found is None:
            return {}
        interval = found.interval if facts.better == "higher" else negated(found.interval)
        p_value = None if found.p_value is None else float(f"{found.p_value:.4g}")
        return {"drop_interval": self._told(interval, facts), "p_value": p_value, "flips": found.flips}

    @staticmethod
    def _told(interval: Interval | None, facts: MetricFacts) -> Interval | None:
        """In as many digits as the figure."""
        if interval is None:
            return None
        low, high = rounded(interval.low, facts.unit), rounded(interval.high, facts.unit)
        return interval.model_copy(update={"low": low, "high": high})


def _is_share(facts: MetricFacts) -> bool:
    """Of 100 % at most; an error rate may be more."""
    return facts.unit == "%" and facts.better == "higher"


def _possible(interval: Interval | None, facts: MetricFacts) -> Interval | None:
    """Without what no share can be."""
    if interval is None or not _is_share(facts):
        return interval
    return interval.model_copy(update={"low": max(interval.low, 0.0), "high": min(interval.high, 100.0)})
