"""A log, event by event: by its event stream, and by long polling where something cuts the stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import httpx

from service.batches.schemas import BatchEventOut
from service.client.connection import LONG_POLL_SECONDS, Connection, too_late
from service.client.errors import ApiError, raise_for_problem
from service.client.steps import Close, Give, Items, Opened, Steps, next_line, open_stream
from service.jobs.schemas import TERMINAL, EventOut

# The service pings every 15 s: a stream that is silent for so long is dead.
STREAM_SILENCE_SECONDS = 45.0
# So many streams in a row that brought nothing, and there will be no further one: something between cuts or keeps them.
MOST_BARREN_STREAMS = 2
_EVENT_STREAM = "text/event-stream"


_Event = TypeVar("_Event", bound=EventOut)


@dataclass(frozen=True)
class Log(Generic[_Event]):
    """Whose events are followed."""

    path: str  # of the job or batch, which has a state; its events are below
    kind: type[_Event]  # of an event
    position: Callable[[_Event], int | str]  # behind which event a stream or page goes on


def log_of_job(job_id: str) -> Log[EventOut]:
    """Of a job."""
    return Log(f"/v1/jobs/{job_id}", EventOut, lambda event: event.seq)


def log_of_batch(batch_id: str) -> Log[BatchEventOut]:
    """Of all jobs of a batch."""
    return Log(f"/v1/batches/{batch_id}", BatchEventOut, lambda event: event.position)


class Follower(Generic[_Event]):
    """The events of a log, each once and in order.

    Args:
        calls: how the service is asked.
        log: which.
        after: events up to this position are known.
        timeout_seconds: for all of it; None: as long as it takes.
    """

    def __init__(
        self, calls: Connection, log: Log[_Event], after: int | str, timeout_seconds: float | None = None
    ) -> None:
        self._calls = calls
        self._log = log
        self._path = log.path
        self._after = after
        self._barren = 0
        self._timeout_seconds = timeout_seconds
        self._ends = None if timeout_seconds is None else time.monotonic() + timeout_seconds

    def events(self) -> Items[_Event, None]:
        """Give the events until the end.

        Raises:
            ApiError: the service refused for good.
            ServerUnreachableError: the service does not answer.
            WaitTimeoutError: the time is up.
        """
        ended = False
        while not ended:
            streams = self._barren < MOST_BARREN_STREAMS
            if streams:
                ended = yield from self._by_stream()
            if not ended:
                self._check_time()
                ended = yield from self._by_pages(0.0 if streams else min(LONG_POLL_SECONDS, self._left()))

    def _by_stream(self) -> Items[_Event, bool]:
        """Give what a stream brings; True if it told the end, False if it broke off before."""
        headers = {"Accept": _EVENT_STREAM, "Last-Event-ID": str(self._after)}
        silence = min(STREAM_SILENCE_SECONDS, max(1.0, self._left()))
        self._barren += 1
        try:
            opened = yield from open_stream(f"{self._path}/events", headers, silence_seconds=silence, lines=True)
            raise_for_problem(opened.response)
            if not opened.response.headers.get("Content-Type", "").startswith(_EVENT_STREAM):
                return False
            return (yield from self._read(opened))
        except httpx.TransportError:
            return False
        except ApiError as error:
            if not error.passing:
                raise
            return False

    def _read(self, opened: Opened) -> Items[_Event, bool]:
        name, data = "message", ""
        while (line := (yield from next_line(opened))) is not None:
            key, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if key == "event":
                name = value
            elif key == "data":
                data = value
            elif not line and data:
                if name == "end":
                    yield Close(opened)
                    return True
                event = self._log.kind.model_validate_json(data)
                self._after, self._barren = self._log.position(event), 0
                yield Give(event)
                name, data = "message", ""
            self._check_time()
        return False

    def _by_pages(self, wait_seconds: float) -> Items[_Event, bool]:
        """Give what is there; True if it had ended before."""
        # asked before its events: those of what has ended are all there
        followed = yield from self._calls._json("GET", self._path, wait_seconds=wait_seconds)
        while True:
            events, more = yield from self._page()
            for event in events:
                self._after = self._log.position(event)
                yield Give(event)
            if not more:
                return followed["state"] in TERMINAL
            self._check_time()

    def _page(self) -> Steps[tuple[list[_Event], bool]]:
        found = yield from self._calls._json(
            "GET", f"{self._path}/events", params={"after": self._after}, headers={"Accept": "application/json"}
        )
        return [self._log.kind.model_validate(item) for item in found["items"]], bool(found["has_more"])

    def _left(self) -> float:
        return float("inf") if self._ends is None else max(0.0, self._ends - time.monotonic())

    def _check_time(self) -> None:
        if self._timeout_seconds is not None and self._left() == 0.0:
            raise too_late(self._path, self._timeout_seconds)
