"""Queues: what waits, and who takes it."""

from __future__ import annotations

from service.client.connection import Connection
from service.queues.schemas import QueueList, QueueOut


class QueueCalls(Connection):
    """Calls of ``/v1/queues``."""

    def queues(self) -> list[QueueOut]:
        """Every queue: what waits in it, what runs, and the slots of its live workers."""
        return QueueList.model_validate(self._json("GET", "/v1/queues")).items
