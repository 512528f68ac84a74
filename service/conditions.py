"""Conditions of writing requests (RFC 9110): nobody overwrites what somebody else has changed meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Header

from service.contracts.errors import QuantmillError

IfMatch = Annotated[str | None, Header(max_length=512, description="ETag of what is changed, as it was seen; or *.")]
IfNoneMatch = Annotated[str | None, Header(max_length=512, description="* : only if there is none yet.")]
_ANY = "*"


class PreconditionRequiredError(QuantmillError):
    """The request changes what others may change, too, and does not say what it takes it to be."""

    code = "precondition-required"
    title = "The request needs a condition"
    status = 428


class PreconditionFailedError(QuantmillError):
    """What the request would change is not what it says: somebody else was faster, or it is there, or is not."""

    code = "precondition-failed"
    title = "The condition does not hold"
    status = 412


@dataclass(frozen=True)
class Conditions:
    """What a request says of that which it changes."""

    if_match: str | None = None
    if_none_match: str | None = None

    def require(self, hint: str) -> None:
        """Let no request change anything that says nothing.

        Raises:
            PreconditionRequiredError: it has no condition.
        """
        if self.if_match is None and self.if_none_match is None:
            raise PreconditionRequiredError("The request says no condition.", hint=hint, header="If-Match")

    def check(self, etag: str | None, what: str) -> None:
        """Compare with what is there.

        Args:
            etag: of what is there; None: nothing is.
            what: it is, for the error.

        Raises:
            PreconditionFailedError: it is something else.
        """
        now = f"{what} is there, with the ETag {etag}" if etag is not None else f"there is no {what}"
        hint = "Look at it again, and decide anew."
        if self.if_match is not None and (etag is None or not {_ANY, etag} & _tags(self.if_match)):
            raise PreconditionFailedError(
                f"If-Match is {self.if_match}, and {now}.", hint=hint, header="If-Match", etag=etag
            )
        if self.if_none_match is not None and etag is not None and {_ANY, etag} & _tags(self.if_none_match):
            raise PreconditionFailedError(
                f"If-None-Match is {self.if_none_match}, and {now}.", hint=hint, header="If-None-Match", etag=etag
            )


def _tags(header: str) -> set[str]:
    """Strong tags alone: a weak one proves nothing to who is about to write."""
    return {tag.strip() for tag in header.split(",")}
