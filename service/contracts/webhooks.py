"""Webhooks as both ends know them: what events there are, and how a request is signed (Standard Webhooks).

The signature is HMAC-SHA256 over ``id.timestamp.body`` under the secret's bytes, as https://www.standardwebhooks.com
specifies it. The service makes signatures by this module, ``quantmill.webhooks`` checks them by it.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import Literal

ID_HEADER = "webhook-id"
TIMESTAMP_HEADER = "webhook-timestamp"
SIGNATURE_HEADER = "webhook-signature"
SECRET_PREFIX = "whsec_"  # noqa: S105 - how secrets begin
SIGNATURE_VERSION = "v1"
# As the specification has them: shorter ones are guessed, longer ones are nobody's.
SECRET_BYTES = (24, 64)

# What may be subscribed to: a resource's events by name, or all of them by ``job.*``. Resources without names tell of
# themselves by the wildcard alone, as long as nothing here sends them by name.
EVENT_TYPES: dict[str, tuple[str, ...]] = {
    "job": ("queued", "running", "succeeded", "failed", "canceled"),
    "model": ("ready", "rejected"),
    "dataset": ("ready", "rejected"),
    "alias": ("moved",),
    "schedule": ("fired", "skipped", "passed", "failed"),
    "webhook": ("disabled",),
}
EVERYTHING = "*"
PING = "webhook.ping"
DISABLED = "webhook.disabled"
DisabledReason = Literal["gone", "failing", "client"]


def patterns() -> tuple[str, ...]:
    """Everything that an endpoint may subscribe to."""
    named = (f"{noun}.{name}" for noun, names in EVENT_TYPES.items() for name in names)
    return (EVERYTHING, *(f"{noun}.*" for noun in EVENT_TYPES), *named)


def secret_bytes(secret: str) -> bytes:
    """The key that a secret stands for.

    Raises:
        ValueError: it is not spelled as one.
    """
    text = secret.removeprefix(SECRET_PREFIX)
    try:
        found = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("a secret is whsec_ and base64") from None
    if not SECRET_BYTES[0] <= len(found) <= SECRET_BYTES[1]:
        raise ValueError(f"a secret has {SECRET_BYTES[0]} to {SECRET_BYTES[1]} bytes")
    return found


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """One entry of the signature header.

    Raises:
        ValueError: the secret is not spelled as one.
    """
    signed = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.digest(secret_bytes(secret), signed, "sha256")
    return f"{SIGNATURE_VERSION},{base64.b64encode(digest).decode()}"
