"""Secrets that are stored encrypted in the database.

AES-256-GCM under a key that HKDF-SHA256 derives from the installation's pepper, which the database does not know. What
a secret belongs to is authenticated with it, so that no row's secret is good in another row.
"""

from __future__ import annotations

import base64
import secrets
from functools import cached_property
from typing import ClassVar, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from service.contracts.errors import QuantmillError
from service.keys.schemas import PepperMissingError
from service.keys.secrets import pepper_id
from service.keys.service import pepper_of
from service.settings import Settings

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


class Vault:
    """Keeps secrets of one kind; a subclass says which, seals and opens in its own words.

    Args:
        pepper: of the installation.
    """

    purpose: ClassVar[bytes]
    about: ClassVar[str]
    unavailable: ClassVar[type[QuantmillError]]

    def __init__(self, pepper: str) -> None:
        self.sealer = Sealer(pepper, self.purpose)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The vault of this installation.

        Raises:
            QuantmillError: ``unavailable`` of the subclass: the installation has no pepper.
        """
        try:
            return cls(pepper_of(settings))
        except PepperMissingError as error:
            raise cls.unavailable(
                f"{cls.about} encrypted with a pepper, but this installation has none.", hint=error.hint
            ) from None

    @property
    def pepper_id(self) -> str:
        """By which it is told under which pepper a row was written."""
        return self.sealer.pepper_id
