"""Secrets of webhooks: made at random, kept encrypted. A signature needs the secret itself: a hash will not do."""

from __future__ import annotations

import base64
import secrets

from service.contracts.webhooks import SECRET_PREFIX
from service.keys.errors import PepperMissingError
from service.keys.service import pepper_of
from service.sealing import SealBrokenError, Sealer
from service.settings import Settings
from service.webhooks.errors import SecretUnreadableError, WebhooksUnavailableError

_SECRET_BYTES = 32
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
        self._sealer = Sealer(pepper, _PURPOSE)

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
        return self._sealer.pepper_id

    def seal(self, endpoint_id: str, secret: str) -> str:
        """What is stored of a secret."""
        return self._sealer.seal(endpoint_id, secret)

    def open(self, endpoint_id: str, sealed: str) -> str:
        """The secret that was stored.

        Raises:
            SecretUnreadableError: it was encrypted under another pepper or for another endpoint, or is damaged.
        """
        try:
            return self._sealer.open(endpoint_id, sealed)
        except SealBrokenError:
            raise SecretUnreadableError(
                f"The secret of the webhook {endpoint_id} is damaged, or of another QUANTMILL_KEY_PEPPER.",
                hint="Set the pepper that it was made with, or rotate the secret.",
            ) from None
