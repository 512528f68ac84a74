"""Counts what becomes of jobs in a worker, for its metrics."""

from __future__ import annotations

import signal

from service.contracts.presets import find_preset
from service.jobs.outcome import Outcome as JobOutcome
from service.jobs.outcome import QuantizeOutcome
from service.monitoring.declarations import ATTEMPTS, CLAIMS, FENCED, JOB_WAIT, SANDBOX_KILLS, STAGES, Known
from service.tables import Job
from worker.outcome import Ending, Failed, Fenced, Interrupted, Outcome

CUSTOM, NO_CODE = "custom", "none"
# What a runner tells is bounded: it may have been taken over by what it works on.
_codes, _stages = Known(most=200), Known(most=64)
# Endings that the kernel decides upon.
_SIGNALS: dict[int, str] = {signal.SIGXCPU: "cpu_time", signal.SIGSYS: "system_call", signal.SIGKILL: "sigkill"}


def count_claim(job: Job | None) -> None:
    """A job was claimed; None: it was not to be had."""
    CLAIMS.labels("lost" if job is None else "won").inc()
    if job is not None:
        # both by the database's clock
        JOB_WAIT.labels(job.queue).observe(max(0.0, (job.updated_at - job.not_before).total_seconds()))


def count_ending(ending: Ending) -> None:
    """A runner has ended; those that were ended are counted."""
    reason = ending.stopped.value if ending.stopped else _SIGNALS.get(-ending.returncode)
    if reason is not None:
        SANDBOX_KILLS.labels(reason).inc()


def count_end(job: Job, outcome: Outcome, published: JobOutcome | None) -> None:
    """An attempt has ended for good, with what it published, if it was to."""
    code = NO_CODE
    if isinstance(outcome, Failed):
        code = _codes(outcome.problem.code)
    elif isinstance(outcome, Interrupted) and outcome.waiting is not None:
        code = _codes(outcome.waiting.code)
    elif isinstance(outcome, Fenced) and published is not None:
        FENCED.inc()
    ATTEMPTS.labels(job.queue, type(outcome).__name__.lower(), code).inc()
    if isinstance(published, QuantizeOutcome) and not isinstance(outcome, Fenced):
        recipe = job.preset if job.preset is not None and find_preset(job.preset) is not None else CUSTOM
        for stage in published.report.stages:
            STAGES.labels(_stages(stage.name), recipe).observe(stage.seconds)
