"""Datasets as seen over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from service.contracts.dataset import DatasetSummary, PreprocessingSpec
from service.contracts.errors import Problem
from service.contracts.texts import Text
from service.models.schemas import SelfLinks
from service.nouns import NounStatus

DatasetFormat = Literal["npz", "safetensors"]


class DatasetCreate(BaseModel):
    """A dataset made of one upload."""

    model_config = ConfigDict(extra="forbid")

    name: Text
    upload_id: str = Field(max_length=64)
    format: DatasetFormat | None = Field(default=None, description="Default: the ending of the upload's filename.")
    preprocessing: PreprocessingSpec = Field(default_factory=PreprocessingSpec)


class DatasetOut(BaseModel):
    """A dataset."""

    id: str
    name: str
    format: DatasetFormat
    status: NounStatus
    sha256: str
    size_bytes: int
    preprocessing: PreprocessingSpec
    summary: DatasetSummary | None = Field(description="What validation found, once ready.")
    problems: list[Problem] = Field(description="Why it was rejected.")
    created_at: datetime
    updated_at: datetime
    links: SelfLinks
