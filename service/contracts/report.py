"""The accuracy report: what quantization cost, layer by layer, and what was decided. JSON with ``schema_version``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from service.contracts.base import Contract
from service.contracts.calibration import TensorRange
from service.contracts.config import QuantizationConfig
from service.contracts.dataset import PreprocessingSpec
from service.contracts.search import Search

REPORT_SCHEMA_VERSION = 1


class ModelFigures(Contract):
    """Figures of one model. Latency is the median of one run at batch 1, both models taken in turn."""

    metrics: dict[str, float] = Field(
        default_factory=dict, description="By name, in the units that the report's metrics tell; percent by default."
    )
    metric_details: dict[str, dict[str, float]] = Field(
        default_factory=dict, description="Figures behind the metrics, such as one per class, by name of the metric."
    )
    size_bytes: int
    latency_ms: float | None = None


class MetricFigures(Contract):
    """One metric of both models."""

    name: str
    kind: str
    unit: str = Field(description="'%', 'dB', 'nats'; empty for none, or the target's own.")
    better: Literal["higher", "lower"]
    float_: float | None = Field(
        alias="float",
        serialization_alias="float",
        description="Of the float model; null for what compares with it, and for what is undefined.",
    )
    quantized: float | None = Field(description="Of the quantized model; null: undefined.")
    drop: float | None = Field(
        description="Change for the worse, in the metric's unit; negative: better than float. Null: not defined."
    )


class OutputFidelity(Contract):
    """Distance of one model output from the float model's; None where undefined (e.g. not a float tensor)."""

    name: str
    sqnr_db: float | None
    cosine: float | None
    top1_agreement: float | None


class Fidelity(Contract):
    """Distance of the quantized outputs from the float outputs over the evaluation data. ``sqnr_db`` is the worst
    output's.
    """

    sqnr_db: float | None
    cosine: float | None
    top1_agreement: float | None = Field(
        description="Share of samples with the same arg max, in percent; of the first output."
    )
    samples: int
    source: Literal["evaluation", "calibration", "random"] = Field(
        description="Which data the figures were measured on; random tells nothing of accuracy."
    )
    outputs: tuple[OutputFidelity, ...]


class LayerFigures(Contract):
    """One node of the prepared graph; every node has one row, those of sub-graphs too."""

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


class StageFigures(Contract):
    """Cost of one stage of the run."""

    name: str
    seconds: float
    peak_rss_bytes: int


class GateClause(Contract):
    """One condition of the gate and whether it held; ``metric`` is what max_drop, min_value and max_value judge."""

    clause: str
    metric: str | None = None
    wanted: float
    got: float | None
    holds: bool


class Manifest(Contract):
    """Everything needed to make the same bytes again."""

    engine_version: str
    model_sha256: str
    calibration_sha256: str | None = Field(description="Null: random inputs took the place of a dataset.")
    evaluation_sha256: str | None
    calibration_preprocessing: PreprocessingSpec | None = Field(default_factory=PreprocessingSpec)
    evaluation_preprocessing: PreprocessingSpec | None = None
    output_sha256: str
    config: QuantizationConfig
    seed: int
    versions: dict[str, str]
    threads: int


class Report(Contract):
    """The report of one quantization."""

    schema_version: Literal[1] = 1
    verdict: Literal["pass", "fail", "none"]
    gate: tuple[GateClause, ...] = ()
    summary: str = Field(description="One sentence for people.")
    float_: ModelFigures = Field(alias="float", serialization_alias="float")
    quantized: ModelFigures
    metrics: tuple[MetricFigures, ...] = Field(default=(), description="Of both models, in the order declared.")
    fidelity: Fidelity
    layers: tuple[LayerFigures, ...] = Field(description="Worst SQNR first, then the nodes left in float.")
    preparation: tuple[PreparationStep, ...]
    algorithms: tuple[AlgorithmFigures, ...] = Field(default=(), description="In the order in which they ran.")
    notes: tuple[str, ...] = ()
    tensor_ranges: dict[str, TensorRange] = Field(
        default_factory=dict,
        description="Calibrated ranges by tensor: what a config's tensor_ranges takes, to save the calibration.",
    )
    stages: tuple[StageFigures, ...]
    manifest: Manifest

    def to_json_dict(self) -> dict[str, Any]:
        """JSON-ready dict, with ``float`` under its public name."""
        return self.model_dump(mode="json", by_alias=True)
