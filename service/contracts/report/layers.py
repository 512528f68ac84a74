"""Layers, algorithms and findings of a report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field

from service.contracts.base import Contract
from service.contracts.search import Search
from service.contracts.specs import TensorRange


class Histogram(Contract):
    """Histogram with bins of equal width, and the limits beyond which the quantized model clips. Large tensors are
    sampled: about a million values of a weight, 16384 of an activation.
    """

    minimum: float
    maximum: float
    counts: tuple[int, ...] = Field(min_length=1, max_length=256)
    clip_low: float | None = Field(
        default=None, description="Smallest value that the grid, or the widest of several, represents."
    )
    clip_high: float | None = Field(default=None, description="Largest value that the grid represents.")
    clipped_percent: float | None = Field(default=None, ge=0, le=100, description="Share of values beyond the limits.")


class LayerFigures(Contract):
    """Figures of one node of the prepared graph, or of fused nodes; nodes of subgraphs have their own rows."""

    name: str
    op: str
    weight_dtype: str | None = None
    activation_dtype: str | None = None
    sqnr_db: float | None = Field(
        default=None, description="SQNR of the node's output in the quantized network compared with the float network."
    )
    reason: str | None = Field(
        default=None,
        description=(
            "Why the node stays in float; null for a quantized node. Starts with 'not applicable' for a node "
            "without float outputs."
        ),
    )
    reason_code: str | None = Field(default=None, description="Stable code of the reason; docs/reasons.md lists them.")
    activation_reason: str | None = Field(
        default=None, description="Why the activations stay in float although the weight is quantized."
    )
    activation_reason_code: str | None = None
    bias_reason: str | None = Field(
        default=None, description="Why the bias stays in float although the weight is quantized."
    )
    bias_reason_code: str | None = None
    gain: dict[str, float] = Field(
        default_factory=dict,
        description=(
            "Gain per algorithm that changed this node, in dB: sqnr_db minus the SQNR of the model quantized "
            "without the algorithm, measured on the same samples. Includes gains in preceding nodes; negative "
            "if the algorithm made it worse."
        ),
    )
    nodes: tuple[str, ...] = Field(default=(), description="All nodes of the row, in order; the first is ``name``.")
    weight_bytes: int | None = Field(
        default=None,
        ge=0,
        description="Bytes of the row's constants in the quantized file, including scales and zero points; null if it "
        "has none. Shared constants count in each row.",
    )
    float_weight_bytes: int | None = Field(
        default=None, ge=0, description="Bytes of the same constants in the float file."
    )
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
    weight_histogram: Histogram | None = Field(default=None, description="Histogram of the float weight.")
    activation_histogram: Histogram | None = Field(
        default=None,
        description="Histogram of the row's output in the float model. Only for quantized rows with a low SQNR.",
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
    """What a preparation pass changed, or why it changed nothing."""

    name: str
    applied: bool
    detail: str
    reason_code: str | None = Field(
        default=None, description="Why the pass changed nothing; null if it changed something."
    )
    left: dict[str, str] = Field(
        default_factory=dict,
        description="By name of an unchanged node: the code of its reason; the detail contains its words.",
    )


class Score(Contract):
    """Fidelity to the float model on the held-out samples; null where undefined."""

    sqnr_db: float | None = Field(description="SQNR of the worst output.")
    metric: str = Field(default="top1", description="Name of the metric: the first declared one, or top1.")
    value: float | None = Field(
        default=None, description="Of the metric, where the calibration data contains the labels that it needs."
    )


class RangeChange(Contract):
    """Range of one tensor before and after an algorithm that changes ranges."""

    tensor: str
    kind: Literal["weight", "activation"]
    node: str | None = Field(default=None, description="For a weight, the node that reads it.")
    before: TensorRange
    after: TensorRange
    spread_before: float | None = Field(
        default=None,
        description="Range of the widest channel divided by the range of the median channel; all-zero channels are "
        "ignored.",
    )
    spread_after: float | None = None


class ReconstructionError(Contract):
    """Mean square error of a layer's outputs after its activation function, on the samples used for reconstruction."""

    before: float
    after: float


class TrainingEpoch(Contract):
    """Figures of one training epoch."""

    epoch: int = Field(description="Number of the epoch, starting at 1; 0 is the network before training.")
    steps: int = Field(description="Number of steps since the start.")
    train_loss: float | None = Field(description="Mean loss of the epoch; null for epoch 0.")
    validation_loss: float | None = Field(description="Of the held-out samples, in the network as it is emitted.")
    metric: float | None = Field(description="Metric on the same samples; null if undefined.")
    learning_rate: float = Field(description="Learning rate of the weights in the last step of the epoch.")
    oscillating: float = Field(description="Share of weights that oscillate between two integers.")
    frozen: float = Field(description="Share of weights frozen for that reason.")


class TrainingFigures(Contract):
    """Figures of a training."""

    epochs: tuple[TrainingEpoch, ...]
    best_epoch: int = Field(description="The selected epoch.")
    metric: str | None = Field(description="Metric used to select the best epoch; null: the validation loss.")
    samples: int = Field(description="Number of training samples.")
    validation_samples: int
    learning_rate: float = Field(description="Peak learning rate of the weights.")
    device: str
    ended: Literal["epochs", "steps", "seconds", "patience", "diverged"] = Field(description="Why the training ended.")


class AlgorithmFigures(Contract):
    """Result of one entry of ``algorithms``."""

    method: str
    kept: bool = Field(
        description="False if the algorithm changed nothing, or was reverted because it made the network worse."
    )
    summary: str = Field(description="What the algorithm did, or why it was reverted or changed nothing.")
    reason_code: str | None = Field(default=None, description="Why the algorithm was not kept; null if it was.")
    before: Score | None = Field(default=None, description="Score without the algorithm; null if it was not evaluated.")
    after: Score | None = Field(default=None, description="Score with the algorithm.")
    samples: int = Field(default=0, description="Number of samples for the scores.")
    nodes: int = Field(default=0, description="Number of changed nodes.")
    search: Search | None = Field(default=None, description="Trials of a search.")
    reconstruction: dict[str, ReconstructionError] = Field(
        default_factory=dict,
        description="Error by node, for algorithms that reconstruct layers one by one; never increases.",
    )
    ranges: tuple[RangeChange, ...] = Field(
        default=(), description="Ranges before and after, for algorithms that change ranges."
    )
    training: TrainingFigures | None = Field(
        default=None, description="Figures of the training, for algorithms that train."
    )


Severity = Literal["critical", "warning", "info"]


# How the log of a run begins what it tells of a critical finding; the command line leaves such lines to the summary.
CRITICAL_LOGGED = "critical["


class Finding(Contract):
    """A fact about the model or the data that affects how the figures must be read."""

    code: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", description="Stable code; docs/findings.md lists all codes.")
    severity: Severity = Field(description="critical: do not use model or figures before it is fixed.")
    message: str = Field(description="What was found, with its figures.")
    hint: str | None = Field(default=None, description="What to do next.")
    where: dict[str, str | int | float] = Field(
        default_factory=dict, description="Location: input, output, metric, dataset or node."
    )
    undermines_verdict: bool = Field(
        default=False,
        description="True if no statement about accuracy is possible: accuracy clauses are then undecided.",
    )


class CausePlace(Contract):
    """A node that is affected by a cause of error."""

    node: str = Field(description="Name in the prepared graph; empty: the whole network.")
    error_percent: float = Field(ge=0, le=100, description="Approximate share of the total error, in percent.")
    fact: str = Field(description="What was found in the node, with its figures.")


class Cause(Contract):
    """A cause of the quantized model's error.

    Shares are estimates: for each weight and activation on its own, the ratio of error to signal, averaged over
    channels, as a share of the sum of all.
    """

    kind: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", description="Stable code; docs/advice.md lists all codes.")
    message: str = Field(description="Description of the cause.")
    error_percent: float = Field(ge=0, le=100, description="Approximate share of the total error, in percent.")
    places: tuple[CausePlace, ...] = Field(description="Affected nodes, worst first.")
    places_left_out: int = Field(default=0, ge=0, description="Further places, which are left out.")


class AdviceFigure(Contract):
    """Measured effect of an advice that was tried."""

    metric: str = Field(description="Name of a metric, or sqnr_db.")
    unit: str
    before: float | None = Field(description="Value for the quantized model of this report.")
    after: float | None = Field(description="Value for the model quantized with the advice.")
    samples: int = Field(ge=1)
    seconds: float = Field(ge=0, description="Duration of the trial.")


class Advice(Contract):
    """A suggested change of the config."""

    code: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", description="Stable.")
    because: str = Field(description="The facts behind the advice, with their figures.")
    message: str = Field(description="What to do, in one sentence.")
    config: dict[str, Any] = Field(
        description="JSON merge patch (RFC 7396) for the report's ``manifest.config``; empty if no config change helps."
    )
    nodes: tuple[str, ...] = Field(default=(), description="Nodes that the advice concerns; empty: the whole network.")
    status: Literal["tried", "untried"]
    helped: bool | None = Field(default=None, description="Whether the advice helped; null if it was not tried.")
    why: str | None = Field(default=None, description="Why the advice was not tried, or did not help.")
    figure: AdviceFigure | None = Field(default=None, description="Measured effect; null if it was not tried.")
