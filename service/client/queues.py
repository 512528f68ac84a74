"""The service itself: its version, and its queues."""

from __future__ import annotations

from service.client.connection import Connection
from service.client.driving import Call
from service.client.steps import Steps
from service.queues.schemas import QueueList, QueueOut


class QueueCalls(Connection):
    """Calls of ``/v1/queues`` and ``/v1/version``."""

    @Call
    def version(self) -> Steps[str]:
        """The version of Quantmill that the service runs."""
        return str((yield from self._json("GET", "/v1/version"))["version"])

    @Call
    def queues(self) -> Steps[list[QueueOut]]:
        """Every queue: what waits in it, what runs, and the slots of its live workers."""
        return QueueList.model_validate((yield from self._json("GET", "/v1/queues"))).items
