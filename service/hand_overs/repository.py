"""Statements about hand-overs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, func, insert, literal, or_, select, text, update
from sqlalchemy.orm import Session

from service.db import db_now
from service.hand_overs.asking import Asked
from service.tables import Artifact, HandOver, Job
from service.tables.webhooks import IS_LEASED, IS_PENDING
from service.tenancy import owned

# Tenants that are looked at in one round.
_TENANTS = 200
# Asked at the end of every job, so built once.
_WAITING = (
    select(HandOver)
    .where(HandOver.job_id == bindparam("of_job"), HandOver.state == "waiting")
    .order_by(HandOver.id)
    .with_for_update()
)


@dataclass(frozen=True, repr=False)
class Claimed:
    """A hand-over that is this process's to send, until its lease is over; ``attempt`` is the fencing token.

    ``sha256``, ``size_bytes`` are those of the file of a put; None for an attestation, and for a post, which carries
    its ``payload``.
    """

    id: str
    tenant_id: str
    job_id: str
    kind: str
    artifact: str | None
    host: str
    sealed: str
    payload: str | None
    attempt: int
    sha256: str | None
    size_bytes: int | None


def add(session: Session, job: Job, asked: Sequence[Asked]) -> None:
    """Insert what waits for the job's end, in its order."""
    now = db_now()
    for one in asked:
        session.execute(
            insert(HandOver).values(
                id=one.id,
                tenant_id=job.tenant_id,
                job_id=job.id,
                kind=one.kind,
                artifact=one.artifact,
                condition=one.condition,
                host=one.host,
                sealed=one.sealed,
                pepper_id=one.pepper_id,
                state="waiting",
                attempts=0,
                created_at=now,
            )
        )


def count_of_job(session: Session, tenant_id: str, job_id: str) -> int:
    """How many hand-overs the job has, those that have ended among them."""
    statement = select(func.count()).select_from(HandOver)
    return session.scalars(statement.where(HandOver.job_id == job_id, owned(HandOver, tenant_id))).one()


def list_of_job(session: Session, tenant_id: str, job_id: str) -> list[HandOver]:
    """Hand-overs of the tenant's job, in the order in which they were asked for."""
    statement = select(HandOver).where(HandOver.job_id == job_id, owned(HandOver, tenant_id)).order_by(HandOver.id)
    return list(session.scalars(statement, execution_options={"populate_existing": True}))


def waiting_of_job(session: Session, job_id: str) -> list[HandOver]:
    """What waits for the job's end."""
    return list(session.scalars(_WAITING, {"of_job": job_id}))


def waits_for(session: Session, job_id: str, artifact: str) -> bool:
    """Whether a file of this kind is to be sent once the job has ended."""
    of_job = (HandOver.job_id == job_id, HandOver.state == "waiting", HandOver.artifact == artifact)
    return session.scalar(select(literal(1)).where(*of_job).limit(1)) is not None


def make_due(session: Session, row: HandOver, payload: str | None) -> None:
    """Let a hand-over that has waited be sent from now on."""
    _change(session, row, state="pending", next_attempt_at=db_now(), payload=payload)


def drop(session: Session, row: HandOver, state: str, reason: str, detail: str) -> None:
    """End a hand-over that has waited without an attempt."""
    _change(session, row, state=state, reason=reason, detail=detail, sealed=None, finished_at=db_now())


def any_due(session: Session) -> bool:
    """Whether there is anything to send: a look that writes nothing."""
    return session.scalar(select(literal(1)).select_from(HandOver).where(*_due()).limit(1)) is not None


def claim(session: Session, *, free: int, most_of_tenant: int, lease_seconds: float) -> list[Claimed]:
    """Take up to ``free`` hand-overs that are due, those that have waited longest first, each tenant in its share.

    Those that another reconciler takes at the same moment are passed over.

    Args:
        session: writes.
        free: how many at most.
        most_of_tenant: how many of one tenant may be under way, whoever sends them; about, where several look at once.
        lease_seconds: of each, until it is renewed.
    """
    under_way = session.scalars(select(HandOver.tenant_id).where(text(IS_LEASED), HandOver.lease_until >= db_now()))
    of_tenant = Counter(under_way)
    chosen: list[str] = []
    for tenant_id in _waiting_longest(session):
        room = min(free - len(chosen), most_of_tenant - of_tenant[tenant_id])
        if room > 0:
            due = select(HandOver.id).where(owned(HandOver, tenant_id), *_due())
            chosen += session.scalars(due.order_by(HandOver.next_attempt_at, HandOver.id).limit(room))
    if not chosen:
        return []
    held = select(HandOver).where(HandOver.id.in_(chosen), *_due()).order_by(HandOver.id)
    rows = session.scalars(held.with_for_update(skip_locked=True), execution_options={"populate_existing": True}).all()
    return [_claimed(session, row, lease_seconds) for row in rows]


def renew(session: Session, claimed: Claimed, lease_seconds: float) -> bool:
    """Go on with an attempt for so much longer; False if somebody else has claimed it since, or it is not there."""
    statement = update(HandOver).where(*_of_attempt(claimed)).values(lease_until=db_now() + lease_seconds)
    statement = statement.returning(HandOver.id).execution_options(synchronize_session=False)
    return session.scalar(statement) is not None


def release(session: Session, claimed: Claimed) -> bool:
    """Leave an attempt that was broken off to whoever claims it next; False if somebody has, or it is not there."""
    statement = update(HandOver).where(*_of_attempt(claimed)).values(lease_until=None, next_attempt_at=db_now())
    statement = statement.returning(HandOver.id).execution_options(synchronize_session=False)
    return session.scalar(statement) is not None


def settle(session: Session, claimed: Claimed, **values: Any) -> bool:
    """Note what became of an attempt; False if somebody else has claimed it since, or it is not there."""
    statement = (
        update(HandOver)
        .where(*_of_attempt(claimed))
        .values(**values, lease_until=None, last_attempt_at=db_now())
        .returning(HandOver.id)
        .execution_options(synchronize_session=False)
    )
    return session.scalar(statement) is not None


def _waiting_longest(session: Session) -> Sequence[str]:
    """Tenants with something due, whoever has waited longest first."""
    statement = select(HandOver.tenant_id).where(*_due()).group_by(HandOver.tenant_id)
    return session.scalars(statement.order_by(func.min(HandOver.next_attempt_at)).limit(_TENANTS)).all()


def _claimed(session: Session, row: HandOver, lease_seconds: float) -> Claimed:
    file = None
    if row.kind == "put":
        of_job = and_(Artifact.job_id == row.job_id, Artifact.kind == row.artifact, owned(Artifact, row.tenant_id))
        file = session.execute(select(Artifact.sha256, Artifact.size_bytes).where(of_job)).one_or_none()
    changed = (
        update(HandOver)
        .where(HandOver.id == row.id)
        .values(attempts=HandOver.attempts + 1, lease_until=db_now() + lease_seconds)
        .returning(HandOver.attempts)
        .execution_options(synchronize_session=False)
    )
    return Claimed(
        id=row.id,
        tenant_id=row.tenant_id,
        job_id=row.job_id,
        kind=row.kind,
        artifact=row.artifact,
        host=row.host,
        sealed=row.sealed or "",
        payload=row.payload,
        attempt=session.scalars(changed).one(),
        sha256=None if file is None else file.sha256,
        size_bytes=None if file is None else file.size_bytes,
    )


def _change(session: Session, row: HandOver, **values: Any) -> None:
    statement = update(HandOver).where(HandOver.id == row.id).values(**values)
    session.execute(statement.execution_options(synchronize_session=False))


def _of_attempt(claimed: Claimed) -> tuple[ColumnElement[bool], ...]:
    return HandOver.id == claimed.id, HandOver.attempts == claimed.attempt, text(IS_PENDING)  # type: ignore[return-value]


def _due() -> tuple[ColumnElement[bool], ...]:
    free = or_(HandOver.lease_until.is_(None), HandOver.lease_until < db_now())
    return text(IS_PENDING), HandOver.next_attempt_at <= db_now(), free  # type: ignore[return-value]
