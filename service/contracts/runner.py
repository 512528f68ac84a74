"""What the supervisor and a runner process say to each other.

The supervisor writes one RunnerTask as JSON to a file in the scratch folder; the runner answers with one JSON object
per line, a RunnerLine, on a file descriptor of its own. Nothing else crosses. Paths are absolute and lie in folders
that the supervisor made.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, TypeAdapter, field_validator, model_validator

from service.contracts.base import Contract
from service.contracts.config import QuantizationConfig
from service.contracts.dataset import DatasetSummary, PreprocessingSpec
from service.contracts.devices import Device
from service.contracts.errors import Problem
from service.contracts.evaluation import EvaluationSpec
from service.contracts.evaluation_report import EvaluationReport
from service.contracts.graph_view import Inspection
from service.contracts.metrics.base import NAME_PATTERN
from service.contracts.model import ModelFormat, ModelSummary
from service.contracts.report import Report

# The stage whose message is the summary of the report, told while advice is still tried.
RESULT_STAGE = "result"
# What a job may produce beside its model and its report.
MAX_FILES = 64
# External data of a model above 2 GB, and what its file is called unless a task says so.
DATA_KIND, DATA_FILE = "model_data", "model.onnx.data"
RESERVED_KINDS = frozenset({"model", "report", DATA_KIND})
FILE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,126}$"
# The artifact of the weights by themselves, where somebody asked for them.
WEIGHTS_KIND = "weights"
RESERVED_FILES = frozenset({"model.onnx", "report.json"})
FigureName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]


class DatasetSource(Contract):
    """A dataset on disk."""

    path: str
    preprocessing: PreprocessingSpec = Field(default_factory=PreprocessingSpec)


class QuantizeTask(Contract):
    """Quantize ``model_path``; writes ``model.onnx`` and further files into ``output_dir``."""

    kind: Literal["quantize"] = "quantize"
    model_path: str
    config: QuantizationConfig
    calibration: DatasetSource | None = Field(default=None, description="None: random inputs, as set in the config.")
    evaluation: DatasetSource | None = None
    output_dir: str
    threads: int
    device: Device = Field(default="cpu", description="gpu: float models run there where onnxruntime can use it.")
    metric_graphs: dict[str, str] = Field(
        default_factory=dict, description="Files of the uploaded models used as metrics and losses, by id."
    )
    extra_bytes: int | None = Field(
        default=None, description="Limit of the files besides the model, in bytes; None: no limit."
    )
    checkpoint_dir: str | None = Field(
        default=None, description="Keeps finished work between attempts of one job; None: nothing is kept."
    )
    checkpoint_bytes: int | None = Field(default=None, description="Maximum size of checkpoint_dir; None: no limit.")
    cache_dir: str | None = Field(
        default=None, description="Keeps results for reuse by other runs; None: nothing is kept."
    )
    cache_bytes: int | None = Field(default=None, description="Maximum size of cache_dir; None: no limit.")
    cache_scope: str = Field(default="", description="Scope of the entries in cache_dir that the run reads and writes.")
    data_file: str = Field(
        default=DATA_FILE, pattern=FILE_PATTERN, description="Name of the external data file of a model above 2 GB."
    )
    weights: bool = Field(default=False, description="Also write the model's weights as safetensors.")
    graph: bool = Field(default=False, description="Also write graph.json, the prepared graph.")


class EvaluateTask(Contract):
    """Measure ``model_path``, and ``reference_path`` if given; writes files into ``output_dir``."""

    kind: Literal["evaluate"] = "evaluate"
    model_path: str
    reference_path: str | None = None
    evaluation: DatasetSource
    spec: EvaluationSpec
    output_dir: str
    threads: int
    metric_graphs: dict[str, str] = Field(
        default_factory=dict, description="Files of the uploaded models used as metrics, by id."
    )
    extra_bytes: int | None = Field(default=None, description="Maximum size of the files; None: no limit.")


class InspectModelTask(Contract):
    """Validate an uploaded model: parse, check external data, create a runtime session. For new weights or an exported
    program, the ONNX model is first created in ``output_dir``.
    """

    kind: Literal["inspect_model"] = "inspect_model"
    model_path: str = Field(
        description="The ONNX file; for new weights, the file of their skeleton; or the exported program."
    )
    format: ModelFormat = "onnx"
    state_path: str | None = Field(default=None, description="The new weights, in safetensors format.")
    output_dir: str | None = Field(default=None, description="Folder for the created model; None: no model is created.")
    threads: int

    @model_validator(mode="after")
    def _has_what_its_format_needs(self) -> InspectModelTask:
        if (self.output_dir is not None) != (self.format != "onnx"):
            raise ValueError("output_dir belongs to models that are made, and to no other")
        if (self.state_path is not None) != (self.format == "safetensors"):
            raise ValueError("state_path belongs to new weights, and to nothing else")
        return self


class InspectDatasetTask(Contract):
    """Validate an uploaded dataset: shapes, sample count, finite values, labels."""

    kind: Literal["inspect_dataset"] = "inspect_dataset"
    path: str
    format: str | None = Field(default=None, description="Declared format of the file; None: not declared.")
    output_dir: str | None = Field(
        default=None, description="Folder for thumbnails of pictures; None: no thumbnails are created."
    )
    preprocessing: PreprocessingSpec = Field(default_factory=PreprocessingSpec)


class InspectTargetTask(Contract):
    """Report, without data, how a config would treat every node of a model."""

    kind: Literal["inspect_target"] = "inspect_target"
    model_path: str
    config: QuantizationConfig
    threads: int


RunnerTask = Annotated[
    QuantizeTask | EvaluateTask | InspectModelTask | InspectDatasetTask | InspectTargetTask,
    Field(discriminator="kind"),
]


class ProgressLine(Contract):
    """Progress of a stage and of the whole job; ``total``, ``share`` and ``seconds_left`` are None while unknown."""

    line: Literal["progress"] = "progress"
    stage: str
    done: int = 0
    total: int | None = None
    unit: str = ""
    message: str = ""
    share: float | None = Field(default=None, ge=0.0, le=1.0, description="Share of the whole job that is done.")
    seconds_left: float | None = Field(default=None, ge=0.0, description="Remaining time of the whole job.")


class MetricLine(Contract):
    """Figures of one step of a long stage, such as a training epoch; each one is sent as an event."""

    line: Literal["metric"] = "metric"
    stage: str = Field(min_length=1, max_length=255)
    step: int = Field(description="Number of the step; a step that a second attempt repeats has the same number.")
    values: dict[FigureName, float | None] = Field(
        max_length=64, description="Values by name; null for NaN and infinity."
    )

    @field_validator("values", mode="before")
    @classmethod
    def _finite(cls, values: Any) -> Any:
        """Loss and metric of a training that went astray are told as null, not refused."""
        if not isinstance(values, dict):
            return values
        lost = (name for name, value in values.items() if isinstance(value, float) and not math.isfinite(value))
        return {**values, **dict.fromkeys(lost)}

    @field_validator("values")
    @classmethod
    def _own_names(cls, values: dict[str, float | None]) -> dict[str, float | None]:
        for name in ("stage", "step"):
            if name in values:
                raise ValueError(f"{name} cannot name a value: the event has its own")
        return values


class LogLine(Contract):
    """A log message for users."""

    line: Literal["log"] = "log"
    level: Literal["info", "warning"] = "info"
    message: str


class TrialLine(Contract):
    """Asks for a process that may die: it runs a written model with and without onnxruntime's optimizations.

    The supervisor starts ``worker.quantizer.written.program`` under the runner's own limits, one at a time, and reports
    its end on the runner's standard input, see ``worker.runner_input``.
    """

    line: Literal["trial"] = "trial"
    folder: str = Field(
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,126}$", description="Name of a folder in the scratch folder."
    )


class ResultFile(Contract):
    """A file in output_dir in addition to the model and its external data."""

    kind: str = Field(pattern=r"^[a-z][a-z0-9_]{0,31}$", description="Kind of the file; unique per job.")
    file: str = Field(pattern=FILE_PATTERN, description="File name within output_dir.")
    media_type: str = Field(pattern=r"^[a-z]+/[a-z0-9][a-z0-9.+-]{0,99}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")

    @model_validator(mode="after")
    def _not_reserved(self) -> ResultFile:
        if self.kind in RESERVED_KINDS or self.file.lower() in RESERVED_FILES:
            raise ValueError(f"{self.kind} ({self.file}) is the name of the model, of its data or of the report")
        return self


class MadeFile(Contract):
    """A file of a created model, in output_dir."""

    file: str = Field(pattern=FILE_PATTERN)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class QuantizeResult(Contract):
    """Last line of a successful quantize task."""

    line: Literal["quantized"] = "quantized"
    model_file: str = Field(description="File name within output_dir.")
    report: Report
    data: MadeFile | None = Field(default=None, description="The model's external data, if any.")
    files: tuple[ResultFile, ...] = Field(
        default=(), max_length=MAX_FILES, description="All other files in output_dir."
    )

    @model_validator(mode="after")
    def _each_once(self) -> QuantizeResult:
        kinds, names = [file.kind for file in self.files], [file.file.lower() for file in self.files]
        if self.data is not None:
            names.append(self.data.file.lower())
            if self.data.file.lower() in RESERVED_FILES:
                raise ValueError(f"the external data is in {self.data.file}, the name of the model or of the report")
        if len(set(kinds)) < len(kinds) or len(set(names)) < len(names):
            raise ValueError("two files have one kind or one name")
        return self


class EvaluateResult(Contract):
    """Last line of a successful evaluate task."""

    line: Literal["evaluated"] = "evaluated"
    report: EvaluationReport
    files: tuple[ResultFile, ...] = Field(default=(), max_length=MAX_FILES, description="All files in output_dir.")


class ModelResult(Contract):
    """Last line of a successful inspect_model task."""

    line: Literal["model"] = "model"
    summary: ModelSummary
    files: tuple[MadeFile, ...] = Field(
        default=(), max_length=2, description="The created model: its ONNX file, then its external data."
    )


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
    ProgressLine
    | MetricLine
    | LogLine
    | TrialLine
    | QuantizeResult
    | EvaluateResult
    | ModelResult
    | DatasetResult
    | InspectionResult
    | ErrorLine,
    Field(discriminator="line"),
]

TASK_ADAPTER: TypeAdapter[RunnerTask] = TypeAdapter(RunnerTask)
LINE_ADAPTER: TypeAdapter[RunnerLine] = TypeAdapter(RunnerLine)

# Exit codes of a runner process; anything else is a crash too.
EXIT_OK = 0
# Python's own, for an error before the runner's code is reached: something of it cannot be imported.
EXIT_NOT_IMPORTED = 1
EXIT_USER_ERROR = 10
EXIT_CANCELED = 11
EXIT_RESOURCE_LIMIT = 12
EXIT_INTERRUPTED = 13
# A fault of the installation, such as a full disk: the attempt costs the job nothing.
EXIT_INSTALLATION = 14
EXIT_CRASH = 15  # an error that nobody foresaw
EXIT_NOT_STARTED = 127  # no runner came to be, or it has no engine; as a shell says that there is no such command
