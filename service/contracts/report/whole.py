"""The report of a job, whole; its digests and versions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any, Literal

from pydantic import Field, model_validator

from service.contracts.base import Contract
from service.contracts.brief import Brief, Row
from service.contracts.config import QuantizationConfig
from service.contracts.dataset import PreprocessingSpec
from service.contracts.report.figures import (
    Fallback,
    FallbackKind,
    Fidelity,
    GateClause,
    Kernels,
    LatencyFigures,
    MetricFigures,
    ModelFigures,
    Verdict,
)
from service.contracts.report.layers import Advice, AlgorithmFigures, Cause, Finding, LayerFigures, PreparationStep
from service.contracts.specs import TensorRange

# What may differ between two runs that give the same bytes: the model is what these are measured with or computed by,
# never what it is made of. Threads are among them because the engine gives the same bytes for any number of them in
# all but the last bits of some sums; the model's own digest tells where it did not.
NOT_IN_DIGEST = frozenset(
    {
        "output_sha256",
        "output_data_sha256",
        "manifest_sha256",
        "threads",
        "timed_choice",
        "evaluation_sha256",
        "evaluation_preprocessing",
    }
)


def canonical_sha256(document: Any) -> str:
    """Lowercase hex sha256 of a document's canonical JSON: sorted keys, no blanks, UTF-8.

    Args:
        document: ready for JSON.

    Raises:
        ValueError: it holds NaN or infinity.
    """
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


REPORT_SCHEMA_VERSION = 2


def upgraded(document: dict[str, Any]) -> dict[str, Any]:
    """A report's document in today's version.

    Args:
        document: of any version; one without a number is taken as it is, as is one of a version still to come.
    """
    version = document.get("schema_version")
    while isinstance(version, int) and version in _STEPS:
        document = _STEPS[version](document)
        version = document["schema_version"]
    return document


def _from_1(document: dict[str, Any]) -> dict[str, Any]:
    """Rows of layers name their nodes; what was not measured then stays unknown."""
    layers = document.get("layers")
    if isinstance(layers, list | tuple):
        document = {**document, "layers": [_with_nodes(row) for row in layers]}
    return {**document, "schema_version": 2}


def _with_nodes(row: Any) -> Any:
    return {"nodes": [row["name"]], **row} if isinstance(row, dict) and "name" in row else row


_STEPS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _from_1}


class StageFigures(Contract):
    """Cost of one stage of the job."""

    name: str
    seconds: float
    peak_rss_bytes: int


class GpuFigures(Contract):
    """What a job with a GPU did there. The algorithms tell their device themselves."""

    statistics_provider: str = Field(description="Execution provider of onnxruntime that ran the calibration pass.")
    float_provider: str = Field(description="The one that ran the float model in the evaluation.")
    quantized_provider: str = Field(
        description="The one that ran the quantized model: always that of the CPU, since providers of GPUs compute "
        "quantized operators differently."
    )
    missing: str | None = Field(default=None, description="Why onnxruntime did not use the GPU. Null: it did.")
    peak_torch_bytes: int | None = Field(
        default=None, description="Most GPU memory that torch reserved for the algorithms. Null: torch used no GPU."
    )


class Manifest(Contract):
    """Everything needed to reproduce the model byte for byte."""

    engine_version: str
    model_sha256: str
    calibration_sha256: str | None = Field(description="Null if random inputs were used instead of a dataset.")
    evaluation_sha256: str | None
    calibration_preprocessing: PreprocessingSpec | None = Field(default_factory=PreprocessingSpec)
    evaluation_preprocessing: PreprocessingSpec | None = None
    output_sha256: str
    output_data_sha256: str | None = Field(default=None, description="Of the external data file. Null: there is none.")
    config: QuantizationConfig
    seed: int
    versions: dict[str, str]
    threads: int
    timed_choice: bool = Field(
        default=False,
        description="True if measured latency decided which model was chosen: another run may give different bytes.",
    )
    config_sha256: str | None = Field(
        default=None, description="Of the canonical JSON of config. Null: of a version that did not report it."
    )
    manifest_sha256: str | None = Field(
        default=None,
        description=(
            "SHA-256 of the canonical JSON (sorted keys, no whitespace) of this manifest without this field, "
            "the digests of the output, threads, timed_choice and the two fields of the evaluation data; also "
            "stored in the model's file."
        ),
    )

    def with_digests(self) -> Manifest:
        """The manifest with the digests of its config and of itself."""
        config_sha256 = canonical_sha256(self.config.model_dump(mode="json"))
        told = self.model_copy(update={"config_sha256": config_sha256})
        digest = canonical_sha256(told.model_dump(mode="json", exclude=set(NOT_IN_DIGEST)))
        return told.model_copy(update={"manifest_sha256": digest})


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


class Report(Brief, Contract):
    """The report of one quantization."""

    schema_version: Literal[2] = 2
    verdict: Verdict
    gate: tuple[GateClause, ...] = ()
    findings: tuple[Finding, ...] = Field(
        default=(), description="Facts to know before reading the figures; worst first."
    )
    causes: tuple[Cause, ...] = Field(
        default=(), description="Causes of error, the largest first; estimated where something was lost."
    )
    advice: tuple[Advice, ...] = Field(default=(), description="Suggested changes, most helpful first.")
    summary: str = Field(description="Summary in one sentence.")
    float_: ModelFigures = Field(alias="float", serialization_alias="float")
    quantized: ModelFigures
    metrics: tuple[MetricFigures, ...] = Field(
        default=(), description="Metrics of both models, in the order of the config."
    )
    fidelity: Fidelity
    latency: LatencyFigures | None = Field(default=None, description="Null if latency was not measured.")
    kernels: Kernels | None = Field(
        default=None,
        description="Both forms of matrix products with block-wise weights; null if no product has two forms.",
    )
    fallback: Fallback | None = Field(
        default=None,
        description="Search for a faster model if the quantized model was too slow; null if none was needed.",
    )
    layers: tuple[LayerFigures, ...] = Field(
        description="Quantized layers by error contribution, the largest first, or by SQNR, the lowest first, where "
        "nothing was lost; then the nodes left in float."
    )
    preparation: tuple[PreparationStep, ...]
    algorithms: tuple[AlgorithmFigures, ...] = Field(
        default=(), description="Algorithms in the order in which they ran."
    )
    notes: tuple[str, ...] = ()
    tensor_ranges: dict[str, TensorRange] = Field(
        default_factory=dict,
        description="Calibrated ranges by tensor; pass them as tensor_ranges of a config to skip calibration.",
    )
    stages: tuple[StageFigures, ...]
    gpu: GpuFigures | None = Field(default=None, description="Null for a job without a GPU.")
    manifest: Manifest

    @model_validator(mode="before")
    @classmethod
    def _of_any_version(cls, data: Any) -> Any:
        return upgraded(data) if isinstance(data, dict) else data

    def _brief(self) -> Iterator[Row]:
        from service.contracts import changes  # which reads reports itself

        yield "verdict", self.verdict
        critical = self.critical_findings
        yield "findings", f"{len(critical)} critical: {', '.join(one.code for one in critical)}" if critical else ""
        for metric in self.metrics:
            values = f"{_number(metric.float_)} -> {_number(metric.quantized)} {metric.unit}".rstrip()
            yield metric.name, f"{values}, {changes.change_of(metric).told}"
        yield "size", changes.size_change(self.float_.size_bytes, self.quantized.size_bytes).words
        yield "latency", "" if self.latency is None else changes.latency_change_of(self.latency).words
        yield "SQNR", "" if self.fidelity.sqnr_db is None else f"{self.fidelity.sqnr_db:.2f} dB"
        quantized = sum(len(layer.nodes) for layer in self.layers if layer.reason is None)
        yield "nodes", f"{quantized} quantized" if quantized else "none quantized"

    @property
    def critical_findings(self) -> tuple[Finding, ...]:
        """What has to be fixed before model and figures are used."""
        return tuple(finding for finding in self.findings if finding.severity == "critical")

    @property
    def returned(self) -> FallbackKind | None:
        """Which model is returned where the quantized one was too slow; None where no other was looked for."""
        return None if self.fallback is None else self.fallback.chosen.kind

    def to_json_dict(self) -> dict[str, Any]:
        """JSON-ready dict, with ``float`` under its public name."""
        return self.model_dump(mode="json", by_alias=True)
