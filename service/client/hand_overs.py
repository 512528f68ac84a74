"""Hand-overs: where results of jobs go, and how far that has come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service.client.connection import Connection, Noun, id_of
from service.client.driving import Call
from service.client.steps import Steps
from service.hand_overs.schemas import HandOverList, HandOverOut


class HandOverCalls(Connection):
    """Calls of ``/v1/jobs/ID/hand-over``."""

    @Call
    def hand_over(
        self, job: Noun | str, targets: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None
    ) -> Steps[list[HandOverOut]]:
        """Have results of a job sent to places of yours, once it has succeeded, or now if it has; gives the new ones.

        Args:
            job: the job, or its id.
            targets: as POST takes them: ``{"kind": "put", "artifact": "model", "url": PRESIGNED}``, or
                ``{"kind": "post", "url": URL}``, each with ``headers`` and ``when``.
            idempotency_key: as for ``submit``.

        Raises:
            ConflictError: the job has failed or was canceled, or has as many as it may.
        """
        body = {"targets": [dict(target) for target in targets]}
        made = yield from self._create(f"/v1/jobs/{id_of(job)}/hand-over", body, idempotency_key)
        return HandOverList.model_validate(made).items

    @Call
    def hand_overs(self, job: Noun | str) -> Steps[list[HandOverOut]]:
        """Hand-overs of a job, in the order in which they were asked for; without URLs, which nobody is shown."""
        found = yield from self._json("GET", f"/v1/jobs/{id_of(job)}/hand-over")
        return HandOverList.model_validate(found).items
