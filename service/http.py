"""Small things that every noun's HTTP face needs: entity tags, conditional requests, long polls, checked texts."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import Query, Request
from pydantic import AfterValidator, Field
from starlette.concurrency import run_in_threadpool

from service.contracts.errors import InvalidRequestError, QuantmillError

MAX_WAIT_SECONDS = 30.0
_POLL_SECONDS = (0.05, 0.5)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_Seen = TypeVar("_Seen")


class HttpError(QuantmillError):
    """An error whose answer carries headers of its own."""

    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        return {}


class TransientError(HttpError):
    """It cannot be done right now; asking again later may help."""

    status = 503
    retry_after_seconds = 1

    def headers(self) -> dict[str, str]:
        """Says when to ask again."""
        return {"Retry-After": str(self.retry_after_seconds)}


def plain_text(value: str) -> str:
    """Refuse control characters, which databases and terminals disagree about."""
    if _CONTROL.search(value):
        raise ValueError("must not hold control characters")
    return value


Text = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(plain_text)]
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
