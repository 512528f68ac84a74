"""What a target would run on integers, and what would help where it would not: told without any data."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.contracts.base import Contract
from service.contracts.config import Mode, TargetName


class NodeInspection(Contract):
    """What becomes of one node."""

    name: str = Field(description="As uploaded, where it had a name.")
    op: str = Field(description="As uploaded.")
    quantized: bool = Field(description="Whether it would be quantized; with an activation_reason, its weight alone.")
    reason: str | None = Field(description="Why it stays in float; for a quantized node, what it is replaced by.")
    activation_reason: str | None = Field(
        default=None, description="Why its activations stay in float though its weight is quantized."
    )
    hint: str | None = Field(description="What would help.")


class Inspection(Contract):
    """What would become of every node of a prepared model."""

    schema_version: Literal[1] = 1
    target: TargetName
    mode: Mode
    model_sha256: str
    engine_version: str
    summary: str = Field(description="One sentence.")
    node_count: int
    quantized_count: int
    nodes: tuple[NodeInspection, ...] = Field(description="In the order of the prepared network.")
    notes: tuple[str, ...] = ()
