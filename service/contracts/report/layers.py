"""Layers, algorithms and findings of a report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field

from service.contracts.base import Contract
from service.contracts.search import Search
from service.contracts.specs import TensorRange


class Histogram(Contract):
    """Values in bins of equal width, with the limits beyond which the quantized model clips.

    Of large tensors a sample is counted: about a million values of a weight, 16384 of an activation.
    """

    minimum: float
    maximum: float
    counts: tuple[int, ...] = Field(min_length=1, max_length=256)
    clip_low: float | None = Field(
        default=None, description="Smallest value that the grid, or the widest of several, represents."
    )
    clip_high: float | None = Field(default=None, description="Largest value that the grid represents.")
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
        description="Share of the quantized model's latency, by onnxruntime's profile. Time between rows belongs to "
        "none, so that the sum may be less than 100; null: no kernel has its name.",
    )
    error_percent: float | None = Field(
        default=None,
        ge=0,
        le=100,
        description="Error contribution: the part of all error that this layer itself adds, about; the sum over "
        "``causes``. Null: not estimated, as nothing was lost.",
    )
    weight_histogram: Histogram | None = Field(default=None, description="Of the float weight.")
    activation_histogram: Histogram | None = Field(
        default=None, description="Of the float model's result of the row. Only quantized rows of low SQNR have any."
    )


def by_contribution(layers: Iterable[LayerFigures]) -> list[LayerFigures]:
    """Quantized rows by their part of all error, the largest first: the order of every list of layers.

    Rows without the figure keep their order and come last. Where nothing was lost no row has one.
    """
    quantized = [layer for layer in layers if layer.reason is None]
    return sorted(quantized, key=lambda layer: (layer.error_percent is None, -(layer.error_percent or 0.0)))


def contributing_layers(layers: Iterable[LayerFigures], most: int | None = None) -> list[LayerFigures]:
    """The rows that most of the error comes from; empty where nothing was lost.

    Args:
        layers: of a report.
        most: how many of them; None: all that contribute at all.
    """
    return [layer for layer in by_contribution(layers) if layer.error_percent][:most]


class PreparationStep(Contract):
    """What one preparation pass did, or why it did nothing."""

    name: str
    applied: bool
    detail: str
    reason_code: str | None = Field(default=None, description="Why it did nothing; null for a pass that did something.")
    left: dict[str, str] = Field(
        default_factory=dict,
        description="By name of an unchanged node: the code of its reason; the detail contains its words.",
    )


class Score(Contract):
    """How near a model is to the float one on the samples held back for judging; None where undefined."""

    sqnr_db: float | None = Field(description="Of the worst output.")
    metric: str = Field(default="top1", description="The first declared metric, or top1.")
    value: float | None = Field(
        default=None, description="Of the metric, where the calibration data contains the labels that it needs."
    )


class RangeChange(Contract):
    """The range of one tensor before and after an algorithm that moves ranges."""

    tensor: str
    kind: Literal["weight", "activation"]
    node: str | None = Field(default=None, description="The node that reads a weight.")
    before: TensorRange
    after: TensorRange
    spread_before: float | None = Field(
        default=None,
        description="Range of the widest channel divided by that of the median one; channels of zeros do not count.",
    )
    spread_after: float | None = None


class ReconstructionError(Contract):
    """Mean square error of a layer's outputs, behind its activation function, on the samples it was solved on."""

    before: float
    after: float


class TrainingEpoch(Contract):
    """One epoch of a training."""

    epoch: int = Field(description="From 1; 0 is the network before training.")
    steps: int = Field(description="Taken since the beginning.")
    train_loss: float | None = Field(description="Mean over the epoch; null for epoch 0.")
    validation_loss: float | None = Field(description="Of the held-out samples, in the network as it is emitted.")
    metric: float | None = Field(description="Of the same samples; null where it is undefined.")
    learning_rate: float = Field(description="Of weights, in the epoch's last step.")
    oscillating: float = Field(description="Share of weights that keep jumping between two integers.")
    frozen: float = Field(description="Share of weights frozen for that reason.")


class TrainingFigures(Contract):
    """How a training went."""

    epochs: tuple[TrainingEpoch, ...]
    best_epoch: int = Field(description="The selected epoch.")
    metric: str | None = Field(description="What the best epoch was chosen by; null: the validation loss.")
    samples: int = Field(description="Samples trained on.")
    validation_samples: int
    learning_rate: float = Field(description="Of weights, at its peak.")
    device: str
    ended: Literal["epochs", "steps", "seconds", "patience", "diverged"] = Field(description="What ended it.")


class AlgorithmFigures(Contract):
    """What became of one entry of ``algorithms``."""

    method: str
    kept: bool = Field(description="False if it had nothing to do, or was undone because it made the network worse.")
    summary: str = Field(description="What it did, or why it was undone or had nothing to do.")
    reason_code: str | None = Field(default=None, description="Why it was not kept; null for one that was.")
    before: Score | None = Field(default=None, description="Without it; null where it was not judged.")
    after: Score | None = Field(default=None, description="With it.")
    samples: int = Field(default=0, description="Samples it was judged on.")
    nodes: int = Field(default=0, description="Nodes that it changed.")
    search: Search | None = Field(default=None, description="What a search has tried.")
    reconstruction: dict[str, ReconstructionError] = Field(
        default_factory=dict, description="By node, for steps that reconstruct layers one by one; never rises."
    )
    ranges: tuple[RangeChange, ...] = Field(
        default=(), description="Ranges before and after, of an algorithm that moves them."
    )
    training: TrainingFigures | None = Field(default=None, description="How it went, of an algorithm that trains.")


Severity = Literal["critical", "warning", "info"]


# How the log of a run begins what it tells of a critical finding; the command line leaves such lines to the summary.
CRITICAL_LOGGED = "critical["


class Finding(Contract):
    """Something about the model or the data that the figures alone do not tell."""

    code: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", description="Stable; docs/findings.md lists all.")
    severity: Severity = Field(description="critical: do not use model or figures before it is fixed.")
    message: str = Field(description="What was found, with its figures.")
    hint: str | None = Field(default=None, description="What to do next.")
    where: dict[str, str | int | float] = Field(
        default_factory=dict, description="Where: input, output, metric, dataset, node."
    )
    undermines_verdict: bool = Field(
        default=False, description="True if no statement about accuracy can be made: such clauses are undecided."
    )


class CausePlace(Contract):
    """A node where a cause of error is at work."""

    node: str = Field(description="Name in the prepared graph; empty: the whole network.")
    error_percent: float = Field(ge=0, le=100, description="Part of all error that comes from here, about.")
    fact: str = Field(description="What was found there, with its figures.")


class Cause(Contract):
    """What the error of the quantized model comes from.

    Parts are estimates: error beside signal in the mean over the channels of each weight and activation by itself, in
    parts of the sum of all.
    """

    kind: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", description="Stable; docs/advice.md lists all.")
    message: str = Field(description="What it is, in words.")
    error_percent: float = Field(ge=0, le=100, description="Part of all error, about.")
    places: tuple[CausePlace, ...] = Field(description="Where, the worst first.")
    places_left_out: int = Field(default=0, ge=0, description="Further places, which are left out.")


class AdviceFigure(Contract):
    """What a piece of advice did where it was tried."""

    metric: str = Field(description="Name of a metric, or sqnr_db.")
    unit: str
    before: float | None = Field(description="Of the quantized model of this report.")
    after: float | None = Field(description="Of the model quantized with the advice.")
    samples: int = Field(ge=1)
    seconds: float = Field(ge=0, description="That the trial took.")


class Advice(Contract):
    """What would help, as a fragment of a config."""

    code: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", description="Stable.")
    because: str = Field(description="The facts that it follows from, with their figures.")
    message: str = Field(description="What to do, in one sentence.")
    config: dict[str, Any] = Field(
        description="JSON merge patch (RFC 7396) of the report's ``manifest.config``; empty: no config helps."
    )
    nodes: tuple[str, ...] = Field(default=(), description="That it is about; empty: the whole network.")
    status: Literal["tried", "untried"]
    helped: bool | None = Field(default=None, description="Of what was tried: whether it did.")
    figure: AdviceFigure | None = Field(default=None, description="Of what was tried.")
