"""Hand-overs as seen over HTTP, and their errors."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    StringConstraints,
)

from service.contracts.errors import QuantmillError
from service.idempotency.requests import RepeatableBody

# Presigned URLs carry a token of some services' in their query.
MOST_URL_CHARACTERS = 8192
MOST_TARGETS = 8
MOST_HEADERS = 16
_MOST_HEADER_CHARACTERS = 4096
_HEADER_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
# Of the connection, which is the service's; or set by it, of what was checked.
_OWN_HEADERS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# Not signed by the time that a job ends, so it is never an artifact's row; made when it is wanted.
ATTESTATION = "attestation"
HandOverState = Literal["waiting", "pending", "done", "skipped", "failed"]
Condition = Literal["pass", "success"]
_URL = "https, of a host on the public internet, on port 443 or 8443; an operator allows more. It is never shown again."
_HEADERS = (
    "Sent as they are, such as those that the URL was signed with; they are never shown again. None is added to a PUT "
    "but Content-Length."
)
_WHEN = (
    "pass: if the verdict is pass, or none, which is that of a job without a gate; success: whatever the verdict is. A "
    "job that fails or is canceled hands over nothing."
)
_ARTIFACT = (
    "The kind of an artifact of the job, such as model or report; attestation; or weights: the model's initializers as "
    "safetensors, which a job makes if that is asked for before it runs."
)


def _digested(secret: SecretStr) -> str:
    """What stands for a secret wherever a request is written down: equal for equal ones, and of no use."""
    return f"sha256:{hashlib.sha256(secret.get_secret_value().encode()).hexdigest()}"


def _sendable(value: SecretStr) -> SecretStr:
    if not _HEADER_VALUE.fullmatch(value.get_secret_value()):
        raise ValueError("must be characters of ASCII that are seen, with spaces between them")
    return value


def _own(headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
    names = [name.casefold() for name in headers]
    for name in names:
        if name in _OWN_HEADERS or name.startswith("proxy-"):
            raise ValueError(f"the header {name} is the connection's: leave it out")
    if len(set(names)) < len(names):
        raise ValueError("a header stands there twice")
    return headers


Secret = PlainSerializer(_digested, return_type=str)
Url = Annotated[SecretStr, Field(min_length=1, max_length=MOST_URL_CHARACTERS), Secret]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$")]
HeaderValue = Annotated[
    SecretStr, Field(min_length=1, max_length=_MOST_HEADER_CHARACTERS), AfterValidator(_sendable), Secret
]
Headers = Annotated[dict[HeaderName, HeaderValue], Field(max_length=MOST_HEADERS), AfterValidator(_own)]
ArtifactKind = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_.-]{0,31}$")]


class PutTarget(BaseModel):
    """A file of the job, sent by PUT to a presigned URL; 200, 201 and 204 say that it has arrived."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["put"] = "put"
    artifact: ArtifactKind = Field(default="model", description=_ARTIFACT)
    url: Url = Field(description=_URL)
    headers: Headers = Field(default_factory=dict, description=_HEADERS)
    when: Condition = Field(default="pass", description=_WHEN)


class PostTarget(BaseModel):
    """What is known of the job, sent by POST as JSON; any 2xx says that it has arrived."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["post"] = "post"
    url: Url = Field(description=_URL)
    headers: Headers = Field(default_factory=dict, description=_HEADERS)
    when: Condition = Field(default="pass", description=_WHEN)


HandOverTarget = Annotated[PutTarget | PostTarget, Field(discriminator="kind")]
HandOverTargets = Annotated[list[HandOverTarget], Field(max_length=MOST_TARGETS)]


class HandOverCreate(RepeatableBody):
    """Where else a job's results go."""

    model_config = ConfigDict(extra="forbid")

    targets: Annotated[HandOverTargets, Field(min_length=1)]


class HandOverOut(BaseModel):
    """One hand-over. Its URL and its headers are shown to nobody."""

    id: str = Field(description="A POST carries it: the same however often it is sent.")
    kind: str = Field(description="put or post.")
    host: str = Field(description="Of the URL.")
    artifact: str | None = Field(description="Of a put: the kind of the file.")
    when: Condition
    state: HandOverState = Field(
        description="waiting: for the end of the job. pending: it is sent, or sent again at next_attempt_at. done: it "
        "has arrived. skipped: the job ended otherwise. failed: it is not sent again."
    )
    reason: str | None = Field(description="A word for why it was skipped, or what the last attempt failed of.")
    detail: str | None = Field(description="The same in words.")
    attempts: int
    next_attempt_at: datetime | None = Field(description="Of one that is pending.")
    last_attempt_at: datetime | None
    last_status: int | None = Field(description="HTTP status of the last answer; null if there was none.")
    created_at: datetime
    finished_at: datetime | None


class HandOverList(BaseModel):
    """Hand-overs of a job in the order in which they were asked for."""

    id: str = Field(description="Of the job.")
    items: list[HandOverOut]


def plain(headers: Mapping[str, SecretStr]) -> dict[str, str]:
    """The headers as they are sent."""
    return {name: value.get_secret_value() for name, value in headers.items()}


# Errors around hand-overs.


class HandOverUnavailableError(
    QuantmillError, code="hand-over-unavailable", title="The service cannot keep URLs of hand-overs", status=409
):
    """The installation has no pepper, by which the URLs of hand-overs are encrypted."""


class HandOverUnreadableError(
    QuantmillError, code="hand-over-unreadable", title="The hand-over's URL cannot be read", status=409
):
    """The stored URL was encrypted under another pepper, or is damaged."""


class HandOverRefusedError(
    QuantmillError, code="hand-over-refused", title="Nothing of this job can be handed over", status=409
):
    """Nothing of this job can be handed over, whatever is done."""


class TooManyHandOversError(
    QuantmillError, code="too-many-hand-overs", title="The job has too many hand-overs", status=409
):
    """The job has as many hand-overs as it may."""

    def __init__(self, job_id: str, most: int) -> None:
        super().__init__(
            f"The job {job_id} would have more than {most} hand-overs, those that have ended among them.",
            hint="Download its files, or retry the job: the new one has none.",
        )


class ArtifactNotThereError(QuantmillError, code="artifact-not-there", title="The job has no such file", status=422):
    """The job has no file of this kind."""
