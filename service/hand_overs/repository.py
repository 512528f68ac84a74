"""SQL statements for hand-overs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, bindparam, func, insert, literal, select, update
from sqlalchemy.orm import Session

from service import tracing
from service.db import db_now
from service.hand_overs.asking import NewHandOver
from service.repository import Outbox, owned
from service.tables import Artifact, HandOver, Job
from service.tables.webhooks import IS_LEASED, IS_PENDING

OUTBOX = Outbox(HandOver, IS_PENDING, IS_LEASED)
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
class ClaimedHandOver:
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
    trace_context: tracing.Carrier | None
    attempt: int
    sha256: str | None
    size_bytes: int | None


def add(session: Session, job: Job, asked: Sequence[NewHandOver]) -> None:
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
    _change(session, row, state="pending", next_attempt_at=db_now(), payload=payload, trace_context=tracing.carrier())


def drop(session: Session, row: HandOver, state: str, reason: str, detail: str) -> None:
    """End a hand-over that has waited without an attempt."""
    _change(session, row, state=state, reason=reason, detail=detail, sealed=None, finished_at=db_now())


def claim(session: Session, *, free: int, most_of_tenant: int, lease_seconds: float) -> list[ClaimedHandOver]:
    """Take up to ``free`` hand-overs that are due, those that have waited longest first, each tenant in its share.

    Those that another reconciler takes at the same moment are passed over.

    Args:
        session: writes.
        free: how many at most.
        most_of_tenant: how many of one tenant may be under way, whoever sends them; about, where several look at once.
        lease_seconds: of each, until it is renewed.
    """
    of_tenant = Counter(session.scalars(select(HandOver.tenant_id).where(*OUTBOX.leased())))
    chosen: list[str] = []
    for (tenant_id,) in OUTBOX.waiting_longest(session, [HandOver.tenant_id], _TENANTS):
        room = min(free - len(chosen), most_of_tenant - of_tenant[tenant_id])
        if room > 0:
            chosen += OUTBOX.due_ids(session, room, owned(HandOver, tenant_id))
    if not chosen:
        return []
    held = select(HandOver.id).where(HandOver.id.in_(chosen)).order_by(HandOver.id).with_for_update(skip_locked=True)
    rows = OUTBOX.take(session, session.scalars(held).all(), lease_seconds)
    return [_claimed(session, row) for row in rows]


def _claimed(session: Session, row: HandOver) -> ClaimedHandOver:
    file = None
    if row.kind == "put":
        of_job = and_(Artifact.job_id == row.job_id, Artifact.kind == row.artifact, owned(Artifact, row.tenant_id))
        file = session.execute(select(Artifact.sha256, Artifact.size_bytes).where(of_job)).one_or_none()
    return ClaimedHandOver(
        id=row.id,
        tenant_id=row.tenant_id,
        job_id=row.job_id,
        kind=row.kind,
        artifact=row.artifact,
        host=row.host,
        sealed=row.sealed or "",
        payload=row.payload,
        trace_context=row.trace_context,
        attempt=row.attempts,
        sha256=None if file is None else file.sha256,
        size_bytes=None if file is None else file.size_bytes,
    )


def _change(session: Session, row: HandOver, **values: Any) -> None:
    statement = update(HandOver).where(HandOver.id == row.id).values(**values)
    session.execute(statement.execution_options(synchronize_session=False))
