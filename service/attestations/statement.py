"""The attested statement: in-toto Statement v1 with a SLSA Provenance v1 predicate (slsa.dev/spec/v1.0/provenance).

``made_statement`` writes one, as canonical JSON: the same rows give the same bytes. ``Statement`` reads what this or a
later version wrote; fields that it does not know are passed over, as in-toto asks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from service.attestations.schemas import AttestationUnreadableError
from service.contracts.validation_words import message_of

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:quantmill:build:quantize:v1"
BUILDER_ID = "urn:quantmill:builder"
_MOST_FILES = 512
_Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_Text = Annotated[str, StringConstraints(max_length=1024)]


class _StatementPart(BaseModel):
    model_config = ConfigDict(frozen=True, populate_by_name=True)


class DigestSet(_StatementPart):
    """Of one file."""

    sha256: _Digest


class Subject(_StatementPart):
    """A file that the job made."""

    name: _Text
    digest: DigestSet


class Dependency(_StatementPart):
    """A file that the job was given. ``annotations`` say its role: model, calibration, evaluation or graph."""

    name: _Text = ""
    uri: _Text = ""
    digest: DigestSet
    annotations: dict[str, Any] = Field(default_factory=dict)


class _InternalParameters(_StatementPart):
    source_sha256: _Digest | None = None
    config_sha256: _Digest | None = None
    manifest_sha256: _Digest | None = None
    target: _Text | None = None
    seed: int | None = None
    threads: int | None = None


class _BuildDefinition(_StatementPart):
    build_type: _Text = Field(alias="buildType")
    external: dict[str, Any] = Field(alias="externalParameters")
    internal: _InternalParameters = Field(alias="internalParameters", default_factory=_InternalParameters)
    dependencies: tuple[Dependency, ...] = Field(
        alias="resolvedDependencies", max_length=_MOST_FILES, default_factory=tuple
    )


class _Builder(_StatementPart):
    id: _Text
    version: dict[str, _Text] = Field(default_factory=dict, max_length=64)


class _BuildMetadata(_StatementPart):
    job_id: _Text = Field(alias="invocationId")
    started_at: datetime | None = Field(alias="startedOn", default=None)
    finished_at: datetime | None = Field(alias="finishedOn", default=None)
    attempt: int | None = Field(alias="quantmill_attempt", default=None)


class _RunDetails(_StatementPart):
    builder: _Builder
    invocation: _BuildMetadata = Field(alias="metadata")


class _Predicate(_StatementPart):
    definition: _BuildDefinition = Field(alias="buildDefinition")
    run: _RunDetails = Field(alias="runDetails")


class Statement(_StatementPart):
    """A statement of this service's."""

    type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subjects: tuple[Subject, ...] = Field(alias="subject", min_length=1, max_length=_MOST_FILES)
    predicate_type: Literal["https://slsa.dev/provenance/v1"] = Field(alias="predicateType")
    predicate: _Predicate


@dataclass(frozen=True)
class ProducedFile:
    """A file that the job made."""

    name: str
    sha256: str


@dataclass(frozen=True)
class InputFile:
    """A file that the job was given."""

    role: str  # model, calibration, evaluation or graph
    uri: str  # of the model or dataset
    name: str  # for people: name, version and path
    sha256: str  # of the file


@dataclass(frozen=True)
class BuildRecord:
    """What a statement tells of."""

    job_id: str  # of the job
    attempt: int  # that succeeded
    device: str  # as it was asked for
    started_at: datetime | None  # its first start, UTC
    finished_at: datetime | None  # its end, UTC
    made: Iterable[ProducedFile]  # its files
    given: Iterable[InputFile]  # models and data
    manifest: Mapping[str, Any]  # of its report, as JSON


def made_statement(record: BuildRecord) -> bytes:
    """The statement as canonical JSON: sorted keys, no blanks, UTF-8."""
    manifest = record.manifest
    config = manifest["config"]
    internal = {
        "source_sha256": manifest.get("model_sha256"),
        "config_sha256": manifest.get("config_sha256"),
        "manifest_sha256": manifest.get("manifest_sha256"),
        "target": config.get("target"),
        "seed": manifest.get("seed"),
        "threads": manifest.get("threads"),
    }
    dependencies = [
        {"name": file.name, "uri": file.uri, "digest": {"sha256": file.sha256}, "annotations": {"role": file.role}}
        for file in record.given
    ]
    metadata = {
        "invocationId": record.job_id,
        "quantmill_attempt": record.attempt,
        "startedOn": _timestamp(record.started_at),
        "finishedOn": _timestamp(record.finished_at),
    }
    document = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": file.name, "digest": {"sha256": file.sha256}} for file in record.made],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"config": config, "device": record.device},
                "internalParameters": _told(internal),
                "resolvedDependencies": dependencies,
            },
            "runDetails": {
                "builder": {
                    "id": BUILDER_ID,
                    "version": {"quantmill": manifest["engine_version"], **manifest.get("versions", {})},
                },
                "metadata": _told(metadata),
            },
        },
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def parse_statement(payload: bytes) -> Statement:
    """The statement of an envelope's payload.

    Raises:
        AttestationUnreadableError: it is none, or of another build.
    """
    try:
        found = Statement.model_validate_json(payload)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole document"
        raise AttestationUnreadableError(
            f"The payload is not a valid provenance statement: {place}: {message_of(first)}."
        ) from None
    if found.predicate.definition.build_type != BUILD_TYPE:
        raise AttestationUnreadableError("The statement describes a type of build other than a quantization.")
    return found


def _told(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _timestamp(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")
