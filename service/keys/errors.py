"""What can be wrong with keys."""

from __future__ import annotations

from service.contracts.errors import QuantmillError
from service.contracts.http_errors import HttpError


class UnauthorizedError(HttpError):
    """The request carries no key, or a wrong one."""

    code = "unauthorized"
    title = "A key is needed"
    status = 401

    def headers(self) -> dict[str, str]:
        """Names the scheme."""
        return {"WWW-Authenticate": "Bearer"}


class ScopeMissingError(QuantmillError):
    """The key is good, and may not do this; nothing was read or done."""

    code = "scope-missing"
    title = "The key may not do this"
    status = 403


class KeyNotFoundError(QuantmillError):
    """There is no such key, or it has ended."""

    code = "key-not-found"
    title = "No such key"
    status = 404


class SharedLinkEndedError(QuantmillError):
    """The link to a shared report is none of ours, has expired, or the key that made it has ended."""

    code = "shared-link-ended"
    title = "This link shows nothing any more"
    status = 404


class PepperMissingError(QuantmillError):
    """Keys of an installation on several hosts are checked by a pepper that all of them know."""

    code = "key-pepper-missing"
    title = "The pepper of the keys is missing"
    status = 500
