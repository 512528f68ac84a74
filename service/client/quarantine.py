"""Models in quarantine: see them, release them."""

from __future__ import annotations

from service.client.connection import Connection
from service.quarantine.schemas import QuarantineList, QuarantineOut


class QuarantineCalls(Connection):
    """Calls of ``/v1/quarantine``."""

    def quarantine(self) -> list[QuarantineOut]:
        """All models in quarantine, the newest first."""
        return QuarantineList.model_validate(self._json("GET", "/v1/quarantine")).items

    def release(self, digest: str) -> None:
        """Release the model of this digest.

        Raises:
            ApiError: it is not in quarantine.
        """
        send = self._transport.send
        self._transport.patiently(lambda: send("DELETE", f"/v1/quarantine/{digest}"))
