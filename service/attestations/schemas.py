"""Attestations and signing keys as seen over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field


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
