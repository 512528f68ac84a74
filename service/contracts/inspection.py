"""What a target would run on integers, and what would help where it would not: told without any data."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.contracts.base import Contract
from service.contracts.config import Mode
from service.contracts.targets import TargetName


class NodeInspection(Contract):
    """What becomes of one node."""

    name: str = Field(description="As uploaded, where it had a name.")
    op: str = Field(description="As uploaded.")
    quantized: bool = Field(description="Whether it would be quantized; with an activation_reason, its weight alone.")
    reason: str | None = Field(description="Why it stays in float; for a quantized node, what it is replaced by.")
    reason_code: str | None = Field(
        default=None, description="Stable code of why it stays in float; docs/reasons.md lists them."
    )
    activation_reason: str | None = Field(
        default=None, description="Why its activations stay in float though its weight is quantized."
    )
    activation_reason_code: str | None = None
    hint: str | None = Field(description="What would help, or why nothing needs to.")
    by_design: bool = Field(default=False, description="It is best left in float: nothing needs to be helped.")


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
