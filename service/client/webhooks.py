"""Webhooks: where the service tells of events, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence

from service.client.connection import Connection, as_parameters
from service.client.driving import Call, Each
from service.client.steps import Items, Steps
from service.pagination import Page
from service.webhooks.schemas import DAY_SECONDS, DeliveryOut, WebhookMade, WebhookOut

_PATH = "/v1/webhooks"


class WebhookCalls(Connection):
    """Calls of ``/v1/webhooks``; they need a key of scope ``manage``."""

    @Call
    def create_webhook(
        self, url: str, event_types: Sequence[str] = ("*",), *, description: str | None = None, enabled: bool = True
    ) -> Steps[WebhookMade]:
        """Have a URL told of events. ``secret`` of the answer is shown this once.

        Args:
            url: https, of a host on the public internet, or what an operator allows.
            event_types: such as ``job.*`` and ``model.ready``; ``*`` for all.
            description: for people.
            enabled: False: nothing is kept for it until it is enabled.
        """
        body = {"url": url, "event_types": list(event_types), "description": description, "enabled": enabled}
        return WebhookMade.model_validate((yield from self._json("POST", _PATH, json=body)))

    @Each
    def webhooks(self, *, limit: int | None = None) -> Items[WebhookOut, None]:
        """All webhooks, the newest first, read page by page; at most ``limit``."""
        yield from self._all(_PATH, WebhookOut, {}, limit)

    @Call
    def webhook(self, webhook_id: str) -> Steps[WebhookOut]:
        """One webhook."""
        return (yield from self._get(WebhookOut, f"{_PATH}/{webhook_id}"))

    @Call
    def change_webhook(
        self,
        webhook: WebhookOut,
        *,
        url: str | None = None,
        event_types: Sequence[str] | None = None,
        description: str | None = None,
        enabled: bool | None = None,
    ) -> Steps[WebhookOut]:
        """Change a webhook that was seen; what is None stays.

        Args:
            webhook: as client.webhook(ID) gives it.
            url: as in ``create_webhook``, like the others.
            event_types: in place of all there were.
            description: for people.
            enabled: whether it is told of events.

        Raises:
            ApiError: ``precondition-failed``, if somebody else has changed it since.
        """
        given = {
            "url": url,
            "event_types": None if event_types is None else list(event_types),
            "description": description,
            "enabled": enabled,
        }
        changes = as_parameters(given)
        headers = {"If-Match": f'"{webhook.row_version}"'}
        answer = yield from self._json("PATCH", f"{_PATH}/{webhook.id}", json=changes, headers=headers)
        return WebhookOut.model_validate(answer)

    @Call
    def delete_webhook(self, webhook_id: str) -> Steps[None]:
        """Delete a webhook with its deliveries."""
        yield from self._request("DELETE", f"{_PATH}/{webhook_id}")

    @Call
    def rotate_webhook(self, webhook_id: str, *, grace_seconds: float = DAY_SECONDS) -> Steps[WebhookMade]:
        """A new secret, shown this once; the old one signs beside it for the grace."""
        body = {"grace_seconds": grace_seconds}
        return WebhookMade.model_validate((yield from self._json("POST", f"{_PATH}/{webhook_id}/rotate", json=body)))

    @Call
    def ping_webhook(self, webhook_id: str) -> Steps[DeliveryOut]:
        """Have ``webhook.ping`` sent; the delivery is on its way, not there."""
        return DeliveryOut.model_validate((yield from self._json("POST", f"{_PATH}/{webhook_id}/ping")))

    @Call
    def webhook_deliveries(
        self, webhook_id: str, *, state: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> Steps[Page[DeliveryOut]]:
        """What was sent, or waits to be, the newest first: one page, and the cursor of the next."""
        parameters = as_parameters({"state": state, "limit": limit, "cursor": cursor})
        return (yield from self._get(Page[DeliveryOut], f"{_PATH}/{webhook_id}/deliveries", params=parameters))

    @Call
    def redeliver(self, webhook_id: str, delivery_id: str) -> Steps[DeliveryOut]:
        """Have a delivery sent (again) now, under the same id."""
        path = f"{_PATH}/{webhook_id}/deliveries/{delivery_id}/redeliver"
        return DeliveryOut.model_validate((yield from self._json("POST", path)))
