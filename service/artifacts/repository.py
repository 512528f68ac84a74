"""SQL statements for artifacts."""

from __future__ import annotations

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from service.artifacts.schemas import ArtifactNotFoundError
from service.db import db_now
from service.ids import new_id
from service.jobs.outcome import NewArtifact
from service.repository import find, owned
from service.tables import Artifact, Job


def add(session: Session, job: Job, artifact: NewArtifact) -> None:
    """Insert an artifact of the job's current attempt; its file lies in the store already."""
    session.execute(
        insert(Artifact).values(
            id=new_id("art"),
            tenant_id=job.tenant_id,
            job_id=job.id,
            attempt=job.attempt,
            kind=artifact.kind,
            filename=artifact.filename,
            media_type=artifact.media_type,
            sha256=artifact.sha256,
            size_bytes=artifact.size_bytes,
            created_at=db_now(),
        )
    )


def get(session: Session, tenant_id: str, artifact_id: str) -> Artifact:
    """The tenant's artifact.

    Raises:
        ArtifactNotFoundError: the tenant has no such artifact.
    """
    return find(session, Artifact, tenant_id, artifact_id, ArtifactNotFoundError(artifact_id))


def list_of_job(session: Session, tenant_id: str, job_id: str) -> list[Artifact]:
    """Artifacts of a job, in order of kind."""
    statement = select(Artifact).where(Artifact.job_id == job_id, owned(Artifact, tenant_id)).order_by(Artifact.kind)
    return list(session.scalars(statement))
