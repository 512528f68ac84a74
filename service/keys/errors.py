"""What can be wrong with keys."""

from __future__ import annotations

from service.contracts.command_errors import HttpError, TransientError
from service.contracts.errors import QuantmillError


class UnauthorizedError(HttpError):
    """The request carries no key, or a wrong one."""

    code = "unauthorized"
    title = "A key is needed"
    status = 401

    def headers(self) -> dict[str, str]:
        """Names the scheme."""
        return {"WWW-Authenticate": "Bearer"}


class TooManyWrongKeysError(TransientError):
    """So many wrong keys have come from the client's address that this one was not looked up."""

    code = "too-many-wrong-keys"
    title = "Too many wrong keys"
    status = 429

    def __init__(self, detail: str, *, hint: str, header: str, retry_after_seconds: int) -> None:
        super().__init__(detail, hint=hint, header=header)
        self.retry_after_seconds = retry_after_seconds


class ScopeMissingError(QuantmillError):
    """The key is good, and may not do this; nothing was read or done."""

    code = "scope-missing"
    title = "The key may not do this"
    status = 403


class KeyNotFoundError(QuantmillError):
    """There is no such key (or it belongs to somebody else), or it has ended."""

    code = "key-not-found"
    title = "No such key"
    status = 404

    def __init__(self, key_id: str, *, good: bool = False) -> None:
        of_it = " that is good" if good else ""
        super().__init__(
            f"There is no key {key_id!r}{of_it}.", path_parameter="key_id", hint="The list of keys shows all."
        )


class TooManyKeysError(QuantmillError):
    """The tenant has as many good keys as it may."""

    code = "too-many-keys"
    title = "There are too many keys"
    status = 409

    def __init__(self, most: int) -> None:
        super().__init__(f"{most} keys are good, as many as there may be.", hint="Revoke one that is not needed.")


class SharedLinkEndedError(QuantmillError):
    """The link to a shared report is none of ours, has expired, or the key that made it has ended."""

    code = "shared-link-ended"
    title = "This link shows nothing any more"
    status = 404


class PepperMissingError(QuantmillError):
    """Keys of an installation on several hosts are checked by a pepper that all of them know."""

    code = "key-pepper-missing"
    title = "The pepper of the keys is missing"
    status = 409
