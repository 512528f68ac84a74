"""Event streams as pages read them: by a token in the URL, where a key cannot be sent."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import Query, Response
from pydantic import BaseModel, Field

from service.deps import STREAM_PATH, STREAM_TOKEN, AppState
from service.keys.tokens import MOST_CHARS
from service.principal import Principal

TokenParameter = Annotated[
    str | None, Query(max_length=MOST_CHARS, description="Of POST .../events/token, in place of a key.")
]


class StreamToken(BaseModel):
    """What an event stream is read with where no key can be sent."""

    token: str
    url: str = Field(description="Of the stream, with the token: for an EventSource.")
    expires_at: datetime = Field(description="UTC. A stream that is open then goes on; a new one needs a new token.")


def token_of(app: AppState, principal: Principal, place: str, response: Response) -> StreamToken:
    """A token for the event stream of what is at ``place``, such as ``/v1/jobs/ID``; nobody keeps the answer."""
    path = place + STREAM_PATH
    token, ends_at = app.keyring.stream_token(principal.tenant_id, principal.actor, path)
    response.headers["Cache-Control"] = "no-store"
    return StreamToken(
        token=token, url=f"{path}?{STREAM_TOKEN}={token}", expires_at=datetime.fromtimestamp(ends_at, tz=UTC)
    )
