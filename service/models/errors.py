"""Errors around models as nouns; what is wrong with a model itself stands in ``service.contracts.errors``."""

from __future__ import annotations

from service.contracts.errors import Problem, QuantmillError
from service.nouns import NounNotReadyError, NounRejectedError


class ModelNotFoundError(QuantmillError):
    """There is no such model (or it belongs to somebody else)."""

    code = "model-not-found"
    title = "No such model"
    status = 404

    def __init__(self, model_id: str, *, pointer: str | None = None) -> None:
        super().__init__(
            f"There is no model {model_id!r}.",
            pointer=pointer,
            path_parameter="model_id" if pointer is None else None,
            hint="GET /v1/models lists them.",
        )


class ModelNotReadyError(NounNotReadyError):
    """The model is still being validated."""

    code = "model-not-ready"
    title = "The model is still being validated"

    def __init__(self, model_id: str, *, pointer: str) -> None:
        super().__init__("model", model_id, pointer)


class ModelRejectedError(NounRejectedError):
    """The model was found unusable; the reasons are listed."""

    code = "model-rejected"
    title = "The model was rejected"

    def __init__(self, model_id: str, *, pointer: str, reasons: list[Problem]) -> None:
        super().__init__("model", model_id, pointer, reasons)
