"""Errors around datasets as resources; what is wrong with a dataset itself stands in ``service.contracts.errors``."""

from __future__ import annotations

from service.contracts.errors import QuantmillError
from service.resources import ResourceInUseError, ResourceNotFoundError, ResourceNotReadyError, ResourceRejectedError


class DatasetNotFoundError(ResourceNotFoundError):
    """There is no such dataset (or it belongs to somebody else)."""

    code = "dataset-not-found"
    title = "No such dataset"
    word = "dataset"


class ThumbnailsNotFoundError(QuantmillError):
    """The dataset has no thumbnails: it holds no pictures, or is not validated yet."""

    code = "thumbnails-not-found"
    title = "The dataset has no thumbnails"
    status = 404

    def __init__(self, dataset_id: str) -> None:
        super().__init__(
            f"The dataset {dataset_id!r} has no thumbnails.",
            path_parameter="dataset_id",
            hint="Archives of pictures have them once they are ready.",
        )


class DatasetNotReadyError(ResourceNotReadyError):
    """The dataset is still being validated."""

    code = "dataset-not-ready"
    title = "The dataset is still being validated"
    word = "dataset"


class DatasetRejectedError(ResourceRejectedError):
    """The dataset was found unusable; the reasons are listed."""

    code = "dataset-rejected"
    title = "The dataset was rejected"
    word = "dataset"


class DatasetInUseError(ResourceInUseError):
    """The dataset cannot be deleted: something that is there needs it."""

    code = "dataset-in-use"
    title = "The dataset is in use"
    word = "dataset"
