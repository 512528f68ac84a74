"""Inspections: what a target would make of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.client.connection import Connection, Noun, id_of, plain_config
from service.client.driving import Call
from service.client.errors import JobFailedError
from service.client.steps import Steps
from service.contracts.config import QuantizationConfig
from service.contracts.inspection import Inspection
from service.inspections.schemas import InspectionOut


class InspectionCalls(Connection):
    """Calls of ``/v1/models/{id}/inspect``."""

    @Call
    def inspect(
        self,
        model: Noun | str,
        *,
        target: str | None = None,
        config: QuantizationConfig | Mapping[str, Any] | None = None,
        timeout_seconds: float | None = None,
    ) -> Steps[Inspection]:
        """What a target would make of a ready model, node by node; ``target`` takes the place of the config's.

        Raises:
            JobFailedError: the model cannot be inspected; carries the reason.
            WaitTimeoutError: it takes longer than that.
        """
        params = {} if target is None else {"target": target}
        body = {"config": plain_config(config)}
        # asked again for the same model and config, the same inspection is found
        answer = yield from self._json(
            "POST", f"/v1/models/{id_of(model)}/inspect", params=params, json=body, repeatable=True
        )
        path = InspectionOut.model_validate(answer).links.self

        def look(wait_seconds: float) -> Steps[InspectionOut]:
            return InspectionOut.model_validate((yield from self._json("GET", path, wait_seconds=wait_seconds)))

        found = yield from self._wait(look, lambda seen: seen.status != "running", timeout_seconds, path)
        if found.problem is not None:
            raise JobFailedError(found.problem)
        assert found.result is not None  # noqa: S101 - it has ended
        return found.result
