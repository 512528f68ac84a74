"""Secrets of webhooks: made at random, kept encrypted. A signature needs the secret itself: a hash will not do."""

from __future__ import annotations

import base64
import secrets

from service.contracts.webhooks import SECRET_PREFIX
from service.sealing import SealBrokenError, Vault
from service.webhooks.errors import SecretUnreadableError, WebhooksUnavailableError

_SECRET_BYTES = 32


def make_secret() -> str:
    """A secret of 256 random bits."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


class WebhookVault(Vault):
    """Encrypts and decrypts secrets."""

    purpose = b"quantmill webhook secrets v1"
    about = "The secrets of webhooks are"
    unavailable = WebhooksUnavailableError

    def seal(self, endpoint_id: str, secret: str) -> str:
        """What is stored of a secret."""
        return self.sealer.seal(endpoint_id, secret)

    def open(self, endpoint_id: str, sealed: str) -> str:
        """The secret that was stored.

        Raises:
            SecretUnreadableError: it was encrypted under another pepper or for another endpoint, or is damaged.
        """
        try:
            return self.sealer.open(endpoint_id, sealed)
        except SealBrokenError:
            raise SecretUnreadableError(
                f"The secret of the webhook {endpoint_id} is damaged, or of another QUANTMILL_KEY_PEPPER.",
                hint="Set the pepper that it was made with, or rotate the secret.",
            ) from None
