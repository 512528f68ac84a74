"""SQL statements for uploads."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.orm import Session

from service.db import db_now
from service.ids import new_id
from service.repository import find
from service.tables import Upload, UploadPart
from service.uploads.schemas import UploadNotFoundError


def create(
    session: Session,
    tenant_id: str,
    *,
    filename: str,
    kind: str | None,
    size_bytes: int | None,
    sha256: str | None,
    expiry_seconds: float,
) -> Upload:
    """Insert an open upload."""
    now = db_now()
    statement = (
        insert(Upload)
        .values(
            id=new_id("upl"),
            tenant_id=tenant_id,
            filename=filename,
            kind=kind,
            state="open",
            expected_size_bytes=size_bytes,
            expected_sha256=sha256,
            created_at=now,
            expires_at=now + expiry_seconds,
        )
        .returning(Upload)
    )
    return session.scalars(statement).one()


def get(session: Session, tenant_id: str, upload_id: str, *, pointer: str | None = None) -> Upload:
    """The tenant's upload.

    Raises:
        UploadNotFoundError: the tenant has no such upload; carries ``pointer``.
    """
    return find(session, Upload, tenant_id, upload_id, UploadNotFoundError(upload_id, pointer=pointer))


def hold(session: Session, tenant_id: str, upload_id: str, *, pointer: str | None = None) -> Upload:
    """The tenant's upload, which does not expire until this write transaction ends: something is made of it.

    Raises:
        UploadNotFoundError: the tenant has no such upload (any more); carries ``pointer``.
    """
    return find(session, Upload, tenant_id, upload_id, UploadNotFoundError(upload_id, pointer=pointer), lock="read")


def complete(session: Session, upload_id: str, *, sha256: str, size_bytes: int) -> Upload | None:
    """Close an open upload, whose parts are not needed any more; None if it is not open any more."""
    statement = (
        update(Upload)
        .where(Upload.id == upload_id, Upload.state == "open")
        .values(state="complete", sha256=sha256, size_bytes=size_bytes, completed_at=db_now())
        .returning(Upload)
    )
    remove_parts(session, upload_id)
    options = {"synchronize_session": False, "populate_existing": True}
    return session.scalars(statement, execution_options=options).one_or_none()


def reserve(session: Session, upload_id: str, size_bytes: int) -> bool:
    """Have an open upload take so many bytes, as if they had been declared; False if it is not open any more."""
    statement = (
        update(Upload)
        .where(Upload.id == upload_id, Upload.state == "open")
        .values(expected_size_bytes=size_bytes)
        .returning(Upload.id)
        .execution_options(synchronize_session=False)
    )
    return session.scalar(statement) is not None


def prolong(session: Session, upload_id: str, *, expiry_seconds: float) -> None:
    """Bytes have arrived: an open upload starts its time anew."""
    session.execute(
        update(Upload)
        .where(Upload.id == upload_id, Upload.state == "open")
        .values(expires_at=db_now() + expiry_seconds)
        .execution_options(synchronize_session=False)
    )


def parts(session: Session, upload_id: str) -> list[UploadPart]:
    """What has arrived of an open upload whose bytes are in a bucket, in their order."""
    statement = select(UploadPart).where(UploadPart.upload_id == upload_id).order_by(UploadPart.begin_bytes)
    return list(session.scalars(statement))


def add_part(session: Session, part: UploadPart) -> None:
    """An object has the next bytes of an open upload."""
    session.add(part)


def remove_parts(session: Session, upload_id: str) -> list[str]:
    """Forget what has arrived of an upload; the names of the objects."""
    statement = delete(UploadPart).where(UploadPart.upload_id == upload_id).returning(UploadPart.name)
    return list(session.scalars(statement, execution_options={"synchronize_session": False}))


def hold_open(session: Session, upload_id: str) -> bool:
    """The upload is open, and nobody else changes it until this write transaction ends."""
    statement = select(Upload.id).where(Upload.id == upload_id, Upload.state == "open").with_for_update()
    return session.scalar(statement) is not None


def count_open(session: Session) -> int:
    """How many uploads have not got all their bytes."""
    return session.scalars(select(func.count()).select_from(Upload).where(Upload.state == "open")).one()


def known(session: Session, ids: Collection[str]) -> set[str]:
    """Which of the ``ids`` are uploads that still have their row."""
    return set(session.scalars(select(Upload.id).where(Upload.id.in_(ids))))


def expired(session: Session, limit: int | None = None) -> list[str]:
    """Ids of uploads past their expiry, finished or not."""
    statement = select(Upload.id).where(Upload.expires_at < db_now()).order_by(Upload.expires_at)
    return list(session.scalars(statement.limit(limit)))


def delete_expired(session: Session, ids: Collection[str]) -> list[str]:
    """Delete those of the uploads that are still past their expiry; returns their ids.

    One that a model or a dataset is being made of at this moment is held by that transaction: it is passed over here.
    What was made of others stays: those rows name the stored file themselves.
    """
    due = select(Upload.id).where(Upload.id.in_(ids), Upload.expires_at < db_now())
    gone = list(session.scalars(due.with_for_update(skip_locked=True)))
    session.execute(delete(UploadPart).where(UploadPart.upload_id.in_(gone)))
    session.execute(delete(Upload).where(Upload.id.in_(gone)))
    return gone
