"""Opaque cursors: the position of the last item, signed together with the list and its filters."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel, Field

from service.contracts.errors import QuantmillError
from service.settings import Settings

_MAC_BYTES = 16
_Item = TypeVar("_Item")


class InvalidCursorError(QuantmillError, code="invalid-cursor", title="Cursor not valid", status=422):
    """The cursor was not created by this service, or belongs to another list or other filters."""


class Position(NamedTuple):
    """Place in a list that runs from the newest to the oldest: exact creation time in seconds, and id."""

    created_at: float
    id: str


class Page(BaseModel, Generic[_Item]):
    """One page of a list, newest first."""

    items: list[_Item]
    next_cursor: str | None = Field(default=None, description="Pass it as ?cursor= to get the next page.")
    has_more: bool = False


def link_header(path: str, next_cursor: str, parameters: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The Link header to the next page (RFC 8288) of a list that was asked for with these parameters."""
    query = urlencode([*parameters, ("cursor", next_cursor)])
    return {"Link": f'<{path}?{query}>; rel="next"'}


class CursorCodec:
    """Makes and reads cursors.

    Args:
        settings: give the signing key; processes with equal settings read each other's cursors.
        scope: the list and its filters; a cursor is good only for the same.
    """

    def __init__(self, settings: Settings, scope: str) -> None:
        self._key = hashlib.sha256(f"cursor:{settings.signing_secret}".encode()).digest()
        self._scope = scope.encode()

    def encode(self, position: Position) -> str:
        """A cursor for ``position``."""
        payload = json.dumps(position).encode()
        return base64.urlsafe_b64encode(self._mac(payload) + payload).decode().rstrip("=")

    def decode(self, cursor: str) -> Position:
        """The position that a cursor stands for.

        Raises:
            InvalidCursorError: it was not made here and for this.
        """
        try:
            raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        except (binascii.Error, ValueError):
            raise self._refusal() from None
        mac, payload = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(payload)):
            raise self._refusal()
        return Position(*json.loads(payload))

    def _mac(self, payload: bytes) -> bytes:
        return hmac.digest(self._key, self._scope + b"\0" + payload, "sha256")[:_MAC_BYTES]

    @staticmethod
    def _refusal() -> InvalidCursorError:
        return InvalidCursorError(
            "The cursor does not belong to this list with these filters.",
            hint="Use next_cursor of the previous page with the same filters, or start without a cursor.",
            query="cursor",
        )
