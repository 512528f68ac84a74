"""Hand-overs made due, in the transaction of what they wait for. Most jobs have none: that costs one look."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy.orm import Session

from service.hand_overs import repository
from service.hand_overs.schemas import ATTESTATION
from service.jobs import events
from service.jobs import repository as jobs
from service.tables import Artifact, HandOver, Job

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
            _drop(session, job, row, "failed", "artifact-not-there", f"The job has made no {row.artifact}.")
        else:
            payload = _payload(job, row, result, made) if row.kind == "post" else None
            repository.make_due(session, row, payload)


def abandon(session: Session, job: Job) -> None:
    """The job has failed or was canceled: it hands over nothing."""
    for row in repository.waiting_of_job(session, job.id):
        ended = "was canceled" if job.state == "canceled" else "has failed"
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
