"""A job's log, event by event: by its event stream, and by long polling where something cuts the stream."""

from __future__ import annotations

import time

import httpx

from service.client.connection import LONG_POLL_SECONDS, Connection, too_late
from service.client.errors import ApiError, raise_for_problem
from service.client.steps import Close, Give, Items, Opened, Steps, next_line, open_stream
from service.jobs.schemas import TERMINAL, EventOut, EventPage

# The service pings every 15 s: a stream that is silent for so long is dead.
STREAM_SILENCE_SECONDS = 45.0
# So many streams in a row that brought nothing, and there will be no further one: something between cuts or keeps them.
MOST_BARREN_STREAMS = 2
_EVENT_STREAM = "text/event-stream"


class Follower:
    """One job's events, each once and in order.

    Args:
        calls: how the service is asked.
        job_id: whose.
        after: events up to this number are known.
        timeout_seconds: for all of it; None: as long as the job takes.
    """

    def __init__(self, calls: Connection, job_id: str, after: int, timeout_seconds: float | None = None) -> None:
        self._calls = calls
        self._path = f"/v1/jobs/{job_id}"
        self._after = after
        self._barren = 0
        self._timeout_seconds = timeout_seconds
        self._ends = None if timeout_seconds is None else time.monotonic() + timeout_seconds

    def events(self) -> Items[EventOut, None]:
        """Give the events until the job has ended.

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

    def _by_stream(self) -> Items[EventOut, bool]:
        """Give what a stream brings; True if it told the job's end, False if it broke off before."""
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

    def _read(self, opened: Opened) -> Items[EventOut, bool]:
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
                event = EventOut.model_validate_json(data)
                self._after, self._barren = event.seq, 0
                yield Give(event)
                name, data = "message", ""
            self._check_time()
        return False

    def _by_pages(self, wait_seconds: float) -> Items[EventOut, bool]:
        """Give what is there; True if the job had ended before."""
        # asked before its events: those of a job that has ended are all there
        job = yield from self._calls._json("GET", self._path, wait_seconds=wait_seconds)
        while True:
            page = yield from self._page()
            for event in page.items:
                self._after = event.seq
                yield Give(event)
            if not page.has_more:
                return job["state"] in TERMINAL
            self._check_time()

    def _page(self) -> Steps[EventPage]:
        found = yield from self._calls._json(
            "GET", f"{self._path}/events", params={"after": self._after}, headers={"Accept": "application/json"}
        )
        return EventPage.model_validate(found)

    def _left(self) -> float:
        return float("inf") if self._ends is None else max(0.0, self._ends - time.monotonic())

    def _check_time(self) -> None:
        if self._timeout_seconds is not None and self._left() == 0.0:
            raise too_late(self._path, self._timeout_seconds)
