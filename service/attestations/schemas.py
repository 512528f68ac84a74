"""API schemas and errors of attestations and signing keys."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from service.contracts.command_errors import TransientError
from service.contracts.errors import QuantmillError


class SignatureOut(BaseModel):
    """One signature."""

    keyid: str = Field(description="Key ID: the first 16 hexadecimal digits of the SHA-256 of the 32-byte public key.")
    sig: str = Field(description="Ed25519 signature, in base64.")


class EnvelopeOut(BaseModel):
    """A DSSE envelope. Its payload is an in-toto statement with SLSA provenance."""

    payload: str = Field(description="The statement, as JSON in base64.")
    payloadType: Literal["application/vnd.in-toto+json"]  # noqa: N815 - as DSSE spells it
    signatures: list[SignatureOut]


class SigningKeyOut(BaseModel):
    """A key that the installation signs with, or has signed with."""

    id: str
    algorithm: Literal["ed25519"]
    public_key: str = Field(description="Public key in PEM format.")
    created_at: datetime
    retired_at: datetime | None = Field(
        description="When the key was retired; null for the current key. Earlier signatures remain valid."
    )


class SigningKeyList(BaseModel):
    """All signing keys, newest first."""

    items: list[SigningKeyOut]


# Errors around attestations.


class AttestationNotReadyError(TransientError, code="attestation-not-ready", title="Attestation not ready", status=409):
    """The job has not ended, so it has no attestation yet."""

    retry_after_seconds = 2


class AttestationNotFoundError(QuantmillError, code="attestation-not-found", title="Attestation not found", status=404):
    """The job has no results that can be attested."""


class SigningUnavailableError(QuantmillError, code="signing-unavailable", title="Signing not available", status=409):
    """The installation has no pepper, which is required to encrypt its signing key."""


class SigningKeyUnreadableError(
    QuantmillError, code="signing-key-unreadable", title="Signing key not readable", status=409
):
    """The stored signing key was encrypted with a different pepper, or is damaged."""


class AttestationUnreadableError(
    QuantmillError, code="attestation-unreadable", title="Attestation not readable", status=422
):
    """The file is not a valid attestation."""


class PublicKeyError(QuantmillError, code="public-key-invalid", title="Public key not usable", status=422):
    """The file contains no public key that can verify attestations."""


class NotVerifiedError(QuantmillError, code="not-verified", title="Verification failed", status=422):
    """The file does not match its attestation, or no trusted key has signed the attestation."""


class NotReproducedError(QuantmillError, code="not-reproduced", title="Result not reproduced", status=409):
    """Repeating the job gave different bytes."""
