"""Errors around models as resources; what is wrong with a model itself stands in ``service.contracts.errors``."""

from __future__ import annotations

from service.resources import ResourceInUseError, ResourceNotFoundError, ResourceNotReadyError, ResourceRejectedError


class ModelNotFoundError(ResourceNotFoundError):
    """There is no such model (or it belongs to somebody else)."""

    code = "model-not-found"
    title = "No such model"
    word = "model"


class ModelNotReadyError(ResourceNotReadyError):
    """The model is still being validated."""

    code = "model-not-ready"
    title = "The model is still being validated"
    word = "model"


class ModelRejectedError(ResourceRejectedError):
    """The model was found unusable; the reasons are listed."""

    code = "model-rejected"
    title = "The model was rejected"
    word = "model"


class ModelInUseError(ResourceInUseError):
    """The model cannot be deleted: something that is there needs it."""

    code = "model-in-use"
    title = "The model is in use"
    word = "model"
