"""A job's event log as Server-Sent Events: replayed from the database, then followed until the job has ended."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from fastapi import Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import Receive, Scope, Send

from service.deps import STREAM_PATH, STREAM_TOKEN, AppState
from service.jobs import service
from service.jobs.schemas import TERMINAL
from service.jobs.views import event_out
from service.keys.tokens import MOST_CHARS
from service.principal import Principal
from service.tables import Job
from service.threads import ServiceBusyError

RETRY_MILLISECONDS = 2000
_BATCH = 200
# Between a look that found nothing and the next one, whatever is told meanwhile.
_PAUSE_SECONDS = 0.03
# The row's own version does not matter to a log.
_ANY = 2**62
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobEventTail:
    """What follows in a log after some event."""

    frames: bytes  # the events on the wire
    last_seq: int  # the number of the last
    state: str  # of the job
    more: bool  # events may be there already that these leave out, or the end that one of these tells of


class CountedStream(StreamingResponse):
    """An event stream that counts as open until it has ended, however it ends.

    Args:
        opened: see ``Meter.stream``; entered here.
        frames: the stream.
        how: as of StreamingResponse.
    """

    def __init__(self, opened: AbstractContextManager[None], frames: AsyncIterator[bytes], **how: Any) -> None:
        self._open = ExitStack()
        self._open.enter_context(opened)
        super().__init__(frames, **how)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it."""
        with self._open:
            await super().__call__(scope, receive, send)


async def event_stream(app: AppState, tenant_id: str, job_id: str, after: int) -> AsyncIterator[bytes]:
    """Events with numbers above ``after``, a ping while nothing happens, and ``end`` once the job has ended.

    Streams that have come equally far share what is read for them. If the database goes away the stream just breaks
    off: the client comes back with Last-Event-ID.
    """
    yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
    loop = asyncio.get_running_loop()
    sent_at, seen = loop.time(), after
    with app.notifier.watching(Job, job_id) as watch:
        while True:
            try:
                tail = await watch.shared(seen, partial(tail_after, app, tenant_id, job_id, seen))
            except (SQLAlchemyError, ServiceBusyError) as error:
                log.warning("events.broken_off job_id=%s: %s", job_id, error)
                return
            if tail.frames:
                yield tail.frames
                sent_at, seen = loop.time(), tail.last_seq
                if tail.more:
                    continue
            elif tail.state in TERMINAL:
                yield frame("end", {"job_id": job_id, "state": tail.state})
                return
            else:
                await asyncio.sleep(_PAUSE_SECONDS)
            while not await watch.beyond((_ANY, seen), sent_at + app.settings.ping_seconds - loop.time()):
                if watch.released:
                    return  # the client comes back with Last-Event-ID, to another process
                yield b": ping\n\n"
                sent_at = loop.time()


def tail_after(app: AppState, tenant_id: str, job_id: str, seq: int) -> JobEventTail:
    """The next events of a log, ready to be sent.

    Raises:
        JobNotFoundError: the tenant has no such job.
    """
    state, events = service.log_after(app, tenant_id, job_id, seq, _BATCH)
    frames = [frame(event.type, event_out(event).model_dump(mode="json"), event_id=event.seq) for event in events]
    # the state was read before the events: where none of them is a change of state, the end is still to come
    more = len(events) == _BATCH or state in TERMINAL or any(event.type == "state" for event in events)
    return JobEventTail(b"".join(frames), events[-1].seq if events else seq, state, more)


def frame(event: str, data: object, *, event_id: int | str | None = None) -> bytes:
    """One event on the wire. JSON holds no line break, so one data line is enough."""
    head = "" if event_id is None else f"id: {event_id}\n"
    return f"{head}event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


# Event streams as pages read them: by a token in the URL, where a key cannot be sent.

TokenParameter = Annotated[
    str | None, Query(max_length=MOST_CHARS, description="Token of POST .../events/token; used instead of a key.")
]


class StreamToken(BaseModel):
    """A token for reading an event stream without a key."""

    token: str = Field(repr=False)
    url: str = Field(repr=False, description="URL of the event stream, including the token, for an EventSource.")
    expires_at: datetime = Field(
        description="When the token expires (UTC). Open streams continue after that; a new stream needs a new token."
    )


def token_of(app: AppState, principal: Principal, place: str, response: Response) -> StreamToken:
    """A token for the event stream of what is at ``place``, such as ``/v1/jobs/ID``; nobody keeps the answer."""
    path = place + STREAM_PATH
    token, ends_at = app.keyring.stream_token(principal.tenant_id, principal.actor, path)
    response.headers["Cache-Control"] = "no-store"
    return StreamToken(
        token=token, url=f"{path}?{STREAM_TOKEN}={token}", expires_at=datetime.fromtimestamp(ends_at, tz=UTC)
    )
