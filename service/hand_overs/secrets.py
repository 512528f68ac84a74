"""URLs and headers of hand-overs: kept encrypted until they have been used."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from service.hand_overs.errors import HandOverUnavailableError, HandOverUnreadableError
from service.sealing import SealBrokenError, Vault


@dataclass(frozen=True, repr=False)
class SecretTarget:
    """Where a hand-over goes: what its client gave, and nobody else is to see."""

    url: str
    headers: dict[str, str]


class HandOverVault(Vault):
    """Encrypts and decrypts targets."""

    purpose = b"quantmill hand-overs v1"
    about = "The URLs of hand-overs are"
    unavailable = HandOverUnavailableError

    def seal(self, hand_over_id: str, target: SecretTarget) -> str:
        """What is stored of a target."""
        return self.sealer.seal(hand_over_id, json.dumps({"url": target.url, "headers": target.headers}))

    def open(self, hand_over_id: str, sealed: str) -> SecretTarget:
        """The target that was stored.

        Raises:
            HandOverUnreadableError: it was encrypted under another pepper or for another hand-over, or is damaged.
        """
        try:
            found: dict[str, Any] = json.loads(self.sealer.open(hand_over_id, sealed))
        except SealBrokenError:
            raise HandOverUnreadableError(
                "Its URL is damaged, or was stored under another QUANTMILL_KEY_PEPPER.",
                hint="Set the pepper that it was stored with, or give the URL again.",
            ) from None
        return SecretTarget(found["url"], found["headers"])
