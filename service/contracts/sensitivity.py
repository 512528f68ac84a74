"""What every layer's precision does to the output of a network."""

from __future__ import annotations

import csv
import io
from typing import Literal

from pydantic import Field

from service.contracts.base import Contract
from service.contracts.spreadsheets import cell


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
