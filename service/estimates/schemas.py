"""Estimates as seen over HTTP."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class SecondsRange(BaseModel):
    """Seconds; in eight of ten cases it is between ``low`` and ``high``."""

    expected: float
    low: float
    high: float


class BytesRange(BaseModel):
    """Bytes; in eight of ten cases it is between ``low`` and ``high``."""

    expected: int
    low: int
    high: int


class Estimate(BaseModel):
    """What a job will take, as it was told when it was stored."""

    seconds: SecondsRange = Field(description="From the start of its first attempt to its end.")
    peak_memory_bytes: BytesRange = Field(
        description="Of its process, at the highest. The expected one leaves room: less is rarely enough."
    )
    size_bytes: BytesRange | None = Field(description="Of the quantized model; null: an evaluation makes none.")
    basis: Literal["graph", "timed", "history"] = Field(
        description="history: earlier jobs with this model. timed: a forward pass, timed when the model was "
        "validated. graph: its operators and shapes alone."
    )
    runs: int = Field(description="Earlier jobs with this model that went into it.")
