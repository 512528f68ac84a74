"""Envelopes by DSSE v1 (github.com/secure-systems-lab/dsse): a payload, its type, and signatures over both."""

from __future__ import annotations

import base64
import binascii

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.attestations.errors import AttestationUnreadableError
from service.attestations.keys import PublicKey, SigningKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
# A config with the ranges of a large model has some megabytes.
MOST_BYTES = 64 * 1024**2
_MOST_SIGNATURES = 16


class Signature(BaseModel):
    """One signature, in base64. ``keyid`` is a hint and is not signed."""

    model_config = ConfigDict(frozen=True)

    keyid: str = Field(default="", max_length=256)
    sig: str = Field(max_length=1024)


class Envelope(BaseModel):
    """An envelope as it is stored and sent; fields that are not known are passed over, as DSSE asks."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    payload: str = Field(description="The statement, JSON, in base64.", max_length=MOST_BYTES)
    payload_type: str = Field(alias="payloadType", max_length=256)
    signatures: tuple[Signature, ...] = Field(min_length=1, max_length=_MOST_SIGNATURES)

    @property
    def body(self) -> bytes:
        """The payload's bytes.

        Raises:
            AttestationUnreadableError: they are not base64.
        """
        return _decoded(self.payload)

    def signed_by(self, keys: list[PublicKey]) -> PublicKey | None:
        """The first of the keys that has signed exactly this; None if none has.

        Raises:
            AttestationUnreadableError: payload or signatures are not base64.
        """
        message = pae(self.payload_type, self.body)
        signatures = [_decoded(signature.sig) for signature in self.signatures]
        return next((key for key in keys if any(key.verifies(signature, message) for signature in signatures)), None)

    def line(self) -> str:
        """The envelope as one line of JSON, the same for the same envelope."""
        return self.model_dump_json(by_alias=True)


def pae(payload_type: str, payload: bytes) -> bytes:
    """What is signed: type and payload, each with its length before it (DSSE's pre-authentication encoding)."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def enveloped(payload: bytes, key: SigningKey) -> Envelope:
    """The payload, an in-toto statement, signed by ``key``. Ed25519 has no randomness: the same gives the same."""
    signature = base64.b64encode(key.sign(pae(PAYLOAD_TYPE, payload))).decode()
    return Envelope(
        payload=base64.b64encode(payload).decode(),
        payload_type=PAYLOAD_TYPE,
        signatures=(Signature(keyid=key.public.id, sig=signature),),
    )


def parse_envelope(data: bytes) -> Envelope:
    """The one envelope of a file.

    Raises:
        AttestationUnreadableError: it is none.
    """
    if len(data) > MOST_BYTES:
        raise AttestationUnreadableError(f"The attestation has more than {MOST_BYTES} bytes.")
    try:
        return Envelope.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise AttestationUnreadableError(
            f"The attestation is no DSSE envelope: {place}: {first['msg']}.",
            hint="Take the file that `quantmill jobs fetch` or GET /v1/jobs/{id}/attestation gave.",
        ) from None


def _decoded(text: str) -> bytes:
    """Bytes of base64, in either of its alphabets, as DSSE allows."""
    plain = text.replace("-", "+").replace("_", "/")
    try:
        data = base64.b64decode(plain, validate=True)
    except (binascii.Error, ValueError):
        data = None
    # bits that decoding drops are no place for changes
    if data is None or base64.b64encode(data).decode() != plain:
        raise AttestationUnreadableError("The attestation's payload or signature is not base64.")
    return data
