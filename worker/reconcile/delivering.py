"""Sends to endpoints what the outbox holds for them; loaded once there is something to send.

Each delivery is claimed under a lease that outlasts its request, so that nobody else sends it meanwhile. If this
process dies between the request and the note of what became of it, it is sent once more, under the same id.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

from service.contracts.errors import QuantmillError
from service.contracts.webhooks import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, signature
from service.db import Database
from service.egress.allowed import parse_allowed
from service.egress.errors import EgressError
from service.egress.sending import Bounds, Egress
from service.failpoints import reach
from service.settings import Settings
from service.webhooks.deliveries import repository
from service.webhooks.deliveries.repository import Claimed, Share
from service.webhooks.deliveries.retries import parse_schedule
from service.webhooks.deliveries.settling import Answer, Fate, settle
from service.webhooks.errors import SecretUnreadableError
from service.webhooks.secrets import Vault
from worker.lease import DATABASE_AWAY

log = logging.getLogger(__name__)

# What is kept of a reply is less; whoever sends more is not read to the end.
_REPLY_BYTES = 4096
# Between two attempts to note what became of a delivery, while the database is away.
_AWAY_SECONDS = 0.5


class Deliverer:
    """Deliveries of one process, some at a time.

    Args:
        settings: bounds and pauses.
        database: where the outbox is.
        vault: reads the secrets.
        egress: sends; default: within the bounds of the settings.
        on_end: called, in any thread, whenever a delivery has come to its end and there is room for another.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        vault: Vault,
        *,
        egress: Egress | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._database = database
        self._vault = vault
        bounds = Bounds(seconds=settings.webhook_seconds, reply_bytes=_REPLY_BYTES)
        self._egress = egress or Egress(parse_allowed(settings.egress_allowed), bounds)
        self._schedule = parse_schedule(settings.webhook_retry_seconds)
        self._failing_seconds = settings.webhook_failing_seconds
        self._slots = settings.webhook_slots
        self._share = Share(settings.webhook_endpoint_slots, max(1, settings.webhook_slots // 2))
        # The request's own time, and as long again as any worker is waited for.
        self._spare_seconds = settings.lease_seconds
        self._lease_seconds = self._egress.bounds.seconds + self._spare_seconds
        self._on_end = on_end
        self._threads = ThreadPoolExecutor(self._slots, thread_name_prefix="webhook")
        self._lock = Lock()
        self._under_way = 0

    def round(self) -> int:
        """Begin with what is due, as far as there is room; returns with how much."""
        with self._lock:
            free = self._slots - self._under_way
        if free <= 0:
            return 0
        began = time.monotonic()
        with self._database.write() as session:
            claimed = repository.claim(session, free=free, share=self._share, lease_seconds=self._lease_seconds)
        for delivery in claimed:
            with self._lock:
                self._under_way += 1
            self._threads.submit(self._deliver, delivery, began).add_done_callback(self._ended)
        return len(claimed)

    def close(self) -> None:
        """Wait for the end of what is under way, which is bounded."""
        self._threads.shutdown(wait=True)

    def _ended(self, done: Future[None]) -> None:
        with self._lock:
            self._under_way -= 1
        error = done.exception()
        if error is not None:  # it is claimed again once its lease is over
            log.error("webhook.broken", exc_info=error)
        self._on_end()

    def _deliver(self, claimed: Claimed, began: float) -> None:
        if time.monotonic() - began > self._spare_seconds:
            # this process was frozen: the lease may end within the request
            log.warning("webhook.late delivery_id=%s", claimed.id)
            return
        answer = self._send(claimed)
        reach("after_webhook_sent")
        fate = self._note(claimed, answer, began)
        told = log.info if fate == "delivered" else log.warning
        told(
            "webhook.%s delivery_id=%s webhook_id=%s type=%s attempt=%d status=%s error=%s",
            fate, claimed.id, claimed.endpoint_id, claimed.type, claimed.attempt, answer.status, answer.error,
        )  # fmt: skip

    def _send(self, claimed: Claimed) -> Answer:
        body = claimed.payload.encode()
        try:
            headers = self._headers(claimed, int(time.time()), body)
            reply = self._egress.send("POST", claimed.url, headers=headers, body=body)
        except (EgressError, SecretUnreadableError) as error:
            return Answer(None, error.code, _words(error))
        return Answer(reply.status, None, reply.body.decode(errors="replace"), reply.headers)

    def _headers(self, claimed: Claimed, timestamp: int, body: bytes) -> dict[str, str]:
        secrets = [self._vault.open(claimed.endpoint_id, claimed.sealed)]
        if claimed.previous_sealed is not None:
            secrets.append(self._vault.open(claimed.endpoint_id, claimed.previous_sealed))
        signatures = (signature(secret, claimed.event_id, timestamp, body) for secret in secrets)
        return {
            "Content-Type": "application/json",
            "User-Agent": "quantmill",
            ID_HEADER: claimed.event_id,
            TIMESTAMP_HEADER: str(timestamp),
            SIGNATURE_HEADER: " ".join(signatures),
        }

    def _note(self, claimed: Claimed, answer: Answer, began: float) -> Fate:
        """As long as the delivery is ours to note, also if the database is away for a moment."""
        while True:
            try:
                with self._database.write() as session:
                    return settle(
                        session,
                        claimed,
                        answer,
                        schedule=self._schedule,
                        failing_seconds=self._failing_seconds,
                    )
            except DATABASE_AWAY as error:
                if time.monotonic() - began > self._lease_seconds:
                    raise
                log.warning("webhook.database_away delivery_id=%s: %s", claimed.id, error)
                time.sleep(_AWAY_SECONDS)


def _words(error: QuantmillError) -> str:
    return f"{error.detail} {error.hint}" if error.hint else error.detail
