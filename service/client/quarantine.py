"""Models in quarantine: see them, release them."""

from __future__ import annotations

from service.client.connection import Connection
from service.client.driving import Call
from service.client.steps import Steps
from service.quarantine.schemas import QuarantineList, QuarantineOut


class QuarantineCalls(Connection):
    """Calls of ``/v1/quarantine``."""

    @Call
    def quarantine(self) -> Steps[list[QuarantineOut]]:
        """All models in quarantine, the newest first."""
        return QuarantineList.model_validate((yield from self._json("GET", "/v1/quarantine"))).items

    @Call
    def release(self, digest: str) -> Steps[None]:
        """Release the model of this digest.

        Raises:
            NotFoundError: it is not in quarantine.
        """
        yield from self._request("DELETE", f"/v1/quarantine/{digest}")
