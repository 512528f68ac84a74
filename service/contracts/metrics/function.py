"""A metric that is a Python function of whoever quantizes in this very process; it never travels."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from service.contracts.metrics.base import Better, Facts, OfOutput


class FunctionMetric(OfOutput):
    """A number that a Python function gives, handed over beside the config in the same process.

    It is called once per model, with one output over all samples, in their order; with ``against_float`` it gets the
    float model's output first. A service runs nobody's functions and refuses it.
    """

    WHOLE: ClassVar[bool] = True

    kind: Literal["function"] = "function"
    better: Better = Field(default="higher", description="Which direction is the better one.")
    unit: str = Field(default="", max_length=16, description="For reports; '%' makes differences points.")
    against_float: bool = Field(
        default=False, description="The function takes the float model's output and the quantized one's: a distance."
    )

    @property
    def facts(self) -> Facts:
        """As declared; a distance is 0 for the same output."""
        return Facts(self.unit, self.better, self.against_float, 0.0 if self.against_float else None)
