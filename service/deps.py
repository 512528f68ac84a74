"""What endpoints depend on: the desk (settings, database, store, dispatcher) and the principal."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from service.contracts.http_errors import HttpError
from service.db import Database
from service.jobs.dispatch import Dispatcher
from service.settings import Settings
from service.storage import FileStore

DEFAULT_TENANT = "default"
_bearer = HTTPBearer(auto_error=False, description="The key of QUANTMILL_API_KEY; not needed where none is set.")


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
    """Everything that one API process shares between requests."""

    settings: Settings
    database: Database
    store: FileStore
    dispatcher: Dispatcher

    @classmethod
    def from_settings(cls, settings: Settings) -> Desk:
        """Open everything that the settings name."""
        settings.make_folders()
        return cls(settings, Database(settings.database_url), FileStore(settings.storage_dir), Dispatcher(settings))

    def close(self) -> None:
        """Let go of connections and threads."""
        self.dispatcher.close()
        self.database.close()


@dataclass(frozen=True)
class Principal:
    """Who asks. Every statement about a noun is bound to the tenant."""

    tenant_id: str


def get_desk(request: Request) -> Desk:
    """The desk of the application that serves the request."""
    return cast(Desk, request.app.state.desk)


DeskDep = Annotated[Desk, Depends(get_desk)]


def get_principal(
    desk: DeskDep, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
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


def get_request_id(request: Request) -> str:
    """The id that the answer carries as X-Request-ID."""
    return cast(str, request.state.request_id)


RequestIdDep = Annotated[str, Depends(get_request_id)]
