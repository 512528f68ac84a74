"""Sends to endpoints what the outbox holds for them. See ``sending``."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlalchemy.orm import Session

from service.contracts.webhooks import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, signature
from service.egress.attempts import SendResult
from service.egress.sending import Reply
from service.webhooks import repository
from service.webhooks.repository import ClaimedDelivery
from service.webhooks.secrets import WebhookVault
from service.webhooks.settling import settle
from worker.reconcile.sending import OutboxSender


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
        }

    def _settle(self, session: Session, claimed: ClaimedDelivery, result: SendResult) -> str:
        failing_seconds = self._settings.webhook_failing_seconds
        return settle(session, claimed, result, schedule=self._schedule, failing_seconds=failing_seconds)

    def _facts(self, claimed: ClaimedDelivery) -> str:
        return f"webhook_id={claimed.endpoint_id} type={claimed.type}"
