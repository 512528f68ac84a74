"""What a finished attempt hands to the transition that makes its job succeed."""

from __future__ import annotations

from dataclasses import dataclass

from service.contracts.dataset import DatasetSummary
from service.contracts.inspection import Inspection
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


Outcome = QuantizeOutcome | ModelSummary | DatasetSummary | Inspection
