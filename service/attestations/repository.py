"""SQL statements for attestations and signing keys."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select, text, update
from sqlalchemy.orm import Session

from service.db import db_now
from service.repository import insert_of, owned, upsert
from service.tables import Artifact, Attestation, Dataset, Job, Model, ReportRow, SigningKeyRow
from service.tables.jobs import IS_CURRENT, IS_UNATTESTED, SIGNING_KEY


def current_signing_key(session: Session) -> SigningKeyRow | None:
    """The key that signs; None: none was made yet."""
    return session.scalar(select(SigningKeyRow).where(text(IS_CURRENT)))


def signing_keys(session: Session) -> list[SigningKeyRow]:
    """All keys, the newest first."""
    newest_first = (SigningKeyRow.retired_at.is_not(None), SigningKeyRow.created_at.desc(), SigningKeyRow.id)
    return list(session.scalars(select(SigningKeyRow).order_by(*newest_first)))


def add_signing_key(session: Session, key_id: str, *, public_key: str, sealed: str, pepper_id: str) -> bool:
    """Insert a key, which is the current one; False if there is a current one already."""
    statement = insert_of(session, SigningKeyRow).values(
        id=key_id,
        algorithm=SIGNING_KEY,
        public_key=public_key,
        sealed=sealed,
        pepper_id=pepper_id,
        created_at=db_now(),
    )
    added = session.execute(statement.on_conflict_do_nothing().returning(SigningKeyRow.id))
    return added.scalar_one_or_none() is not None


def retire_signing_key(session: Session) -> None:
    """Let no key be the current one."""
    retired = update(SigningKeyRow).where(text(IS_CURRENT)).values(retired_at=db_now())
    session.execute(retired.execution_options(synchronize_session=False))


def attestation_of(session: Session, tenant_id: str, job_id: str) -> Attestation | None:
    """The attestation of the tenant's job."""
    return session.scalar(select(Attestation).where(Attestation.job_id == job_id, owned(Attestation, tenant_id)))


def unattested_jobs(session: Session, limit: int) -> list[tuple[str, str]]:
    """Tenant and id of jobs with a report and without an attestation, those of the oldest reports first."""
    statement = select(ReportRow.tenant_id, ReportRow.job_id).where(text(IS_UNATTESTED))
    found = session.execute(statement.order_by(ReportRow.created_at, ReportRow.job_id).limit(limit))
    return [(tenant_id, job_id) for tenant_id, job_id in found]


def add_attestation(session: Session, tenant_id: str, job_id: str, *, attempt: int, key_id: str, envelope: str) -> None:
    """Keep what was signed of a job; what was signed before stays as it is.

    A job that was deleted meanwhile has none: its row is held here, so that nobody deletes it until the commit.
    """
    held = select(Job.id).where(Job.id == job_id, owned(Job, tenant_id)).with_for_update(read=True, key_share=True)
    if session.scalar(held) is None:
        return
    row = {
        "tenant_id": tenant_id,
        "job_id": job_id,
        "attempt": attempt,
        "key_id": key_id,
        "envelope": envelope,
        "created_at": db_now(),
    }
    upsert(session, Attestation, row)
    session.execute(
        update(ReportRow)
        .where(ReportRow.job_id == job_id, owned(ReportRow, tenant_id), text(IS_UNATTESTED))
        .values(attested_at=db_now())
        .execution_options(synchronize_session=False)
    )


def files_made(session: Session, tenant_id: str, job_id: str) -> list[Artifact]:
    """The job's artifacts, the model first."""
    statement = select(Artifact).where(Artifact.job_id == job_id, owned(Artifact, tenant_id))
    return list(session.scalars(statement.order_by(Artifact.kind != "model", Artifact.kind)))


def models_given(session: Session, tenant_id: str, ids: Collection[str]) -> dict[str, Model]:
    """The tenant's models by id, with their files."""
    found = session.scalars(select(Model).where(Model.id.in_(ids), owned(Model, tenant_id)))
    return {model.id: model for model in found}


def datasets_given(session: Session, tenant_id: str, ids: Collection[str]) -> dict[str, Dataset]:
    """The tenant's datasets by id."""
    found = session.scalars(select(Dataset).where(Dataset.id.in_(ids), owned(Dataset, tenant_id)))
    return {dataset.id: dataset for dataset in found}
