"""API schemas and errors of models."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from service.contracts.base import MOST_REFERENCE_CHARS, Description, Tags, Text, plain_text
from service.contracts.brief import Brief, Row
from service.contracts.errors import Problem
from service.contracts.model import ModelFormat, ModelSummary
from service.contracts.validation import BELOW
from service.idempotency.requests import RepeatableBody
from service.jobs.schemas import Waiting
from service.resources import (
    ResourceInUseError,
    ResourceNotFoundError,
    ResourceNotReadyError,
    ResourceRejectedError,
    ResourceStatus,
)

MAX_FILES = 256


def plain_file_name(value: str) -> str:
    """Refuse anything that is not the bare name of a file."""
    if value in (".", "..") or "/" in value or "\\" in value:
        raise ValueError("must be a plain file name, without folders")
    if len(value.encode()) > 255:
        raise ValueError("must be at most 255 bytes long")
    return plain_text(value)


class ModelFileCreate(BaseModel):
    """One uploaded file of a model."""

    model_config = ConfigDict(extra="forbid")

    upload_id: str = Field(max_length=64)
    path: Annotated[str, Field(min_length=1, max_length=255), AfterValidator(plain_file_name)] = Field(
        description="Plain file name. A file of external data must have the name that the model refers to."
    )


class ModelCreate(RepeatableBody):
    """A model to create from uploads: an ONNX file with its external data, or one file that is converted to ONNX."""

    model_config = ConfigDict(extra="forbid")

    format: ModelFormat = Field(
        default="onnx",
        description=(
            "Format of the files. onnx: one file ends in .onnx, all others are its external data. "
            "safetensors: one file with new weights for the graph of skeleton_model_id. pt2: one "
            "torch.export archive, if the service accepts them."
        ),
    )
    files: list[ModelFileCreate] = Field(min_length=1, max_length=MAX_FILES)
    skeleton_model_id: str | None = Field(
        default=None,
        max_length=MOST_REFERENCE_CHARS,
        validate_default=True,
        description="For format safetensors: the ready model whose graph is used with the new weights. Its id, or "
        "NAME@VERSION, NAME@ALIAS or NAME@latest.",
    )
    name: Text | None = Field(
        default=None,
        validate_default=True,
        description="Name of the model; the next version of this name is created. If omitted for new weights, the "
        "name of their skeleton.",
    )
    tags: Tags = Field(default_factory=dict, description="Tags of this version, for filtering.")
    description: Description | None = Field(default=None, description="Description, for display.")

    @field_validator("files")
    @classmethod
    def _one_main_file(cls, files: list[ModelFileCreate], info: ValidationInfo) -> list[ModelFileCreate]:
        paths = [file.path for file in files]
        for index, path in enumerate(paths):
            if path in paths[:index]:
                raise PydanticCustomError(
                    "file-twice", "two files are named {path}", {"path": repr(path), BELOW: f"/{index}/path"}
                )
        form = info.data.get("format", "onnx")
        if form != "onnx":
            if len(paths) != 1 or not paths[0].lower().endswith(f".{form}"):
                raise ValueError(f"format {form} requires exactly one file, with the extension .{form}")
            return files
        main = [path for path in paths if is_main(path)]
        if len(main) != 1:
            if main:
                raise ValueError(f"more than one .onnx file: {', '.join(map(repr, main))}; upload one model at a time")
            raise ValueError(f"no .onnx file among {', '.join(map(repr, paths))}")
        return files

    @field_validator("skeleton_model_id")
    @classmethod
    def _skeleton_of_weights(cls, skeleton: str | None, info: ValidationInfo) -> str | None:
        weights = info.data.get("format", "onnx") == "safetensors"
        if weights and skeleton is None:
            raise ValueError("format safetensors requires skeleton_model_id, the model whose graph the weights are for")
        if skeleton is not None and not weights:
            raise ValueError("skeleton_model_id is allowed only for new weights (format safetensors)")
        return skeleton

    @field_validator("name")
    @classmethod
    def _named(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is None and info.data.get("skeleton_model_id", "") is None:
            raise PydanticCustomError(
                "missing", "a model requires a name; only new weights use the name of their skeleton by default"
            )
        return name


def is_main(path: str) -> bool:
    """True for the ONNX file itself, False for external data."""
    return path.lower().endswith(".onnx")


class ModelFileOut(BaseModel):
    """One file of a model."""

    path: str
    size_bytes: int
    sha256: str


class SelfLinks(BaseModel):
    """URL of this resource."""

    self: str


class ModelOut(Brief, BaseModel):
    """A model."""

    id: str
    name: str
    version: int = Field(default=1, description="Version number within the name.")
    format: str
    status: ResourceStatus
    tags: dict[str, str] = Field(default_factory=dict)
    description: str | None = Field(default=None, description="Description, for display.")
    summary: ModelSummary | None = Field(description="Facts found by validation; null until the model is ready.")
    problems: list[Problem] = Field(description="Why the model was rejected.")
    waiting: Waiting | None = Field(default=None, description="Why validation is delayed; null if it is not.")
    files: list[ModelFileOut]
    skeleton_model_id: str | None = Field(
        default=None, description="Model whose graph this model uses, with other weights."
    )
    created_at: datetime
    updated_at: datetime
    links: SelfLinks

    def _brief(self) -> Iterator[Row]:
        yield "id", self.id
        yield "name", f"{self.name}@{self.version}"
        yield "status", "; ".join([self.status, *(problem.detail for problem in self.problems)])
        yield "format", self.format


# Errors around models as resources; what is wrong with a model itself stands in ``service.contracts.errors``.


class ModelNotFoundError(ResourceNotFoundError, word="model", code="model-not-found", title="Model not found"):
    """The model does not exist or belongs to another tenant."""


class ModelNotReadyError(ResourceNotReadyError, word="model", code="model-not-ready", title="Model not ready"):
    """The model is still being validated."""


class ModelRejectedError(ResourceRejectedError, word="model", code="model-rejected", title="Model was rejected"):
    """Validation rejected the model; the reasons are listed."""


class ModelInUseError(ResourceInUseError, word="model", code="model-in-use", title="Model in use"):
    """The model cannot be deleted because another object uses it."""
