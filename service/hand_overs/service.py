"""Hand-overs: listed, and added to a job in any state."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sqlalchemy.orm import Session

from service.contracts.runner import WEIGHTS_KIND
from service.deps import AppState
from service.hand_overs import outbox, repository
from service.hand_overs.asking import NewHandOver
from service.hand_overs.schemas import (
    ArtifactNotThereError,
    HandOverCreate,
    HandOverList,
    HandOverOut,
    HandOverRefusedError,
    TooManyHandOversError,
)
from service.idempotency.answers import Answer
from service.idempotency.requests import KeyedRequest
from service.idempotency.service import submit_once
from service.jobs import repository as jobs
from service.principal import Principal
from service.tables import HandOver, Job
from service.tables.base import record_of
from service.tables.jobs import USERS_KINDS

# Of one job, those that have ended among them.
MOST_OF_JOB = 64
POINTER = "/targets"
_WEIGHTS_HINT = (
    "Weights are created only if they are requested before the job runs. For a job that has run, create "
    "them from its model: jobs fetch --safetensors."
)


def list_of_job(app: AppState, tenant_id: str, job_id: str) -> HandOverList:
    """Hand-overs of a job.

    Raises:
        JobNotFoundError: the tenant has no such job.
    """
    with app.database.read() as session:
        jobs.get(session, tenant_id, job_id)
        return hand_over_list(job_id, repository.list_of_job(session, tenant_id, job_id))


def add(
    app: AppState, by: Principal, job_id: str, body: HandOverCreate, asked: Sequence[NewHandOver], *, key: str | None
) -> Answer:
    """Have results of a job handed over, once it has succeeded; those of one that has are sent from now on.

    Args:
        app: of the process.
        by: who asks.
        job_id: the job.
        body: the request.
        asked: its targets, judged and sealed.
        key: its Idempotency-Key.

    Raises:
        JobNotFoundError: the tenant has no such job.
        HandOverRefusedError: it has failed, was canceled, or is nobody's by itself.
        ArtifactNotThereError: it has succeeded without such a file.
        TooManyHandOversError: it has as many as it may.
    """
    request = KeyedRequest.of(f"POST /v1/jobs/{job_id}/hand-over", key, body)
    check = partial(jobs.get, tenant_id=by.tenant_id, job_id=job_id)
    return submit_once(app, by, request, check, partial(_store, asked=asked))


def _store(seen: Job, session: Session, asked: Sequence[NewHandOver]) -> tuple[Answer, None]:
    tenant_id, job_id = seen.tenant_id, seen.id
    job = jobs.hold(session, tenant_id, job_id)
    _refuse_hopeless(session, job, asked)
    if repository.count_of_job(session, tenant_id, job_id) + len(asked) > MOST_OF_JOB:
        raise TooManyHandOversError(job_id, MOST_OF_JOB)
    repository.add(session, job, asked)
    if job.state == "succeeded":
        outbox.release(session, job)
    ids = {one.id for one in asked}
    rows = [row for row in repository.list_of_job(session, tenant_id, job_id) if row.id in ids]
    body = hand_over_list(job_id, rows).model_dump(mode="json")
    return Answer(202, body, {"Location": f"/v1/jobs/{job_id}/hand-over"}), None


def _refuse_hopeless(session: Session, job: Job, asked: Sequence[NewHandOver]) -> None:
    if job.kind not in USERS_KINDS:
        raise HandOverRefusedError(
            f"Job {job.id} is a {job.kind} job: it has no results.",
            hint="Hand over results of a quantize or an evaluate job.",
        )
    if job.state in ("failed", "canceled"):
        raise HandOverRefusedError(
            f"Job {job.id} is {job.state}: it has no results.",
            hint="Retry the job first with POST /v1/jobs/{id}/retry.",
        )
    if job.state == "queued":
        return
    made = jobs.artifacts(session, job.tenant_id, [job.id]).get(job.id, [])
    kinds = outbox.handed_over_kinds(job, made)
    for number, one in enumerate(asked):
        if job.state == "running" and not _is_too_late(session, job, one):
            continue
        if one.artifact is not None and one.artifact not in kinds:
            raise ArtifactNotThereError(
                f"Job {job.id} has no file of kind {one.artifact}.",
                hint=_WEIGHTS_HINT if one.artifact == WEIGHTS_KIND else f"Available kinds: {', '.join(sorted(kinds))}.",
                pointer=f"{POINTER}/{number}/artifact",
            )


def _is_too_late(session: Session, job: Job, one: NewHandOver) -> bool:
    """Whether a job that runs does not make what it would have made, had it been asked for before."""
    return one.artifact == WEIGHTS_KIND and not repository.waits_for(session, job.id, WEIGHTS_KIND)


def hand_over_list(job_id: str, rows: Sequence[HandOver]) -> HandOverList:
    """Hand-overs of a job, without their secrets."""
    return HandOverList(id=job_id, items=[record_of(row, HandOverOut, when=row.condition) for row in rows])
