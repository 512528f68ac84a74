"""Datasets as seen over HTTP, and errors around them as resources."""

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
    schema["anyOf"] = [{"$ref": place}, {"type": "string", "description": f"A name: {PREPROCESSING_NAMES}."}]


class DatasetCreate(RepeatableBody):
    """A dataset made of one upload."""

    model_config = ConfigDict(extra="forbid")

    name: Text
    upload_id: str = Field(max_length=64)
    format: FileFormat | None = Field(default=None, description="Default: the ending of the upload's filename.")
    preprocessing: Annotated[PreprocessingSpec, Field(json_schema_extra=_or_name)] = Field(
        default_factory=PreprocessingSpec, description="A spec, or the name of one."
    )
    tags: Tags = Field(default_factory=dict, description="Of this version, to find it by.")
    description: Description | None = Field(default=None, description="For people.")


class DatasetLinks(SelfLinks):
    """Where to go from a dataset."""

    thumbnails: str | None = Field(default=None, description="A sheet of small pictures, where it holds pictures.")


class DatasetOut(Brief, BaseModel):
    """A dataset."""

    id: str
    name: str
    version: int = Field(default=1, description="Counted by name.")
    format: FileFormat
    status: ResourceStatus
    tags: dict[str, str] = Field(default_factory=dict)
    description: str | None = Field(default=None, description="For people.")
    sha256: str
    size_bytes: int
    preprocessing: PreprocessingSpec
    summary: DatasetSummary | None = Field(description="What validation found, once ready.")
    problems: list[Problem] = Field(description="Why it was rejected.")
    waiting: Waiting | None = Field(default=None, description="What keeps it in validation, if anything does.")
    created_at: datetime
    updated_at: datetime
    links: DatasetLinks

    def _brief(self) -> Iterator[Row]:
        yield "id", self.id
        yield "name", f"{self.name}@{self.version}"
        yield "status", "; ".join([self.status, *(problem.detail for problem in self.problems)])
        yield "format", self.format


# Errors around datasets as resources; what is wrong with a dataset itself stands in ``service.contracts.errors``.


class DatasetNotFoundError(ResourceNotFoundError, word="dataset", code="dataset-not-found", title="No such dataset"):
    """There is no such dataset (or it belongs to somebody else)."""


class ThumbnailsNotFoundError(
    QuantmillError, code="thumbnails-not-found", title="The dataset has no thumbnails", status=404
):
    """The dataset has no thumbnails: it holds no pictures, or is not validated yet."""

    def __init__(self, dataset_id: str) -> None:
        super().__init__(
            f"The dataset {dataset_id!r} has no thumbnails.",
            path_parameter="dataset_id",
            hint="Archives of pictures have them once they are ready.",
        )


class DatasetNotReadyError(
    ResourceNotReadyError, word="dataset", code="dataset-not-ready", title="The dataset is still being validated"
):
    """The dataset is still being validated."""


class DatasetRejectedError(
    ResourceRejectedError, word="dataset", code="dataset-rejected", title="The dataset was rejected"
):
    """The dataset was found unusable; the reasons are listed."""


class DatasetInUseError(ResourceInUseError, word="dataset", code="dataset-in-use", title="The dataset is in use"):
    """The dataset cannot be deleted: something that is there needs it."""
