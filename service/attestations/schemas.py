"""Attestations and signing keys as seen over HTTP, and their errors."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from service.contracts.command_errors import TransientError
from service.contracts.errors import QuantmillError


class SignatureOut(BaseModel):
    """One signature."""

    keyid: str = Field(description="Id of the key: the first 16 hexadecimal digits of the SHA-256 of its 32 bytes.")
    sig: str = Field(description="Ed25519, in base64.")


class EnvelopeOut(BaseModel):
    """A DSSE envelope, whose payload is an in-toto statement with SLSA provenance."""

    payload: str = Field(description="The statement, JSON, in base64.")
    payloadType: Literal["application/vnd.in-toto+json"]  # noqa: N815 - as DSSE spells it
    signatures: list[SignatureOut]


class SigningKeyOut(BaseModel):
    """A key by which the installation signs, or did."""

    id: str
    algorithm: Literal["ed25519"]
    public_key: str = Field(description="PEM.")
    created_at: datetime
    retired_at: datetime | None = Field(description="Null: it signs now. What it signed before stays good.")


class SigningKeyList(BaseModel):
    """All keys there have been, the newest first."""

    items: list[SigningKeyOut]


# Errors around attestations.


class AttestationNotReadyError(TransientError):
    """The job has not ended yet."""

    code = "attestation-not-ready"
    title = "The attestation is not there yet"
    status = 409
    retry_after_seconds = 2


class AttestationNotFoundError(QuantmillError):
    """The job gave nothing that could be attested."""

    code = "attestation-not-found"
    title = "The job has no attestation"
    status = 404


class SigningUnavailableError(QuantmillError):
    """The installation has no pepper, by which its signing key is encrypted."""

    code = "signing-unavailable"
    title = "The service cannot keep a signing key"
    status = 409


class SigningKeyUnreadableError(QuantmillError):
    """The stored signing key was encrypted under another pepper, or is damaged."""

    code = "signing-key-unreadable"
    title = "The signing key cannot be read"
    status = 409


class AttestationUnreadableError(QuantmillError):
    """A file is not an attestation by which anything could be verified."""

    code = "attestation-unreadable"
    title = "The attestation cannot be read"
    status = 422


class PublicKeyError(QuantmillError):
    """A file holds no public key that verifies attestations."""

    code = "public-key-invalid"
    title = "There is no usable public key"
    status = 422


class NotVerifiedError(QuantmillError):
    """A file is not what its attestation says, or nobody who is trusted has said it."""

    code = "not-verified"
    title = "The file is not verified"
    status = 422


class NotReproducedError(QuantmillError):
    """The same job has given other bytes."""

    code = "not-reproduced"
    title = "The job gave other bytes"
    status = 409
