"""Threads for calls that block: so many for one kind of work, so that no kind can take them all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread
from anyio import CapacityLimiter

from service.contracts.http_errors import TransientError

_Got = TypeVar("_Got")


class ServiceBusyError(TransientError):
    """More of the same kind waits than the service gets done just now; nothing was stored."""

    code = "service-busy"
    title = "The service is busy"


class Threads:
    """A bounded number of calls at a time; those who wait for their turn hold no thread.

    Args:
        count: calls at a time.
        wait_seconds: how long a call waits for its turn.
    """

    def __init__(self, count: int, wait_seconds: float) -> None:
        self._turns = CapacityLimiter(count)
        self._unbounded = CapacityLimiter(math.inf)
        self._wait_seconds = wait_seconds

    async def run(self, action: Callable[[], _Got]) -> _Got:
        """The result of ``action``, called in a thread.

        Raises:
            ServiceBusyError: its turn did not come in time.
        """
        borrower = object()
        try:
            with anyio.fail_after(self._wait_seconds):
                await self._turns.acquire_on_behalf_of(borrower)
        except TimeoutError:
            raise ServiceBusyError(
                f"The turn of this request did not come within {self._wait_seconds:g} s.",
                hint="Nothing was stored; send the request again in a moment.",
            ) from None
        try:
            return await anyio.to_thread.run_sync(action, limiter=self._unbounded)
        finally:
            self._turns.release_on_behalf_of(borrower)
