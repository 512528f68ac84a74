"""The accuracy report: what quantization cost, layer by layer, and what was decided. JSON with ``schema_version``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from service.contracts.base import Contract
from service.contracts.calibration import TensorRange
from service.contracts.config import QuantizationConfig
from service.contracts.dataset import PreprocessingSpec

REPORT_SCHEMA_VERSION = 1


class ModelFigures(Contract):
    """Figures of one model. Metrics are in percent; latency is the median of one run at batch 1, both models taken
    in turn.
    """

    metrics: dict[str, float] = Field(default_factory=dict)
    size_bytes: int
    latency_ms: float | None = None


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
    source: Literal["evaluation", "calibration"] = Field(description="Which data the figures were measured on.")
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


class StageFigures(Contract):
    """Cost of one stage of the run."""

    name: str
    seconds: float
    peak_rss_bytes: int


class GateClause(Contract):
    """One condition of the gate and whether it held; ``metric`` is what max_drop and min_value judge."""

    clause: str
    metric: str | None = None
    wanted: float
    got: float | None
    holds: bool


class Manifest(Contract):
    """Everything needed to make the same bytes again."""

    engine_version: str
    model_sha256: str
    calibration_sha256: str
    evaluation_sha256: str | None
    calibration_preprocessing: PreprocessingSpec = Field(default_factory=PreprocessingSpec)
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
    fidelity: Fidelity
    layers: tuple[LayerFigures, ...] = Field(description="Worst SQNR first, then the nodes left in float.")
    preparation: tuple[PreparationStep, ...]
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
