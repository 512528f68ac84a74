"""Statements about tenants' limits and what they use."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Double, func, select, text, type_coerce, union
from sqlalchemy.dialects.postgresql import insert as insert_postgresql
from sqlalchemy.dialects.sqlite import insert as insert_sqlite
from sqlalchemy.orm import Session

from service.db import db_now
from service.tables import Artifact, Dataset, Job, Model, ModelFile, TenantRow, TenantUsage, Upload
from service.tables.jobs import IS_QUEUED, IS_RUNNING
from service.tenancy import owned

DAY_SECONDS = 24 * 3600.0


def quota_of(session: Session, tenant_id: str) -> dict[str, Any]:
    """What was set for the tenant; nothing for one without a row."""
    return session.scalar(select(TenantRow.quota).where(TenantRow.id == tenant_id)) or {}


def quotas(session: Session) -> dict[str, dict[str, Any]]:
    """What was set, by tenant."""
    return dict(session.execute(select(TenantRow.id, TenantRow.quota)).tuples().all())


def hold(session: Session, tenant_id: str) -> None:
    """Nobody else counts for the tenant until the commit."""
    statement = select(TenantRow.id).where(TenantRow.id == tenant_id).with_for_update()
    if session.scalar(statement) is None:
        _upsert(session, TenantRow, {"id": tenant_id, "quota": {}, "created_at": db_now(), "updated_at": db_now()}, {})
        session.scalars(statement).one()


def set_quota(session: Session, tenant_id: str, quota: dict[str, Any]) -> None:
    """Set the tenant's own limits, in place of all that were set before."""
    now = db_now()
    row = {"id": tenant_id, "quota": quota, "created_at": now, "updated_at": now}
    _upsert(session, TenantRow, row, {"quota": quota, "updated_at": now})


def queued(session: Session, tenant_id: str) -> int:
    """How many of the tenant's quantize jobs wait."""
    statement = select(func.count()).select_from(Job)
    return session.scalar(statement.where(text(IS_QUEUED), owned(Job, tenant_id), Job.kind == "quantize")) or 0


def running_of(session: Session, tenant_id: str) -> int:
    """How many of the tenant's jobs run."""
    return session.scalar(select(func.count()).select_from(Job).where(text(IS_RUNNING), owned(Job, tenant_id))) or 0


def running(session: Session) -> dict[str, int]:
    """How many jobs run, by tenant."""
    statement = select(Job.tenant_id, func.count()).where(text(IS_RUNNING)).group_by(Job.tenant_id)
    return dict(session.execute(statement).tuples().all())


def submitted(session: Session, tenant_id: str) -> int:
    """How many quantize jobs the tenant has submitted within a day."""
    since = db_now() - DAY_SECONDS
    statement = select(func.count()).select_from(Job)
    return session.scalar(statement.where(owned(Job, tenant_id), Job.kind == "quantize", Job.created_at > since)) or 0


def seconds_until_one_less(session: Session, tenant_id: str) -> float:
    """Until the oldest of those is a day old."""
    since = db_now() - DAY_SECONDS
    oldest = func.min(type_coerce(Job.created_at, Double))
    statement = select(oldest - since).where(owned(Job, tenant_id), Job.kind == "quantize", Job.created_at > since)
    return float(session.scalar(statement) or 0.0)


def stored_bytes(session: Session, tenant_id: str) -> int:
    """Bytes of the tenant's files, equal ones counted once, and those that its open uploads have declared."""
    parts: tuple[Any, ...] = (
        select(ModelFile.sha256, ModelFile.size_bytes).join(Model).where(owned(Model, tenant_id)),
        select(Dataset.sha256, Dataset.size_bytes).where(owned(Dataset, tenant_id)),
        select(Artifact.sha256, Artifact.size_bytes).where(owned(Artifact, tenant_id)),
        select(Upload.sha256, Upload.size_bytes).where(owned(Upload, tenant_id), Upload.state == "complete"),
    )
    files = union(*parts).subquery()
    declared = select(func.sum(Upload.expected_size_bytes)).where(owned(Upload, tenant_id), Upload.state == "open")
    return int(session.scalar(select(func.sum(files.c.size_bytes))) or 0) + int(session.scalar(declared) or 0)


def cpu_seconds(session: Session, tenant_id: str) -> float:
    """CPU time of the tenant's jobs today."""
    key = {"tenant_id": tenant_id, "day": _today(session)}
    return float(session.scalar(select(TenantUsage.cpu_seconds).filter_by(**key)) or 0.0)


def add_cpu_seconds(session: Session, tenant_id: str, seconds: float) -> None:
    """The tenant's jobs have used so much more today."""
    row = {"tenant_id": tenant_id, "day": _today(session), "cpu_seconds": seconds}
    _upsert(session, TenantUsage, row, {"cpu_seconds": TenantUsage.cpu_seconds + seconds})


def seconds_until_tomorrow(session: Session) -> float:
    """By the database's clock, in UTC."""
    return DAY_SECONDS - float(session.execute(select(db_now())).scalar_one()) % DAY_SECONDS


def _today(session: Session) -> str:
    return datetime.fromtimestamp(session.execute(select(db_now())).scalar_one(), tz=UTC).date().isoformat()


def _upsert(session: Session, table: Any, row: dict[str, Any], changes: dict[str, Any]) -> None:
    dialect = insert_postgresql if session.get_bind().dialect.name == "postgresql" else insert_sqlite
    statement = dialect(table).values(row)
    keys = [column.name for column in table.__table__.primary_key]
    if changes:
        session.execute(statement.on_conflict_do_update(index_elements=keys, set_=changes))
    else:
        session.execute(statement.on_conflict_do_nothing(index_elements=keys))
