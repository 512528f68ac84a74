"""SQL statements for suspected and quarantined models."""

from __future__ import annotations

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.orm import Session

from service.db import db_now
from service.repository import owned
from service.tables import Quarantine

_REASON_CHARS = 255


def held(session: Session, tenant_id: str, digest: str) -> Quarantine | None:
    """The quarantine of these bytes, if they are in one."""
    return session.scalar(
        select(Quarantine).where(
            owned(Quarantine, tenant_id), Quarantine.digest == digest, Quarantine.quarantined_at.is_not(None)
        )
    )


def add_crash(
    session: Session, tenant_id: str, digest: str, *, model_id: str, job_id: str, reason: str, most: int
) -> Quarantine:
    """Count one more; from ``most`` in a row on, the bytes are in quarantine."""
    now = db_now()
    told = {"model_id": model_id, "job_id": job_id, "reason": reason[:_REASON_CHARS], "updated_at": now}
    counted = session.scalar(
        update(Quarantine)
        .where(owned(Quarantine, tenant_id), Quarantine.digest == digest)
        .values(crashes=Quarantine.crashes + 1, **told)
        .returning(Quarantine.crashes)
        .execution_options(synchronize_session=False)
    )
    if counted is None:
        counted = 1
        session.execute(insert(Quarantine).values(tenant_id=tenant_id, digest=digest, crashes=counted, **told))
    if counted >= most:
        session.execute(
            update(Quarantine)
            .where(owned(Quarantine, tenant_id), Quarantine.digest == digest)
            .values(quarantined_at=func.coalesce(Quarantine.quarantined_at, now))
            .execution_options(synchronize_session=False)
        )
    statement = select(Quarantine).where(owned(Quarantine, tenant_id), Quarantine.digest == digest)
    return session.scalars(statement, execution_options={"populate_existing": True}).one()


def forget(session: Session, tenant_id: str, digest: str) -> bool:
    """Clear the count, and with it a quarantine; False if there was none."""
    gone = delete(Quarantine).where(owned(Quarantine, tenant_id), Quarantine.digest == digest)
    return session.execute(gone.returning(Quarantine.digest)).first() is not None


def list_held(session: Session, tenant_id: str) -> list[Quarantine]:
    """All that are in quarantine, the newest first."""
    statement = (
        select(Quarantine)
        .where(owned(Quarantine, tenant_id), Quarantine.quarantined_at.is_not(None))
        .order_by(Quarantine.quarantined_at.desc(), Quarantine.digest)
    )
    return list(session.scalars(statement))
