"""SQL statements for limits and usage of tenants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Double, Subquery, delete, func, insert, select, text, type_coerce, union, union_all
from sqlalchemy.orm import Session

from service.db import db_now
from service.files.repository import of_tenant
from service.jobs.queues import QUEUES
from service.principal import DEFAULT_TENANT
from service.repository import now_seconds, owned, upsert
from service.tables import ApiKey, DeletedJob, Job, TenantRow, TenantUsage, Upload
from service.tables.jobs import IS_QUEUED, IS_RUNNING, IS_USERS

DAY_SECONDS = 24 * 3600.0


def quota_of(session: Session, tenant_id: str) -> dict[str, Any]:
    """What was set for the tenant; nothing for one without a row."""
    return session.scalar(select(TenantRow.quota).where(TenantRow.id == tenant_id)) or {}


def quotas(session: Session) -> dict[str, dict[str, Any]]:
    """What was set, by tenant."""
    return dict(session.execute(select(TenantRow.id, TenantRow.quota)).all())


def tenants(session: Session) -> list[str]:
    """Everyone who has a key or a row of limits."""
    known = union(select(TenantRow.id), select(ApiKey.tenant_id))
    return sorted({DEFAULT_TENANT, *session.scalars(known)})


def hold(session: Session, tenant_id: str) -> None:
    """Nobody else counts for the tenant until the commit."""
    statement = select(TenantRow.id).where(TenantRow.id == tenant_id).with_for_update()
    if session.scalar(statement) is None:
        upsert(session, TenantRow, {"id": tenant_id, "quota": {}, "created_at": db_now(), "updated_at": db_now()})
        session.scalars(statement).one()


def set_quota(session: Session, tenant_id: str, quota: dict[str, Any]) -> None:
    """Set the tenant's own limits, in place of all that were set before."""
    now = db_now()
    row = {"id": tenant_id, "quota": quota, "created_at": now, "updated_at": now}
    upsert(session, TenantRow, row, {"quota": quota, "updated_at": now})


def queued(session: Session, tenant_id: str) -> int:
    """How many of the tenant's quantize and evaluate jobs wait."""
    statement = select(func.count()).select_from(Job)
    return session.scalar(statement.where(text(IS_QUEUED), owned(Job, tenant_id), text(IS_USERS))) or 0


def running_of(session: Session, tenant_id: str) -> int:
    """How many of the tenant's jobs run."""
    return session.scalar(select(func.count()).select_from(Job).where(text(IS_RUNNING), owned(Job, tenant_id))) or 0


def started(session: Session) -> Counter[str]:
    """How many jobs run or are released to run, by tenant."""
    # named one by one, so that SQLite goes by the index that begins with the queue
    released = (text(IS_QUEUED), Job.queue.in_(QUEUES), Job.dispatched_at > 0)
    found: Counter[str] = Counter()
    for conditions in ((text(IS_RUNNING),), released):
        rows = session.execute(select(Job.tenant_id, func.count()).where(*conditions).group_by(Job.tenant_id))
        for tenant_id, jobs in rows:
            found[tenant_id] += jobs
    return found


def submitted(session: Session, tenant_id: str) -> int:
    """How many quantize and evaluate jobs the tenant has submitted within a day."""
    return session.scalar(select(func.count()).select_from(_submitted(tenant_id))) or 0


def seconds_until_one_less(session: Session, tenant_id: str) -> float:
    """Until the oldest of those is a day old."""
    oldest = func.min(_submitted(tenant_id).c.created_at)
    return float(session.scalar(select(oldest - (db_now() - DAY_SECONDS))) or 0.0)


def keep_submitted(session: Session, job_ids: Sequence[str]) -> None:
    """Jobs that are about to be deleted go on counting as submitted, for as long as they would have."""
    since = db_now() - DAY_SECONDS
    over = select(DeletedJob.job_id).where(DeletedJob.created_at <= since).with_for_update(skip_locked=True)
    session.execute(delete(DeletedJob).where(DeletedJob.job_id.in_(over)).execution_options(synchronize_session=False))
    columns = (Job.id, Job.tenant_id, Job.created_at)
    young = select(*columns).where(Job.id.in_(job_ids), text(IS_USERS), Job.created_at > since)
    session.execute(insert(DeletedJob).from_select(["job_id", "tenant_id", "created_at"], young))


def stored_bytes(session: Session, tenant_id: str) -> int:
    """Bytes of the tenant's files, equal ones counted once, and those that its open uploads have declared."""
    files = of_tenant(tenant_id).subquery()
    declared = select(func.sum(Upload.expected_size_bytes)).where(owned(Upload, tenant_id), Upload.state == "open")
    return int(session.scalar(select(func.sum(files.c.size_bytes))) or 0) + int(session.scalar(declared) or 0)


def cpu_seconds(session: Session, tenant_id: str) -> float:
    """CPU time of the tenant's jobs today."""
    key = {"tenant_id": tenant_id, "day": _today(session)}
    return float(session.scalar(select(TenantUsage.cpu_seconds).filter_by(**key)) or 0.0)


def add_cpu_seconds(session: Session, tenant_id: str, seconds: float) -> None:
    """The tenant's jobs have used so much more today."""
    row = {"tenant_id": tenant_id, "day": _today(session), "cpu_seconds": seconds}
    upsert(session, TenantUsage, row, {"cpu_seconds": TenantUsage.cpu_seconds + seconds})


def seconds_until_tomorrow(session: Session) -> float:
    """By the database's clock, in UTC."""
    return DAY_SECONDS - now_seconds(session) % DAY_SECONDS


def _today(session: Session) -> str:
    return datetime.fromtimestamp(now_seconds(session), tz=UTC).date().isoformat()


def _submitted(tenant_id: str) -> Subquery:
    """Moments of submission within a day, of jobs that are there and of those that were; in seconds since 1970."""
    since, there, gone = db_now() - DAY_SECONDS, Job.created_at, DeletedJob.created_at
    jobs = select(type_coerce(there, Double).label("created_at")).where(owned(Job, tenant_id), text(IS_USERS))
    deleted = select(type_coerce(gone, Double)).where(owned(DeletedJob, tenant_id), gone > since)
    return union_all(jobs.where(there > since), deleted).subquery()
