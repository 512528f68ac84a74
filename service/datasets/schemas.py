"""API schemas and errors of datasets."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from service.contracts.base import Description, Tags, Text
from service.contracts.brief import Brief, Row
from service.contracts.dataset import PREPROCESSING_NAMES, DatasetSummary, FileFormat, PreprocessingSpec
from service.contracts.errors import Problem, QuantmillError
from service.idempotency.requests import RepeatableBody
from service.jobs.schemas import Waiting
from service.models.schemas import SelfLinks
from service.resources import (
    ResourceInUseError,
    ResourceNotFoundError,
    ResourceNotReadyError,
    ResourceRejectedError,
    ResourceStatus,
)


def _or_name(schema: dict[str, Any]) -> None:
    """The spec itself, or a name."""
    place = schema.pop("$ref")
    schema["anyOf"] = [
        {"$ref": place},
        {"type": "string", "description": f"Name of a preprocessing spec: {PREPROCESSING_NAMES}."},
    ]


class DatasetCreate(RepeatableBody):
    """A dataset to create from an upload."""

    model_config = ConfigDict(extra="forbid")

    name: Text
    upload_id: str = Field(max_length=64)
    format: FileFormat | None = Field(
        default=None, description="File format; default: determined by the extension of the upload's filename."
    )
    preprocessing: Annotated[PreprocessingSpec, Field(json_schema_extra=_or_name)] = Field(
        default_factory=PreprocessingSpec, description="Preprocessing spec, or the name of one."
    )
    tags: Tags = Field(default_factory=dict, description="Tags of this version, for filtering.")
    description: Description | None = Field(default=None, description="Description, for display.")


class DatasetLinks(SelfLinks):
    """Related URLs of a dataset."""

    thumbnails: str | None = Field(
        default=None, description="URL of the contact sheet with thumbnails; null if the dataset contains no images."
    )


class DatasetOut(Brief, BaseModel):
    """A dataset."""

    id: str
    name: str
    version: int = Field(default=1, description="Version number within the name.")
    format: FileFormat
    status: ResourceStatus
    tags: dict[str, str] = Field(default_factory=dict)
    description: str | None = Field(default=None, description="Description, for display.")
    sha256: str
    size_bytes: int
    preprocessing: PreprocessingSpec
    fed_as: str = Field(
        default="", description="The preprocessing in words, such as 'used as stored (no preprocessing)'."
    )
    summary: DatasetSummary | None = Field(description="Facts found by validation; null until the dataset is ready.")
    problems: list[Problem] = Field(description="Why the dataset was rejected.")
    waiting: Waiting | None = Field(default=None, description="Why validation is delayed; null if it is not.")
    created_at: datetime
    updated_at: datetime
    links: DatasetLinks

    def _brief(self) -> Iterator[Row]:
        yield "id", self.id
        yield "name", f"{self.name}@{self.version}"
        yield "status", "; ".join([self.status, *(problem.detail for problem in self.problems)])
        yield "format", self.format
        yield "data", self.fed_as


# Errors around datasets as resources; what is wrong with a dataset itself stands in ``service.contracts.errors``.


class DatasetNotFoundError(ResourceNotFoundError, word="dataset", code="dataset-not-found", title="Dataset not found"):
    """The dataset does not exist or belongs to another tenant."""


class ThumbnailsNotFoundError(QuantmillError, code="thumbnails-not-found", title="Thumbnails not found", status=404):
    """The dataset has no thumbnails: it contains no images, or is not validated yet."""

    def __init__(self, dataset_id: str) -> None:
        super().__init__(
            f"Dataset {dataset_id!r} has no thumbnails.",
            path_parameter="dataset_id",
            hint="Image archives have thumbnails when they are ready.",
        )


class DatasetNotReadyError(ResourceNotReadyError, word="dataset", code="dataset-not-ready", title="Dataset not ready"):
    """The dataset is still being validated."""


class DatasetRejectedError(
    ResourceRejectedError, word="dataset", code="dataset-rejected", title="Dataset was rejected"
):
    """Validation rejected the dataset; the reasons are listed."""


class DatasetInUseError(ResourceInUseError, word="dataset", code="dataset-in-use", title="Dataset in use"):
    """The dataset cannot be deleted because another object uses it."""
