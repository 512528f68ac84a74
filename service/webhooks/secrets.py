"""Secrets of webhooks: made at random, kept encrypted.

A signature needs the secret itself, so that a hash, as of keys, will not do. It is encrypted by AES-256-GCM under a key
that HKDF-SHA256 derives from the installation's pepper, which the database does not know; the id of its endpoint is
authenticated with it, so that no row's secret is good in another row.
"""

from __future__ import annotations

import base64
import secrets
from functools import cached_property

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from service.contracts.webhooks import SECRET_PREFIX
from service.keys.errors import PepperMissingError
from service.keys.secrets import pepper_id
from service.keys.service import pepper_of
from service.settings import Settings
from service.webhooks.errors import SecretUnreadableError, WebhooksUnavailableError

_SECRET_BYTES = 32
_KEY_BYTES = 32
_NONCE_BYTES = 12
_PURPOSE = b"quantmill webhook secrets v1"


def make_secret() -> str:
    """A secret of 256 random bits."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


class Vault:
    """Encrypts and decrypts secrets.

    Args:
        pepper: of the installation.
    """

    def __init__(self, pepper: str) -> None:
        self._pepper = pepper

    @classmethod
    def of(cls, settings: Settings) -> Vault:
        """The vault of this installation.

        Raises:
            WebhooksUnavailableError: it has no pepper.
        """
        try:
            return cls(pepper_of(settings))
        except PepperMissingError as error:
            raise WebhooksUnavailableError(
                "The secrets of webhooks are encrypted by a pepper, and this installation has none.", hint=error.hint
            ) from None

    @property
    def pepper_id(self) -> str:
        """By which it is told under which pepper a row was written."""
        return pepper_id(self._pepper)

    def seal(self, endpoint_id: str, secret: str) -> str:
        """What is stored of a secret."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return base64.b64encode(nonce + self._cipher.encrypt(nonce, secret.encode(), endpoint_id.encode())).decode()

    def open(self, endpoint_id: str, sealed: str) -> str:
        """The secret that was stored.

        Raises:
            SecretUnreadableError: it was encrypted under another pepper or for another endpoint, or is damaged.
        """
        try:
            data = base64.b64decode(sealed, validate=True)
            return self._cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], endpoint_id.encode()).decode()
        except (InvalidTag, ValueError):
            raise SecretUnreadableError(
                f"The secret of the webhook {endpoint_id} is damaged, or of another QUANTMILL_KEY_PEPPER.",
                hint="Set the pepper that it was made with, or rotate the secret.",
            ) from None

    @cached_property
    def _cipher(self) -> AESGCM:
        key = HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=None, info=_PURPOSE).derive(self._pepper.encode())
        return AESGCM(key)
