"""How a repeated request is recognized; depends on pydantic only, for the schemas of all resources."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, PrivateAttr


class RepeatableBody(BaseModel):
    """A body that is told apart by what the client has sent: what that means may change with the service's version."""

    _sent: Any = PrivateAttr(default=None)


class NoBody(BaseModel):
    """A request that says all by its path."""


@dataclass(frozen=True)
class KeyedRequest:
    """A request as it is known when it comes again: it is the same if one of both digests is equal."""

    route: str  # the endpoint, such as ``POST /v1/jobs``
    key: str | None = None  # its Idempotency-Key; None: it is not known again, and has no digests
    # of the JSON document that came, whatever the order of its keys: the same in every version of the service
    sent_sha256: str = ""
    meaning_sha256: str = ""  # of that document with its defaults: the same for one that spells them out

    @classmethod
    def of(cls, route: str, key: str | None, body: BaseModel) -> KeyedRequest:
        """The request of this body."""
        if key is None:
            return cls(route)
        sent = body._sent if isinstance(body, RepeatableBody) else None
        if sent is None:  # of a form, or a body that is its own document
            sent = body.model_dump(mode="json", exclude_unset=True)
        canonical = json.dumps(sent, sort_keys=True, separators=(",", ":"))
        sent_sha256, meaning_sha256 = (
            hashlib.sha256(text.encode()).hexdigest() for text in (canonical, body.model_dump_json())
        )
        return cls(route, key, sent_sha256, meaning_sha256)
