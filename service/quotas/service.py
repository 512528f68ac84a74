"""Quota checks in the transaction that uses the quota, so that concurrent requests cannot exceed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.audit.changes import changes_between
from service.audit.service import note
from service.contracts.base import read_stored
from service.contracts.quota import Quota
from service.principal import Principal
from service.quotas import repository
from service.quotas.rates import Room
from service.quotas.schemas import QuotaError, TenantOut, UsageOut
from service.settings import Settings

# When to ask again for what becomes free at no time that is known.
_LATER_SECONDS = 30.0


def quota_of(session: Session, settings: Settings, tenant_id: str) -> Quota:
    """What the tenant may use: its own limits over the installation's."""
    return read_stored(Quota, repository.quota_of(session, tenant_id)).over(settings.quota)


def admit_jobs(session: Session, settings: Settings, tenant_id: str, wanted: int = 1) -> None:
    """So many jobs more may be queued for the tenant; until the commit nobody else asks this for it.

    Raises:
        QuotaError: of jobs queued, of jobs per day, of CPU time.
    """
    quota = quota_of(session, settings, tenant_id)
    if quota.jobs_queued is quota.jobs_per_day is quota.cpu_seconds_per_day is None:
        return
    repository.hold(session, tenant_id)
    if quota.jobs_queued is not None:
        used = repository.queued(session, tenant_id)
        _refuse_beyond("jobs_queued", quota.jobs_queued, used, wanted, _LATER_SECONDS)
    if quota.jobs_per_day is not None:
        used = repository.submitted(session, tenant_id)
        if used + wanted > quota.jobs_per_day:
            wait = repository.seconds_until_one_less(session, tenant_id)
            _refuse_beyond("jobs_per_day", quota.jobs_per_day, used, wanted, wait)
    if quota.cpu_seconds_per_day is not None:
        spent = repository.cpu_seconds(session, tenant_id)
        if spent >= quota.cpu_seconds_per_day:
            wait = repository.seconds_until_tomorrow(session)
            raise QuotaError("cpu_seconds_per_day", quota.cpu_seconds_per_day, spent, retry_after_seconds=wait)


def admit_bytes(session: Session, settings: Settings, tenant_id: str, size_bytes: int) -> None:
    """So many bytes more may be stored for the tenant, in one file; until the commit nobody else asks this for it.

    Raises:
        LargerThanQuotaError: the file alone is larger than one may be, or than all together.
        QuotaError: of bytes stored.
    """
    if quota_of(session, settings, tenant_id).stored_bytes is not None:
        repository.hold(session, tenant_id)
    room_of(session, settings, tenant_id).refuse_beyond(size_bytes)


def room_of(session: Session, settings: Settings, tenant_id: str) -> Room:
    """What the tenant may store now."""
    quota = quota_of(session, settings, tenant_id)
    return Room(quota, 0 if quota.stored_bytes is None else repository.stored_bytes(session, tenant_id))


@dataclass(frozen=True)
class RunningLimits:
    """How many jobs of each tenant may run, and how many do."""

    default: int | None  # of tenants that have no limit of their own; None: they have none
    own: Mapping[str, int | None]  # by tenant
    started: Counter[str]  # by tenant, the jobs that run or are released to run; not counted where nobody has a limit

    def full(self) -> frozenset[str]:
        """Tenants of whom as many jobs run as may."""
        known = dict(self.own) | {tenant: self.default for tenant in self.started if tenant not in self.own}
        return frozenset(
            tenant for tenant, limit in known.items() if limit is not None and self.started[tenant] >= limit
        )


def running_limits(session: Session, default: Quota) -> RunningLimits:
    """How many jobs of each tenant may run, and how many do now.

    Args:
        session: reads.
        default: limits of tenants that have none of their own.
    """
    quotas = {tenant_id: read_stored(Quota, quota) for tenant_id, quota in repository.quotas(session).items()}
    own = {tenant_id: quota.over(default).jobs_running for tenant_id, quota in quotas.items()}
    limited = {default.jobs_running, *own.values()} != {None}
    return RunningLimits(default.jobs_running, own, repository.started(session) if limited else Counter())


def may_start(session: Session, settings: Settings, tenant_id: str) -> bool:
    """Another of the tenant's jobs may run; until the commit nobody else asks this for it."""
    limit = quota_of(session, settings, tenant_id).jobs_running
    if limit is None:
        return True
    repository.hold(session, tenant_id)
    return repository.running_of(session, tenant_id) < limit


def tenant_out(session: Session, settings: Settings, tenant_id: str) -> TenantOut:
    """A tenant's limits, and how much of them it uses."""
    usage = UsageOut(
        stored_bytes=repository.stored_bytes(session, tenant_id),
        jobs_queued=repository.queued(session, tenant_id),
        jobs_running=repository.running_of(session, tenant_id),
        jobs_per_day=repository.submitted(session, tenant_id),
        cpu_seconds_per_day=repository.cpu_seconds(session, tenant_id),
    )
    own = read_stored(Quota, repository.quota_of(session, tenant_id))
    return TenantOut(
        tenant=tenant_id, quota=own.over(settings.quota), own=own.model_dump(exclude_unset=True), usage=usage
    )


def names(session: Session) -> list[str]:
    """The tenants that have a key, limits or usage, by name."""
    return repository.tenants(session)


def set_quota(session: Session, by: Principal, tenant_id: str, own: Quota) -> None:
    """Set the tenant's own limits, in place of all that were set before."""
    limits = own.model_dump(exclude_unset=True)
    default = dict.fromkeys(Quota.model_fields, "default")
    changes = changes_between(default | repository.quota_of(session, tenant_id), default | limits)
    repository.set_quota(session, tenant_id, limits)
    note(session, by, "tenant.set_quota", tenant_id, tenant_id=tenant_id, changes=changes)


def _refuse_beyond(name: str, limit: int, used: int, wanted: int, retry_after_seconds: float) -> None:
    if used + wanted > limit:
        raise QuotaError(name, limit, used, wanted, retry_after_seconds=retry_after_seconds)
