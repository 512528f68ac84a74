"""Tries pieces of advice: the same model and data, quantized under another config and measured as the report was."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from service.contracts.config import QuantizationConfig
from service.contracts.errors import CanceledError, QuantmillError
from service.contracts.evaluation import EvaluationSpec
from service.contracts.metrics import MetricFacts
from service.contracts.report import AdviceFigure, GateClause, MetricFigures, Report, Score, StageFigures
from service.contracts.report.figures import SANITY
from worker.quantizer.evaluation.certainty import surely_differ
from worker.quantizer.evaluation.collapse import SQNR
from worker.quantizer.evaluation.decisions import deciding_outputs
from worker.quantizer.evaluation.gate import ACCURACY_CLAUSES
from worker.quantizer.evaluation.metrics import metric_words
from worker.quantizer.evaluation.side_by_side import KeptOutputs, NhwcSession
from worker.quantizer.refine.draft import Case, QuantizedDraft
from worker.quantizer.refine.judge import Scored, is_worse, score_session
from worker.quantizer.report.words import POOR_SQNR_DB
from worker.quantizer.run.interface import ForwardingRun, Run
from worker.quantizer.run.services import Services
from worker.quantizer.search.trials import ModelBuilder, OutOfTimeError, TimedRun

# Whether a report tells of lost accuracy, and by which figure: where it does not, advice costs nothing.

# A loss that matters: in points of a share, or as a part of the float model's value.
_POINTS, _PART = 1.0, 0.02


@dataclass(frozen=True)
class AccuracyLoss:
    """What was lost, and how others are compared with it."""

    words: str  # what was lost, with its figures
    score: Score  # of the quantized model, on the data of the report
    reference: float | None  # value of the metric in the float model; None where SQNR counts
    facts: MetricFacts  # of the metric
    spec: EvaluationSpec  # declares it
    samples: int  # measured on
    broken: tuple[GateClause, ...] = ()  # what the gate wants of accuracy and does not get
    is_small: bool = False  # it is seen by estimate alone: advice is told, and nobody waits for trials of it

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

    def is_mended(self, found: Scored) -> bool:
        """True if nothing is left to look for."""
        score = found.score
        if not all(self._holds(clause, score) for clause in self.broken):
            return False
        if self.reference is None:
            return score.sqnr_db is not None and found.loss is None
        gap = self._gap(score)
        return gap is not None and gap < _least(self.reference, self.facts.unit)

    def _gap(self, score: Score) -> float | None:
        """How much worse the metric is than that of the float model."""
        if self.reference is None or score.value is None:
            return None
        return self.reference - score.value if self.facts.better == "higher" else score.value - self.reference

    def _holds(self, clause: GateClause, score: Score) -> bool:
        """True if a score keeps a condition, as far as it can tell."""
        if clause.clause == "min_sqnr_db" or clause.metric == SQNR:
            return score.sqnr_db is not None and score.sqnr_db >= clause.wanted
        if clause.metric != score.metric or not self.by_metric:
            return False
        gap, value = self._gap(score), score.value
        if gap is None or value is None:
            return False
        wanted = clause.wanted
        sane = value >= wanted if self.facts.better == "higher" else value <= wanted
        kept = {"max_drop": gap <= wanted, "min_value": value >= wanted, "max_value": value <= wanted, SANITY: sane}
        return kept.get(clause.clause, False)


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
    samples, small = fidelity.samples, False
    accuracy = (clause for clause in report.gate if clause.clause in ACCURACY_CLAUSES)
    broken = tuple(clause for clause in accuracy if clause.holds is False)
    gate = f"gate condition {broken[0].clause} failed" if broken else None
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
        poor = fidelity.sqnr_db < POOR_SQNR_DB
        suffered, small = fidelity.loss is not None or poor, gate is None and not poor
        words = "; ".join([f"SQNR {fidelity.sqnr_db:.1f} dB", *([fidelity.loss] if fidelity.loss else [])])
    if gate is None and not suffered:
        return None
    told_words = f"{gate}: {words}" if gate else words
    return AccuracyLoss(told_words, score, told, facts, spec, samples, broken, small)


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


# Stages of a run that a trial has no part of.
_NOT_REPEATED = ("load", "sanity", "layers", "latency", "advice")
_SHORTEST_PASS_SECONDS = 0.05
_BATCH = 8


@dataclass(frozen=True)
class AdviceTrial:
    """What became of a piece of advice."""

    figure: AdviceFigure | None = None  # before and after; None: it was not tried, or not to the end
    score: Score | None = None  # of the model that it made; None likewise
    helped: bool | None = None  # None: not tried
    why: str | None = None  # it was not tried, or did not help, in words


class AdviceRun(ForwardingRun):
    """The run of trials: their stages and their log are those of a search, not of the job.

    Args:
        run: takes progress, and may be canceled.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.done, self.total, self.code = 0, 0, ""

    def progress(
        self,
        stage: str,
        done: int = 0,
        total: int | None = None,
        unit: str = "",
        message: str = "",
        *,
        share: float | None = None,
    ) -> None:
        """Say which trial it is; its own stages are left out."""
        self._run.progress("advice", self.done, self.total or None, "trials", self.code)

    def overall(self, share: float, seconds_left: float) -> None:
        """Nothing: the whole is the job's."""

    def metric(self, stage: str, step: int, values: Mapping[str, float | None]) -> None:
        """Nothing: they are figures of a model that nobody gets."""

    def log(self, message: str, level: Literal["info", "warning"] = "info") -> None:
        """Nothing, likewise."""


class ConfigTrials:
    """Tries configs until the time is used up, or nothing is left to mend.

    Args:
        builder: quantizes the model at hand.
        loss: what is to be mended.
        done: the model of the report.
        case: the data.
        services: of the run.
        seconds: that all trials may take.
    """

    def __init__(
        self,
        builder: ModelBuilder,
        loss: AccuracyLoss,
        done: QuantizedDraft,
        case: Case,
        services: Services,
        *,
        seconds: float,
    ) -> None:
        self._builder, self._loss, self._case, self._services = builder, loss, case, services
        self._seconds = seconds
        self._conflicts = _conflicts(done)
        self._mended = False
        self._done = done
        labels = case.metrics.arrays if loss.by_metric else ()
        self._expected = KeptOutputs(case.reference, batch_size=_BATCH, arrays=labels)
        self.run = AdviceRun(services.run)
        self._timed = TimedRun(self.run, seconds)

    def attempt(self, code: str, config: QuantizationConfig, cost: float) -> AdviceTrial:
        """Quantize under ``config``, and measure.

        Args:
            code: of the advice.
            config: resolved.
            cost: in passes over the calibration data, on top of what the run itself took.

        Raises:
            CanceledError: the run was canceled.
        """
        self._services.run.check()
        if self._mended:
            return AdviceTrial(why="not tried: an earlier trial fixes the loss")
        if self._loss.is_small:
            return AdviceTrial(why="not tried: the loss is small, and no metric or gate asks for more")
        if not self._seconds:
            return AdviceTrial(why="not tried: evaluation.advice_seconds is 0")
        expected, left = _expected_seconds(self._services.stages.figures, cost), self._timed.seconds_left or 0.0
        if expected > left:
            told = f"it needs about {expected:.0f} s, and {left:.0f} s of {self._seconds:g} are left"
            return AdviceTrial(why=f"not tried: {told}; raise evaluation.advice_seconds to try it")
        self.run.code = code
        begin = time.monotonic()
        try:
            made = self._builder.again(config, self._timed)
            found, before = self._measure(made), self._before
        except CanceledError:
            raise
        except OutOfTimeError:
            return AdviceTrial(
                why=f"stopped after {self._seconds:g} s; raise evaluation.advice_seconds to finish the trial"
            )
        except QuantmillError as error:
            return AdviceTrial(why=f"stopped: {error.detail}")
        loss, score = self._loss, found.score
        figure = AdviceFigure(
            metric=loss.name,
            unit=loss.unit,
            before=loss.figure(loss.score),
            after=loss.figure(score),
            samples=loss.samples,
            seconds=round(time.monotonic() - begin, 3),
        )
        broken = _conflicts(made) - self._conflicts
        if broken:
            rule, where = min(broken)
            return AdviceTrial(figure, score, False, f"target rule {rule} cannot be met with it at {where}")
        helped = loss.helped(found, before)
        self._mended = helped and loss.is_mended(found)
        return AdviceTrial(figure, score, helped, None if helped else "did not help")

    @cached_property
    def _before(self) -> Scored:
        """The model of the report: its figures are known, but not what its metric rests on, sample by sample."""
        return self._measure(self._done) if self._loss.by_metric else Scored(self._loss.score)

    def _measure(self, made: QuantizedDraft) -> Scored:
        """The figures of a model on the data of the report."""
        nhwc = () if made.plan.is_empty else made.prepared.nhwc_inputs
        session = NhwcSession(made.content.runnable, nhwc, threads=self._services.threads, what="quantized model")
        run, by_metric = self._timed, self._loss.by_metric
        case, model = self._case, made.prepared.model
        classes = deciding_outputs(model, case.config.evaluation, case.measured_on.summary.labels)
        expected = self._expected.batches(run)
        return score_session(session, expected, case.metrics, run, by_metric=by_metric, classes=classes)


def _expected_seconds(stages: Sequence[StageFigures], cost: float) -> float:
    """What a trial takes: all that the run took to quantize and measure, and ``cost`` passes over the data more."""
    again = sum(stage.seconds for stage in stages if stage.name not in _NOT_REPEATED)
    passes = sum(stage.seconds for stage in stages if stage.name == "statistics")
    return again + cost * max(passes, _SHORTEST_PASS_SECONDS)


def _conflicts(done: QuantizedDraft) -> set[tuple[str, str]]:
    """Rules of the target that could not be kept, and where."""
    return {(decision.rule, decision.where) for decision in done.plan_log.decisions if decision.conflict}
