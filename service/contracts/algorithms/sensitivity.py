"""Sensitivity as a result of its own."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from service.contracts.algorithms.base import AlgorithmBase
from service.contracts.algorithms.precision import Level, RankingSamples, Verified
from service.contracts.metrics.base import OutputRef


class SensitivityAnalysis(AlgorithmBase):
    """Tells what every layer's precision does to the output, and changes nothing.

    The ranking, as JSON and CSV, is a file of the job.
    """

    place = 2

    method: Literal["sensitivity"] = "sensitivity"
    levels: dict[str, Level] = Field(
        default_factory=dict,
        max_length=16,
        description=(
            "Candidates by name; the last one's errors are propagated to the output and the others estimated from "
            "them. Empty: A16W16, A8W16, A16W8 and A8W8, on top of the config's own specs."
        ),
    )
    samples: RankingSamples = None
    verify: Verified = 3
    output_index: OutputRef = Field(default=0, description="Output that errors are measured on: index or name.")

    @field_validator("levels")
    @classmethod
    def _last_has_errors(cls, levels: dict[str, Level]) -> dict[str, Level]:
        if levels and next(reversed(levels.values())).is_float:
            raise ValueError("the last level's errors are propagated: it cannot be float32")
        return levels
