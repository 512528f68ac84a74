"""Estimates: computed when a job is created, from measurements of earlier jobs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from service.contracts.base import read_stored
from service.contracts.config import QuantizationConfig
from service.contracts.dataset import DatasetSummary
from service.contracts.evaluation import EvaluationSpec
from service.contracts.model import ModelSummary
from service.contracts.report import StageFigures
from service.db import Database
from service.estimates import repository
from service.estimates.forecast import OF_MODEL, BytesRange, Estimate, ExpectedCost, PastRun, SecondsRange, forecast
from service.estimates.prior import NOTHING_MADE_BYTES, START, Prior, prior_of, prior_of_evaluation
from service.estimates.waiting import Queue, queue_now
from service.tables import Job, JobTiming
from service.tables.jobs import LIVE_STATES

# Of all earlier jobs; what older ones took is forgotten.
KEPT_TIMINGS = 20_000
_RECIPE_CHARS = 32
# Shapes may claim anything: beyond these nothing is told. No integer of JSON is longer.
_HORIZON_SECONDS, _MOST_BYTES = 400 * 86_400.0, 2**53
# Greater than any id.
_AFTER_ALL = "~"


@dataclass(frozen=True)
class Estimated:
    """An estimate, and what is stored with it."""

    told: Estimate  # what is said
    # what is stored beside the job; ``seconds`` there are those that the job can keep others waiting
    row: dict[str, Any]


def estimated(
    session: Session,
    tenant_id: str,
    deadline_seconds: float,
    config: QuantizationConfig,
    model: ModelSummary,
    calibration: DatasetSummary | None,
    evaluation: DatasetSummary | None,
) -> Estimated:
    """What a quantization will take.

    Args:
        session: reads.
        tenant_id: who asks; of the same model its own earlier jobs alone are looked at.
        deadline_seconds: behind which no job runs on.
        config: resolved.
        model: what is quantized.
        calibration: None: none is given.
        evaluation: None: the models are compared on the calibration data.
    """
    prior = prior_of(config, model, calibration, evaluation)
    # ranges that were taken over tell nothing of what is asked for
    recipe = _recipe(config.model_dump(mode="json", exclude={"tensor_ranges", "seed"}))
    return _estimated(session, tenant_id, deadline_seconds, model.sha256, recipe, prior)


def estimated_evaluation(
    session: Session,
    tenant_id: str,
    deadline_seconds: float,
    spec: EvaluationSpec,
    models: Sequence[ModelSummary],
    data: DatasetSummary,
) -> Estimated:
    """What an evaluation will take, of the first of the models, beside the second if there is one."""
    recipe = _recipe({"evaluation": spec.model_dump(mode="json"), "models": len(models)})
    prior = prior_of_evaluation(spec, models, data)
    return _estimated(session, tenant_id, deadline_seconds, models[0].sha256, recipe, prior)


def _estimated(
    session: Session, tenant_id: str, deadline_seconds: float, model_sha256: str, recipe: str, prior: Prior
) -> Estimated:
    own = [_past_run(row) for row in repository.timings_of(session, tenant_id, model_sha256, OF_MODEL)]
    told = _told(forecast(prior, recipe, own), makes_model=prior.size_bytes > NOTHING_MADE_BYTES)
    row = {
        "model_sha256": model_sha256,
        "recipe": recipe,
        "seconds": min(told.seconds.expected, deadline_seconds),
        "told": told.model_dump(mode="json"),
        "prior": asdict(prior),
    }
    return Estimated(told, row)


def shown(told: Mapping[str, Any] | None) -> Estimate | None:
    """What was stored, as it is shown."""
    return None if told is None else read_stored(Estimate, told)


def finish_of_next(session: Session, tenant_id: str, queue: str, priority: int, estimate: Estimated) -> datetime | None:
    """When a job would end that is stored now; None: nobody takes its queue."""
    found = queue_now(session, queue)
    return _moment(found.seconds_until_end(_AFTER_ALL, tenant_id, priority, estimate.told.seconds.expected))


def finishes_of(session: Session, jobs: Sequence[Job], told: Mapping[str, dict[str, Any]]) -> dict[str, datetime]:
    """When jobs will end that wait or run, by id.

    Args:
        session: reads.
        jobs: any.
        told: what is told of them, by id; of the others nothing is known.
    """
    live = [job for job in jobs if job.id in told and job.state in LIVE_STATES and job.cancel_requested_at is None]
    queues = {name: queue_now(session, name) for name in {job.queue for job in live}}
    found = {job.id: _moment(_seconds_left(queues[job.queue], job, told[job.id])) for job in live}
    return {job_id: moment for job_id, moment in found.items() if moment is not None}


def _seconds_left(queue: Queue, job: Job, estimate: dict[str, Any]) -> float | None:
    if job.state == "queued":
        return queue.seconds_until_end(job.id, job.tenant_id, job.priority, estimate["seconds"]["expected"])
    told = (job.progress or {}).get("seconds_left")
    return queue.left.get(job.id) if told is None else float(told)


def _moment(seconds: float | None) -> datetime | None:
    """So many seconds from now, to the second: nobody knows it better. None: unknown, or beyond all plans."""
    if seconds is None or seconds > _HORIZON_SECONDS:
        return None
    return (datetime.now(UTC) + timedelta(seconds=seconds)).replace(microsecond=0)


def observe(session: Session, job: Job, stages: Sequence[StageFigures], size_bytes: int = 1) -> None:
    """A job has succeeded: remember what it took, unless an attempt before it had done some of the work.

    Args:
        session: writes.
        job: its row, with its end.
        stages: of its report.
        size_bytes: of the quantized model; left out where none was made.
    """
    if job.attempt > 1 or job.started_at is None or job.finished_at is None or not stages:
        return
    seconds: dict[str, float] = {}
    for stage in stages:
        seconds[stage.name] = seconds.get(stage.name, 0.0) + stage.seconds
    whole = (job.finished_at - job.started_at).total_seconds()
    seconds[START] = max(whole - sum(seconds.values()), 0.0)
    memory = max(stage.peak_rss_bytes for stage in stages)
    repository.observe(session, job, stages=seconds, memory_bytes=memory, size_bytes=size_bytes)


def forget(database: Database) -> int:
    """Forget what all jobs but the newest took; returns how many of them. Any number of processes may do so."""
    with database.write() as session:
        return repository.forget_timings(session, KEPT_TIMINGS)


def _recipe(asked: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:_RECIPE_CHARS]


def _past_run(row: JobTiming) -> PastRun:
    return PastRun(row.recipe, Prior(**row.prior), sum(row.stages.values()), row.memory_bytes, row.size_bytes)


def _told(found: ExpectedCost, *, makes_model: bool) -> Estimate:
    expected, low, high = (round(value, 1) for value in found.seconds)
    return Estimate(
        seconds=SecondsRange(expected=expected, low=low, high=high),
        peak_memory_bytes=_bytes(found.memory_bytes),
        size_bytes=_bytes(found.size_bytes) if makes_model else None,
        basis=found.basis,
        runs=found.runs,
    )


def _bytes(found: tuple[float, float, float]) -> BytesRange:
    expected, low, high = (round(min(value, _MOST_BYTES)) for value in found)
    return BytesRange(expected=expected, low=low, high=high)
