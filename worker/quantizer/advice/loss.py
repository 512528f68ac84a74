"""Whether a report tells of lost accuracy, and by which figure: where it does not, advice costs nothing."""

from __future__ import annotations

from dataclasses import dataclass

from service.contracts.evaluation import EvaluationSpec
from service.contracts.metrics import MetricFacts
from service.contracts.report import GateClause, MetricFigures, Report, Score
from worker.quantizer.evaluation.certainty.evidence import surely_differ
from worker.quantizer.evaluation.gate import ACCURACY_CLAUSES
from worker.quantizer.evaluation.metrics import metric_words
from worker.quantizer.refine.judge import Scored, is_worse
from worker.quantizer.report.words import POOR_SQNR_DB

# From here on no one looks for more.
_FINE_SQNR_DB = 20.0
# A loss that matters: in points of a share, or as a part of the float model's value.
_POINTS, _PART = 1.0, 0.02


@dataclass(frozen=True)
class AccuracyLoss:
    """What was lost, and how others are compared with it.

    Attributes:
        words: what was lost, with its figures.
        score: of the quantized model, on the data of the report.
        reference: value of the metric in the float model; None where SQNR counts.
        facts: of the metric.
        spec: declares it.
        samples: measured on.
        broken: what the gate wants of accuracy and does not get.
    """

    words: str
    score: Score
    reference: float | None
    facts: MetricFacts
    spec: EvaluationSpec
    samples: int
    broken: tuple[GateClause, ...] = ()

    @property
    def by_metric(self) -> bool:
        """True if the metric tells; else SQNR does."""
        return self.reference is not None

    @property
    def name(self) -> str:
        """Of the figure that tells."""
        return self.score.metric if self.by_metric else "sqnr_db"

    @property
    def unit(self) -> str:
        """Of that figure."""
        return self.facts.unit if self.by_metric else "dB"

    def figure(self, score: Score) -> float | None:
        """That figure of a score."""
        return score.value if self.by_metric else score.sqnr_db

    def helped(self, after: Scored, before: Scored) -> bool:
        """True if ``after`` is better, by the rule that algorithms are judged by, and the figure told no worse."""
        one, other = after.score, before.score
        if self.by_metric and self.rank(one)[0] < self.rank(other)[0]:
            return False
        if (one.value is None) > (other.value is None) or (one.sqnr_db is None) > (other.sqnr_db is None):
            return False
        return is_worse(other, one, self.facts, sure=surely_differ(after.evidence, before.evidence)) is not None

    def rank(self, score: Score) -> tuple[float, float]:
        """To sort by: the better, the larger."""
        sqnr_db = -1e9 if score.sqnr_db is None else score.sqnr_db
        if not self.by_metric:
            return sqnr_db, 0.0
        sign = 1.0 if self.facts.better == "higher" else -1.0
        return (-1e9 if score.value is None else sign * score.value), sqnr_db

    def is_mended(self, score: Score) -> bool:
        """True if nothing is left to look for."""
        if not all(self._holds(clause, score) for clause in self.broken):
            return False
        if self.reference is None:
            return score.sqnr_db is not None and score.sqnr_db >= _FINE_SQNR_DB
        gap = self._gap(score)
        return gap is not None and gap < _least(self.reference, self.facts.unit)

    def _gap(self, score: Score) -> float | None:
        """How much worse the metric is than that of the float model."""
        if self.reference is None or score.value is None:
            return None
        return self.reference - score.value if self.facts.better == "higher" else score.value - self.reference

    def _holds(self, clause: GateClause, score: Score) -> bool:
        """True if a score keeps a condition, as far as it can tell."""
        if clause.clause == "min_sqnr_db":
            return score.sqnr_db is not None and score.sqnr_db >= clause.wanted
        if clause.metric != score.metric or not self.by_metric:
            return False
        gap, value = self._gap(score), score.value
        if gap is None or value is None:
            return False
        wanted = clause.wanted
        return {"max_drop": gap <= wanted, "min_value": value >= wanted, "max_value": value <= wanted}.get(
            clause.clause, False
        )


def find_loss(report: Report, spec: EvaluationSpec) -> AccuracyLoss | None:
    """What a report says is lost; None if nothing, or if its data cannot tell.

    Args:
        report: whole, but for its advice.
        spec: what was measured.
    """
    fidelity = report.fidelity
    if fidelity.source == "random":
        return None
    first = report.metrics[0] if report.metrics else None
    told = None if first is None or any(found.undermines_verdict for found in report.findings) else _telling(first)
    facts = MetricFacts() if first is None else spec.facts_of(first.name)
    samples = fidelity.samples
    accuracy = (clause for clause in report.gate if clause.clause in ACCURACY_CLAUSES)
    broken = tuple(clause for clause in accuracy if clause.holds is False)
    gate = f"the gate's {broken[0].clause} is broken" if broken else None
    if told is not None and first is not None:
        score = Score(sqnr_db=fidelity.sqnr_db, metric=first.name, value=first.quantized)
        suffered, words = (
            _is_significant(first, told),
            metric_words(first.name, (told, first.quantized), facts.unit),
        )
    else:
        score = Score(sqnr_db=fidelity.sqnr_db, metric=spec.primary, value=None)
        if fidelity.sqnr_db is None:
            return None
        suffered, words = fidelity.sqnr_db < POOR_SQNR_DB, f"SQNR {fidelity.sqnr_db:.1f} dB"
    if gate is None and not suffered:
        return None
    return AccuracyLoss(f"{gate}: {words}" if gate else words, score, told, facts, spec, samples, broken)


def _telling(figures: MetricFigures) -> float | None:
    """The float model's value of a metric, if it has one that is more than chance; else the metric tells nothing."""
    value, chance = figures.float_, figures.chance
    if value is None or figures.quantized is None or figures.drop is None:
        return None
    if chance is not None:
        low, high = value, value
        if figures.float_interval is not None:
            low, high = figures.float_interval.low, figures.float_interval.high
        beyond = low > chance if figures.better == "higher" else high < chance
        return value if beyond else None
    return value


def _least(reference: float, unit: str) -> float:
    """The smallest loss that matters."""
    return _POINTS if unit == "%" else _PART * abs(reference)


def _is_significant(figures: MetricFigures, reference: float) -> bool:
    """True for a loss that matters, and that chance would not make of these samples."""
    if figures.drop is None or figures.quantized is None or figures.drop < _least(reference, figures.unit):
        return False
    return figures.drop_interval is None or figures.drop_interval.low > 0
