"""SQL statements for inspections."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from service import repository
from service.ids import new_id
from service.inspections.schemas import InspectionNotFoundError
from service.tables import InspectionRow, Job, Model


def hold(session: Session, model_id: str) -> None:
    """Let one transaction at a time decide whether a model has to be inspected; others wait until this one ends."""
    session.execute(select(Model.id).where(Model.id == model_id).with_for_update(key_share=True))


def lasting(session: Session, model_id: str, config_sha256: str) -> InspectionRow | None:
    """The inspection of this model by this config that is running or ready."""
    statement = select(InspectionRow).where(
        InspectionRow.model_id == model_id,
        InspectionRow.config_sha256 == config_sha256,
        InspectionRow.status != "failed",
    )
    return session.scalar(statement)


def create(session: Session, job: Job, *, config_sha256: str) -> InspectionRow:
    """Insert the inspection that ``job`` will make."""
    return repository.add(
        session,
        InspectionRow,
        id=new_id("ins"),
        tenant_id=job.tenant_id,
        model_id=job.model_id,
        job_id=job.id,
        config=job.config,
        config_sha256=config_sha256,
        status="running",
    )


def get(session: Session, tenant_id: str, inspection_id: str) -> InspectionRow:
    """The tenant's inspection.

    Raises:
        InspectionNotFoundError: the tenant has no such inspection.
    """
    return repository.find(session, InspectionRow, tenant_id, inspection_id, InspectionNotFoundError(inspection_id))
