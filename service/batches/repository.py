"""SQL statements for batches and their members."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import and_, delete, func, insert, or_, select, text, update
from sqlalchemy.orm import Session, defer

from service import repository
from service.batches.schemas import BatchNotFoundError
from service.db import db_now
from service.ids import new_id
from service.pagination import Position
from service.repository import Version, owned
from service.tables import Batch, BatchMember, Job, JobEvent
from service.tables.batches import IS_CURRENT
from service.tables.jobs import LIVE_STATES


@dataclass(frozen=True)
class NewMember:
    """A row to be added; see ``BatchMember``."""

    member: int
    job_id: str
    reused: bool
    model: str
    preset: str | None
    config: int | None

    def of(self, own: Container[str]) -> NewMember:
        """The same, not reused where its job is one of the batch's ``own``."""
        return replace(self, reused=self.reused and self.job_id not in own)


def create(
    session: Session,
    tenant_id: str,
    *,
    name: str | None,
    labels: dict[str, str],
    grid: dict[str, Any] | None,
    request_id: str | None,
) -> Batch:
    """Insert a batch without members."""
    return repository.add(
        session,
        Batch,
        id=new_id("bat"),
        tenant_id=tenant_id,
        name=name,
        labels=labels,
        grid=grid,
        request_id=request_id,
    )


def add_members(session: Session, batch: Batch, first: int, members: Sequence[NewMember]) -> None:
    """Insert members, at the positions from ``first`` on."""
    of_all = {"tenant_id": batch.tenant_id, "batch_id": batch.id, "superseded": False}
    rows = [{**of_all, "position": first + k, **vars(member)} for k, member in enumerate(members)]
    session.execute(insert(BatchMember), rows)


def supersede(session: Session, batch: Batch, members: Iterable[int]) -> None:
    """The jobs of these members are to be followed by others."""
    which = (BatchMember.batch_id == batch.id, owned(BatchMember, batch.tenant_id), text(IS_CURRENT))
    told = update(BatchMember).where(*which, BatchMember.member.in_(list(members))).values(superseded=True)
    session.execute(told.execution_options(synchronize_session=False))
    touch(session, batch)


def touch(session: Session, batch: Batch) -> None:
    """Something about the batch has changed that readers can see."""
    changed = {"row_version": Batch.row_version + 1, "updated_at": db_now()}
    statement = update(Batch).where(Batch.id == batch.id, owned(Batch, batch.tenant_id)).values(changed)
    session.execute(statement.execution_options(synchronize_session=False))


def get(session: Session, tenant_id: str, batch_id: str, *, locked: bool = False) -> Batch:
    """The tenant's batch; ``locked``: kept from changes until the transaction ends.

    Raises:
        BatchNotFoundError: the tenant has no such batch.
    """
    return repository.find(
        session, Batch, tenant_id, batch_id, BatchNotFoundError(batch_id), lock="update" if locked else None
    )


def list_page(
    session: Session, tenant_id: str, *, name: str | None, after: Position | None, limit: int
) -> tuple[list[Batch], Position | None]:
    """One page of the tenant's batches, newest first."""
    return repository.page(session, Batch, [owned(Batch, tenant_id)], after=after, limit=limit, name=name)


def version(session: Session, tenant_id: str, batch_id: str) -> Version:
    """Of the batch and its jobs; the numbers grow with whatever happens, and fall where a job is deleted.

    Raises:
        BatchNotFoundError: the tenant has no such batch.
    """
    batch = get(session, tenant_id, batch_id)
    return repository.versions(session, Batch, [batch.id])[batch.id]


def members(session: Session, tenant_id: str, batch_id: str) -> list[BatchMember]:
    """All members of the tenant's batch by position, superseded ones among them."""
    statement = select(BatchMember).where(BatchMember.batch_id == batch_id, owned(BatchMember, tenant_id))
    return list(session.scalars(statement.order_by(BatchMember.position)))


def size(session: Session, tenant_id: str, batch_id: str) -> int:
    """How many members the tenant's batch has, superseded ones among them."""
    which = (BatchMember.batch_id == batch_id, owned(BatchMember, tenant_id))
    return session.scalars(select(func.count()).select_from(BatchMember).where(*which)).one()


def jobs(session: Session, tenant_id: str, job_ids: Iterable[str]) -> list[Job]:
    """Those of these jobs that are there, without their configs, which may have megabytes."""
    statement = select(Job).where(Job.id.in_(list(job_ids)), owned(Job, tenant_id))
    return list(session.scalars(statement.options(defer(Job.config, raiseload=True))))


def live(session: Session, tenant_id: str, job_ids: Iterable[str]) -> list[str]:
    """Those of these jobs that are queued or running."""
    conditions = (Job.id.in_(list(job_ids)), owned(Job, tenant_id), Job.state.in_(LIVE_STATES))
    return list(session.scalars(select(Job.id).where(*conditions)))


@dataclass(frozen=True)
class MemberCount:
    """How many members of a batch stand so; ``state`` is None for those whose job is gone."""

    state: str | None
    canceling: bool
    count: int


def member_counts(session: Session, tenant_id: str, batch_ids: Iterable[str]) -> dict[str, list[MemberCount]]:
    """How the members of the tenant's batches stand, by batch."""
    asked = Job.cancel_requested_at.is_not(None)
    canceling = and_(Job.state == "running", asked)
    statement = (
        select(BatchMember.batch_id, Job.state, canceling, func.count())
        .outerjoin(Job, and_(Job.id == BatchMember.job_id, owned(Job, tenant_id)))
        .where(BatchMember.batch_id.in_(list(batch_ids)), owned(BatchMember, tenant_id), text(IS_CURRENT))
        .group_by(BatchMember.batch_id, Job.state, canceling)
    )
    found: dict[str, list[MemberCount]] = {}
    for batch_id, state, stopping, count in session.execute(statement):
        found.setdefault(batch_id, []).append(MemberCount(state, bool(stopping), count))
    return found


def last_seqs(session: Session, tenant_id: str, job_ids: Iterable[str]) -> dict[str, int]:
    """The number of the newest event of each of these jobs."""
    statement = select(Job.id, Job.last_seq).where(Job.id.in_(list(job_ids)), owned(Job, tenant_id))
    return dict(session.execute(statement).all())


def events_after(session: Session, tenant_id: str, after: Mapping[str, int], limit: int) -> list[JobEvent]:
    """The oldest ``limit`` events of these jobs with numbers above those given, the numbers of each in order.

    Where the clock of the database was set back, there may be more: none of a job is left out before another of it.
    """
    if not after:
        return []
    mine = owned(JobEvent, tenant_id)
    beyond = [and_(JobEvent.job_id == job_id, JobEvent.seq > seq) for job_id, seq in after.items()]
    oldest = select(JobEvent.job_id, JobEvent.seq).where(mine, or_(*beyond))
    oldest = oldest.order_by(JobEvent.created_at, JobEvent.job_id, JobEvent.seq).limit(limit)
    ends: dict[str, int] = {}
    for job_id, seq in session.execute(oldest):
        ends[job_id] = max(seq, ends.get(job_id, 0))
    if not ends:
        return []
    spans = [
        and_(JobEvent.job_id == job_id, JobEvent.seq.between(after[job_id] + 1, end)) for job_id, end in ends.items()
    ]
    return list(session.scalars(select(JobEvent).where(mine, or_(*spans)).order_by(JobEvent.job_id, JobEvent.seq)))


def remove(session: Session, batch: Batch) -> None:
    """Forget the batch; its jobs stay."""
    which = (BatchMember.batch_id == batch.id, owned(BatchMember, batch.tenant_id))
    session.execute(delete(BatchMember).where(*which))
    session.execute(delete(Batch).where(Batch.id == batch.id, owned(Batch, batch.tenant_id)))
