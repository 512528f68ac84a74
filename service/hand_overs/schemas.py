"""API schemas and errors of hand-overs."""

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
_URL = (
    "https URL of a host on the public internet, on port 443 or 8443; an operator can allow others. It is "
    "never returned."
)
_HEADERS = (
    "Headers to send unchanged, such as those that were signed with the URL; they are never returned. For "
    "a PUT, only Content-Length is added."
)
_WHEN = (
    "When to send the results. pass: if the verdict is pass, or if the job has no gate and so no verdict; "
    "success: regardless of the verdict. If the job fails or is canceled, nothing is sent."
)
_ARTIFACT = (
    "Kind of the artifact to send, such as model or report; attestation; or weights: the model's "
    "initializers as safetensors, which a job creates only if requested before it runs."
)


def _digested(secret: SecretStr) -> str:
    """What stands for a secret wherever a request is written down: equal for equal ones, and of no use."""
    return f"sha256:{hashlib.sha256(secret.get_secret_value().encode()).hexdigest()}"


def _sendable(value: SecretStr) -> SecretStr:
    if not _HEADER_VALUE.fullmatch(value.get_secret_value()):
        raise ValueError("must contain visible ASCII characters only, separated by spaces")
    return value


def _own(headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
    names = [name.casefold() for name in headers]
    for name in names:
        if name in _OWN_HEADERS or name.startswith("proxy-"):
            raise ValueError(f"the header {name} is set by the connection: omit it")
    if len(set(names)) < len(names):
        raise ValueError("a header is given twice")
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
    """A file of the job, sent by PUT to a presigned URL; the statuses 200, 201 and 204 mean success."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["put"] = "put"
    artifact: ArtifactKind = Field(default="model", description=_ARTIFACT)
    url: Url = Field(description=_URL)
    headers: Headers = Field(default_factory=dict, description=_HEADERS)
    when: Condition = Field(default="pass", description=_WHEN)


class PostTarget(BaseModel):
    """The job's data, sent by POST as JSON; any 2xx status means success."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["post"] = "post"
    url: Url = Field(description=_URL)
    headers: Headers = Field(default_factory=dict, description=_HEADERS)
    when: Condition = Field(default="pass", description=_WHEN)


HandOverTarget = Annotated[PutTarget | PostTarget, Field(discriminator="kind")]
HandOverTargets = Annotated[list[HandOverTarget], Field(max_length=MOST_TARGETS)]


class HandOverCreate(RepeatableBody):
    """Targets that a job's results are sent to."""

    model_config = ConfigDict(extra="forbid")

    targets: Annotated[HandOverTargets, Field(min_length=1)]


class HandOverOut(BaseModel):
    """A hand-over. Its URL and headers are never returned."""

    id: str = Field(description="Id of the hand-over, included in a POST; it is the same for each attempt.")
    kind: str = Field(description="put: sends a file; post: sends the job's data.")
    host: str = Field(description="Host of the URL.")
    artifact: str | None = Field(description="For put: kind of the file.")
    when: Condition
    state: HandOverState = Field(
        description="State of the hand-over. waiting: the job has not ended. pending: it is being sent, or will be "
        "sent again at next_attempt_at. done: it was delivered. skipped: the job did not end as "
        "required by its condition. failed: it is not sent again."
    )
    reason: str | None = Field(description="Reason code: why it was skipped, or why the last attempt failed.")
    detail: str | None = Field(description="Explanation of the reason, as text.")
    attempts: int
    next_attempt_at: datetime | None = Field(description="Time of the next attempt of a pending hand-over.")
    last_attempt_at: datetime | None
    last_status: int | None = Field(description="HTTP status of the last response; null if there was none.")
    created_at: datetime
    finished_at: datetime | None


class HandOverList(BaseModel):
    """Hand-overs of a job in the order in which they were created."""

    id: str = Field(description="Id of the job.")
    items: list[HandOverOut]


def plain(headers: Mapping[str, SecretStr]) -> dict[str, str]:
    """The headers as they are sent."""
    return {name: value.get_secret_value() for name, value in headers.items()}


# Errors around hand-overs.


class HandOverUnavailableError(
    QuantmillError, code="hand-over-unavailable", title="Hand-overs not available", status=409
):
    """The installation has no pepper, which is required to encrypt the URLs of hand-overs."""


class HandOverUnreadableError(
    QuantmillError, code="hand-over-unreadable", title="Hand-over URL not readable", status=409
):
    """The stored URL was encrypted with a different pepper, or is damaged."""


class HandOverRefusedError(QuantmillError, code="hand-over-refused", title="Job has nothing to hand over", status=409):
    """The job has no results that can be handed over."""


class TooManyHandOversError(QuantmillError, code="too-many-hand-overs", title="Too many hand-overs", status=409):
    """The job has the maximum number of hand-overs."""

    def __init__(self, job_id: str, most: int) -> None:
        super().__init__(
            f"Job {job_id} would have more than {most} hand-overs, including those that have ended.",
            hint="Download the job's files, or retry the job: the new job has no hand-overs.",
        )


class ArtifactNotThereError(QuantmillError, code="artifact-not-there", title="Job file not found", status=422):
    """The job has no file of this kind."""
