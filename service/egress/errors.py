"""Errors of outgoing requests."""

from __future__ import annotations

from service.contracts.errors import QuantmillError


class EgressError(QuantmillError, code="egress-failed", title="Outgoing request failed", status=502):
    """Base of errors in requests to other hosts."""


class UrlNotAllowedError(EgressError, code="url-not-allowed", title="URL not allowed", status=422):
    """The service does not send requests to a URL of this form, because of its scheme, port, user, or the notation of
    its host.
    """


class AddressNotAllowedError(EgressError, code="address-not-allowed", title="Address not allowed", status=422):
    """The host has an address that is not on the public internet and is not allowed by a setting."""


class HostUnresolvedError(EgressError, code="host-unresolved", title="Host name not resolved"):
    """The host name could not be resolved, or not in time."""


class PayloadTooLargeError(EgressError, code="payload-too-large", title="Payload too large", status=422):
    """The payload is larger than the maximum that the service sends."""


class UnreachableError(EgressError, code="egress-unreachable", title="Host unreachable"):
    """The connection could not be established, or the host's certificate is not valid."""


class NoReplyError(EgressError, code="egress-no-reply", title="No response from the host"):
    """The host did not respond in time, or its response is not valid."""
