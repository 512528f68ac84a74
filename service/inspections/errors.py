"""Errors around inspections."""

from __future__ import annotations

from service.contracts.errors import QuantmillError


class InspectionNotFoundError(QuantmillError):
    """There is no such inspection (or it belongs to somebody else)."""

    code = "inspection-not-found"
    title = "No such inspection"
    status = 404

    def __init__(self, inspection_id: str) -> None:
        super().__init__(
            f"There is no inspection {inspection_id!r}.",
            path_parameter="inspection_id",
            hint="POST /v1/models/{model_id}/inspect makes one.",
        )


class UnknownTargetError(QuantmillError):
    """There is no such target."""

    code = "unknown-target"
    title = "No such target"
    status = 422
