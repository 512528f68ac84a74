"""Small things that every noun's HTTP face needs: entity tags, conditional requests, long polls, pages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool

from service.contracts.errors import InvalidRequestError

MAX_WAIT_SECONDS = 30.0
MAX_LIMIT = 200
DEFAULT_LIMIT = 50
_POLL_SECONDS = (0.05, 0.5)
_Seen = TypeVar("_Seen")
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Items per page.")]
CursorParameter = Annotated[str | None, Query(max_length=512, description="next_cursor of the page before.")]
Wait = Annotated[
    float,
    Query(ge=0, le=MAX_WAIT_SECONDS, description="Seconds to hold the answer back, if nothing changes before."),
]


def etag_matches(header: str | None, etag: str) -> bool:
    """True if an If-None-Match header names ``etag`` (weak comparison) or is ``*``."""
    if header is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return "*" in tags or etag in tags


async def poll(look: Callable[[], _Seen], done: Callable[[_Seen], bool], wait_seconds: float) -> _Seen:
    """Look (in a thread) until ``done`` or the time is over; returns what was seen last.

    No thread is held between looks, so that many waiting clients cost next to nothing.
    """
    ends = time.monotonic() + wait_seconds
    pause, longest = _POLL_SECONDS
    while True:
        seen = await run_in_threadpool(look)
        left = ends - time.monotonic()
        if done(seen) or left <= 0:
            return seen
        await asyncio.sleep(min(pause, left))
        pause = min(longest, pause * 1.5)


def only_parameters(*names: str, prefix: str | None = None) -> Callable[[Request], None]:
    """Dependency that refuses query parameters which would otherwise be passed over in silence."""

    def check(request: Request) -> None:
        for name in request.query_params:
            if name not in names and not (prefix and name.startswith(prefix)):
                raise InvalidRequestError(
                    f"Unknown query parameter {name!r}; known: {', '.join(sorted(names))}"
                    + (f", {prefix}<key>" if prefix else ""),
                    hint="Correct or remove the parameter.",
                    query=name,
                )

    return check
