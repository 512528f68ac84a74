"""API schemas of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    model_validator,
)

from service.contracts.base import MOST_LABELS, MOST_REFERENCE_CHARS, LabelKey, Labels, LabelValue, Text
from service.contracts.brief import Brief, Row
from service.contracts.config import QuantizationConfig
from service.contracts.devices import Device, DeviceChoice
from service.contracts.errors import InvalidConfigError, InvalidRequestError, Problem, QuantmillError, problem_summary
from service.contracts.evaluation import EvaluationSpec
from service.contracts.evaluation_checks import check_no_function
from service.contracts.evaluation_report import ReportOutline
from service.contracts.report import FallbackKind, Verdict
from service.contracts.validation import field_problems, require_bounded
from service.estimates.forecast import Estimate
from service.hand_overs.schemas import HandOverTargets
from service.idempotency.requests import RepeatableBody
from service.jobs.queues import SizeClass
from service.quark import Translation, missing_envelope, translate_document

ShownState = Literal["queued", "running", "canceling", "succeeded", "failed", "canceled"]
UsersKind = Literal["quantize", "evaluate"]
TERMINAL = frozenset({"succeeded", "failed", "canceled"})
_CONFIG = "/config"
# Of what is measured, in a request for an evaluation.
EVALUATION_REQUEST_POINTER = "/evaluation"
JobId = Annotated[str, StringConstraints(max_length=64)]
Reference = Annotated[
    str,
    StringConstraints(max_length=MOST_REFERENCE_CHARS),
    Field(
        description="An id, or NAME@VERSION, NAME@ALIAS or NAME@latest, which is resolved once, when the request is "
        "received."
    ),
]

_RANGES_FROM = (
    "Id of a succeeded job on the same model or another version of it: the calibrated ranges in its report "
    "become the config's tensor_ranges. Ranges that the config sets for tensors of that report take "
    "precedence. The preparation settings must be the same."
)


_PRIORITY = "Priority, -100 to 100: among the queued jobs of a queue, those with the highest number start first."
_DEVICE = (
    "Device that runs the job. auto: gpu if the config requires one (cuda or rocm), otherwise cpu. gpu: "
    "the job is sent to the queue gpu, whose workers have GPUs. cpu: the job cannot use a GPU on any "
    "worker."
)
_SIZE_CLASS = (
    "Size class of the job. A short job may also start in slots that workers reserve for short jobs; a "
    "long job uses the other slots."
)
_REUSE = (
    "Reuse an existing job that gives the same result (same bytes of model and data, resolved config, "
    "device and engine). The response is 200 with that job if it has succeeded, or 202 if it has not ended "
    "yet. No new job is stored in either case."
)
_FALLBACK = (
    "Model that the job returns if the quantized one was too slow for a gate with on_fail fallback: "
    "reduced, with fewer Q/DQ pairs; float, the uploaded model; planned, the quantized model, because no "
    "better one was found. Null: no fallback was needed."
)
_FINISH = (
    "Estimated end of the job, from the jobs queued before it and the running jobs, on the available "
    "slots. Null if the job has ended, has no estimate, or no worker takes jobs from its queue."
)
_NAME = "Name of the job as given. Default: its model and recipe, such as 'mobilenet@1, xint8 + CLE'."
_HAND_OVER = (
    "Where results are sent when the job has succeeded. URLs and headers are never returned, and are not "
    "copied to a retry or a clone of the job. Not allowed with reuse, nor in the template of a schedule."
)
MOST_PRIORITY = 100
Priority = Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY, description=_PRIORITY)]


class WithConfig(RepeatableBody):
    """A request with a config, which may come in AMD Quark's envelope."""

    model_config = ConfigDict(extra="forbid")

    config: QuantizationConfig = Field(
        default_factory=QuantizationConfig,
        description='Quantization config; a config of AMD Quark is given as {"format": "quark", "config": {...}}.',
    )
    _translation: Translation | None = PrivateAttr(default=None)

    @property
    def translation_notes(self) -> tuple[str, ...]:
        """What holds otherwise than in Quark, for a config that was translated; each with its pointer."""
        return () if self._translation is None else tuple(str(note) for note in self._translation.notes)

    @contextmanager
    def pointing_into_request(self) -> Iterator[None]:
        """Have errors that checks of the config raise point into the config as it was sent."""
        try:
            yield
        except QuantmillError as error:
            if self._translation is not None:
                self._translation.relocate(error, _CONFIG)
            raise

    @model_validator(mode="wrap")
    @classmethod
    def _from_quark(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(data, dict) and isinstance(data.get("config"), dict):
            require_bounded(data["config"], pointer=_CONFIG)
        translation = translate_document(data.get("config"), _CONFIG) if isinstance(data, dict) else None
        bare = missing_envelope(data.get("config"), _CONFIG) if translation is None and isinstance(data, dict) else None
        if bare is not None:
            raise bare
        if translation is None:
            body = handler(data)
            check_no_function(body.config.evaluation)
            return body
        try:
            body = handler({**data, "config": translation.config})
        except ValidationError as error:
            raise _refusal(error, cls, translation) from None
        body._translation = translation
        with body.pointing_into_request():
            check_no_function(body.config.evaluation)
        return body


def _refusal(error: ValidationError, model: type[BaseModel], translation: Translation) -> QuantmillError:
    """The problems of a translated request, told of the request as it was sent."""
    problems = translation.relocated(field_problems(error, model), _CONFIG)
    in_config = all(problem.pointer == _CONFIG or problem.pointer.startswith(_CONFIG + "/") for problem in problems)
    kind = InvalidConfigError if in_config else InvalidRequestError
    return kind(problem_summary(problems), errors=problems, hint="See the schema at /docs.")


class JobCreate(WithConfig):
    """A quantization job to submit."""

    model_id: Reference
    calibration_dataset_id: Reference | None = Field(
        default=None,
        description="Calibration dataset. May be omitted if the config has random_calibration or does not "
        "calibrate anything.",
    )
    evaluation_dataset_id: Reference | None = Field(
        default=None, description="Evaluation dataset. If omitted, the models are compared on the calibration data."
    )
    ranges_from: JobId | None = Field(default=None, description=_RANGES_FROM)
    priority: Priority = 0
    device: DeviceChoice = Field(default="auto", description=_DEVICE)
    name: Text | None = None
    labels: Labels = Field(default_factory=dict)
    reuse: bool = Field(default=False, description=_REUSE)
    hand_over: HandOverTargets = Field(default_factory=list, description=_HAND_OVER)


class EvaluationCreate(RepeatableBody):
    """A model to evaluate, optionally compared with a reference model."""

    model_config = ConfigDict(extra="forbid")

    model_id: Reference = Field(description="Model to measure, quantized or not.")
    reference_model_id: Reference | None = Field(
        default=None, description="Model to compare with, such as the float model that the model was created from."
    )
    evaluation_dataset_id: Reference
    evaluation: EvaluationSpec = Field(
        default_factory=EvaluationSpec,
        description="Metrics to measure, and the gate. Conditions that compare two models require a "
        "reference_model_id.",
    )
    priority: Priority = 0
    name: Text | None = None
    labels: Labels = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _bounded(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("evaluation"), dict):
            require_bounded(data["evaluation"], pointer=EVALUATION_REQUEST_POINTER)
        return data

    @model_validator(mode="after")
    def _no_function(self) -> EvaluationCreate:
        check_no_function(self.evaluation, pointer=EVALUATION_REQUEST_POINTER)
        return self


class JobPatch(BaseModel):
    """Changes to a job's name and labels. Omitted fields are unchanged; null removes a value."""

    model_config = ConfigDict(extra="forbid")

    name: Text | None = None
    labels: Annotated[dict[LabelKey, LabelValue | None], Field(max_length=MOST_LABELS)] | None = None

    @staticmethod
    def check_labels(labels: dict[str, str]) -> None:
        """Refuse more labels than a job may have.

        Raises:
            InvalidRequestError: there are too many, with those that stay.
        """
        if len(labels) > MOST_LABELS:
            raise InvalidRequestError(
                f"The job would have {len(labels)} labels; the maximum is {MOST_LABELS}.",
                pointer="/labels",
                hint="Remove some labels: set them to null.",
            )


class JobValidate(WithConfig):
    """As JobCreate, but models and data may be omitted; those given are validated."""

    model_id: Reference | None = None
    calibration_dataset_id: Reference | None = None
    evaluation_dataset_id: Reference | None = None
    ranges_from: JobId | None = Field(default=None, description=_RANGES_FROM)
    priority: Priority = 0
    device: DeviceChoice = Field(default="auto", description=_DEVICE)
    name: Text | None = None
    labels: Labels = Field(default_factory=dict)
    reuse: bool = Field(default=False, description="Accepted as in a request for a job; no existing job is looked up.")
    hand_over: HandOverTargets = Field(default_factory=list, description="Validated as in a request for a job.")


class JobValidated(BaseModel):
    """Result of the validation of a job request."""

    config: QuantizationConfig = Field(description="The resolved config, with all defaults.")
    warnings: list[str] = Field(description="Warnings that do not prevent the job from running.")
    device: Device = Field(description="Device that would run the job.")
    queue: str = Field(description="Queue that the job would be sent to.")
    size_class: SizeClass = Field(description=_SIZE_CLASS)
    estimate: Estimate | None = Field(
        default=None,
        description="Estimated time and memory. Null if the request names no model, or no data to calibrate or "
        "measure on.",
    )
    estimated_finish_at: datetime | None = Field(default=None, description=_FINISH)


class Progress(BaseModel):
    """Progress of the current stage and of the whole job; ``total`` is null if unknown."""

    done: int
    total: int | None
    unit: str
    message: str
    share: float | None = Field(
        default=None,
        description="Completed share of the whole attempt, 0 to 1; never decreases, and is 1 only at the end. Null "
        "if unknown.",
    )
    seconds_left: float | None = Field(default=None, description="Estimated seconds until the end. Null if unknown.")


class Waiting(BaseModel):
    """Why a queued job does not start, or an upload is not validated yet."""

    code: str = Field(
        description="no-worker: no live worker takes jobs from its queue. storage-full: the disk is full. "
        "storage-away: the storage folder is missing. database-away: the database could not be reached "
        "for too long. worker-shutdown: its worker was stopped. restored: it was running when the "
        "backup was made that this service was restored from. workers-lost: each worker that took it "
        "stopped responding. runner-not-started: its worker could not start a process for it. "
        "worker-fault: its worker failed because of an internal error. validation-overdue: an upload "
        "was not validated in time. More codes may be added."
    )
    message: str
    hint: str


class ArtifactLink(BaseModel):
    """Link to an artifact of the job."""

    id: str
    kind: str
    filename: str
    size_bytes: int
    content: str


class JobLinks(BaseModel):
    """Related URLs of a job."""

    self: str
    events: str
    cancel: str
    report: str
    logs: str
    artifacts: str
    hand_over: str


class ScheduledBy(BaseModel):
    """The schedule that submitted a job, and the result of its run."""

    schedule_id: str
    run_id: str
    state: str = Field(description="State of the schedule's run: running until it is judged, then passed or failed.")
    reason: str | None = Field(description="Reason code if the run was not accepted, otherwise null.")
    detail: str | None = Field(description="Explanation of the reason, as text.")
    promoted_to: str | None = Field(description="Alias that was moved to the new version.")


class JobListed(Brief, BaseModel):
    """A job as returned in lists: all fields but the config, which may be several megabytes in size."""

    id: str
    kind: str = Field(
        description="quantize or evaluate; other kinds, such as inspect_model, belong to the object they validate."
    )
    name: str = Field(description=_NAME)
    labels: dict[str, str]
    state: ShownState = Field(description="State of the job; canceling: it is running and cancellation was requested.")
    stage: str | None = Field(description="Current stage of the running attempt, as text for display.")
    progress: Progress | None
    waiting: Waiting | None = Field(
        default=None, description="Why the queued job does not start; null if it is only waiting for its turn."
    )
    verdict: Verdict | None = Field(description="Verdict of the report; null until the job has succeeded.")
    fallback: FallbackKind | None = Field(default=None, description=_FALLBACK)
    error: Problem | None = Field(description="Error that the job failed with; null unless it has failed.")
    attempt: int = Field(description="Number of the current or last attempt; 0 before the first.")
    max_attempts: int
    priority: int = Field(
        default=0, description="Priority: among queued jobs, those with the highest number start first."
    )
    device: DeviceChoice = Field(default="auto", description="Device as requested; queue shows the resulting queue.")
    queue: str = Field(default="cpu", description="Queue of the job: workers of this queue take it.")
    size_class: SizeClass = Field(default="long", description=_SIZE_CLASS)
    interruptions: int = Field(
        description="Attempts that were interrupted by a shutdown; they do not count towards the maximum number of "
        "attempts."
    )
    model_id: str | None
    reference_model_id: str | None = Field(
        default=None, description="Model that an evaluate job compares its model with."
    )
    model_name: str | None = Field(default=None, description="Name of the model.")
    model_version: int | None = Field(default=None, description="Version of the model.")
    dataset_id: str | None = Field(description="Dataset of an inspect_dataset job.")
    calibration_dataset_id: str | None
    evaluation_dataset_id: str | None
    preset: str | None = Field(default=None, description="Preset of the config.")
    algorithms: list[str] | None = Field(default=None, description="Methods of the algorithms in the config, in order.")
    figures: ReportOutline | None = Field(
        default=None, description="Main figures of the report; null until the job has succeeded."
    )
    seconds: float | None = Field(default=None, description="Seconds from the job's first start to its end.")
    estimate: Estimate | None = Field(
        default=None,
        description="Time and memory estimated when the job was created. Null for validation jobs and for older jobs.",
    )
    estimated_finish_at: datetime | None = Field(default=None, description=_FINISH)
    retry_of: str | None = Field(default=None, description="Job that this job retries.")
    cloned_from: str | None = Field(default=None, description="Job that this job was cloned from.")
    scheduled: ScheduledBy | None = Field(
        default=None, description="The schedule that submitted the job, when due or on request."
    )
    artifacts: list[ArtifactLink]
    request_id: str | None
    created_at: datetime
    queued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    updated_at: datetime
    cancel_requested_at: datetime | None
    deadline_at: datetime | None
    links: JobLinks

    def _brief(self) -> Iterator[Row]:
        yield "id", self.id
        yield "name", self.name or ""
        yield "state", self.state if self.error is None else f"{self.state}: [{self.error.code}] {self.error.detail}"
        yield "verdict", self.verdict or ""
        yield "model", self.model_id or "" if self.model_name is None else f"{self.model_name}@{self.model_version}"
        yield "preset", self.preset or ""
        for metric in () if self.figures is None else self.figures.metrics:
            yield metric.name, "-" if metric.quantized is None else f"{metric.quantized:.5g} {metric.unit}".rstrip()


class JobOut(JobListed):
    """A job. Clients must accept unknown states and stages: more may be added."""

    config: dict[str, Any] | None = Field(
        description="The resolved QuantizationConfig; for an evaluate job, its evaluation settings only."
    )
    reused_from: str | None = Field(
        default=None, description="In a response to a request with reuse: id of the existing job that is returned."
    )


class EventOut(BaseModel):
    """One entry of a job's event log."""

    seq: int
    attempt: int
    type: str
    created_at: datetime
    data: dict[str, Any]


class EventPage(BaseModel):
    """Events with a number greater than ``after``, oldest first."""

    items: list[EventOut]
    next_after: int = Field(description="Pass it as ?after= to get the next page.")
    has_more: bool
    state: ShownState
