"""What a search has tried, and what every layer's precision does to the output of a network."""

from __future__ import annotations

import csv
import io
from typing import Any, Literal

from pydantic import Field

from service.contracts.base import Contract
from service.contracts.sheets import cell


class TrialFigures(Contract):
    """One recipe."""

    name: str
    settings: dict[str, Any] = Field(description="Differences of its config from the job's.")
    algorithms: tuple[str, ...]
    chain: tuple[dict[str, Any], ...] = Field(
        default=(), description="The algorithms as a config spells them; none in older reports."
    )
    sqnr_db: float | None = Field(description="On the held-out samples; null where undefined.")
    evaluated: bool = Field(description="True for finalists: what follows was measured.")
    value: float | None = Field(default=None, description="Drop of the goal's metric, or the goal's distance.")
    undefined: str | None = Field(default=None, description="Why a model that was measured has no value and no gap.")
    gap: float | None = Field(default=None, description="How far it is beyond the goal's limit; 0 or less: goal met.")
    size_bytes: int | None = None
    latency_ratio: float | None = Field(default=None, description="Latency over that of the float model.")
    pareto: bool = Field(default=False, description="No other finalist is better in accuracy, bytes and latency.")
    chosen: bool = False
    resumed: bool = Field(default=False, description="Its figures were reused from an earlier attempt or job.")
    file: str | None = Field(default=None, description="Its model among the job's files.")
    seconds: float


class ReachedFigures(Contract):
    """The figures of a model compared with the goal and budget of a search."""

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
    goal_met: bool = Field(description="It meets the goal, regardless of the budget.")
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


class KindSensitivity(Contract):
    """Power of the output's error over the power of the output, when this layer alone is quantized."""

    weight: float | None = Field(description="Its weight alone; null: it has none.")
    activation: float | None = Field(description="Its inputs alone; null: they are not quantized.")
    both: float = Field(description="Both together.")


class LayerSensitivity(Contract):
    """One layer."""

    rank: int = Field(description="1 is the most sensitive one at the lowest level.")
    node: str
    op: str
    group: int = Field(description="Layers of one group share a tensor and move together.")
    parameters: int = Field(description="Values of its weight.")
    levels: dict[str, KindSensitivity] = Field(description="By level.")
    verified: float | None = Field(
        default=None,
        description=(
            "The same ratio as both, at the propagated level, of a model in which this layer alone is quantized, its "
            "result included; null: not checked."
        ),
    )


class Sensitivity(Contract):
    """The ranking of all layers; the most sensitive first.

    Errors at the level ``measured`` are propagated through the float network to the output; those at other levels are
    that figure times the ratio of the two errors where they arise. The first layers are checked by real models.
    """

    schema_version: Literal[1] = 1
    output: str
    samples: int
    measured: str = Field(description="The level whose errors were propagated.")
    layers: tuple[LayerSensitivity, ...]

    def to_csv(self) -> str:
        """One row per layer and level, the most sensitive first; names as cells that no spreadsheet runs."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(
            ["rank", "node", "op", "group", "parameters", "level", "weight", "activation", "both", "verified"]
        )
        for layer in self.layers:
            for level, found in layer.levels.items():
                checked = layer.verified if level == self.measured else None
                values = (found.weight, found.activation, found.both, checked)
                shown = ["" if value is None else f"{value:.6g}" for value in values]
                named = [cell(text) for text in (layer.node, layer.op, layer.group)]
                rows.writerow([layer.rank, *named, layer.parameters, level, *shown])
        return text.getvalue()
