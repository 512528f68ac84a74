"""Ed25519 keys (RFC 8032) by which attestations are signed and verified."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from service.attestations.errors import PublicKeyError

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
            f"{where} holds no public key in PEM.", hint="GET /v1/keys/signing and `quantmill keys signing` give them."
        )
    found = []
    for block in blocks:
        try:
            key = load_pem_public_key(block.encode())
        except (ValueError, UnsupportedAlgorithm):
            raise PublicKeyError(f"{where} holds a public key that is damaged.") from None
        if not isinstance(key, Ed25519PublicKey):
            raise PublicKeyError(f"{where} holds a public key of another kind than Ed25519.")
        found.append(PublicKey(key.public_bytes_raw()))
    return found
