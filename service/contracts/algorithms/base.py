"""What all algorithms have in common."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.contracts.base import Contract


class Refinement(Contract):
    """A step that is to make the quantized model better than calibration alone leaves it."""

    accept: Literal["if_better", "always"] = Field(
        default="if_better",
        description=(
            "if_better: undone, with a word in the report, if the model is worse with the step than without it on "
            "samples of the calibration set that the step did not see; always: kept whatever it does."
        ),
    )
