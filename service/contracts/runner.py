"""What the supervisor and a runner process say to each other.

The supervisor writes one RunnerTask as JSON to a file in the scratch folder; the runner answers with one JSON object
per line, a RunnerLine, on a file descriptor of its own. Nothing else crosses. Paths are absolute and lie in folders
that the supervisor made.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from service.contracts.base import Contract
from service.contracts.config import QuantizationConfig
from service.contracts.dataset import DatasetSummary, PreprocessingSpec
from service.contracts.errors import Problem
from service.contracts.inspection import Inspection
from service.contracts.model import ModelSummary
from service.contracts.report import Report


class DatasetSource(Contract):
    """A dataset on disk."""

    path: str
    preprocessing: PreprocessingSpec = Field(default_factory=PreprocessingSpec)


class QuantizeTask(Contract):
    """Quantize ``model_path``; writes ``model.onnx`` and ``report.json`` into ``output_dir``."""

    kind: Literal["quantize"] = "quantize"
    model_path: str
    config: QuantizationConfig
    calibration: DatasetSource
    evaluation: DatasetSource | None = None
    output_dir: str
    threads: int


class InspectModelTask(Contract):
    """Validate an uploaded model: parse, check external data, create a runtime session."""

    kind: Literal["inspect_model"] = "inspect_model"
    model_path: str
    threads: int


class InspectDatasetTask(Contract):
    """Validate an uploaded dataset: shapes, sample count, finite values, labels."""

    kind: Literal["inspect_dataset"] = "inspect_dataset"
    path: str
    format: str | None = Field(default=None, description="What the file was declared to be; None: nothing.")
    preprocessing: PreprocessingSpec = Field(default_factory=PreprocessingSpec)


class InspectTargetTask(Contract):
    """Tell what a config would make of every node of a model, without data."""

    kind: Literal["inspect_target"] = "inspect_target"
    model_path: str
    config: QuantizationConfig
    threads: int


RunnerTask = Annotated[
    QuantizeTask | InspectModelTask | InspectDatasetTask | InspectTargetTask, Field(discriminator="kind")
]


class ProgressLine(Contract):
    """Progress within a stage; ``total`` is None while unknown."""

    line: Literal["progress"] = "progress"
    stage: str
    done: int = 0
    total: int | None = None
    unit: str = ""
    message: str = ""


class LogLine(Contract):
    """Something a person may want to read."""

    line: Literal["log"] = "log"
    level: Literal["info", "warning"] = "info"
    message: str


class QuantizeResult(Contract):
    """Last line of a successful quantize task."""

    line: Literal["quantized"] = "quantized"
    model_file: str = Field(description="File name within output_dir.")
    report: Report


class ModelResult(Contract):
    """Last line of a successful inspect_model task."""

    line: Literal["model"] = "model"
    summary: ModelSummary


class DatasetResult(Contract):
    """Last line of a successful inspect_dataset task."""

    line: Literal["dataset"] = "dataset"
    summary: DatasetSummary


class InspectionResult(Contract):
    """Last line of a successful inspect_target task."""

    line: Literal["inspection"] = "inspection"
    inspection: Inspection


class ErrorLine(Contract):
    """Last line of a task that failed with a typed error."""

    line: Literal["error"] = "error"
    problem: Problem


RunnerLine = Annotated[
    ProgressLine | LogLine | QuantizeResult | ModelResult | DatasetResult | InspectionResult | ErrorLine,
    Field(discriminator="line"),
]

TASK_ADAPTER: TypeAdapter[RunnerTask] = TypeAdapter(RunnerTask)
LINE_ADAPTER: TypeAdapter[RunnerLine] = TypeAdapter(RunnerLine)

# Exit codes of a runner process; anything else is a crash.
EXIT_OK = 0
EXIT_USER_ERROR = 10
EXIT_CANCELED = 11
EXIT_RESOURCE_LIMIT = 12
EXIT_INTERRUPTED = 13
