"""What hand-overs look like from outside."""

from __future__ import annotations

from collections.abc import Sequence

from service.hand_overs.schemas import HandOverList, HandOverOut
from service.tables import HandOver


def hand_over_out(row: HandOver) -> HandOverOut:
    """A hand-over without its secrets."""
    return HandOverOut(
        id=row.id,
        kind=row.kind,
        host=row.host,
        artifact=row.artifact,
        when=row.condition,
        state=row.state,
        reason=row.reason,
        detail=row.detail,
        attempts=row.attempts,
        next_attempt_at=row.next_attempt_at,
        last_attempt_at=row.last_attempt_at,
        last_status=row.last_status,
        created_at=row.created_at,
        finished_at=row.finished_at,
    )


def hand_over_list(job_id: str, rows: Sequence[HandOver]) -> HandOverList:
    """Hand-overs of a job."""
    return HandOverList(id=job_id, items=[hand_over_out(row) for row in rows])
