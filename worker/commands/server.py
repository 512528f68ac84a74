"""The way from the command line to a service: its address, its key, and whether anybody is there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from service.client import Client, ServerUnreachableError, UnauthorizedError
from service.client.address import SERVER_VARIABLE, checked_address
from worker.commands.crash import without_secrets

KNOCK_SECONDS = 10.0


@contextmanager
def connected(server: str | None, key: str | None) -> Iterator[Client]:
    """A client of the service at ``server``, or of the one that ``find_service`` finds, once somebody answers there.

    Raises:
        InvalidServerError: the address is not spelled as one.
        ServiceNotFoundError: no address is given, and this user runs no service here.
        ServerUnreachableError: nobody answers.
        ApiError: whatever the service refuses; without the right key its hint says how to give one.
    """
    told = server or os.environ.get(SERVER_VARIABLE)
    with Client(None if told is None else checked_address(told), key) as client:
        _knock(client.place.url)
        try:
            yield client
        except UnauthorizedError as error:
            word = "The key given is not the service's key" if client.place.headers else "The service wants a key"
            hint = f"{word}: give it with --key, or set QUANTMILL_API_KEY."
            raise UnauthorizedError(error.sent.model_copy(update={"hint": hint})) from None


def _knock(address: str) -> None:
    """Fail at once where nobody answers: patience is for a service that was there before."""
    try:
        httpx.get(f"{address}/healthz", timeout=KNOCK_SECONDS, trust_env=False).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerUnreachableError(
            f"No service answers at {without_secrets(address, (), {})}: {error}",
            hint="Check the address; `quantmill up` starts a service.",
        ) from None
