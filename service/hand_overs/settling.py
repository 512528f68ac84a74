"""What becomes of a hand-over by what an attempt met with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from sqlalchemy.orm import Session

from service.db import db_now
from service.egress.attempts import SendResult, excerpt, pause_seconds
from service.hand_overs.outbox import told
from service.hand_overs.repository import OUTBOX, ClaimedHandOver
from service.jobs import events
from service.jobs import repository as jobs
from service.jobs.errors import JobNotFoundError
from service.tables.webhooks import DETAIL_LENGTH

Fate = Literal["done", "retried", "failed", "fenced"]
# What a store says of an object that has arrived; anything else of 2xx is no such word.
_STORED = frozenset({200, 201, 204})
# Of 4xx: the other host was slow, or is busy. All others would be said again: a presigned URL that is over stays so.
_PASSING_REFUSALS = frozenset({408, 425, 429})
_REFUSALS = range(400, 500)
# What stores say in words of theirs. Nothing else of an answer is kept: it may tell the signature again.
_CODE = re.compile(r"<Code>([A-Za-z]{1,40})</Code>")


def settle(session: Session, claimed: ClaimedHandOver, result: SendResult, *, schedule: Sequence[float]) -> Fate:
    """Note what an attempt met with: arrived, to be sent again, or given up; the end is told in the job's log.

    Args:
        session: writes.
        claimed: the hand-over.
        result: what it met with.
        schedule: pauses between attempts.
    """
    try:  # the job first: so does whoever ends or forgets it
        job = jobs.hold(session, claimed.tenant_id, claimed.job_id)
    except JobNotFoundError:
        return "fenced"
    arrived = _has_arrived(claimed, result)
    pause = None if arrived or _is_final(result) else pause_seconds(claimed.attempt, schedule, result.headers)
    fate: Fate = "done" if arrived else "failed" if pause is None else "retried"
    reason, detail = (None, None) if arrived else _words(claimed, result)
    noted: dict[str, Any] = {"last_status": result.status, "reason": reason, "detail": detail}
    if pause is None:
        ended = {"state": fate, "next_attempt_at": None, "sealed": None, "payload": None, "finished_at": db_now()}
        noted |= ended
    else:
        noted["next_attempt_at"] = db_now() + pause
    if not OUTBOX.settle(session, claimed, **noted):
        return "fenced"
    if pause is None:
        message = f"{told(claimed.id, claimed.kind, claimed.artifact, claimed.host)}: {fate}"
        level = "info" if arrived else "warning"
        message += "" if detail is None else f". {detail}"
        events.append(session, job.id, job.attempt, "log", {"level": level, "message": message})
    return fate


def _has_arrived(claimed: ClaimedHandOver, result: SendResult) -> bool:
    return result.status in _STORED if claimed.kind == "put" else result.is_success


def _is_final(result: SendResult) -> bool:
    refused = result.status is not None and result.status in _REFUSALS and result.status not in _PASSING_REFUSALS
    return result.final or refused


def _words(claimed: ClaimedHandOver, result: SendResult) -> tuple[str, str]:
    if result.status is None:
        return result.error or "unknown", excerpt(result.text, DETAIL_LENGTH)
    said = _CODE.search(result.text)
    code = "" if said is None else f" ({said[1]})"
    return "status", excerpt(f"{claimed.host} answered {result.status}{code}.", DETAIL_LENGTH)
