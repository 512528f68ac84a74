"""Runs the algorithms of a config in order and keeps what makes the network better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from service.contracts.algorithms import Algorithm
from service.contracts.report import AlgorithmFigures, ReconstructionError, Score
from worker.quantizer.plan.targets import move_grids
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.judge import Judge
from worker.quantizer.refine.step import Change, Step, Workshop


def refine(
    draft: Draft, steps: Sequence[tuple[Algorithm, Step]], workshop: Workshop, judge: Judge
) -> tuple[list[Draft], list[AlgorithmFigures]]:
    """Apply each step to what the steps before it left.

    Args:
        draft: calibrated.
        steps: with their settings, in order.
        workshop: what steps work with.
        judge: scores drafts.

    Returns:
        The drafts, ``draft`` first, each made from the one before by a step that was kept; and what became of each
        step, in order.
    """
    drafts, outcomes = [draft], []
    for algorithm, step in steps:
        context = workshop.context
        context.run.progress(step.method)
        with context.stages.stage(step.method):
            change = step.apply(drafts[-1], workshop)
            if change.draft is not None:
                move_grids(change.draft.graph, change.draft.plan, context.config)
        with context.stages.stage(f"{step.method} acceptance"):
            outcome = _outcome(algorithm, drafts[-1], change, judge)
        outcomes.append(outcome)
        context.run.log(f"{step.method}: {outcome.summary}", "info" if outcome.kept else "warning")
        if outcome.kept and change.draft is not None:
            drafts.append(replace(change.draft, algorithm=step.method, changed=change.nodes))
    return drafts, outcomes


def _outcome(algorithm: Algorithm, draft: Draft, change: Change, judge: Judge) -> AlgorithmFigures:
    before: Score | None = None
    after: Score | None = None
    worse = None
    if change.draft is not None and change.judged and algorithm.accept == "if_better":
        before, after = judge.score(draft), judge.score(change.draft)
        worse = judge.worse(change.draft, draft)
    kept = change.draft is not None and worse is None
    summary = change.summary if worse is None else f"undone, as it made the network worse: {worse}; {change.summary}"
    return AlgorithmFigures(
        method=algorithm.method,
        kept=kept,
        summary=summary,
        before=before,
        after=after,
        samples=judge.samples if before is not None else 0,
        nodes=len(change.nodes),
        search=change.search,
        reconstruction={name: ReconstructionError(before=old, after=new) for name, (old, new) in change.errors.items()},
        ranges=change.ranges,
    )
