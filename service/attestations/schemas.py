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


class AttestationNotReadyError(
    TransientError, code="attestation-not-ready", title="The attestation is not there yet", status=409
):
    """The job has not ended yet."""

    retry_after_seconds = 2


class AttestationNotFoundError(
    QuantmillError, code="attestation-not-found", title="The job has no attestation", status=404
):
    """The job gave nothing that could be attested."""


class SigningUnavailableError(
    QuantmillError, code="signing-unavailable", title="The service cannot keep a signing key", status=409
):
    """The installation has no pepper, by which its signing key is encrypted."""


class SigningKeyUnreadableError(
    QuantmillError, code="signing-key-unreadable", title="The signing key cannot be read", status=409
):
    """The stored signing key was encrypted under another pepper, or is damaged."""


class AttestationUnreadableError(
    QuantmillError, code="attestation-unreadable", title="The attestation cannot be read", status=422
):
    """A file is not an attestation by which anything could be verified."""


class PublicKeyError(QuantmillError, code="public-key-invalid", title="There is no usable public key", status=422):
    """A file holds no public key that verifies attestations."""


class NotVerifiedError(QuantmillError, code="not-verified", title="The file is not verified", status=422):
    """A file is not what its attestation says, or nobody who is trusted has said it."""


class NotReproducedError(QuantmillError, code="not-reproduced", title="The job gave other bytes", status=409):
    """The same job has given other bytes."""
