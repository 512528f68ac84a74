"""The accuracy report: what quantization cost, what was found, what was decided, what would help."""

from __future__ import annotations

from service.contracts.report.algorithms import (
    AlgorithmFigures,
    RangeChange,
    ReconstructionError,
    Score,
    TrainingEpoch,
    TrainingFigures,
)
from service.contracts.report.fallback import Fallback, FallbackCandidate, FallbackKind, RegionFigures
from service.contracts.report.figures import (
    Fidelity,
    LatencyFigures,
    MachineLoad,
    MetricFigures,
    ModelFigures,
    OutputFidelity,
)
from service.contracts.report.findings import Advice, AdviceFigure, Cause, CausePlace, Finding, Severity
from service.contracts.report.kernels import KernelFigures, Kernels
from service.contracts.report.layers import Histogram, LayerFigures, PreparationStep
from service.contracts.report.statistics import Flips, Interval
from service.contracts.report.verdict import GateClause, Verdict
from service.contracts.report.versions import REPORT_SCHEMA_VERSION, upgraded
from service.contracts.report.whole import Manifest, Report, StageFigures

__all__ = [
    "REPORT_SCHEMA_VERSION",
    "Advice",
    "AdviceFigure",
    "AlgorithmFigures",
    "Cause",
    "CausePlace",
    "Fallback",
    "FallbackCandidate",
    "FallbackKind",
    "Fidelity",
    "Finding",
    "Flips",
    "GateClause",
    "Histogram",
    "Interval",
    "KernelFigures",
    "Kernels",
    "LatencyFigures",
    "LayerFigures",
    "MachineLoad",
    "Manifest",
    "MetricFigures",
    "ModelFigures",
    "OutputFidelity",
    "PreparationStep",
    "RangeChange",
    "ReconstructionError",
    "RegionFigures",
    "Report",
    "Score",
    "Severity",
    "StageFigures",
    "TrainingEpoch",
    "TrainingFigures",
    "Verdict",
    "upgraded",
]
