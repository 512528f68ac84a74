"""Sends the contents of outboxes: the part shared by all senders, and webhook events.

What is sent is claimed under a lease that outlasts its request, or is renewed while that lasts: nobody else sends it
meanwhile. If this process dies between the request and the note of what became of it, it is sent once more, under the
same id.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import ClassVar, Generic, TypeVar

from sqlalchemy.orm import Session

from service import tracing
from service.contracts.errors import QuantmillError
from service.contracts.webhooks import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, signature
from service.db import Database
from service.egress.addresses import parse_allowed
from service.egress.attempts import SendResult, parse_schedule
from service.egress.errors import EgressError
from service.egress.sending import Bounds, Egress, Reply
from service.failpoints import reach
from service.hand_overs.repository import ClaimedHandOver
from service.monitoring.declarations import SENT
from service.sealing import Vault
from service.settings import Settings
from service.storage import Store
from service.webhooks import repository
from service.webhooks.outbox import settle
from service.webhooks.repository import ClaimedDelivery
from service.webhooks.service import WebhookVault
from worker.lease import DATABASE_AWAY

log = logging.getLogger(__name__)
# What is kept of a reply is less; whoever sends more is not read to the end.
REPLY_BYTES = 4096
# Between two attempts to note what became of something, while the database is away.
_AWAY_SECONDS = 0.5
# Another attempt would meet with the same.
_FINAL_STATUS = 422
# From this one on an error is not the client's.
_OUR_FAULT = 500
_Claimed = TypeVar("_Claimed", ClaimedDelivery, ClaimedHandOver)
_Noted = TypeVar("_Noted")


class OutboxSender(ABC, Generic[_Claimed]):
    """Sends what is due, some at a time; a subclass says what and how.

    Args:
        settings: bounds and pauses.
        database: where the outbox is.
        store: where files are.
        vault: decrypts; default: that of the installation.
        egress: sends; default: within the bounds of the settings.
        on_end: called, in any thread, whenever one has come to its end and there is room for another.

    Raises:
        QuantmillError: ``unavailable`` of the vault: the installation cannot decrypt.
    """

    # Of what is sent, in logs, failpoints and threads; and of its id, in logs.
    name: ClassVar[str]
    id_name: ClassVar[str]
    # What decrypts for it.
    vault: ClassVar[type[Vault]]

    def __init__(
        self,
        settings: Settings,
        database: Database,
        store: Store,
        *,
        vault: Vault | None = None,
        egress: Egress | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings, self._database, self._store = settings, database, store
        self._vault = vault or self.vault.of(settings)
        bounds = Bounds(seconds=settings.webhook_seconds, reply_bytes=REPLY_BYTES)
        self._egress = egress or Egress(parse_allowed(settings.egress_allowed), bounds)
        self._schedule = parse_schedule(settings.webhook_retry_seconds)
        # The request's own time, and as long again as any worker is waited for.
        self._lease_seconds = self._egress.bounds.seconds + settings.lease_seconds
        self._on_end = on_end
        self._threads = ThreadPoolExecutor(self._slots, thread_name_prefix=self.name)
        self._under_way: set[Future[None]] = set()
        self._interrupted = Event()

    def round(self) -> int:
        """Begin with what is due, as far as there is room; returns with how much."""
        free = self._slots - len(self._under_way)
        if free <= 0:
            return 0
        began = time.monotonic()
        with self._database.write() as session:
            claimed = self._claim(session, free)
        for one in claimed:
            sent = self._threads.submit(self._send, one, began)
            self._under_way.add(sent)
            sent.add_done_callback(self._ended)
        return len(claimed)

    def interrupt(self) -> None:
        """Have what is under way end soon; what would last is broken off, and left to another process."""
        self._interrupted.set()

    def close(self) -> None:
        """Wait for the end of what is under way, which is bounded."""
        self._threads.shutdown(wait=True)

    @property
    @abstractmethod
    def _slots(self) -> int:
        """How many at a time."""

    @abstractmethod
    def _claim(self, session: Session, free: int) -> Sequence[_Claimed]:
        """Take up to so many that are due."""

    @abstractmethod
    def _request(self, claimed: _Claimed, began: float) -> Reply:
        """Send one; ``began`` is the moment before the claim, of the monotonic clock.

        Raises:
            QuantmillError: what kept it from a reply.
        """

    @abstractmethod
    def _settle(self, session: Session, claimed: _Claimed, result: SendResult) -> str:
        """Note what an attempt met with; the fate, a word for the log."""

    @abstractmethod
    def _facts(self, claimed: _Claimed) -> str:
        """What the log tells of it beside its id."""

    def _about(self, claimed: _Claimed) -> str:
        return f"{self.name} {self.id_name}={claimed.id}"

    def _send(self, claimed: _Claimed, began: float) -> None:
        if time.monotonic() - began > self._settings.lease_seconds:
            # this process was frozen: the lease may end within the request
            log.warning("%s.late %s=%s", self.name, self.id_name, claimed.id)
            return
        parent = tracing.remote(claimed.trace_context)
        told: tracing.Attributes = {self.id_name: claimed.id, "attempt": claimed.attempt}
        with tracing.span(f"{self.name}.send", told, parent=parent, kind=tracing.SpanKind.CLIENT) as sent:
            result = self._result(claimed, began)
            if not result.is_success:
                tracing.failed(sent, str(result.error or result.status))
            reach(f"after_{self.name}_sent")
            fate = self._note(claimed, lambda session: self._settle(session, claimed, result))
            # hand-overs are done where deliveries are delivered
            SENT.labels(f"{self.name}s", "delivered" if fate == "done" else fate).inc()
            log.log(
                logging.INFO if fate in {"delivered", "done"} else logging.WARNING,
                "%s.%s %s=%s %s attempt=%d status=%s error=%s",
                self.name, fate, self.id_name, claimed.id, self._facts(claimed), claimed.attempt, result.status,
                result.error,
            )  # fmt: skip

    def _result(self, claimed: _Claimed, began: float) -> SendResult:
        """What an attempt met with. A fault of ours is an attempt like any other: it is not tried without end."""
        try:
            reply = self._request(claimed, began)
        except QuantmillError as error:
            if error.status >= _OUR_FAULT and not isinstance(error, EgressError):
                log.warning("%s.trouble", self._about(claimed), exc_info=error)
            words = f"{error.detail} {error.hint}" if error.hint else error.detail
            return SendResult(None, error.code, words, final=error.status == _FINAL_STATUS)
        except Exception:
            log.exception("%s.fault", self._about(claimed))
            return SendResult(None, "internal-error", "Internal error of the service; see its log.")
        return SendResult(reply.status, None, reply.body.decode(errors="replace"), reply.headers)

    def _note(self, claimed: _Claimed, note: Callable[[Session], _Noted]) -> _Noted:
        """Note what became of something, also if the database is away for a moment. It may be another's by then: who
        notes is asked for the attempt.
        """
        began = time.monotonic()
        while True:
            try:
                with self._database.write() as session:
                    return note(session)
            except DATABASE_AWAY as error:
                if time.monotonic() - began > self._settings.lease_seconds:
                    raise
                log.warning("%s.database_away: %s", self._about(claimed), error)
                time.sleep(_AWAY_SECONDS)

    def _ended(self, done: Future[None]) -> None:
        self._under_way.discard(done)
        error = done.exception()
        if error is not None:  # it is claimed again once its lease is over
            log.error("%s.broken", self.name, exc_info=error)
        self._on_end()


# Sends to endpoints what the outbox holds for them. See ``sending``.


class WebhookSender(OutboxSender[ClaimedDelivery]):
    """Deliveries of one process, some at a time."""

    name, id_name, vault = "webhook", "delivery_id", WebhookVault
    _vault: WebhookVault

    @property
    def _slots(self) -> int:
        return self._settings.webhook_slots

    def _claim(self, session: Session, free: int) -> Sequence[ClaimedDelivery]:
        return repository.claim(
            session,
            free=free,
            most_of_endpoint=self._settings.webhook_endpoint_slots,
            most_of_tenant=max(1, self._slots // 2),
            lease_seconds=self._lease_seconds,
        )

    def _request(self, claimed: ClaimedDelivery, began: float) -> Reply:
        body = claimed.payload.encode()
        headers = self._headers(claimed, int(time.time()), body)
        return self._egress.send("POST", claimed.url, headers=headers, body=body)

    def _headers(self, claimed: ClaimedDelivery, timestamp: int, body: bytes) -> dict[str, str]:
        sealed = filter(None, (claimed.sealed, claimed.previous_sealed))
        secrets = [self._vault.open(claimed.endpoint_id, one) for one in sealed]
        signatures = (signature(secret, claimed.event_id, timestamp, body) for secret in secrets)
        return {
            "Content-Type": "application/json",
            "User-Agent": "quantmill",
            ID_HEADER: claimed.event_id,
            TIMESTAMP_HEADER: str(timestamp),
            SIGNATURE_HEADER: " ".join(signatures),
            **(tracing.carrier() or {}),
        }

    def _settle(self, session: Session, claimed: ClaimedDelivery, result: SendResult) -> str:
        failing_seconds = self._settings.webhook_failing_seconds
        return settle(session, claimed, result, schedule=self._schedule, failing_seconds=failing_seconds)

    def _facts(self, claimed: ClaimedDelivery) -> str:
        return f"webhook_id={claimed.endpoint_id} type={claimed.type}"
