"""Jobs as seen over HTTP."""

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
    Field(description="An id, or NAME@VERSION, NAME@ALIAS or NAME@latest, which is looked up once."),
]

_RANGES_FROM = (
    "A succeeded job on the same model or on another version of it: the calibrated ranges of its report become the "
    "config's tensor_ranges; where the config has one for a tensor of that report, it stays. The preparation has to be "
    "the same."
)


_PRIORITY = "-100 to 100: of the jobs that wait in a queue those with the highest number start first."
_DEVICE = (
    "auto: gpu if the config asks for one (cuda or rocm), else cpu. gpu: the job goes into the queue gpu, whose "
    "workers have GPUs. cpu: it sees no GPU, wherever it runs."
)
_SIZE_CLASS = "A short job may also start in the slots that workers keep for such; a long one waits for the others."
_REUSE = (
    "Where another job would give the same (the same bytes of model and data, resolved config, device and engine) and "
    "has succeeded, the answer is 200 with that job; 202 with it while it may yet. None is stored then."
)
_FALLBACK = (
    "Which model it returns, where the quantized one was too slow for a gate with on_fail fallback: reduced, with "
    "fewer Q/DQ pairs; float, the one that was uploaded; planned, as nothing better was found. Null: no other "
    "was looked for."
)
_FINISH = (
    "With what waits before it and what runs, on the slots that there are. Null where it has ended, is not estimated, "
    "or no worker takes its queue."
)
_NAME = (
    "As it was given. A job that was given none is called by its model and recipe, such as 'mobilenet@1, xint8 + CLE'."
)
_HAND_OVER = (
    "Where results go once the job has succeeded. URLs and headers are never shown again; a retry or a clone of the "
    "job has none of them. Not with reuse, and not in the template of a schedule."
)
MOST_PRIORITY = 100
Priority = Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY, description=_PRIORITY)]


class WithConfig(RepeatableBody):
    """A request with a config, which may come in AMD Quark's envelope."""

    model_config = ConfigDict(extra="forbid")

    config: QuantizationConfig = Field(
        default_factory=QuantizationConfig,
        description='The recipe; a config of AMD Quark goes into {"format": "quark", "config": {...}}.',
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
    return kind(problem_summary(problems), errors=problems, hint="The schema is at /docs.")


class JobCreate(WithConfig):
    """A quantization to run."""

    model_id: Reference
    calibration_dataset_id: Reference | None = Field(
        default=None, description="May be left out where the config has random_calibration, or calibrates nothing."
    )
    evaluation_dataset_id: Reference | None = Field(
        default=None, description="Without one, the models are compared on the calibration data."
    )
    ranges_from: JobId | None = Field(default=None, description=_RANGES_FROM)
    priority: Priority = 0
    device: DeviceChoice = Field(default="auto", description=_DEVICE)
    name: Text | None = None
    labels: Labels = Field(default_factory=dict)
    reuse: bool = Field(default=False, description=_REUSE)
    hand_over: HandOverTargets = Field(default_factory=list, description=_HAND_OVER)


class EvaluationCreate(RepeatableBody):
    """A model to measure, beside another one if that is given."""

    model_config = ConfigDict(extra="forbid")

    model_id: Reference = Field(description="The model that is measured, quantized or not.")
    reference_model_id: Reference | None = Field(
        default=None, description="The model that it is held against, such as the float model that it was made of."
    )
    evaluation_dataset_id: Reference
    evaluation: EvaluationSpec = Field(
        default_factory=EvaluationSpec,
        description="What is measured, and the gate. Conditions that compare need a reference_model_id.",
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
    """Changes of a job's name and labels; what is left out stays, null takes away."""

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
                f"The job would have {len(labels)} labels; a job has {MOST_LABELS} at most.",
                pointer="/labels",
                hint="Take some away: give null for them.",
            )


class JobValidate(WithConfig):
    """As JobCreate, but models and data may be left out; what is given is checked."""

    model_id: Reference | None = None
    calibration_dataset_id: Reference | None = None
    evaluation_dataset_id: Reference | None = None
    ranges_from: JobId | None = Field(default=None, description=_RANGES_FROM)
    priority: Priority = 0
    device: DeviceChoice = Field(default="auto", description=_DEVICE)
    name: Text | None = None
    labels: Labels = Field(default_factory=dict)
    reuse: bool = Field(default=False, description="Taken as in a request for a job; nothing is looked for.")
    hand_over: HandOverTargets = Field(default_factory=list, description="Checked as in a request for a job.")


class JobValidated(BaseModel):
    """What would be run."""

    config: QuantizationConfig = Field(description="The config with everything filled in.")
    warnings: list[str] = Field(description="Nothing that stops the job, but worth a thought.")
    device: Device = Field(description="Where it would run.")
    queue: str = Field(description="Which workers would take it.")
    size_class: SizeClass = Field(description=_SIZE_CLASS)
    estimate: Estimate | None = Field(
        default=None, description="Null where no model is given, or nothing that it would be calibrated or measured on."
    )
    estimated_finish_at: datetime | None = Field(default=None, description=_FINISH)


class Progress(BaseModel):
    """How far the stage has come, and the whole job; ``total`` is null while unknown."""

    done: int
    total: int | None
    unit: str
    message: str
    share: float | None = Field(
        default=None,
        description="Of the whole attempt that is done, 0 to 1; never falls, 1 at the end only. Null while unknown.",
    )
    seconds_left: float | None = Field(default=None, description="Until the end, estimated. Null while unknown.")


class Waiting(BaseModel):
    """Why a queued job does not start, or an upload is not validated."""

    code: str = Field(
        description="no-worker: none is alive that takes jobs of its queue. storage-full: the disk has no room left. "
        "storage-away: the storage folder is not there. database-away: the database could not be reached for long. "
        "worker-shutdown: its worker was stopped. restored: it ran when the backup was made that this service is of. "
        "workers-lost: each worker that took it fell silent. runner-not-started: its worker could start no "
        "process to work on it. worker-fault: its worker failed by an error of its own. "
        "validation-overdue: an upload was not validated in time. Others may follow."
    )
    message: str
    hint: str


class ArtifactLink(BaseModel):
    """An artifact of the job."""

    id: str
    kind: str
    filename: str
    size_bytes: int
    content: str


class JobLinks(BaseModel):
    """Where to go from a job."""

    self: str
    events: str
    cancel: str
    report: str
    logs: str
    artifacts: str
    hand_over: str


class ScheduledBy(BaseModel):
    """The schedule that has submitted a job, and how it has judged it."""

    schedule_id: str
    run_id: str
    state: str = Field(description="Of the run: running until it was judged, then passed or failed.")
    reason: str | None = Field(description="Why it was not accepted, as a word.")
    detail: str | None = Field(description="The same in words.")
    promoted_to: str | None = Field(description="The alias that was moved.")


class JobListed(Brief, BaseModel):
    """A job as lists tell of it: all but its config, which may have megabytes."""

    id: str
    kind: str = Field(description="quantize or evaluate; inspect_model and the like belong to what they validate.")
    name: str = Field(description=_NAME)
    labels: dict[str, str]
    state: ShownState = Field(description="canceling is running with a cancel requested.")
    stage: str | None = Field(description="What the running attempt is doing, for people.")
    progress: Progress | None
    waiting: Waiting | None = Field(default=None, description="Why it does not start, if it is not just its turn yet.")
    verdict: Verdict | None = Field(description="Of the report, once succeeded.")
    fallback: FallbackKind | None = Field(default=None, description=_FALLBACK)
    error: Problem | None = Field(description="Why it failed.")
    attempt: int = Field(description="Number of the current or last attempt, 0 before the first.")
    max_attempts: int
    priority: int = Field(default=0, description="Of the jobs that wait, those with the highest number start first.")
    device: DeviceChoice = Field(default="auto", description="As it was asked for; the queue says where that led.")
    queue: str = Field(default="cpu", description="Which workers take it.")
    size_class: SizeClass = Field(default="long", description=_SIZE_CLASS)
    interruptions: int = Field(description="Attempts that were cut short by a shutdown and are not held against it.")
    model_id: str | None
    reference_model_id: str | None = Field(
        default=None, description="What the model of an evaluate job is held against."
    )
    model_name: str | None = Field(default=None, description="Of the model.")
    model_version: int | None = Field(default=None, description="Of the model.")
    dataset_id: str | None = Field(description="Of an inspect_dataset job.")
    calibration_dataset_id: str | None
    evaluation_dataset_id: str | None
    preset: str | None = Field(default=None, description="Of the config.")
    algorithms: list[str] | None = Field(default=None, description="Methods of the config's algorithms, in order.")
    figures: ReportOutline | None = Field(default=None, description="Of the report, once succeeded.")
    seconds: float | None = Field(default=None, description="From its first start to its end.")
    estimate: Estimate | None = Field(
        default=None,
        description="What it was expected to take. Null for the jobs of what is validated, and in older records.",
    )
    estimated_finish_at: datetime | None = Field(default=None, description=_FINISH)
    retry_of: str | None = Field(default=None, description="The job that it repeats.")
    cloned_from: str | None = Field(default=None, description="The job whose request it changes.")
    scheduled: ScheduledBy | None = Field(default=None, description="By the clock, or by a request to a schedule.")
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
    """A job. Tolerate states and stages that you do not know: there may be more of them one day."""

    config: dict[str, Any] | None = Field(
        description="The resolved QuantizationConfig; of an evaluate job its evaluation alone."
    )
    reused_from: str | None = Field(
        default=None, description="Of an answer to a request with reuse: the job that was there, which this one is."
    )


class EventOut(BaseModel):
    """One entry of a job's log."""

    seq: int
    attempt: int
    type: str
    created_at: datetime
    data: dict[str, Any]


class EventPage(BaseModel):
    """Events with numbers above ``after``, oldest first."""

    items: list[EventOut]
    next_after: int = Field(description="Send it as ?after= to go on.")
    has_more: bool
    state: ShownState
