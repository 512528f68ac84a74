"""For receivers of webhooks: is a request the service's, whole and fresh?

Loads neither the server nor torch nor onnxruntime. The reference library (standardwebhooks) knows one tolerance and one
secret, and fails with other errors on headers that are none; the tests hold this against it.
"""

from __future__ import annotations

import hmac
import json
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from service.contracts.errors import QuantmillError
from service.contracts.webhooks import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, signature

__all__ = ["WebhookNotVerifiedError", "verify"]

TOLERANCE_SECONDS = 300.0
# One spelling: what is signed is the number.
_SECONDS = re.compile(r"[1-9][0-9]{0,15}")


class WebhookNotVerifiedError(
    QuantmillError, code="webhook-not-verified", title="The webhook cannot be verified", status=400
):
    """The request is not the service's, or is not fresh: answer 400 and do nothing."""


def verify(
    payload: bytes,
    headers: Mapping[str, str],
    secret: str | Iterable[str],
    tolerance_seconds: float = TOLERANCE_SECONDS,
) -> dict[str, Any]:
    """The event that a request tells of, once it is known to be the service's.

    Args:
        payload: the body, byte by byte as it came.
        headers: of the request; their case does not matter.
        secret: ``whsec_...``, or several: while a secret is being changed, one of them has to fit.
        tolerance_seconds: how old, or ahead, the request may be: an old one that somebody sends again is refused.

    Returns:
        The event: ``type``, ``timestamp``, ``schema_version``, ``data``. The header ``webhook-id`` is the same for an
        event that is sent again: keep those that are done with.

    Raises:
        WebhookNotVerifiedError: a header is missing, the request is too old, or no signature fits.
        ValueError: a secret is not spelled as one.
    """
    sent = {name.casefold(): value for name, value in headers.items()}
    message_id, stamp, told = (_header(sent, name) for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER))
    timestamp = _fresh(stamp, tolerance_seconds)
    given = told.split(" ")
    expected = [signature(one, message_id, timestamp, payload) for one in _all(secret)]
    # each is compared with each: how long it takes tells nothing
    fits = [hmac.compare_digest(one.encode(), other.encode()) for one in expected for other in given]
    if not any(fits):
        raise WebhookNotVerifiedError(
            "No signature of the request fits the secret.",
            hint="Give the body byte by byte as it came, and the secret of this webhook.",
            header=SIGNATURE_HEADER,
        )
    return _event(payload)


def _all(secret: str | Iterable[str]) -> list[str]:
    secrets = [secret] if isinstance(secret, str) else list(secret)
    if not secrets:
        raise ValueError("no secret is given")
    return secrets


def _header(sent: Mapping[str, str], name: str) -> str:
    value = sent.get(name, "")
    if not value:
        raise WebhookNotVerifiedError(f"The request has no header {name}.", hint="Is it a webhook's?", header=name)
    return value


def _fresh(stamp: str, tolerance_seconds: float) -> int:
    if not _SECONDS.fullmatch(stamp):
        raise WebhookNotVerifiedError("The request's timestamp is not a number of seconds.", header=TIMESTAMP_HEADER)
    timestamp = int(stamp)
    if abs(time.time() - timestamp) > tolerance_seconds:
        raise WebhookNotVerifiedError(
            f"The request is more than {tolerance_seconds:g} s old, or ahead.",
            hint="Check this host's clock; the service signs each attempt again.",
            header=TIMESTAMP_HEADER,
        )
    return timestamp


def _event(payload: bytes) -> dict[str, Any]:
    try:
        event = json.loads(payload)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise WebhookNotVerifiedError("The body is no event, although its signature fits.")
    return event
