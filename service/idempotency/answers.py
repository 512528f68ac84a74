"""What an idempotency key remembers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Header
from fastapi.responses import JSONResponse

from service.contracts.command_errors import TransientError
from service.contracts.errors import QuantmillError

IDEMPOTENCY_HEADER = "Idempotency-Key"
IdempotencyHeader = Annotated[
    str | None,
    Header(
        alias=IDEMPOTENCY_HEADER,
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="Any text unique to this request. Sent again with the same body, the first answer comes back.",
    ),
]


class IdempotencyKeyReuseError(
    QuantmillError, code="idempotency-key-reuse", title="The idempotency key was used before", status=422
):
    """The key was used for another body."""


class IdempotencyInFlightError(
    TransientError, code="idempotency-in-flight", title="A request with this key is in flight", status=409
):
    """A request with the same key is being worked on at this moment."""


@dataclass(frozen=True)
class Answer:
    """What is sent, and sent again: status, JSON body, headers."""

    status: int
    body: Any
    headers: dict[str, str]
    replayed: bool = False

    def response(self) -> JSONResponse:
        """As an HTTP response."""
        extra = {"Idempotent-Replayed": "true"} if self.replayed else {}
        return JSONResponse(self.body, status_code=self.status, headers={**self.headers, **extra})
