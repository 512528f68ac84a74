"""Signed tokens used instead of a key: for event streams, browser pages, shared reports.

A token is good for one place and a time, and tells whose it is. It is signed, not stored: HMAC-SHA256 over holder,
place and end, under a key derived from the installation's secret and the purpose, so that none is good for another.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import dataclass

STREAM_SECONDS = 300
SESSION_SECONDS = 12 * 3600
DAY_SECONDS = 24 * 3600
MOST_CHARS = 1024
_MAC_BYTES = 32


@dataclass(frozen=True)
class TokenHolder:
    """Whom a token stands for; see Principal."""

    tenant_id: str
    actor: str


class Tokens:
    """Makes and reads tokens; processes with the same secret read each other's.

    Args:
        secret: of the installation.
        purpose: what they are for.
    """

    def __init__(self, secret: str, purpose: str) -> None:
        self._key = hashlib.sha256(f"{purpose}:{secret}".encode()).digest()

    def make(self, holder: TokenHolder, path: str, ends_at: float) -> str:
        """A token for ``path``, good until ``ends_at`` (UTC, seconds since 1970)."""
        payload = json.dumps([holder.tenant_id, holder.actor, path, ends_at]).encode()
        return base64.urlsafe_b64encode(self._mac(payload) + payload).decode().rstrip("=")

    def read(self, token: str, path: str, now: float) -> TokenHolder | None:
        """Whom the token stands for; None: it is none of ours, of another path, or has ended."""
        read = self._read(token)
        if read is None:
            return None
        holder, of_path, ends_at = read
        return holder if of_path == path and now < ends_at else None

    def claimed(self, token: str) -> TokenHolder | None:
        """Whom a token of ours was made for, whether or not it is still good; None: it is none of ours."""
        read = self._read(token)
        return None if read is None else read[0]

    def place(self, token: str) -> str | None:
        """What a token of ours was made for, whether or not it is still good; None: it is none of ours."""
        read = self._read(token)
        return None if read is None else read[1]

    def _read(self, token: str) -> tuple[TokenHolder, str, float] | None:
        try:
            raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        except (binascii.Error, ValueError):
            return None
        mac, payload = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(payload)):
            return None
        tenant_id, actor, of_path, ends_at = json.loads(payload)
        return TokenHolder(tenant_id, actor), of_path, ends_at

    def guard(self, token: str) -> str:
        """What only the pages that were made for a token know: it comes back with what their forms send."""
        return hmac.digest(self._key, b"guard:" + token.encode(), "sha256").hex()

    def _mac(self, payload: bytes) -> bytes:
        return hmac.digest(self._key, payload, "sha256")
