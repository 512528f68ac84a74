"""Result of a finished attempt, as input of the transition to succeeded."""

from __future__ import annotations

from dataclasses import dataclass

from service.contracts.dataset import DatasetSummary
from service.contracts.evaluation_report import EvaluationReport
from service.contracts.graph_view import Inspection
from service.contracts.model import ModelSummary
from service.contracts.report import Report


@dataclass(frozen=True)
class NewArtifact:
    """A file that lies in the store already and becomes visible with its row."""

    kind: str
    filename: str
    media_type: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class QuantizeOutcome:
    """Result of a quantize job."""

    report: Report
    artifacts: tuple[NewArtifact, ...]


@dataclass(frozen=True)
class EvaluateOutcome:
    """Result of an evaluate job."""

    report: EvaluationReport
    artifacts: tuple[NewArtifact, ...]


@dataclass(frozen=True)
class NewModelFile:
    """A file of a model, which lies in the store already."""

    path: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class MadeModel:
    """Result of the validation of a model whose ONNX file it made: that file first."""

    summary: ModelSummary
    files: tuple[NewModelFile, ...]


Outcome = QuantizeOutcome | EvaluateOutcome | ModelSummary | MadeModel | DatasetSummary | Inspection
