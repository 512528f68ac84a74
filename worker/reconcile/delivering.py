"""Sends to endpoints what the outbox holds for them; loaded once there is something to send. See ``sending``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from service.contracts.webhooks import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, signature
from service.db import Database
from service.egress.allowed import parse_allowed
from service.egress.answers import Answer
from service.egress.errors import EgressError
from service.egress.retries import parse_schedule
from service.egress.sending import Bounds, Egress
from service.failpoints import reach
from service.settings import Settings
from service.webhooks.deliveries import repository
from service.webhooks.deliveries.repository import Claimed, Share
from service.webhooks.deliveries.settling import settle
from service.webhooks.errors import SecretUnreadableError
from service.webhooks.secrets import Vault
from worker.reconcile.sending import Pool, PooledSender, answered, note_while_leased, words_of

log = logging.getLogger(__name__)

# What is kept of a reply is less; whoever sends more is not read to the end.
_REPLY_BYTES = 4096


class Deliverer(PooledSender):
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
        self._share = Share(settings.webhook_endpoint_slots, max(1, settings.webhook_slots // 2))
        # The request's own time, and as long again as any worker is waited for.
        self._spare_seconds = settings.lease_seconds
        self._lease_seconds = self._egress.bounds.seconds + self._spare_seconds
        self._pool = Pool("webhook", settings.webhook_slots, self._claim, self._deliver, on_end)

    def _claim(self, free: int) -> list[Claimed]:
        with self._database.write() as session:
            return repository.claim(session, free=free, share=self._share, lease_seconds=self._lease_seconds)

    def _deliver(self, claimed: Claimed, began: float) -> None:
        if time.monotonic() - began > self._spare_seconds:
            # this process was frozen: the lease may end within the request
            log.warning("webhook.late delivery_id=%s", claimed.id)
            return
        answer = answered(lambda: self._send(claimed), f"webhook delivery_id={claimed.id}")
        reach("after_webhook_sent")
        fate = note_while_leased(
            self._database,
            lambda session: settle(
                session, claimed, answer, schedule=self._schedule, failing_seconds=self._failing_seconds
            ),
            began=began,
            lease_seconds=self._lease_seconds,
            about=f"webhook delivery_id={claimed.id}",
        )
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
            return Answer(None, error.code, words_of(error))
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
