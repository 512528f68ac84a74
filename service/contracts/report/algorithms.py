"""What became of each algorithm."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.contracts.base import Contract
from service.contracts.calibration import TensorRange
from service.contracts.search import Search


class Score(Contract):
    """How near a model is to the float one on the samples held back for judging; None where undefined."""

    sqnr_db: float | None = Field(description="Of the worst output.")
    metric: str = Field(default="top1", description="The first declared metric, or top1.")
    value: float | None = Field(
        default=None, description="Of the metric, where the calibration set holds the labels that it takes."
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
    validation_loss: float | None = Field(description="Of the samples held back, in the network as it is emitted.")
    metric: float | None = Field(description="Of the same samples; null where it is undefined.")
    learning_rate: float = Field(description="Of weights, in the epoch's last step.")
    oscillating: float = Field(description="Share of weights that keep jumping between two integers.")
    frozen: float = Field(description="Share of weights that are held since.")


class TrainingFigures(Contract):
    """How a training went."""

    epochs: tuple[TrainingEpoch, ...]
    best_epoch: int = Field(description="The epoch whose network was taken.")
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
