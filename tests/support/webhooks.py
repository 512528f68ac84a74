"""Receivers of webhooks on loopback, and endpoints and deliveries as a test needs them."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from itertools import count
from typing import Any

import trustme
from sqlalchemy import select, update

from service.db import Database
from service.egress.addresses import parse_allowed
from service.egress.resolving import Resolver
from service.egress.sending import Bounds, Egress
from service.ids import new_id
from service.settings import Settings
from service.storage import FileStore
from service.tables import WebhookDelivery, WebhookEndpoint
from service.webhooks import repository
from service.webhooks.schemas import WebhookCreate
from service.webhooks.service import WebhookVault, make_secret
from tests.support.patience import PATIENCE_SECONDS
from tests.support.scripted import Script, Scripted, scripted
from worker.reconcile.sending import WebhookSender

HOST = "hooks.example"
TENANT = "acme"
PEPPER = "0a1b2c3d4e5f-of-some-length"
VAULT = WebhookVault(PEPPER)


@dataclass(frozen=True)
class Received:
    """One request: its headers by their lower-case names, and its body."""

    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


def received(server: Scripted) -> list[Received]:
    """What has come so far."""
    found = []
    for request in list(server.requests):
        head, _, body = request.partition(b"\r\n\r\n")
        lines = (line.decode().partition(": ") for line in head.split(b"\r\n")[1:])
        found.append(Received({name.lower(): value for name, _, value in lines}, body))
    return found


def answering(*statuses: int, headers: str = "") -> Script:
    """The first request gets the first status, and so on; all others the last."""
    numbers = count()

    def script(connection: socket.socket) -> None:
        status = statuses[min(next(numbers), len(statuses) - 1)]
        connection.sendall(f"HTTP/1.1 {status} Said\r\n{headers}Content-Length: 5\r\n\r\n<{status}>".encode())

    return script


def over_tls(script: Script, authority: trustme.CA, *, bodies: bool = True) -> AbstractContextManager[Scripted]:
    """A receiver with a certificate for HOST."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(HOST).configure_cert(context)
    return scripted(script, tls=context, bodies=bodies)


def egress_for(
    authority: trustme.CA,
    *ports: int,
    seconds: float = PATIENCE_SECONDS,
    resolver: Resolver = lambda *_: ["127.0.0.1"],
    allowed: str | None = None,
) -> Egress:
    """Reaches HOST on these ports, which is on loopback; believes the authority alone."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    listed = ",".join(f"{HOST}:{port}" for port in ports) if allowed is None else allowed
    return Egress(parse_allowed(listed), Bounds(seconds=seconds, reply_bytes=4096), resolver, context)


def add_endpoint(
    database: Database, url: str, event_types: Sequence[str] = ("*",), *, tenant: str = TENANT
) -> tuple[str, str]:
    """An enabled endpoint; its id and its secret."""
    endpoint_id, secret = new_id("whk"), make_secret()
    with database.write() as session:
        # not all that is sent to here may be asked for by clients
        body = WebhookCreate.model_construct(url=url, event_types=list(event_types), description=None, enabled=True)
        sealed = VAULT.seal(endpoint_id, secret)
        repository.create(session, tenant, endpoint_id, body, sealed=sealed, pepper_id=VAULT.pepper_id)
    return endpoint_id, secret


def webhook_sender(
    database: Database, settings: Settings, egress: Egress, vault: WebhookVault = VAULT
) -> WebhookSender:
    return WebhookSender(settings, database, FileStore(settings.storage_dir), vault=vault, egress=egress)


def deliver(database: Database, settings: Settings, egress: Egress) -> int:
    """One round of a sender of its own, to the end of all that it begins."""
    with closing(webhook_sender(database, settings, egress)) as sender:
        return sender.round()


def make_due(database: Database) -> None:
    """Let the pauses of all that waits be over."""
    with database.write() as session:
        waits = WebhookDelivery.next_attempt_at.is_not(None)
        session.execute(update(WebhookDelivery).where(waits).values(next_attempt_at=1.0))


def deliveries(database: Database, **columns: Any) -> list[WebhookDelivery]:
    """All of them in the order in which they were written."""
    with database.read() as session:
        return list(session.scalars(select(WebhookDelivery).filter_by(**columns).order_by(WebhookDelivery.id)))


def endpoint(database: Database, endpoint_id: str) -> WebhookEndpoint:
    with database.read() as session:
        return session.get_one(WebhookEndpoint, endpoint_id)


def set_endpoint(database: Database, endpoint_id: str, **values: Any) -> None:
    with database.write() as session:
        session.execute(update(WebhookEndpoint).where(WebhookEndpoint.id == endpoint_id).values(**values))
