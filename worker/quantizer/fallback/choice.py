"""Looks for a model to return in the place of a quantized one that breaks the gate's limit of latency."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from service.contracts.changes import ratio_words
from service.contracts.evaluation import Gate
from service.contracts.report import (
    AlgorithmFigures,
    Fallback,
    FallbackCandidate,
    FallbackKind,
    GateClause,
    LatencyFigures,
    ModelFigures,
    RegionFigures,
    Report,
)
from service.contracts.report.figures import SANITY
from worker.quantizer.evaluation.chance import with_chance
from worker.quantizer.evaluation.compare import compare
from worker.quantizer.evaluation.decisions import class_outputs
from worker.quantizer.evaluation.gate import (
    GATE_LATENCY,
    SEARCH_LATENCY,
    MeasuredPair,
    judge,
    metric_figures,
    verdict_of,
)
from worker.quantizer.evaluation.latency import measure_latency
from worker.quantizer.evaluation.side_by_side import NhwcSession
from worker.quantizer.fallback.regions import SLOWER_QUANTIZED, PairPlacement, in_float, regions, take_off, without
from worker.quantizer.plan.targets import TARGETS
from worker.quantizer.refine.draft import QuantizedDraft
from worker.quantizer.report.assemble import Assembled, make_report
from worker.quantizer.report.kernels import THIS_CPU
from worker.quantizer.report.words import alarm_words
from worker.quantizer.run.interface import Run
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.session import Session
from worker.quantizer.search.goal import SearchGoals
from worker.quantizer.search.trials import ModelBuilder, OutOfTimeError, TimedRun

# Parts of the time: when regions have been tried by themselves, and when they have been taken off together. The rest is
# for judging what that has led to: a model that nobody has judged cannot be returned.
_ALONE, _TOGETHER = 0.5, 0.75


@dataclass(frozen=True)
class FallbackModel:
    """A model that might be returned."""

    kind: FallbackKind  # what it is
    done: QuantizedDraft  # written
    size_bytes: int  # of its file
    latency: LatencyFigures | None  # beside the float model; None for that itself
    gate: tuple[GateClause, ...] | None  # its clauses but those of latency; None: not measured for want of time
    # what became of each algorithm, held against this model; None: as they are
    outcomes: tuple[AlgorithmFigures, ...] | None = None

    @property
    def ratio(self) -> float:
        """Of its latency over that of the float model."""
        return 1.0 if self.latency is None else self.latency.ratio

    @property
    def holds(self) -> bool | None:
        """Whether it holds all conditions but that of latency; None: not measured."""
        return None if self.gate is None else all(clause.holds for clause in self.gate)

    @property
    def is_faster(self) -> bool:
        """True if it is faster than the float model by the whole interval."""
        return self.latency is not None and self.latency.ratio_interval.high < 1.0


def choose(candidates: Sequence[FallbackModel]) -> tuple[FallbackModel, str]:
    """The fastest of those that hold all conditions but that of latency, and why it is that one.

    The float model gives way to one that is surely faster. Where none holds, the planned one stays.

    Args:
        candidates: the planned one first, the float model last.
    """
    planned, float_ = candidates[0], candidates[-1]
    held = [candidate for candidate in candidates if candidate.holds]
    if not held:
        return planned, "the quantized model is returned as configured: no model meets the other conditions of the gate"
    quantized = [
        candidate for candidate in held if candidate is not float_ and (candidate.is_faster or not float_.holds)
    ]
    if not quantized:
        return float_, (
            "the float model is returned: no quantized model that meets the other conditions is significantly faster"
        )
    best = min(quantized, key=lambda candidate: candidate.ratio)
    told = f"{ratio_words(best.ratio)} than the float model, the fastest that meets the other conditions"
    if best is planned:
        return best, f"the quantized model is returned as configured: {told}"
    return best, f"the quantized model is returned without Q/DQ pairs that cost more than they save: {told}"


def falling_back(
    done: QuantizedDraft, made: Assembled, builder: ModelBuilder, *, clock: Callable[[], float] = time.monotonic
) -> tuple[QuantizedDraft, Assembled]:
    """The model to return and its report: the given ones, unless the gate asks for another where latency breaks it.

    Latency measured here says nothing of other targets, and so nothing is chosen by it there.

    Args:
        done: the model as planned.
        made: its report.
        builder: writes other ones.
        clock: monotonic, in seconds; the time of the search is told by it.

    Raises:
        EngineError: the runtime failed.
        CanceledError: the run was canceled.
    """
    gate = builder.case.config.evaluation.gate
    broken = next((clause for clause in made.report.gate if clause.clause == GATE_LATENCY), None)
    asked = gate.on_fail == "fallback" and builder.case.config.target == THIS_CPU
    if not asked or broken is None or done.plan.is_empty or not _fails(broken, gate):
        return done, made
    seconds = builder.case.config.evaluation.fallback_seconds
    with builder.services.stages.stage("fallback", expected_seconds=seconds):
        chosen, told = _Choice(done, made.report, builder, clock).made(broken)
        if chosen.kind == "planned":
            report = made.report
        else:
            done = chosen.done
            if chosen.outcomes is not None:
                done = replace(done, filled=replace(done.filled, outcomes=list(chosen.outcomes)))
            made = make_report(done, builder.case, builder.services)
            report = made.report if chosen.kind == "reduced" else _of_float(made.report, gate)
    notes = (told.reason, *report.notes)
    manifest = report.manifest.model_copy(update={"timed_choice": True})
    stages = tuple(builder.services.stages.figures)
    changes = {"fallback": told, "notes": notes, "manifest": manifest, "stages": stages}
    return done, made._replace(report=report.model_copy(update=changes))


def _fails(clause: GateClause, gate: Gate) -> bool:
    """Broken, or undecided where the gate counts that as failed."""
    return clause.holds is False or (clause.holds is None and gate.on_undecided == "fail")


class _Choice:
    """Times and judges candidates until the time is used up.

    Args:
        done: the planned model.
        report: of it.
        builder: writes other ones.
        clock: monotonic, in seconds.
    """

    def __init__(self, done: QuantizedDraft, report: Report, builder: ModelBuilder, clock: Callable[[], float]) -> None:
        self._builder, self._case, self._report = builder, builder.case, report
        self._seconds = self._case.config.evaluation.fallback_seconds
        self._clock, self._begun = clock, clock()
        self._timed = TimedRun(builder.services.run, self._seconds, clock)
        self._searching = TimedRun(self._timed, _TOGETHER * self._seconds, clock)
        self._threads = builder.services.threads
        self._planned = PairPlacement(builder.filled.draft, done)
        self._goals = SearchGoals(self._case, done.filled.outcomes, Services(self._timed, self._threads))

    def made(self, broken: GateClause) -> tuple[FallbackModel, Fallback]:
        """The chosen candidate, and what is told of all."""
        self._timed.progress("fallback")
        why_not = self._why_no_regions()
        placements, tried = ([], []) if why_not else self._taken_off()
        planned = self._planned.done
        candidates = [
            FallbackModel(
                "planned", planned, planned.content.size_bytes, self._report.latency, _others(self._report.gate)
            ),
            *self._reduced_ones(placements),
            self._float(),
        ]
        chosen, reason = choose(candidates)
        return chosen, Fallback(
            because=_because(broken),
            reason=reason,
            candidates=tuple(self._told(candidate, candidate is chosen) for candidate in candidates),
            regions=tuple(tried),
            why_no_regions=why_not,
            seconds=round(self._clock() - self._begun, 3),
        )

    def _why_no_regions(self) -> str | None:
        config = self._case.config
        if not self._seconds:
            return "evaluation.fallback_seconds is 0"
        if config.mode != "static":
            return f"mode {config.mode} puts no Q/DQ pairs on activations"
        if TARGETS[config.target].whole:
            return f"target {config.target} needs the whole network in integers"
        return "the rest of the network is float16" if config.has_float16 else None

    def _taken_off(self) -> tuple[list[PairPlacement], list[RegionFigures]]:
        draft = self._planned.draft
        found = regions(draft.graph, draft.plan)
        return take_off(self._planned, found, self._placement, self._ratio, enough=self._enough)

    def _enough(self) -> bool:
        left = self._timed.seconds_left
        return left is not None and left < (1.0 - _ALONE) * self._seconds

    def _placement(self, nodes: frozenset[str]) -> PairPlacement:
        self._searching.check()
        draft = without(
            self._planned.draft, nodes, SLOWER_QUANTIZED(), self._case, Services(self._searching, self._threads)
        )
        return PairPlacement(draft, self._builder.emit(draft), nodes)

    def _ratio(self, reference: PairPlacement, other: PairPlacement) -> LatencyFigures:
        return self._measured(self._session(reference.done), self._session(other.done), self._searching)

    def _measured(self, reference: Session, other: Session, run: Run) -> LatencyFigures:
        case = self._case
        return measure_latency(
            replace(case.reference, session=reference),
            other,
            runs=case.config.evaluation.latency_runs,
            threads=self._threads,
            run=run,
        )

    def _session(self, done: QuantizedDraft) -> NhwcSession:
        nhwc = () if done.plan.is_empty else done.prepared.nhwc_inputs
        return NhwcSession(done.content.runnable, nhwc, threads=self._threads, what="quantized model")

    def _reduced_ones(self, placements: Sequence[PairPlacement]) -> list[FallbackModel]:
        """Candidates with fewer pairs, slowest first; the fastest is the first to be timed and judged."""
        found = [self._of(placement) for placement in reversed(placements)]
        return [candidate for candidate in reversed(found) if candidate is not None]

    def _of(self, placement: PairPlacement) -> FallbackModel | None:
        """A candidate with fewer pairs; None if there was no time to time it."""
        done = placement.done
        try:
            self._timed.check()
            session = self._session(done)
            latency = self._measured(self._case.float_session, session, self._timed)
        except OutOfTimeError:
            return None
        try:
            gate, outcomes = self._judged(done, session, latency.ratio)
        except OutOfTimeError:
            gate, outcomes = None, None
        return FallbackModel("reduced", done, done.content.size_bytes, latency, gate, outcomes)

    def _float(self) -> FallbackModel:
        """The float model, which is judged whatever time is left."""
        self._timed.lenient = True
        done = self._builder.emit(in_float(self._planned.draft))
        gate, outcomes = self._judged(done, self._session(done), 1.0)
        return FallbackModel("float", done, done.content.size_bytes, None, gate, outcomes)

    def _judged(
        self, done: QuantizedDraft, session: Session, ratio: float
    ) -> tuple[tuple[GateClause, ...], tuple[AlgorithmFigures, ...] | None]:
        """The clauses of the gate but those of latency, on the data of the report, and the outcomes behind them."""
        case, evaluation, size_bytes = self._case, self._case.config.evaluation, done.content.size_bytes
        gate, outcomes = evaluation.gate.model_copy(update={GATE_LATENCY: None}), None
        if not self._goals.is_empty:
            outcomes = self._goals.outcomes(session, size_bytes=size_bytes, latency_ratio=ratio)
        elif gate.is_empty and not any(clause.clause == SANITY for clause in self._report.gate):
            return (), None
        comparison = compare(
            case.reference,
            session,
            metrics=case.metrics,
            run=self._timed,
            stage="fallback",
            classes=class_outputs(done.prepared.model, evaluation, case.measured_on.summary.labels),
        )
        figures = ModelFigures(metrics=comparison.quantized_metrics, size_bytes=size_bytes)
        data = case.measured_on
        measured = with_chance(metric_figures(evaluation, comparison), evaluation, case.summary.outputs, data)
        pair = MeasuredPair(self._report.float_, figures, comparison.fidelity, measured)
        searched = () if outcomes is None else _others(self._goals.clauses(outcomes, pair))
        _, clauses = judge(
            gate,
            pair,
            searched,
            findings=self._report.findings,
            decisions=comparison.samples,
        )
        return clauses, outcomes

    def _told(self, candidate: FallbackModel, chosen: bool) -> FallbackCandidate:
        before, after = (
            {name for name, entry in done.plan.nodes.items() if entry.quantized}
            for done in (self._planned.done, candidate.done)
        )
        return FallbackCandidate(
            kind=candidate.kind,
            nodes_taken_off=len(before - after),
            size_bytes=candidate.size_bytes,
            latency_ratio=candidate.ratio,
            latency_interval=None if candidate.latency is None else candidate.latency.ratio_interval,
            gate=candidate.gate or (),
            holds=candidate.holds,
            chosen=chosen,
        )


def _others(gate: Sequence[GateClause]) -> tuple[GateClause, ...]:
    """All that are not about latency."""
    return tuple(clause for clause in gate if clause.clause not in (GATE_LATENCY, SEARCH_LATENCY))


def _because(clause: GateClause) -> str:
    where = "" if clause.interval is None else f" [{clause.interval.low:.3g}, {clause.interval.high:.3g}]"
    got = "nothing" if clause.got is None else f"{clause.got:.3g}"
    verb = "breaks" if clause.holds is False else "may break"
    return f"the quantized model {verb} max_latency_ratio {clause.wanted:g}: latency ratio {got}{where}"


def _of_float(report: Report, gate: Gate) -> Report:
    """The report of the float model as the one returned: its latency is its own, and so is the clause about it."""
    clauses = tuple(_of_itself(clause) if clause.clause == GATE_LATENCY else clause for clause in report.gate)
    alarm = alarm_words(report.findings)
    changes: dict[str, Any] = {
        "gate": clauses,
        "verdict": verdict_of(gate, clauses),
        "summary": f"{alarm}{'the' if alarm else 'The'} float model is returned as it was uploaded: the quantized one "
        "was too slow.",
    }
    latency = report.latency
    if latency is not None:
        itself = latency.ratio_interval.model_copy(update={"low": 1.0, "high": 1.0})
        same = {"ratio": 1.0, "ratio_interval": itself, "verdict": "undecided", "quantized_ms": latency.float_ms}
        same["quantized_interval_ms"] = latency.float_interval_ms
        changes["latency"] = latency.model_copy(update=same)
        changes["quantized"] = report.quantized.model_copy(update={"latency_ms": latency.float_ms})
    return report.model_copy(update=changes)


def _of_itself(clause: GateClause) -> GateClause:
    changes = {"got": 1.0, "holds": clause.wanted >= 1.0, "interval": None, "confidence": None, "why": None}
    return clause.model_copy(update=changes)
