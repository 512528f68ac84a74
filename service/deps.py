"""What endpoints depend on: the desk (settings, database, store, dispatcher) and the principal."""

from __future__ import annotations

import hmac
import math
import time
from dataclasses import dataclass, field
from typing import Annotated, cast

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from service.contracts.http_errors import HttpError
from service.db import Database
from service.health.service import Readiness
from service.jobs.dispatch import Dispatcher
from service.jobs.publisher import Publisher
from service.notifier import Notifier
from service.patience import Patience
from service.settings import Settings
from service.storage import FileStore
from service.threads import Threads

DEFAULT_TENANT = "default"
# Reading calls to the database at a time; with the writers they need fewer connections than there are.
READERS = 24
# Bodies that are looked into at a time: whoever sends costly ones waits for others of the kind.
CHECKERS = 2
# Uploads whose bytes are read again, hashed or made durable at a time, which takes as long as the disk does.
DISK_WORKERS = 8
BEARER = HTTPBearer(auto_error=False, description="The key of QUANTMILL_API_KEY; not needed where none is set.")


class UnauthorizedError(HttpError):
    """The request carries no key, or a wrong one."""

    code = "unauthorized"
    title = "A key is needed"
    status = 401

    def headers(self) -> dict[str, str]:
        """Names the scheme."""
        return {"WWW-Authenticate": "Bearer"}


@dataclass(frozen=True)
class Desk:
    """Everything that one API process shares between requests; ``opened_at`` is a moment of the monotonic clock.

    ``reads`` and ``writes`` are the threads for calls to the database: writers that wait for a lock keep no reader
    waiting. ``checks`` are those that compute, on bodies of requests and on reports; ``disk`` those that end uploads.
    """

    settings: Settings
    database: Database
    store: FileStore
    dispatcher: Dispatcher
    publisher: Publisher
    notifier: Notifier
    readiness: Readiness
    reads: Threads
    writes: Threads
    checks: Threads
    disk: Threads
    opened_at: float = field(default_factory=time.monotonic)

    @classmethod
    def from_settings(cls, settings: Settings) -> Desk:
        """Open everything that the settings name."""
        settings.make_folders()
        database = Database(settings.database_url, patience=_patience(settings))
        store = FileStore(settings.storage_dir)
        dispatcher = Dispatcher(settings)
        reads = Threads(READERS, settings.api_answer_seconds)
        return cls(
            settings=settings,
            database=database,
            store=store,
            dispatcher=dispatcher,
            publisher=Publisher(dispatcher, database),
            notifier=Notifier(database, reads),
            readiness=Readiness(settings, database, store, dispatcher),
            reads=reads,
            writes=Threads(settings.api_writers, settings.api_lock_seconds),
            checks=Threads(CHECKERS, settings.api_answer_seconds),
            disk=Threads(DISK_WORKERS, math.inf),
        )

    def close(self) -> None:
        """Let go of connections and threads."""
        self.publisher.close()
        self.dispatcher.close()
        self.database.close()


def _patience(settings: Settings) -> Patience:
    """Of the front desk: a client is told soon that it has to come back."""
    return Patience(
        lock_seconds=settings.api_lock_seconds,
        answer_seconds=settings.api_answer_seconds,
        connect_seconds=2.0,
        pool_seconds=settings.api_lock_seconds,
        writers=settings.api_writers,
        pause_seconds=1.0,
    )


@dataclass(frozen=True)
class Principal:
    """Who asks. Every statement about a noun is bound to the tenant."""

    tenant_id: str


async def get_desk(request: Request) -> Desk:
    """The desk of the application that serves the request."""
    return cast(Desk, request.app.state.desk)


DeskDep = Annotated[Desk, Depends(get_desk)]


async def get_principal(
    desk: DeskDep, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]
) -> Principal:
    """Check the key, where one is set.

    Raises:
        UnauthorizedError: no key, or a wrong one.
    """
    wanted = desk.settings.api_key
    if wanted is None:
        return Principal(DEFAULT_TENANT)
    given = "" if credentials is None else credentials.credentials
    if not hmac.compare_digest(given.encode(), wanted.get_secret_value().encode()):
        raise UnauthorizedError(
            "The request carries no valid key.",
            hint="Send 'Authorization: Bearer KEY' with the key of the service.",
            header="Authorization",
        )
    return Principal(DEFAULT_TENANT)


PrincipalDep = Annotated[Principal, Depends(get_principal)]


async def get_request_id(request: Request) -> str:
    """The id that the answer carries as X-Request-ID."""
    return cast(str, request.state.request_id)


RequestIdDep = Annotated[str, Depends(get_request_id)]
