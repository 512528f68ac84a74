"""Scores drafts against the float model on samples that no step has learned from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import stdev

from service.contracts.evaluation import EvaluationSpec
from service.contracts.metrics import Facts, PerClassAccuracy, TopKMetric
from service.contracts.reason import Reason, declare
from service.contracts.report import Score
from worker.quantizer.evaluation.metrics import Distances, metric_words
from worker.quantizer.evaluation.side_by_side import Expected, Measurement, side_by_side
from worker.quantizer.refine.case import Case
from worker.quantizer.refine.draft import Draft
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.session import Session

_BATCH = 8
_FEWEST, _MOST, _PART = 4, 64, 6
# Below this the difference of two scores is rounding of the runtime.
_SAME_DB = 0.005

METRIC_LOST = declare("metric-lost", "{metric} has no value any more")
METRIC_WORSE = declare("metric-worse", "the metric got worse")
NOT_FINITE = declare("outputs-not-finite", "SQNR {before:.2f} dB -> none: the outputs are not finite")
SQNR_WORSE = declare("sqnr-worse", "SQNR {before:.2f} -> {after:.2f} dB")


def held_back_samples(available: int) -> int:
    """How many of ``available`` calibration samples are for judging: a sixth of them, at most 64.

    With fewer than 24 samples all of them are used for both.
    """
    part = min(available // _PART, _MOST)
    return part if part >= _FEWEST else available


@dataclass(frozen=True)
class _Measured:
    """A score, and the metric of each batch alone, None where it is undefined."""

    score: Score
    parts: tuple[float | None, ...]


class Judge:
    """Runs drafts on the first ``samples`` calibration samples.

    Args:
        case: what is quantized.
        services: of the run.
        samples: how many.
    """

    def __init__(self, case: Case, services: Services, samples: int) -> None:
        self._case, self._services = case, services
        self.samples = samples
        self._metrics = case.metrics
        self._measurable = case.metrics.fed_by(case.calibration) and case.metrics.judges_parts
        self._known: list[tuple[Draft, _Measured]] = []

    def score(self, draft: Draft) -> Score:
        """SQNR of the worst output in dB, and the first declared metric (else top-1) where the labels are there."""
        return self._measured(draft).score

    def worse(self, after: Draft, before: Draft) -> Reason | None:
        """Why ``after`` is worse than ``before``; None if it is not."""
        new, old = self._measured(after), self._measured(before)
        facts = self._metrics.facts(self._metrics.primary)
        return is_worse(new.score, old.score, facts, noise=self._noise(new, old))

    def _noise(self, after: _Measured, before: _Measured) -> float:
        """Standard error of the difference between two values of the metric."""
        values = after.score.value, before.score.value
        return metric_noise(
            self._metrics.spec, self._metrics.primary, values, (after.parts, before.parts), self.samples
        )

    def _measured(self, draft: Draft) -> _Measured:
        for known, found in self._known:
            if known is draft:
                return found
        measured = self._measure(draft.session(self._services.threads))
        self._known = [*self._known[-1:], (draft, measured)]
        return measured

    def _measure(self, session: Session) -> _Measured:
        primary = self._metrics.primary
        distances, found = Distances(), Measurement(self._metrics, primary, part=True)
        for twins in side_by_side(session, self._expected, self._services.run):
            distances.update(twins.pairs())
            if self._measurable:
                found.update(twins)
        worst = distances.worst_db
        score = Score(sqnr_db=None if worst is None else round(worst, 3), metric=primary, value=found.value)
        return _Measured(score, tuple(found.parts))

    @cached_property
    def _expected(self) -> list[Expected]:
        case, services = self._case, self._services
        return list(
            case.expected_outputs(services.run, batch_size=_BATCH, last=self.samples, with_arrays=self._measurable)
        )


def metric_noise(
    spec: EvaluationSpec,
    name: str,
    values: tuple[float | None, float | None],
    parts: tuple[Sequence[float | None], Sequence[float | None]],
    samples: int,
) -> float:
    """Standard error of the difference between two values of a metric; infinite without a value.

    Of shares of samples it is known; of other metrics it is estimated from the differences batch by batch.

    Args:
        spec: declares the metrics.
        name: of the metric.
        values: of both networks.
        parts: the same batch by batch.
        samples: that the values were measured on.
    """
    one, other = values
    if one is None or other is None:
        return math.inf
    first = next((metric for metric in spec.metrics if metric.name == name), None)
    if first is None or (isinstance(first, TopKMetric) and not isinstance(first, PerClassAccuracy)):
        return share_noise(one, other, samples)
    return paired_noise(*parts)


def share_noise(one: float, other: float, samples: int) -> float:
    """Standard error of the difference of two shares of ``samples``, all in percent, by the larger one's binomial."""
    share = min(max(one, other, 1.0), 99.0) / 100
    return float(100.0 * (2.0 * share * (1.0 - share) / max(samples, 1)) ** 0.5)


def paired_noise(after: Sequence[float | None], before: Sequence[float | None]) -> float:
    """Standard error of the mean difference of figures taken batch by batch; infinite for fewer than three pairs."""
    pairs = zip(after, before, strict=True)
    differences = [new - old for new, old in pairs if new is not None and old is not None]
    return stdev(differences) / len(differences) ** 0.5 if len(differences) > 2 else math.inf


def is_worse(after: Score, before: Score, facts: Facts, *, noise: float) -> Reason | None:
    """Why a draft with score ``after`` is worse than one with ``before``; None if it is not.

    The metric decides only where it moves by more than chance would: over few samples a single label more or less means
    nothing, while SQNR sees every score of every sample.

    Args:
        after: of the changed draft.
        before: of the draft that it was made of.
        facts: unit and direction of the metric.
        noise: standard error of the difference between both values of the metric.
    """
    if before.value is not None and after.value is None:
        return METRIC_LOST(metric=after.metric)
    if before.value is not None and after.value is not None:
        gain = after.value - before.value if facts.better == "higher" else before.value - after.value
        if gain > 2 * noise:
            return None
        if gain < -2 * noise:
            return METRIC_WORSE.saying(metric_words(after.metric, (before.value, after.value), facts.unit))
    if before.sqnr_db is None:
        return None
    if after.sqnr_db is None:
        return NOT_FINITE(before=before.sqnr_db)
    if after.sqnr_db < before.sqnr_db - _SAME_DB:
        return SQNR_WORSE(before=before.sqnr_db, after=after.sqnr_db)
    return None
