"""What a search for the best recipe has tried."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from service.contracts.base import Contract


class TrialFigures(Contract):
    """One recipe."""

    name: str
    settings: dict[str, Any] = Field(description="What its config has other than the job's.")
    algorithms: tuple[str, ...]
    chain: tuple[dict[str, Any], ...] = Field(
        default=(), description="The algorithms as a config spells them; none in older reports."
    )
    sqnr_db: float | None = Field(description="On the samples held back for judging; null where undefined.")
    evaluated: bool = Field(description="True for finalists: what follows was measured.")
    value: float | None = Field(default=None, description="Drop of the goal's metric, or the goal's distance.")
    undefined: str | None = Field(default=None, description="Why a model that was measured has no value and no gap.")
    gap: float | None = Field(default=None, description="How far it is beyond the goal's limit; 0 or less: goal met.")
    size_bytes: int | None = None
    latency_ratio: float | None = Field(default=None, description="Latency over that of the float model.")
    pareto: bool = Field(default=False, description="No other finalist is better in accuracy, bytes and latency.")
    chosen: bool = False
    resumed: bool = Field(default=False, description="Its figures were taken over from an earlier attempt, or job.")
    file: str | None = Field(default=None, description="Its model among the job's files.")
    seconds: float


class ReachedFigures(Contract):
    """How a model stands to what a search was asked for."""

    value: float | None = Field(description="Drop of the goal's metric, or the goal's distance.")
    undefined: str | None = Field(default=None, description="Why it has no value and no gap.")
    gap: float | None = Field(description="How far it is beyond the goal's limit; 0 or less: goal met.")
    goal_met: bool
    size_bytes: int | None
    latency_ratio: float | None = Field(description="Latency over that of the float model.")


class Search(Contract):
    """All trials in the order in which they ran."""

    goal: dict[str, Any]
    met: bool = Field(description="The chosen model meets the goal within the budget's bytes and latency.")
    goal_met: bool = Field(description="It meets the goal, whatever the budget says.")
    gap: float | None = Field(description="Of the chosen model; how far it is beyond the goal's limit.")
    undefined: str | None = Field(default=None, description="Why the chosen model has no gap.")
    ended_by: str = Field(description="Why the search ended.")
    trials: tuple[TrialFigures, ...]
    returned: ReachedFigures | None = Field(
        default=None,
        description="The model that is returned in the place of the chosen one, which was too slow; null: none is.",
    )

    @property
    def reached(self) -> ReachedFigures:
        """Of the model that is returned."""
        if self.returned is not None:
            return self.returned
        chosen = next(trial for trial in self.trials if trial.chosen)
        return ReachedFigures(
            value=chosen.value,
            undefined=chosen.undefined,
            gap=chosen.gap,
            goal_met=self.goal_met,
            size_bytes=chosen.size_bytes,
            latency_ratio=chosen.latency_ratio,
        )
