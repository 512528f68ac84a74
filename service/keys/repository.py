"""SQL statements for keys."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import ColumnElement, case, func, or_, select, update
from sqlalchemy.orm import Session

from service.db import db_now
from service.ids import is_id
from service.pagination import Position
from service.repository import now_seconds, page
from service.tables import ApiKey


def add(session: Session, row: ApiKey) -> None:
    """Insert a key."""
    session.add(row)
    session.flush()


def datetime_now(session: Session) -> datetime:
    """The database's clock."""
    return datetime.fromtimestamp(now_seconds(session), tz=UTC)


def live(session: Session, key_id: str) -> ApiKey | None:
    """The key, if it has been neither revoked nor has expired."""
    return session.scalar(select(ApiKey).where(ApiKey.id == key_id, *_is_live()))


def get(session: Session, tenant_id: str | None, key_id: str) -> ApiKey | None:
    """A key of the tenant, or of any, also one that has ended."""
    statement = select(ApiKey).where(ApiKey.id == key_id, *_of(tenant_id))
    return session.scalar(statement) if is_id(key_id, "key") else None


def count_live(session: Session, tenant_id: str) -> int:
    """How many keys of the tenant are good."""
    return session.scalar(select(func.count()).select_from(ApiKey).where(*_of(tenant_id), *_is_live())) or 0


def any_live(session: Session) -> bool:
    """Whether anybody holds a key that is good."""
    return session.scalar(select(ApiKey.id).where(*_is_live()).limit(1)) is not None


def live_ids(session: Session) -> frozenset[str]:
    """Of all keys that are good."""
    return frozenset(session.scalars(select(ApiKey.id).where(*_is_live())))


def list_all(session: Session, tenant_id: str | None) -> list[ApiKey]:
    """Keys of one tenant or of all, the newest first."""
    statement = select(ApiKey).order_by(ApiKey.created_at.desc(), ApiKey.id.desc())
    return list(session.scalars(statement.where(*_of(tenant_id))))


def list_page(
    session: Session, tenant_id: str | None, after: Position | None, limit: int
) -> tuple[list[ApiKey], Position | None]:
    """One page of the same, and the position to go on from."""
    return page(session, ApiKey, _of(tenant_id), after=after, limit=limit)


def revoke(session: Session, key_id: str, *, after_seconds: float = 0.0) -> str | None:
    """End a key now, or so many seconds from now unless it ends sooner by itself; its tenant. None if it has ended."""
    ends_at = db_now() + after_seconds
    sooner = case((ApiKey.expires_at < ends_at, ApiKey.expires_at), else_=ends_at)
    values = {"revoked_at": ends_at} if not after_seconds else {"expires_at": sooner}
    statement = (
        update(ApiKey)
        .where(ApiKey.id == key_id, *_is_live())
        .values(**values)
        .returning(ApiKey.tenant_id)
        .execution_options(synchronize_session=False)
    )
    return session.scalar(statement)


def note_used(session: Session, key_id: str) -> None:
    """The key was used just now."""
    session.execute(
        update(ApiKey)
        .where(ApiKey.id == key_id)
        .values(last_used_at=db_now())
        .execution_options(synchronize_session=False)
    )


def _of(tenant_id: str | None) -> list[ColumnElement[bool]]:
    return [] if tenant_id is None else [ApiKey.tenant_id == tenant_id]


def _is_live() -> tuple[ColumnElement[bool], ...]:
    return ApiKey.revoked_at.is_(None), or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > db_now())
