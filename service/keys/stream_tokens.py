"""Tokens for event streams: a browser's EventSource sends no headers, so that its URL has to say whose it is.

A token is good for one path and a few minutes, and reads nothing else. It is signed, not stored: HMAC-SHA256 over
holder, path and end, under a key derived from the installation's secret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import dataclass

SECONDS = 300
MOST_CHARS = 1024
_MAC_BYTES = 32


@dataclass(frozen=True)
class StreamHolder:
    """Whom a token stands for; see Principal."""

    tenant_id: str
    actor: str


class StreamTokens:
    """Makes and reads tokens; processes with the same secret read each other's.

    Args:
        secret: of the installation.
    """

    def __init__(self, secret: str) -> None:
        self._key = hashlib.sha256(f"stream:{secret}".encode()).digest()

    def make(self, holder: StreamHolder, path: str, ends_at: float) -> str:
        """A token for ``path``, good until ``ends_at`` (UTC, seconds since 1970)."""
        payload = json.dumps([holder.tenant_id, holder.actor, path, ends_at]).encode()
        return base64.urlsafe_b64encode(self._mac(payload) + payload).decode().rstrip("=")

    def read(self, token: str, path: str, now: float) -> StreamHolder | None:
        """Whom the token stands for; None: it is none of ours, of another path, or has ended."""
        try:
            raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        except (binascii.Error, ValueError):
            return None
        mac, payload = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(payload)):
            return None
        tenant_id, actor, of_path, ends_at = json.loads(payload)
        return StreamHolder(tenant_id, actor) if of_path == path and now < ends_at else None

    def _mac(self, payload: bytes) -> bytes:
        return hmac.digest(self._key, payload, "sha256")
