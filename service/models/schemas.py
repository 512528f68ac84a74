"""Models as seen over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from service.contracts.errors import Problem
from service.contracts.model import ModelSummary
from service.contracts.texts import Text, plain_text
from service.contracts.validation import BELOW
from service.nouns import NounStatus

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
        description="Plain file name; external data must have the name that the model calls it by."
    )


class ModelCreate(BaseModel):
    """A model made of uploads: one file ends in .onnx, all others are its external data."""

    model_config = ConfigDict(extra="forbid")

    name: Text
    files: list[ModelFileCreate] = Field(min_length=1, max_length=MAX_FILES)
    format: Literal["onnx"] = "onnx"

    @field_validator("files")
    @classmethod
    def _one_main_file(cls, files: list[ModelFileCreate]) -> list[ModelFileCreate]:
        paths = [file.path for file in files]
        for index, path in enumerate(paths):
            if path in paths[:index]:
                raise PydanticCustomError(
                    "file-twice", "two files are called {path}", {"path": repr(path), BELOW: f"/{index}/path"}
                )
        main = [path for path in paths if is_main(path)]
        if len(main) != 1:
            raise ValueError(f"exactly one file must end in .onnx, found {len(main)}: {', '.join(map(repr, paths))}")
        return files


def is_main(path: str) -> bool:
    """True for the ONNX file itself, False for external data."""
    return path.lower().endswith(".onnx")


class ModelFileOut(BaseModel):
    """One file of a model."""

    path: str
    size_bytes: int
    sha256: str


class SelfLinks(BaseModel):
    """Where this lives."""

    self: str


class ModelOut(BaseModel):
    """A model."""

    id: str
    name: str
    format: str
    status: NounStatus
    summary: ModelSummary | None = Field(description="Facts found by validation, once ready.")
    problems: list[Problem] = Field(description="Why it was rejected.")
    files: list[ModelFileOut]
    created_at: datetime
    updated_at: datetime
    links: SelfLinks
