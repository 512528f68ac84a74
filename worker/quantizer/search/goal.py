"""Whether a quantized model is good enough, measured by running it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from service.contracts.algorithms import Autopilot
from service.contracts.algorithms.precision import DistanceGoal, DropGoal
from service.contracts.errors import InvalidConfigError
from service.contracts.evaluation import DEFAULT_METRIC, DEFAULT_METRICS, EvaluationSpec
from service.contracts.evaluation_checks import find_output
from service.contracts.report import AlgorithmFigures, GateClause
from service.contracts.search import ReachedFigures
from worker.quantizer.data import OpenDataset
from worker.quantizer.evaluation.certainty import Evidence, document_of
from worker.quantizer.evaluation.gate import MeasuredPair, search_clauses
from worker.quantizer.evaluation.latency import measure_latency
from worker.quantizer.evaluation.metrics import Metrics
from worker.quantizer.evaluation.side_by_side import KeptOutputs, MetricMeasurement, side_by_side
from worker.quantizer.refine.draft import Case, Draft
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.session import Session

_BATCH = 8
_SLACK = 1e-9


@dataclass(frozen=True)
class GoalMeasurement:
    """How a draft stands to the goal."""

    value: float | None  # of the metric's drop, or of the distance; None if the draft has none: it is lost
    # how far it is beyond the limit, in units of the metric; 0 or less if the goal is met; None without a value
    gap: float | None
    evidence: Evidence | None = None  # what the metric rests on, for comparisons in pairs; None where nobody can tell
    undefined: str | None = None  # why there is no value

    @staticmethod
    def of(document: Mapping[str, Any]) -> GoalMeasurement:
        """The inverse of ``document``, after a way through JSON."""
        return GoalMeasurement(**{**document, "evidence": Evidence.from_document(document["evidence"])})

    @property
    def document(self) -> dict[str, Any]:
        """For a checkpoint."""
        told = {"value": self.value, "gap": self.gap, "undefined": self.undefined}
        return told | {"evidence": document_of(self.evidence)}

    @property
    def miss(self) -> float:
        """The gap as a number to compare by: infinite without a value."""
        return math.inf if self.gap is None else self.gap

    @property
    def met(self) -> bool:
        """True if the goal is met."""
        return self.miss <= _SLACK

    @property
    def missed_words(self) -> str:
        """How far the goal is missed, or why nobody can tell."""
        return f"missed: {self.undefined}" if self.gap is None else f"missed by {self.gap:.3g}"


class _GoalMetric(NamedTuple):
    """The metric that a goal speaks of, and its value for the float model; None where it has none."""

    metrics: Metrics
    name: str
    ideal: float | None


class GoalEvaluator:
    """Measures drafts on the evaluation data if there is any, else on the calibration data.

    Args:
        goal: what to measure.
        case: what is quantized.
        services: of the run.
        output_index: of the output that a distance is measured on.
    """

    def __init__(self, goal: DropGoal | DistanceGoal, case: Case, services: Services, *, output_index: int = 0) -> None:
        self._goal = goal
        self._case, self._services = case, services
        self._output_index = output_index
        labels = case.metrics.arrays if case.metrics.fed_by(self.data) else ()
        self._expected = KeptOutputs(case.reference, batch_size=_BATCH, arrays=labels)
        self.notes: list[str] = []

    @property
    def figure(self) -> str:
        """What the value of ``GoalMeasurement`` is called beside other figures of a trial."""
        return "drop" if isinstance(self._goal, DropGoal) else f"goal_{self._goal.metric}"

    @property
    def data(self) -> OpenDataset:
        """What drafts are measured on."""
        return self._case.measured_on

    def measure(self, draft: Draft) -> GoalMeasurement:
        """Run the draft's emitted model; see ``measure_session``."""
        return self.measure_session(draft.session(self._services.threads))

    def measure_session(self, session: Session) -> GoalMeasurement:
        """Run a model. One that returns NaN, say, has no value; that is no fault of the config.

        Raises:
            InvalidConfigError: the data cannot give the goal's metric, or the float model itself has no value of it.
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        goal, (metrics, name, ideal) = self._goal, self._goal_metric
        found = MetricMeasurement(metrics, name)
        try:
            for twins in side_by_side(session, self._expected.batches(self._services.run), self._services.run):
                found.update(twins)
        except InvalidConfigError as error:
            raise InvalidConfigError(f"the goal cannot be measured: {error.detail}", hint=error.hint) from None
        if found.value is None:
            why = found.whole.undefined.get(name, f"its outputs have no value of {name}")
            if not self._float_has(metrics, name):
                raise self._unmeasured(why)
            return GoalMeasurement(None, None, undefined=why)
        sign = 1.0 if metrics.facts(name).better == "higher" else -1.0
        if isinstance(goal, DistanceGoal):
            return GoalMeasurement(found.value, sign * (goal.limit - found.value), found.evidence)
        if ideal is None:
            raise self._unmeasured()
        drop = sign * (ideal - found.value)
        return GoalMeasurement(drop, drop - goal.max_drop, found.evidence)

    def latency_ratio(self, model: bytes, *, runs: int) -> float:
        """Latency of a model over that of the float model; see ``measure_latency``.

        Raises:
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        case, run = self._case, self._services.run
        threads = self._services.threads
        session = Session(model, threads=threads, what="quantized model")
        found = measure_latency(case.reference, session, runs=runs, threads=threads, run=run)
        return found.ratio

    def _float_has(self, metrics: Metrics, name: str) -> bool:
        """True if the float model, compared with itself, has a value of the metric."""
        itself = metrics.start()
        for one in self._expected.batches(self._services.run):
            itself.update(one.batch, one.outputs, one.outputs)
        return name in itself.values

    @cached_property
    def _goal_metric(self) -> _GoalMetric:
        """The goal's own metric, or for top-1 without labels the share of equal decisions."""
        goal, metrics = self._goal, self._case.metrics
        if isinstance(goal, DistanceGoal):
            return _GoalMetric(self._against_float(goal.metric, self._output_index), goal.metric, None)
        declared = [metric.name for metric in metrics.spec.metrics] or DEFAULT_METRICS
        if metrics.fed_by(self.data) and goal.metric in declared:
            facts, before = metrics.facts(goal.metric), metrics.start()
            if facts.against_float:
                return _GoalMetric(metrics, goal.metric, facts.ideal)
            for one in self._expected.batches(self._services.run):
                before.update(one.batch, one.outputs)
            if goal.metric in before.values:
                return _GoalMetric(metrics, goal.metric, before.values[goal.metric])
        if goal.metric != DEFAULT_METRIC:
            raise self._unmeasured()
        self.notes.append("the data has no labels: the goal was judged by the share of samples with the same decision")
        return _GoalMetric(self._against_float("agreement", 0), "agreement", 100.0)

    def _against_float(self, kind: str, output: int) -> Metrics:
        """The metric of this kind."""
        spec = EvaluationSpec.model_validate({"metrics": [{"kind": kind, "output": output}]})
        return Metrics(spec, self._case.summary.outputs)

    def _unmeasured(self, why: str | None = None) -> InvalidConfigError:
        source = self._case.source
        told = f": {why}" if why else ""
        return InvalidConfigError(
            f"the goal names metric {self._goal.metric!r}, which the {source} data does not provide{told}",
            hint="Give labels, declare the metric in evaluation.metrics, or use a goal of kind distance.",
        )


def output_place(ref: int | str, case: Case) -> int:
    """The number of the output that a config names or numbers.

    Raises:
        InvalidConfigError: the model has no such output.
    """
    names = case.float_session.output_names
    name = find_output(ref, names)
    if name is None:
        raise InvalidConfigError(f"the model has no output {ref!r}", hint=f"Its outputs are {', '.join(names)}.")
    return names.index(name)


class SearchGoals:
    """Judges models by the goals and budgets of the config's searches.

    Args:
        case: what is quantized.
        outcomes: what became of each algorithm of the config.
        services: of the run.
    """

    def __init__(self, case: Case, outcomes: Sequence[AlgorithmFigures], services: Services) -> None:
        self._case, self._outcomes = case, tuple(outcomes)
        self._evaluators = {
            place: GoalEvaluator(spec.goal, case, services, output_index=output_place(spec.output_index, case))
            for place, spec in enumerate(case.config.algorithms)
            if isinstance(spec, Autopilot) and place < len(outcomes) and outcomes[place].search is not None
        }

    @property
    def is_empty(self) -> bool:
        """True if nothing was searched for."""
        return not self._evaluators

    def outcomes(self, session: Session, *, size_bytes: int, latency_ratio: float) -> tuple[AlgorithmFigures, ...]:
        """The outcomes, as they are if this model is returned.

        Args:
            session: of the model.
            size_bytes: of its file.
            latency_ratio: over the float model's.

        Raises:
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        found = list(self._outcomes)
        for place, evaluator in self._evaluators.items():
            search, measured = found[place].search, evaluator.measure_session(session)
            reached = ReachedFigures(
                value=measured.value,
                undefined=measured.undefined,
                gap=measured.gap,
                goal_met=measured.met,
                size_bytes=size_bytes,
                latency_ratio=round(latency_ratio, 4),
            )
            returned = None if search is None else search.model_copy(update={"returned": reached})
            found[place] = found[place].model_copy(update={"search": returned})
        return tuple(found)

    def clauses(self, outcomes: Sequence[AlgorithmFigures], pair: MeasuredPair) -> tuple[GateClause, ...]:
        """What becomes of goals and budgets, as clauses of the gate; ``pair`` is measured on the same data."""
        config = self._case.config
        return () if self.is_empty else search_clauses(config.algorithms, outcomes, config.evaluation.gate, pair)
