"""The event logs of a batch's jobs merged by time; resumable after any event without gaps or repeats.

A position says of each job, in the order in which they came to the batch, up to which number its log was told:
``5.0.12``, zeros at the end left out. Jobs of retries come behind those that were there, so that it stays good.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy.exc import SQLAlchemyError

from service.batches import repository
from service.batches.schemas import BatchEventOut, BatchState
from service.batches.views import counts_of, state_of
from service.deps import AppState
from service.jobs.streaming import RETRY_MILLISECONDS, frame
from service.jobs.views import event_out
from service.tables import Batch, JobEvent
from service.threads import ServiceBusyError

START = "0"
_LIVE = ("queued", "running")
_PAGE = 200
# Between a look that found nothing and the next one, whatever is told meanwhile.
_PAUSE_SECONDS = 0.03
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchEventTail:
    """What follows behind a position."""

    events: Sequence[BatchEventOut]  # the events, oldest first
    position: str  # behind the last of them
    state: BatchState  # of the batch
    more: bool  # there may be more already
    version: tuple[int, int]  # of the batch, before all of this was read

    @property
    def frames(self) -> bytes:
        """The events on the wire."""
        told = (frame(event.type, event.model_dump(mode="json"), event_id=event.position) for event in self.events)
        return b"".join(told)


def tail_after(app: AppState, tenant_id: str, batch_id: str, position: str, limit: int = _PAGE) -> BatchEventTail:
    """The next events behind ``position``.

    How the batch stands is read first: where it has ended, no event can follow those that there are.

    Raises:
        BatchNotFoundError: the tenant has no such batch.
    """
    with app.database.read() as session:
        version = repository.version(session, tenant_id, batch_id)
        standings = repository.member_counts(session, tenant_id, [batch_id]).get(batch_id, [])
        members = repository.members(session, tenant_id, batch_id)
        order = list(dict.fromkeys(row.job_id for row in members))
        seen = _parsed(position, order)
        newest = repository.last_seqs(session, tenant_id, order)
        behind = {job_id: seen[job_id] for job_id in order if newest.get(job_id, 0) > seen[job_id]}
        found = repository.events_after(session, tenant_id, behind, limit + 1)
    places: dict[str, list[int]] = {}
    for row in members:
        places.setdefault(row.job_id, []).append(row.member)
    told: list[BatchEventOut] = []
    for event in _merged(found)[:limit]:
        seen[event.job_id] = event.seq
        named = {"position": _spelled(seen, order), "job_id": event.job_id, "members": places[event.job_id]}
        told.append(BatchEventOut(**dict(event_out(event)), **named))
    return BatchEventTail(
        told, told[-1].position if told else position, state_of(counts_of(standings)), len(found) > limit, version
    )


async def event_stream(app: AppState, tenant_id: str, batch_id: str, position: str) -> AsyncIterator[bytes]:
    """Events behind ``position``, a ping while nothing happens, and ``end`` once the batch has ended.

    Streams that have come equally far share what is read for them. If the database goes away the stream just breaks
    off: the client comes back with Last-Event-ID.
    """
    yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
    loop = asyncio.get_running_loop()
    sent_at = loop.time()
    with app.notifier.watching(Batch, batch_id) as watch:
        while True:
            try:
                tail = await watch.shared(position, partial(tail_after, app, tenant_id, batch_id, position))
            except (SQLAlchemyError, ServiceBusyError) as error:
                log.warning("batch_events.broken_off batch_id=%s: %s", batch_id, error)
                return
            if tail.events:
                yield tail.frames
                sent_at, position = loop.time(), tail.position
                if tail.more or tail.state not in _LIVE:
                    continue
            elif tail.state not in _LIVE:
                yield frame("end", {"batch_id": batch_id, "state": tail.state})
                return
            else:
                await asyncio.sleep(_PAUSE_SECONDS)
            if not await watch.beyond(tail.version, sent_at + app.settings.ping_seconds - loop.time()):
                if watch.released:
                    return  # the client comes back with Last-Event-ID, to another process
                # where a job was deleted the versions have fallen: it is looked again
                yield b": ping\n\n"
                sent_at = loop.time()


def _parsed(position: str, order: Sequence[str]) -> dict[str, int]:
    """Up to which number each job's log was told; numbers beyond the jobs that there are say nothing."""
    numbers = [int(number) for number in position.split(".")]
    return {job_id: numbers[k] if k < len(numbers) else 0 for k, job_id in enumerate(order)}


def _spelled(seen: dict[str, int], order: Sequence[str]) -> str:
    numbers = [seen[job_id] for job_id in order]
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    return ".".join(map(str, numbers))


def _merged(events: Sequence[JobEvent]) -> list[JobEvent]:
    """By time, the events of each job by number; they come by job and number."""
    latest: dict[str, float] = {}
    keyed: list[tuple[float, str, int, JobEvent]] = []
    for event in events:
        # a clock that was set back must not turn the numbers round
        at = max(event.created_at.timestamp(), latest.get(event.job_id, 0.0))
        latest[event.job_id] = at
        keyed.append((at, event.job_id, event.seq, event))
    return [event for *_, event in sorted(keyed, key=lambda entry: entry[:3])]
