"""Errors around models as nouns; what is wrong with a model itself stands in ``service.contracts.errors``."""

from __future__ import annotations

from service.nouns import NounInUseError, NounNotFoundError, NounNotReadyError, NounRejectedError


class ModelNotFoundError(NounNotFoundError):
    """There is no such model (or it belongs to somebody else)."""

    code = "model-not-found"
    title = "No such model"
    word = "model"


class ModelNotReadyError(NounNotReadyError):
    """The model is still being validated."""

    code = "model-not-ready"
    title = "The model is still being validated"
    word = "model"


class ModelRejectedError(NounRejectedError):
    """The model was found unusable; the reasons are listed."""

    code = "model-rejected"
    title = "The model was rejected"
    word = "model"


class ModelInUseError(NounInUseError):
    """The model cannot be deleted: something that is there needs it."""

    code = "model-in-use"
    title = "The model is in use"
    word = "model"
