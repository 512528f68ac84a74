"""Hand-overs become due in the transaction of the event they wait for; results of their attempts."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Any, Literal

from sqlalchemy.orm import Session

from service.db import db_now
from service.egress.attempts import SendResult, excerpt, pause_seconds
from service.hand_overs import repository
from service.hand_overs.repository import OUTBOX, ClaimedHandOver
from service.hand_overs.schemas import ATTESTATION
from service.jobs import events
from service.jobs import repository as jobs
from service.jobs.errors import JobNotFoundError
from service.tables import Artifact, HandOver, Job
from service.tables.webhooks import DETAIL_LENGTH

SCHEMA_VERSION = 1
# As schedules accept jobs: one without a gate has nothing that it could fail.
_PASSING = frozenset({"pass", "none"})


def release(session: Session, job: Job) -> None:
    """The job has succeeded: what its verdict allows is sent from now on, the rest is skipped."""
    waiting = repository.waiting_of_job(session, job.id)
    if not waiting:
        return
    result = jobs.results(session, job.tenant_id, [job.id])[job.id]
    made = jobs.artifacts(session, job.tenant_id, [job.id]).get(job.id, [])
    kinds = handed_over_kinds(job, made)
    for row in waiting:
        if row.condition == "pass" and result.verdict not in _PASSING:
            _drop(session, job, row, "skipped", "verdict", f"The verdict is {result.verdict}.")
        elif row.artifact is not None and row.artifact not in kinds:
            _drop(
                session,
                job,
                row,
                "failed",
                "artifact-not-there",
                f"The job did not create a file of kind {row.artifact}.",
            )
        else:
            payload = _payload(job, row, result, made) if row.kind == "post" else None
            repository.make_due(session, row, payload)


def abandon(session: Session, job: Job) -> None:
    """The job has failed or was canceled: it hands over nothing."""
    for row in repository.waiting_of_job(session, job.id):
        ended = "was canceled" if job.state == "canceled" else "failed"
        _drop(session, job, row, "skipped", f"job-{job.state}", f"The job {ended}.")


def handed_over_kinds(job: Job, made: Sequence[Artifact]) -> Collection[str]:
    """Kinds of the files that a job which has succeeded can hand over; evaluations are not attested."""
    kinds = {artifact.kind for artifact in made}
    return kinds | {ATTESTATION} if job.kind == "quantize" else kinds


def told(hand_over_id: str, kind: str, artifact: str | None, host: str) -> str:
    """How the log of a job names a hand-over."""
    what = "a POST" if artifact is None else f"{kind.upper()} of {artifact}"
    return f"hand-over {hand_over_id} ({what} to {host})"


def _drop(session: Session, job: Job, row: HandOver, state: str, reason: str, detail: str) -> None:
    repository.drop(session, row, state, reason, detail)
    message = f"{told(row.id, row.kind, row.artifact, row.host)}: {state}. {detail}"
    level = "warning" if state == "failed" else "info"
    events.append(session, job.id, job.attempt, "log", {"level": level, "message": message})


def _payload(job: Job, row: HandOver, result: jobs.ReportDigest, made: Sequence[Artifact]) -> str:
    """What a POST carries, byte by byte; the same at each attempt, whatever is called otherwise since."""
    path = f"/v1/jobs/{job.id}"
    document: dict[str, Any] = {
        "type": "job.hand_over",
        "schema_version": SCHEMA_VERSION,
        "id": row.id,
        "job": {
            "id": job.id,
            "kind": job.kind,
            "name": job.name,
            "labels": job.labels,
            "model_id": job.model_id,
            "preset": job.preset,
            "verdict": result.verdict,
            "fallback": result.fallback,
            "figures": result.outline,
            "links": {"self": path, "report": f"{path}/report", "attestation": f"{path}/attestation"},
            "artifacts": [
                {
                    "kind": artifact.kind,
                    "filename": artifact.filename,
                    "media_type": artifact.media_type,
                    "size_bytes": artifact.size_bytes,
                    "sha256": artifact.sha256,
                    "content": f"/v1/artifacts/{artifact.id}/content",
                }
                for artifact in made
            ],
        },
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


# What becomes of a hand-over by what an attempt met with.

Fate = Literal["done", "retried", "failed", "fenced"]
# What a store says of an object that has arrived; anything else of 2xx is no such word.
_STORED = frozenset({200, 201, 204})
# Of 4xx: the other host was slow, or is busy. All others would be said again: a presigned URL that is over stays so.
_PASSING_REFUSALS = frozenset({408, 425, 429})
_REFUSALS = range(400, 500)
# What stores say in words of theirs. Nothing else of an answer is kept: it may tell the signature again.
_CODE = re.compile(r"<Code>([A-Za-z]{1,40})</Code>")


def settle(session: Session, claimed: ClaimedHandOver, result: SendResult, *, schedule: Sequence[float]) -> Fate:
    """Note what an attempt met with: arrived, to be sent again, or given up; the end is told in the job's log.

    Args:
        session: writes.
        claimed: the hand-over.
        result: what it met with.
        schedule: pauses between attempts.
    """
    try:  # the job first: so does whoever ends or forgets it
        job = jobs.hold(session, claimed.tenant_id, claimed.job_id)
    except JobNotFoundError:
        return "fenced"
    arrived = result.status in _STORED if claimed.kind == "put" else result.is_success
    pause = None if arrived or _is_final(result) else pause_seconds(claimed.attempt, schedule, result.headers)
    fate: Fate = "done" if arrived else "failed" if pause is None else "retried"
    reason, detail = (None, None) if arrived else _words(claimed, result)
    noted: dict[str, Any] = {"last_status": result.status, "reason": reason, "detail": detail}
    if pause is None:
        ended = {"state": fate, "next_attempt_at": None, "sealed": None, "payload": None, "finished_at": db_now()}
        noted |= ended
    else:
        noted["next_attempt_at"] = db_now() + pause
    if not OUTBOX.settle(session, claimed, **noted):
        return "fenced"
    if pause is None:
        message = f"{told(claimed.id, claimed.kind, claimed.artifact, claimed.host)}: {fate}"
        level = "info" if arrived else "warning"
        message += "" if detail is None else f". {detail}"
        events.append(session, job.id, job.attempt, "log", {"level": level, "message": message})
    return fate


def _is_final(result: SendResult) -> bool:
    refused = result.status is not None and result.status in _REFUSALS and result.status not in _PASSING_REFUSALS
    return result.final or refused


def _words(claimed: ClaimedHandOver, result: SendResult) -> tuple[str, str]:
    if result.status is None:
        return result.error or "unknown", excerpt(result.text, DETAIL_LENGTH)
    said = _CODE.search(result.text)
    code = "" if said is None else f" ({said[1]})"
    return "status", excerpt(f"{claimed.host} responded with {result.status}{code}.", DETAIL_LENGTH)
