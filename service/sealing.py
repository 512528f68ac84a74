"""Secrets that the database keeps encrypted alone.

AES-256-GCM under a key that HKDF-SHA256 derives from the installation's pepper, which the database does not know. What
a secret belongs to is authenticated with it, so that no row's secret is good in another row.
"""

from __future__ import annotations

import base64
import secrets
from functools import cached_property

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from service.keys.secrets import pepper_id

_KEY_BYTES = 32
_NONCE_BYTES = 12


class SealBrokenError(ValueError):
    """It was encrypted under another pepper or for something else, or is damaged. Callers tell it in their words."""


class Sealer:
    """Encrypts and decrypts secrets of one kind.

    Args:
        pepper: of the installation.
        purpose: the kind; what was sealed for one cannot be opened for another.
    """

    def __init__(self, pepper: str, purpose: bytes) -> None:
        self._pepper = pepper
        self._purpose = purpose

    @property
    def pepper_id(self) -> str:
        """By which it is told under which pepper a row was written."""
        return pepper_id(self._pepper)

    def seal(self, owner: str, secret: str) -> str:
        """What is stored of a secret that belongs to ``owner``, an id."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return base64.b64encode(nonce + self._cipher.encrypt(nonce, secret.encode(), owner.encode())).decode()

    def open(self, owner: str, sealed: str) -> str:
        """The secret that was stored.

        Raises:
            SealBrokenError: it was encrypted under another pepper or for another owner, or is damaged.
        """
        try:
            data = base64.b64decode(sealed, validate=True)
            return self._cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], owner.encode()).decode()
        except (InvalidTag, ValueError) as error:
            raise SealBrokenError("the seal is broken") from error

    @cached_property
    def _cipher(self) -> AESGCM:
        key = HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=None, info=self._purpose).derive(self._pepper.encode())
        return AESGCM(key)
