"""Why a request was not sent, or what became of it."""

from __future__ import annotations

from service.contracts.errors import QuantmillError


class EgressError(QuantmillError, code="egress-failed", title="The request to the other host failed", status=502):
    """Base of what may go wrong with a request to another host."""


class UrlNotAllowedError(EgressError, code="url-not-allowed", title="Nothing is sent to this URL", status=422):
    """The service sends nothing to a URL of this form: scheme, port, user, or a host that is not written plainly."""


class AddressNotAllowedError(
    EgressError, code="address-not-allowed", title="Nothing is sent to this address", status=422
):
    """The host has an address that is not on the public internet, and that no setting allows."""


class HostUnresolvedError(EgressError, code="host-unresolved", title="The host's name has no address"):
    """The name of the host has no address, or none was told in time."""


class PayloadTooLargeError(
    EgressError, code="payload-too-large", title="The request is too large to be sent", status=422
):
    """What was to be sent is larger than the service sends."""


class UnreachableError(EgressError, code="egress-unreachable", title="The other host cannot be reached"):
    """No connection came about, or its certificate is not the host's."""


class NoReplyError(EgressError, code="egress-no-reply", title="The other host did not reply"):
    """The host did not reply in time, or with something that is no reply."""
