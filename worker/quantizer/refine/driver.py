"""Runs algorithms one after another and keeps what makes the network better, by samples that none has learned from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir

from service.contracts.algorithms import Algorithm
from service.contracts.errors import UnsupportedModelError
from service.contracts.metrics import MetricFacts
from service.contracts.reason import Reason, declare
from service.contracts.report import AlgorithmFigures, ReconstructionError, Score
from worker.quantizer.evaluation.certainty import Evidence, surely_differ
from worker.quantizer.evaluation.metrics import Distances, Metrics, metric_words
from worker.quantizer.evaluation.side_by_side import Expected, MetricMeasurement, Twins, side_by_side
from worker.quantizer.refine.draft import Case, Draft
from worker.quantizer.refine.step import Step, StepResult, Toolkit
from worker.quantizer.run.interface import Run
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.session import Session, is_large

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


def score_session(
    session: Session, expected: Iterable[Expected], metrics: Metrics, run: Run, *, by_metric: bool, part: bool = False
) -> Scored:
    """SQNR of the worst output in dB, and the first declared metric (else top-1).

    With ``by_metric`` the samples have what the metric reads; else SQNR alone tells. With ``part`` they are a part of
    all samples only.

    Raises:
        InvalidConfigError: an output or an array does not fit its metric.
        EngineError: the runtime failed.
        CanceledError: the run was canceled.
    """
    distances, found = Distances(), MetricMeasurement(metrics, metrics.primary, part=part)
    for twins in side_by_side(session, expected, run):
        distances.update(twins.pairs())
        if by_metric:
            found.update(twins)
    worst = distances.worst_db
    score = Score(sqnr_db=None if worst is None else round(worst, 3), metric=metrics.primary, value=None)
    if not by_metric:
        return Scored(score)
    return Scored(score.model_copy(update={"value": found.value}), found.evidence)


class Judge:
    """Runs drafts on the first ``samples`` calibration samples."""

    def __init__(self, case: Case, services: Services, samples: int) -> None:
        self._case, self._services = case, services
        self.samples = samples
        self._metrics = case.metrics
        self._measurable = case.metrics.fed_by(case.calibration) and case.metrics.judges_parts
        self._known: list[tuple[Draft, Scored]] = []

    def score(self, draft: Draft) -> Score:
        """SQNR of the worst output in dB, and the first declared metric (else top-1) where the labels are there."""
        return self._scored(draft).score

    def worse(self, after: Draft, before: Draft, *, least_gain_db: float = 0.0) -> Reason | None:
        """Why ``after`` is worse than ``before``, or not better by enough; None if it is neither."""
        new, old = self._scored(after), self._scored(before)
        facts, sure = self._metrics.facts(self._metrics.primary), surely_differ(new.evidence, old.evidence)
        return is_worse(new.score, old.score, facts, sure=sure, least_gain_db=least_gain_db)

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
        )
        self._known = [*self._known[-1:], (draft, measured)]
        return measured

    @cached_property
    def _expected(self) -> list[Expected]:
        case, services = self._case, self._services
        return list(
            case.expected_outputs(services.run, batch_size=_BATCH, last=self.samples, with_arrays=self._measurable)
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


# Whether preparation has left alone what the model computes.

# float32 rounding leaves 100 dB and more; a float16 model that is widened leaves about 60.
_PREPARED_SQNR_DB = 40.0
# Other samples may take other branches, and reach other limits.
_SAMPLES, _SAMPLES_OF_BRANCHES = 4, 16
# Of an output's integers: rounding may turn one that is chosen among others by a hair's breadth.
_OTHER_INTEGERS = 0.001


def strays(prepared: ir.Model, case: Case, services: Services) -> dict[str, str]:
    """Outputs of a prepared model that are not those of the float model on some calibration samples, and how they are.

    Compared are types, shapes, where values are not finite, the error of those that are, and integers. What the float
    model itself gives otherwise without the runtime's optimizations says nothing.

    Raises:
        UnsupportedModelError: the model gives other outputs each time that it runs.
    """
    session = Session(prepared, threads=services.threads, what="prepared model", optimized=not is_large(prepared))
    branches = any(True for _ in prepared.graph.subgraphs())
    samples = _SAMPLES_OF_BRANCHES if branches else _SAMPLES
    found = _differing(session, case, services, samples)
    if found:
        for name, how in _differing(case.float_session, case, services, samples).items():
            raise UnsupportedModelError(
                f"output {name!r} of the model is another each time that it runs on the same data ({how})",
                hint="Export the model for inference: without Dropout in training mode, and without random numbers.",
                output=name,
            )
    return found


def _differing(session: Session, case: Case, services: Services, samples: int) -> dict[str, str]:
    """How outputs of ``session`` differ from those of the float model, by name."""
    distances, found = Distances(), dict[str, str]()
    for first in spread(case.calibration_samples, samples):
        expected = case.expected_outputs(services.run, batch_size=1, first=first, last=first + 1)
        for twins in side_by_side(session, expected, services.run):
            finite = []
            for name, one, other in _arrays(twins):
                how = _unlike(one, other)
                if how is not None:
                    found.setdefault(name, how)
                elif one.dtype.kind == "f" and one.shape == other.shape:
                    both = np.isfinite(one) & np.isfinite(other)
                    finite.append((name, np.where(both, one, 0), np.where(both, other, 0)))
            distances.update(finite)
    figures = {name: distance.sqnr_db for name, distance in distances.of.items()}
    far = {name: f"{db:.1f} dB" for name, db in figures.items() if db is not None and db < _PREPARED_SQNR_DB}
    return {**far, **found}


def spread(count: int, wanted: int) -> list[int]:
    """Numbers of ``wanted`` samples out of ``count``, the first and the last among them."""
    return sorted({round(k) for k in np.linspace(0, max(count - 1, 0), min(count, wanted))})


def _arrays(twins: Twins) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    for (name, one), other in zip(twins.expected.items(), twins.got.values(), strict=True):
        if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
            same = one.shape == other.shape
            yield name, *((twins.batch.cut(one), twins.batch.cut(other)) if same else (one, other))


def _unlike(one: np.ndarray, other: np.ndarray) -> str | None:
    """How an output differs from what it was, its error aside; None if it does not.

    A length may hang on values, which rounding moves; the number of axes does not.
    """
    if one.dtype != other.dtype or one.ndim != other.ndim:
        return f"{other.dtype} {list(other.shape)} in the place of {one.dtype} {list(one.shape)}"
    if one.shape != other.shape:
        return None
    if one.dtype.kind == "f":
        return _odd_elsewhere(one, other)
    share = float((one != other).mean()) if one.size else 0.0
    return f"{share:.1%} of its values are others" if share > _OTHER_INTEGERS else None


def _odd_elsewhere(one: np.ndarray, other: np.ndarray) -> str | None:
    """What is finite in wider types alone may become so; nothing else may cease to be, or become another."""
    words: dict[str, Any] = {"NaN": np.isnan, "Inf": np.isposinf, "-Inf": np.isneginf}
    for word, odd in words.items():
        if (odd(other) & ~odd(one)).any():
            return f"{word} where it was none"
    return None


# Runs algorithms one after another and keeps what makes the network better.


@dataclass(frozen=True)
class Tried:
    """What became of a step."""

    draft: Draft  # what counts from now on: the changed draft if it is kept, else the one before
    result: StepResult  # what the step did
    kept: bool  # True if the draft is the changed one
    before: Score | None = None  # score of the draft before; None if the step was not judged
    after: Score | None = None  # likewise, of the changed draft
    worse: Reason | None = None  # why it was undone; None if it was not


def try_step(step: Step[Any], draft: Draft, toolkit: Toolkit, judge: Judge) -> Tried:
    """Apply a step, and undo it if it is to be judged and makes the network worse.

    Raises:
        InvalidConfigError: the settings do not fit the model or the data.
        EngineError: the runtime failed on the data.
        CanceledError: the run was canceled.
    """
    tried = _applied(step, draft, toolkit, judge)
    result, made = tried.result, tried.draft
    if made is draft or not result.judged or not step.spec.is_judged:
        return tried
    with toolkit.services.stages.stage(f"{step.method} acceptance"):
        before, after = judge.score(draft), judge.score(made)
        worse = judge.worse(made, draft, least_gain_db=step.spec.least_gain_db)
    return Tried(draft if worse else made, result, not worse, before, after, worse)


def _applied(step: Step[Any], draft: Draft, toolkit: Toolkit, judge: Judge) -> Tried:
    """What a step makes of a draft; with knobs that are ``auto``, the best of what its variants make of it."""
    variants = step.variants(draft)
    if len(variants) == 1:
        return _apply(replace(step, spec=variants[0]), draft, toolkit)
    best: Tried | None = None
    scores = []
    for spec in variants:
        words = _chosen(step.spec, spec)
        store = toolkit.services.checkpoint.scoped(f"{step.method} {words}: ")
        scoped = replace(toolkit, services=replace(toolkit.services, checkpoint=store))
        tried = _apply(replace(step, spec=spec), draft, scoped)
        score = judge.score(tried.draft)
        scores.append(f"{words} {'none' if score.sqnr_db is None else f'{score.sqnr_db:.2f} dB'}")
        if best is None or _is_better(tried.draft, best.draft, judge):
            best, won = tried, words
    assert best is not None  # noqa: S101 - there is a variant at least
    result = replace(best.result, summary=f"{won} chosen of {'; '.join(scores)}: {best.result.summary}")
    return replace(best, result=result)


def _apply(step: Step[Any], draft: Draft, toolkit: Toolkit) -> Tried:
    case, services = toolkit.case, toolkit.services
    with services.stages.stage(step.method):
        result = step.apply(draft, toolkit)
        if result.draft is None:
            return Tried(draft, result, kept=False)
        made = replace(result.draft.on_target(case.config), algorithm=step.method, changed=result.nodes)
    return Tried(made, result, kept=True)


def _is_better(one: Draft, other: Draft, judge: Judge) -> bool:
    return judge.worse(one, other) is None and judge.worse(other, one) is not None


def _chosen(asked: Algorithm, spec: Algorithm) -> str:
    """The values that stand in the places of ``auto``."""
    return ", ".join(f"{knob} {str(getattr(spec, knob)).lower()}" for knob in asked.open_knobs)


def refine(
    draft: Draft, steps: Sequence[Step[Any]], toolkit: Toolkit, judge: Judge
) -> tuple[list[Draft], list[AlgorithmFigures]]:
    """Try each step on what the steps before it left.

    The draft is calibrated, with the statistics of all steps. Returns the drafts, ``draft`` first, each made from the
    one before by a step that was kept; and what became of each step, in order.
    """
    drafts: list[Draft] = [draft]
    outcomes: list[AlgorithmFigures] = []
    for k, step in enumerate(steps):
        rest = steps[k + 1 :]
        toolkit.services.run.progress(step.method)
        scoped = replace(toolkit, to_come=rest)
        if rest and step.spec.accept == "if_better_at_end":
            tried = _applied(step, drafts[-1], scoped, judge)
            if tried.kept and tried.result.judged:
                more, told = _both_ways(step, drafts[-1], tried, rest, toolkit, judge)
                return [*drafts, *more], [*outcomes, *told]
        else:
            tried = try_step(step, drafts[-1], scoped, judge)
        outcomes.append(_told(step, tried, toolkit, judge))
        if tried.kept:
            drafts.append(tried.draft)
    return drafts, outcomes


def _both_ways(
    step: Step[Any], draft: Draft, tried: Tried, rest: Sequence[Step[Any]], toolkit: Toolkit, judge: Judge
) -> tuple[list[Draft], list[AlgorithmFigures]]:
    """All steps behind one, with it and without it.

    Returns the drafts behind ``draft`` on the way that ends better; what became of the step, and of all others on that
    way.
    """
    changed, told = refine(tried.draft, rest, toolkit, judge)
    store = toolkit.services.checkpoint.scoped(f"without {step.method}: ")
    apart = replace(toolkit, services=replace(toolkit.services, checkpoint=store))
    plain, told_of_plain = refine(draft, rest, apart, judge)
    with toolkit.services.stages.stage(f"{step.method} acceptance"):
        before, after = judge.score(plain[-1]), judge.score(changed[-1])
        worse = judge.worse(changed[-1], plain[-1], least_gain_db=step.spec.least_gain_db)
    summary = f"judged with all later steps: {tried.result.summary}"
    decided = Tried(
        draft if worse else tried.draft, replace(tried.result, summary=summary), not worse, before, after, worse
    )
    outcome = _told(step, decided, toolkit, judge)
    return (plain[1:], [outcome, *told_of_plain]) if worse else (changed, [outcome, *told])


def _told(step: Step[Any], tried: Tried, toolkit: Toolkit, judge: Judge) -> AlgorithmFigures:
    """What became of a step, for the report and in the log."""
    outcome = _figures(step, tried, judge)
    reason = tried.worse or tried.result.reason
    if reason is not None and reason.by_design:
        word = "" if tried.worse else "skipped: "
        toolkit.services.run.log(f"{step.method}: {word}{outcome.summary}")
    else:
        toolkit.services.run.log(f"{step.method}: {outcome.summary}", "info" if outcome.kept else "warning")
    return outcome


def _figures(step: Step[Any], tried: Tried, judge: Judge) -> AlgorithmFigures:
    result, undone, reason = tried.result, "", tried.worse or tried.result.reason
    if tried.worse is not None:
        why = (
            "as it gained too little" if tried.worse.code == NOT_WORTH_ITS_COST.code else "as it made the network worse"
        )
        undone = f"undone, {why}: {tried.worse}; "
    return AlgorithmFigures(
        method=step.spec.method,
        kept=tried.kept,
        summary=undone + result.summary,
        reason_code=None if reason is None else reason.code,
        before=tried.before,
        after=tried.after,
        samples=judge.samples if tried.before is not None else 0,
        nodes=len(result.nodes),
        search=result.search,
        reconstruction={name: ReconstructionError(before=old, after=new) for name, (old, new) in result.errors.items()},
        ranges=result.ranges,
        training=result.training,
    )
