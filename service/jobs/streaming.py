"""The log of a job as Server-Sent Events: replayed from the database, then followed until the job has ended."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from service.deps import Desk
from service.jobs import service
from service.jobs.schemas import TERMINAL
from service.jobs.views import event_out

RETRY_MILLISECONDS = 2000
_BATCH = 200
_POLL_SECONDS = (0.05, 0.5)
log = logging.getLogger(__name__)


async def event_stream(desk: Desk, tenant_id: str, job_id: str, after: int) -> AsyncIterator[bytes]:
    """Events with numbers above ``after``, a ping while nothing happens, and ``end`` once the job has ended.

    If the database goes away the stream just breaks off: the client comes back with Last-Event-ID.
    """
    yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
    quickest, slowest = _POLL_SECONDS
    pause, sent_at = quickest, time.monotonic()
    while True:
        try:
            state, events = await run_in_threadpool(service.log_after, desk, tenant_id, job_id, after, _BATCH)
        except SQLAlchemyError as error:
            log.warning("events.broken_off job_id=%s: %s", job_id, error)
            return
        for event in events:
            after = event.seq
            data = event_out(event).model_dump(mode="json")
            yield frame(event.type, data, event_id=event.seq)
        if events:
            pause, sent_at = quickest, time.monotonic()
            continue
        if state in TERMINAL:
            yield frame("end", {"job_id": job_id, "state": state})
            return
        if time.monotonic() - sent_at >= desk.settings.ping_seconds:
            yield b": ping\n\n"
            sent_at = time.monotonic()
        await asyncio.sleep(min(pause, desk.settings.ping_seconds))
        pause = min(slowest, pause * 1.5)


def frame(event: str, data: object, *, event_id: int | None = None) -> bytes:
    """One event on the wire. JSON holds no line break, so one data line is enough."""
    head = "" if event_id is None else f"id: {event_id}\n"
    return f"{head}event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
