"""Judges drafts by calibration samples that no algorithm has learned from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from service.contracts.algorithms.base import LOST_DECISIONS_PERCENT, LOST_SQNR_DB
from service.contracts.metrics import MetricFacts
from service.contracts.reason import Reason, declare
from service.contracts.report import Score
from worker.quantizer.evaluation.certainty import Evidence, surely_differ
from worker.quantizer.evaluation.decisions import deciding_outputs
from worker.quantizer.evaluation.loss import LossEstimate
from worker.quantizer.evaluation.metrics import Distances, Metrics, metric_words
from worker.quantizer.evaluation.side_by_side import Expected, MetricMeasurement, side_by_side
from worker.quantizer.refine.draft import Case, Draft
from worker.quantizer.run.interface import Run
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.session import Session

_BATCH = 8
# Below this the difference of two scores is rounding of the runtime.
_SAME_DB = 0.005
METRIC_LOST = declare("metric-lost", "{metric} has no value any more")
METRIC_WORSE = declare("metric-worse", "the metric got worse")
NOT_FINITE = declare("outputs-not-finite", "SQNR {before:.2f} dB -> none: the outputs are not finite")
NOT_WORTH_ITS_COST = declare(
    "gain-too-small",
    "SQNR {before:.2f} -> {after:.2f} dB, less than the {least:g} dB that it must gain",
    by_design=True,
)
SQNR_WORSE = declare("sqnr-worse", "SQNR {before:.2f} -> {after:.2f} dB")


@dataclass(frozen=True)
class Scored:
    """A model on some samples."""

    score: Score  # without a value of the metric where SQNR alone tells
    evidence: Evidence | None = None  # what the metric rests on; None where SQNR alone tells, or nobody can tell
    estimate: LossEstimate | None = None  # of what is lost; None: nobody has asked

    @property
    def loss(self) -> str | None:
        """What is lost, in words; None: nothing that matters, or nobody has asked."""
        return None if self.estimate is None else self.estimate.words()


def score_session(
    session: Session,
    expected: Iterable[Expected],
    metrics: Metrics,
    run: Run,
    *,
    by_metric: bool,
    part: bool = False,
    classes: Collection[str] | None = None,
) -> Scored:
    """SQNR of the worst output in dB, and the first declared metric (else top-1).

    With ``by_metric`` the samples have what the metric reads; else SQNR alone tells. With ``part`` they are a part of
    all samples only. With ``classes``, the outputs that hold class scores, it is also told what is lost.

    Raises:
        InvalidConfigError: an output or an array does not fit its metric.
        EngineError: the runtime failed.
        CanceledError: the run was canceled.
    """
    distances, found = Distances(), MetricMeasurement(metrics, metrics.primary, part=part)
    estimate = None if classes is None else LossEstimate(classes)
    for twins in side_by_side(session, expected, run):
        distances.update(twins.pairs())
        if estimate is not None:
            estimate.update(twins.pairs())
        if by_metric:
            found.update(twins)
    worst = distances.worst_db
    score = Score(sqnr_db=None if worst is None else round(worst, 3), metric=metrics.primary, value=None)
    if not by_metric:
        return Scored(score, estimate=estimate)
    return Scored(score.model_copy(update={"value": found.value}), found.evidence, estimate)


class Judge:
    """Runs drafts on calibration samples.

    Args:
        case: whose samples.
        services: of the run.
        samples: ascending numbers of those that count.
    """

    def __init__(self, case: Case, services: Services, samples: Sequence[int]) -> None:
        self._case, self._services = case, services
        self._numbers = samples
        self._metrics = case.metrics
        self._measurable = case.metrics.fed_by(case.calibration) and case.metrics.judges_parts
        self._known: list[tuple[Draft, Scored]] = []

    @property
    def samples(self) -> int:
        """How many samples count."""
        return len(self._numbers)

    def score(self, draft: Draft) -> Score:
        """SQNR of the worst output in dB, and the first declared metric (else top-1) where the labels are there."""
        return self._scored(draft).score

    def worse(self, after: Draft, before: Draft, *, least_gain_db: float = 0.0) -> Reason | None:
        """Why ``after`` is worse than ``before``, or not better by enough; None if it is neither."""
        new, old = self._scored(after), self._scored(before)
        facts, sure = self._metrics.facts(self._metrics.primary), surely_differ(new.evidence, old.evidence)
        return is_worse(new.score, old.score, facts, sure=sure, least_gain_db=least_gain_db)

    def loss(
        self, draft: Draft, *, lost_sqnr_db: float = LOST_SQNR_DB, lost_percent: float = LOST_DECISIONS_PERCENT
    ) -> str | None:
        """What ``draft`` has lost beside the float model, in words; None if nothing that matters.

        An output that decides nothing has lost something below ``lost_sqnr_db``, others above ``lost_percent``.
        """
        estimate = self._scored(draft).estimate
        return None if estimate is None else estimate.words(lost_sqnr_db, lost_percent)

    def _scored(self, draft: Draft) -> Scored:
        for known, found in self._known:
            if known is draft:
                return found
        measured = score_session(
            draft.session(self._services.threads),
            self._expected,
            self._metrics,
            self._services.run,
            by_metric=self._measurable,
            part=True,
            classes=deciding_outputs(
                draft.prepared.model, self._case.config.evaluation, self._case.calibration.summary.labels
            ),
        )
        self._known = [*self._known[-1:], (draft, measured)]
        return measured

    @cached_property
    def _expected(self) -> list[Expected]:
        case, services = self._case, self._services
        return list(
            case.expected_outputs(services.run, batch_size=_BATCH, samples=self._numbers, with_arrays=self._measurable)
        )


def is_worse(
    after: Score, before: Score, facts: MetricFacts, *, sure: bool, least_gain_db: float = 0.0
) -> Reason | None:
    """Why a draft with score ``after`` is worse than one with ``before``, or not better by enough; None if neither.

    The metric decides only where it moves by more than chance would: over few samples a single label more or less means
    nothing, while SQNR sees every score of every sample.

    With ``sure`` both values of the metric differ by more than chance, sample by sample.
    """
    if before.value is not None and after.value is None:
        return METRIC_LOST(metric=after.metric)
    if before.value is not None and after.value is not None:
        gain = after.value - before.value if facts.better == "higher" else before.value - after.value
        if sure and gain > 0:
            return None
        if sure and gain < 0:
            return METRIC_WORSE.saying(metric_words(after.metric, (before.value, after.value), facts.unit))
    if before.sqnr_db is None:
        return None
    if after.sqnr_db is None:
        return NOT_FINITE(before=before.sqnr_db)
    if after.sqnr_db < before.sqnr_db - _SAME_DB:
        return SQNR_WORSE(before=before.sqnr_db, after=after.sqnr_db)
    if after.sqnr_db < before.sqnr_db + least_gain_db - _SAME_DB:
        return NOT_WORTH_ITS_COST(before=before.sqnr_db, after=after.sqnr_db, least=least_gain_db)
    return None
