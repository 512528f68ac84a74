"""What a search has tried, and what every layer's precision does to the output of a network."""

from __future__ import annotations

import csv
import io
from typing import Any, Literal

from pydantic import Field

from service.contracts.base import Contract
from service.contracts.sheets import cell


class TrialFigures(Contract):
    """Figures of one recipe."""

    name: str
    settings: dict[str, Any] = Field(description="Differences of its config from the job's.")
    algorithms: tuple[str, ...]
    chain: tuple[dict[str, Any], ...] = Field(
        default=(), description="The algorithms as in a config; empty in older reports."
    )
    sqnr_db: float | None = Field(description="On the held-out samples; null where undefined.")
    evaluated: bool = Field(description="True for finalists: the following fields were measured.")
    value: float | None = Field(default=None, description="Drop of the goal's metric, or the goal's distance.")
    undefined: str | None = Field(default=None, description="Why value and gap of a measured model are undefined.")
    gap: float | None = Field(default=None, description="Distance from the goal's limit; 0 or less if the goal is met.")
    size_bytes: int | None = None
    latency_ratio: float | None = Field(default=None, description="Latency divided by the float model's latency.")
    pareto: bool = Field(
        default=False, description="True if no other finalist is better in accuracy, size and latency."
    )
    chosen: bool = False
    resumed: bool = Field(default=False, description="Its figures were reused from an earlier attempt or job.")
    file: str | None = Field(default=None, description="File of the model among the job's artifacts.")
    seconds: float


class ReachedFigures(Contract):
    """The figures of a model compared with the goal and budget of a search."""

    value: float | None = Field(description="Drop of the goal's metric, or the goal's distance.")
    undefined: str | None = Field(default=None, description="Why value and gap are undefined.")
    gap: float | None = Field(description="Distance from the goal's limit; 0 or less if the goal is met.")
    goal_met: bool
    size_bytes: int | None
    latency_ratio: float | None = Field(description="Latency divided by the float model's latency.")


class Search(Contract):
    """All trials, in the order in which they ran."""

    goal: dict[str, Any]
    met: bool = Field(description="True if the chosen model meets the goal within the budget of size and latency.")
    goal_met: bool = Field(description="It meets the goal, regardless of the budget.")
    gap: float | None = Field(description="Distance of the chosen model from the goal's limit.")
    undefined: str | None = Field(default=None, description="Why the gap of the chosen model is undefined.")
    ended_by: str = Field(description="Why the search ended.")
    trials: tuple[TrialFigures, ...]
    returned: ReachedFigures | None = Field(
        default=None,
        description="The model returned instead of the chosen one if that was too slow; null otherwise.",
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
    """Power of the output error divided by the power of the output, if only this layer is quantized."""

    weight: float | None = Field(description="With only the weight quantized; null if the layer has none.")
    activation: float | None = Field(description="With only the inputs quantized; null if they are not quantized.")
    both: float = Field(description="With both quantized.")


class LayerSensitivity(Contract):
    """Sensitivity of one layer."""

    rank: int = Field(description="Rank by sensitivity at the lowest level; 1 is the most sensitive layer.")
    node: str
    op: str
    group: int = Field(description="Layers of the same group share a tensor and get the same precision.")
    parameters: int = Field(description="Number of values of the weight.")
    levels: dict[str, KindSensitivity] = Field(description="Sensitivity by level.")
    verified: float | None = Field(
        default=None,
        description=(
            "The ratio ``both`` at the propagated level, measured on a model in which only this layer and its "
            "output are quantized; null if not verified."
        ),
    )


class Sensitivity(Contract):
    """Ranking of all layers, most sensitive first.

    Errors at the level ``measured`` are propagated through the float network to the output; errors at other levels are
    estimated from the ratio of the two errors at the layer. The first layers are verified with quantized models.
    """

    schema_version: Literal[1] = 1
    output: str
    samples: int
    measured: str = Field(description="The level for which errors were propagated.")
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
