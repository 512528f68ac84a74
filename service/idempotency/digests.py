"""What a request is known by when it comes again: of pydantic alone, for the records of every noun."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

from pydantic import BaseModel, PrivateAttr


class RepeatableBody(BaseModel):
    """A body that is told apart by what the client has sent: what that means may change with the service's version."""

    _sent: Any = PrivateAttr(default=None)


class Digests(NamedTuple):
    """A request's digests: two requests are the same if one of them is equal.

    Attributes:
        sent: of the JSON document that came, whatever the order of its keys: the same in every version of the service.
        meaning: of that document with its defaults: the same for one that spells them out.
    """

    sent: str
    meaning: str


def request_digests(body: BaseModel) -> Digests:
    """What a request is known by when it comes again."""
    sent = body._sent if isinstance(body, RepeatableBody) else None
    if sent is None:  # of a form, or a body that is its own document
        sent = body.model_dump(mode="json", exclude_unset=True)
    canonical = json.dumps(sent, sort_keys=True, separators=(",", ":"))
    return Digests(_sha256(canonical), _sha256(body.model_dump_json()))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
