"""Why a request was not sent, or what became of it."""

from __future__ import annotations

from service.contracts.errors import QuantmillError


class EgressError(QuantmillError):
    """Base of what may go wrong with a request to another host."""

    code = "egress-failed"
    title = "The request to the other host failed"
    status = 502


class UrlNotAllowedError(EgressError):
    """The service sends nothing to a URL of this form: scheme, port, user, or a host that is not written plainly."""

    code = "url-not-allowed"
    title = "Nothing is sent to this URL"
    status = 422


class AddressNotAllowedError(EgressError):
    """The host has an address that is not on the public internet, and that no setting allows."""

    code = "address-not-allowed"
    title = "Nothing is sent to this address"
    status = 422


class HostUnresolvedError(EgressError):
    """The name of the host has no address, or none was told in time."""

    code = "host-unresolved"
    title = "The host's name has no address"


class PayloadTooLargeError(EgressError):
    """What was to be sent is larger than the service sends."""

    code = "payload-too-large"
    title = "The request is too large to be sent"
    status = 422


class UnreachableError(EgressError):
    """No connection came about, or its certificate is not the host's."""

    code = "egress-unreachable"
    title = "The other host cannot be reached"


class NoReplyError(EgressError):
    """The host did not reply in time, or with something that is no reply."""

    code = "egress-no-reply"
    title = "The other host did not reply"
