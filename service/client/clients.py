"""The two clients: the calls of all resources, done by a driver that blocks or by one that awaits."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from service.client.administration import AdministrationCalls
from service.client.batches import BatchCalls
from service.client.driving import Awaiting, AwaitingDriver, Blocking, BlockingDriver
from service.client.jobs import JobCalls
from service.client.models import ModelCalls
from service.client.results import ResultCalls
from service.client.schedules import ScheduleCalls
from service.client.webhooks import WebhookCalls


class _Calls(ModelCalls, JobCalls, BatchCalls, ResultCalls, ScheduleCalls, WebhookCalls, AdministrationCalls):
    """What both clients can do."""


class Client(_Calls, Blocking):
    """One service. Without arguments: that of QUANTMILL_SERVER, or else what this user runs on this host.

    Lost connections and passing trouble (503 and the like, or a 429 that says when to come again) are endured for
    ``patience_seconds``. Models, datasets, jobs and batches are made under idempotency keys: none is made twice.

    Args:
        base_url: such as ``http://127.0.0.1:8000``.
        key: a key of the service; default: QUANTMILL_API_KEY, or that of the user's own service on this host.
        timeout_seconds: for a single answer.
        patience_seconds: how long trouble may go on before it is reported.

    Raises (all methods):
        ApiError: the service refused; carries its problem, its subclasses tell the kind.
        ServerUnreachableError: the service does not answer.
    """

    _driving = BlockingDriver

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._driver.close()


class CommandClient(Client):
    """The command line's: it says errors in words of its own."""

    @staticmethod
    def _words(text: str) -> str:
        return text


class AsyncClient(_Calls, Awaiting):
    """As ``Client``, with calls that are awaited and iterators for ``async for``, on asyncio or trio."""

    _driving = AwaitingDriver

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._driver.close()
