"""What became of every layer, and of the graph before it."""

from __future__ import annotations

from pydantic import Field

from service.contracts.base import Contract


class Histogram(Contract):
    """Values in bins of equal width, with the limits beyond which the quantized model clips.

    Of large tensors a sample is counted: about a million values of a weight, 16384 of an activation.
    """

    minimum: float
    maximum: float
    counts: tuple[int, ...] = Field(min_length=1, max_length=256)
    clip_low: float | None = Field(
        default=None, description="Smallest value that the grid, or the widest of several, holds."
    )
    clip_high: float | None = Field(default=None, description="Largest value that the grid holds.")
    clipped_percent: float | None = Field(default=None, ge=0, le=100, description="Share of the values beyond them.")


class LayerFigures(Contract):
    """One node of the prepared graph, or the nodes that run as one; those of sub-graphs have rows of their own, too."""

    name: str
    op: str
    weight_dtype: str | None = None
    activation_dtype: str | None = None
    sqnr_db: float | None = Field(
        default=None, description="Of the node's output in the quantized network, against the float network."
    )
    reason: str | None = Field(
        default=None,
        description=(
            "Why the node was left in float; null for a quantized node. Begins with 'not applicable' for a node that "
            "makes no floats."
        ),
    )
    reason_code: str | None = Field(default=None, description="Stable code of the reason; docs/reasons.md lists them.")
    activation_reason: str | None = Field(
        default=None, description="Why the activations of a node with a quantized weight were left in float."
    )
    activation_reason_code: str | None = None
    bias_reason: str | None = Field(
        default=None, description="Why the bias of a node with a quantized weight was left in float."
    )
    bias_reason_code: str | None = None
    gain: dict[str, float] = Field(
        default_factory=dict,
        description=(
            "By algorithm that changed this node: sqnr_db minus the same figure of the model quantized without the "
            "algorithm, in dB, measured on the same samples. What the algorithm gained in nodes before it is part of "
            "it; negative where it did harm."
        ),
    )
    nodes: tuple[str, ...] = Field(
        default=(), description="All nodes of the row in their order; the first is ``name``."
    )
    weight_bytes: int | None = Field(
        default=None,
        ge=0,
        description="Of its constants in the quantized file, with their scales and zero points; null: it has none. "
        "What rows share counts in each.",
    )
    float_weight_bytes: int | None = Field(default=None, ge=0, description="Of the same in the float file.")
    latency_percent: float | None = Field(
        default=None,
        ge=0,
        le=100,
        description="Share of the quantized model's time, by onnxruntime's profile. What runs between rows belongs to "
        "none, so that all together may be less than 100; null: no kernel bears its name.",
    )
    error_percent: float | None = Field(
        default=None,
        ge=0,
        le=100,
        description="Part of all error that arises in this row itself, about: the sum over ``causes``. Null: not "
        "looked for, which is done where something was lost.",
    )
    weight_histogram: Histogram | None = Field(default=None, description="Of the float weight.")
    activation_histogram: Histogram | None = Field(
        default=None, description="Of the float model's result of the row. Only quantized rows of low SQNR have any."
    )


class PreparationStep(Contract):
    """What one preparation pass did, or why it did nothing."""

    name: str
    applied: bool
    detail: str
    reason_code: str | None = Field(default=None, description="Why it did nothing; null for a pass that did something.")
    left: dict[str, str] = Field(
        default_factory=dict,
        description="By name of a node that stays as it was: the code of its reason, whose words stand in the detail.",
    )
