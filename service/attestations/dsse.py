"""DSSE v1 envelopes (github.com/secure-systems-lab/dsse) and the Ed25519 keys (RFC 8032) that sign them.

securesystemslib's envelope takes signatures by their ``keyid`` alone, which DSSE calls a hint that may be missing, and
base64 with bits that decoding drops.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.attestations.schemas import AttestationUnreadableError, PublicKeyError
from service.contracts.validation_words import message_of

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
    """An envelope as it is stored and sent. Unknown fields are ignored, as DSSE requires."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    payload: str = Field(description="The statement, as JSON in base64.", max_length=MOST_BYTES)
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
        raise AttestationUnreadableError(f"The attestation is larger than {MOST_BYTES} bytes.")
    try:
        return Envelope.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole document"
        raise AttestationUnreadableError(
            f"The attestation is not a valid DSSE envelope: {place}: {message_of(first)}.",
            hint="Download it again with GET /v1/jobs/{id}/attestation.",
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
        raise AttestationUnreadableError("The payload or a signature of the attestation is not valid base64.")
    return data


KEY_ID_LENGTH = 16
_MOST_PEM_CHARS = 64 * 1024
_PEM = re.compile(r"-----BEGIN PUBLIC KEY-----[A-Za-z0-9+/=\s]{1,1000}-----END PUBLIC KEY-----")


@dataclass(frozen=True)
class PublicKey:
    """The half of a key that verifies; ``raw`` has 32 bytes."""

    raw: bytes

    @property
    def id(self) -> str:
        """The first 16 hexadecimal digits of the SHA-256 of the 32 bytes."""
        return hashlib.sha256(self.raw).hexdigest()[:KEY_ID_LENGTH]

    @property
    def pem(self) -> str:
        """As X.509 SubjectPublicKeyInfo in PEM, what openssl reads."""
        return self._key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether this key has signed exactly this message."""
        try:
            self._key.verify(signature, message)
        except InvalidSignature:
            return False
        return True

    @property
    def _key(self) -> Ed25519PublicKey:
        return Ed25519PublicKey.from_public_bytes(self.raw)


@dataclass(frozen=True, repr=False)
class SigningKey:
    """The whole key; ``seed`` has 32 bytes and is the secret."""

    seed: bytes

    @classmethod
    def made(cls) -> SigningKey:
        """A new one, of 256 random bits."""
        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def of_text(cls, text: str) -> SigningKey:
        """The key of what ``text`` gave."""
        return cls(base64.b64decode(text))

    @property
    def text(self) -> str:
        """The secret in base64, to be sealed."""
        return base64.b64encode(self.seed).decode()

    @property
    def public(self) -> PublicKey:
        """The half that may be known."""
        return PublicKey(self._key.public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """64 bytes, the same for the same message."""
        return self._key.sign(message)

    @property
    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.seed)


def keys_of_pem(text: str, where: str) -> list[PublicKey]:
    """The public keys of a PEM file, which may hold several.

    Args:
        text: of the file.
        where: its name, for errors.

    Raises:
        PublicKeyError: it holds none, or one that is not Ed25519.
    """
    blocks = _PEM.findall(text) if len(text) <= _MOST_PEM_CHARS else []
    if not blocks:
        raise PublicKeyError(
            f"{where} contains no public key in PEM format.", hint="Get the public keys with GET /v1/keys/signing."
        )
    found = []
    for block in blocks:
        try:
            key = load_pem_public_key(block.encode())
        except (ValueError, UnsupportedAlgorithm):
            raise PublicKeyError(f"{where} contains a damaged public key.") from None
        if not isinstance(key, Ed25519PublicKey):
            raise PublicKeyError(f"{where} contains a public key of a type other than Ed25519.")
        found.append(PublicKey(key.public_bytes_raw()))
    return found
