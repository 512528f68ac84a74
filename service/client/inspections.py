"""Inspections: what a target would make of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.client.connection import Connection, plain_config
from service.contracts.config import QuantizationConfig
from service.contracts.inspection import Inspection
from service.inspections.schemas import InspectionOut
from service.transport import ApiError


class InspectionCalls(Connection):
    """Calls of ``/v1/models/{id}/inspect``."""

    def inspect(
        self,
        model_id: str,
        *,
        target: str | None = None,
        config: QuantizationConfig | Mapping[str, Any] | None = None,
        timeout_seconds: float | None = None,
    ) -> Inspection:
        """What a target would make of a ready model, node by node; ``target`` takes the place of the config's.

        Raises:
            ApiError: the model cannot be inspected; carries the reason.
            WaitTimeoutError: it takes longer than that.
        """
        params = {} if target is None else {"target": target}
        made = InspectionOut.model_validate(
            self._json("POST", f"/v1/models/{model_id}/inspect", params=params, json={"config": plain_config(config)})
        )
        path = made.links.self

        def look(wait_seconds: float) -> InspectionOut:
            return InspectionOut.model_validate(self._json("GET", path, wait_seconds=wait_seconds))

        found = self._wait(look, lambda seen: seen.status != "running", timeout_seconds, path)
        if found.problem is not None:
            raise ApiError(found.problem)
        assert found.result is not None  # noqa: S101 - it has ended
        return found.result
