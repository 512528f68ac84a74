"""Runs algorithms one after another and keeps what makes the network better, by samples that none has learned from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from service.contracts.algorithms import Algorithm
from service.contracts.reason import Reason, declare
from service.contracts.report import AlgorithmFigures, ReconstructionError, Score
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.judge import NOT_WORTH_ITS_COST, Judge
from worker.quantizer.refine.step import Step, StepResult, Toolkit

OUT_OF_TIME = declare(
    "out-of-time", "max_seconds was over before it", hint="Raise max_seconds, or list fewer algorithms.", by_design=True
)
NO_DATA = declare(
    "no-data-for-it",
    "without calibration data nobody knows what is lost, and it has nothing to learn from",
    hint="Give calibration data.",
    by_design=True,
)
NO_LOSS = declare("no-loss-left", "the loss so far on held-back samples is not worth this step", by_design=True)


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
    """Apply a step where it is called for, and undo it if it is to be judged and makes the network worse.

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
    """What a step makes of a draft, if it is called for there."""
    if not toolkit.time_limit.allows():
        return Tried(draft, StepResult.nothing(OUT_OF_TIME()), kept=False)
    if step.spec.when == "always":
        return _best(step, draft, toolkit, judge)
    if step.spec.needs_data and toolkit.case.calibration.is_random:
        return Tried(draft, StepResult.nothing(NO_DATA()), kept=False)
    with toolkit.services.stages.stage(f"{step.method} acceptance"):
        loss = judge.loss(draft, lost_sqnr_db=step.spec.lost_sqnr_db, lost_percent=step.spec.lost_percent)
    if loss is None:
        return Tried(draft, StepResult.nothing(NO_LOSS()), kept=False)
    tried = _best(step, draft, toolkit, judge)
    return replace(tried, result=replace(tried.result, summary=f"{loss}: {tried.result.summary}"))


def _best(step: Step[Any], draft: Draft, toolkit: Toolkit, judge: Judge) -> Tried:
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
        if rest and step.spec.accept in ("if_better_at_end", "reconsidered"):
            tried = _applied(step, drafts[-1], scoped, judge)
            if tried.kept and tried.result.judged:
                more, told = _with_rest(step, drafts[-1], tried, rest, toolkit, judge)
                return [*drafts, *more], [*outcomes, *told]
        else:
            tried = try_step(step, drafts[-1], scoped, judge)
        outcomes.append(_told(step, tried, toolkit, judge))
        if tried.kept:
            drafts.append(tried.draft)
    return drafts, outcomes


def _with_rest(
    step: Step[Any], draft: Draft, tried: Tried, rest: Sequence[Step[Any]], toolkit: Toolkit, judge: Judge
) -> tuple[list[Draft], list[AlgorithmFigures]]:
    """All steps behind one, with it and without it; one way is enough for ``reconsidered`` if it ends without a loss.

    One has to be enough where there is no time for another: that which is better at once.

    Returns the drafts behind ``draft`` on the way that ends better; what became of the step, and of all others on that
    way.
    """
    store = toolkit.services.checkpoint.scoped(f"without {step.method}: ")
    apart = replace(toolkit, services=replace(toolkit.services, checkpoint=store))

    def way(kept: bool) -> tuple[list[Draft], list[AlgorithmFigures]]:
        return refine(tried.draft, rest, toolkit, judge) if kept else refine(draft, rest, apart, judge)

    def decided(before: Draft, after: Draft, words: str) -> Tried:
        with toolkit.services.stages.stage(f"{step.method} acceptance"):
            scores = judge.score(before), judge.score(after)
            worse = judge.worse(after, before, least_gain_db=step.spec.least_gain_db)
        result = replace(tried.result, summary=words + tried.result.summary)
        return Tried(draft if worse else tried.draft, result, not worse, *scores, worse)

    ways, at_once, limit = {}, None, toolkit.time_limit
    if step.spec.accept == "reconsidered" or limit.end is not None:
        at_once, begin = decided(draft, tried.draft, ""), time.monotonic()
        ways[at_once.kept] = way(at_once.kept)
    if at_once is not None and not limit.allows(time.monotonic() - begin):
        words = "judged at once, as max_seconds left no time for all later steps with and without it: "
        fate = replace(at_once, result=replace(at_once.result, summary=words + at_once.result.summary))
    elif at_once is not None and step.spec.accept == "reconsidered" and judge.loss(ways[at_once.kept][0][-1]) is None:
        fate = at_once
    else:
        ways |= {kept: way(kept) for kept in (True, False) if kept not in ways}
        fate = decided(ways[False][0][-1], ways[True][0][-1], "judged with all later steps: ")
    drafts, told = ways[fate.kept]
    return drafts if fate.kept else drafts[1:], [_told(step, fate, toolkit, judge), *told]


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
