"""Thread pools for blocking calls, limited per kind of work and per tenant.

Of one kind a tenant has three quarters of the threads at most, and half of them on one route: whoever is slow, or asks
for what is slow, waits behind their own, and others go on.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import NamedTuple, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

from service.contracts.command_errors import TransientError

_Got = TypeVar("_Got")
_TENANT_SHARE, _ROUTE_SHARE = 0.75, 0.5


class Asker(NamedTuple):
    """For whom and by which route something is done; without a tenant: for whom it is not known yet."""

    tenant_id: str = ""
    route: str = ""


_NOBODY = Asker()
# Of the request that this task serves.
asker: ContextVar[Asker] = ContextVar("asker", default=_NOBODY)


class ServiceBusyError(TransientError, code="service-busy", title="Service busy"):
    """The service has more requests of this kind than it can process at the moment; nothing was stored."""


class Threads:
    """A bounded number of calls at a time; those who wait for their turn hold no thread.

    Turns go to tenants that have fewest, and among these to who came first. Within one event loop at a time.

    Args:
        count: calls at a time.
        wait_seconds: how long a call waits for its turn.
    """

    def __init__(self, count: int, wait_seconds: float) -> None:
        self._count = count
        self._wait_seconds = wait_seconds
        self._unbounded = CapacityLimiter(math.inf)
        self._running = 0
        self._of_tenants: Counter[str] = Counter()
        self._of_askers: Counter[Asker] = Counter()
        self._waiting: list[tuple[Asker, asyncio.Future[None]]] = []

    async def run(self, action: Callable[[], _Got]) -> _Got:
        """The result of ``action``, called in a thread.

        Raises:
            ServiceBusyError: its turn did not come in time.
        """
        mine = asker.get()
        await self._turn(mine)
        try:
            return await anyio.to_thread.run_sync(action, limiter=self._unbounded)
        finally:
            self._count_in(mine, -1)
            self._give_turns()

    async def _turn(self, mine: Asker) -> None:
        if self._may(mine):  # who waits, may not
            self._count_in(mine, 1)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((mine, turn))
        try:
            async with asyncio.timeout(None if math.isinf(self._wait_seconds) else self._wait_seconds):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # it came at the last moment
                self._count_in(mine, -1)
                self._give_turns()
            else:
                with suppress(ValueError):
                    self._waiting.remove((mine, turn))
            if isinstance(error, TimeoutError):
                raise ServiceBusyError(
                    f"The request could not be started within {self._wait_seconds:g} s.",
                    hint="Nothing was stored; send the request again in a moment.",
                ) from None
            raise

    def _may(self, mine: Asker) -> bool:
        return (
            self._running < self._count
            and self._of_tenants[mine.tenant_id] < max(1, int(_TENANT_SHARE * self._count))
            and self._of_askers[mine] < max(1, int(_ROUTE_SHARE * self._count))
        )

    def _give_turns(self) -> None:
        # one whose time is over is done, and goes away by itself
        while able := [waiter for waiter in self._waiting if not waiter[1].done() and self._may(waiter[0])]:
            waiter = min(able, key=lambda one: self._of_tenants[one[0].tenant_id])
            self._waiting.remove(waiter)
            self._count_in(waiter[0], 1)
            waiter[1].set_result(None)

    def _count_in(self, mine: Asker, change: int) -> None:
        self._running += change
        # adding an empty counter drops the zeros: neither grows with those who have come
        self._of_tenants[mine.tenant_id] += change
        self._of_tenants += Counter()
        self._of_askers[mine] += change
        self._of_askers += Counter()
