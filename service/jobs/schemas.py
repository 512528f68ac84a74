"""Jobs as seen over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    model_validator,
)

from service.contracts.config import QuantizationConfig
from service.contracts.errors import InvalidConfigError, InvalidRequestError, Problem, QuantmillError, problem_summary
from service.contracts.evaluation_checks import check_no_function
from service.contracts.texts import Text, plain_text
from service.contracts.validation import field_problems
from service.quark import Translation, translate_document

StoredState = Literal["queued", "running", "succeeded", "failed", "canceled"]
ShownState = Literal["queued", "running", "canceling", "succeeded", "failed", "canceled"]
TERMINAL = frozenset({"succeeded", "failed", "canceled"})
_CONFIG = "/config"
LABEL_KEY = r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$"

LabelKey = Annotated[str, StringConstraints(pattern=LABEL_KEY)]
LabelValue = Annotated[str, StringConstraints(max_length=255), AfterValidator(plain_text)]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=32)]
NounId = Annotated[str, StringConstraints(max_length=64)]

_RANGES_FROM = (
    "A succeeded job on the same model or on another version of it: the calibrated ranges of its report become the "
    "config's tensor_ranges; where the config has one for a tensor of that report, it stays. The preparation has to be "
    "the same."
)


class WithConfig(BaseModel):
    """A request with a config, which may come in AMD Quark's envelope."""

    model_config = ConfigDict(extra="forbid")

    config: QuantizationConfig = Field(
        default_factory=QuantizationConfig,
        description='The recipe; a config of AMD Quark goes into {"format": "quark", "config": {...}}.',
    )
    _notes: tuple[str, ...] = PrivateAttr(default=())

    @property
    def translation_notes(self) -> tuple[str, ...]:
        """What holds otherwise than in Quark, for a config that was translated; each with its pointer."""
        return self._notes

    @model_validator(mode="wrap")
    @classmethod
    def _from_quark(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        translation = translate_document(data.get("config"), _CONFIG) if isinstance(data, dict) else None
        if translation is None:
            body = handler(data)
            check_no_function(body.config.evaluation)
            return body
        try:
            body = handler({**data, "config": translation.config})
        except ValidationError as error:
            raise _refusal(error, cls, translation) from None
        try:
            check_no_function(body.config.evaluation)
        except InvalidConfigError as error:
            raise InvalidConfigError(
                error.detail, errors=translation.relocated(error.errors, _CONFIG), hint=error.hint
            ) from None
        body._notes = tuple(str(note) for note in translation.notes)
        return body


def _refusal(error: ValidationError, model: type[BaseModel], translation: Translation) -> QuantmillError:
    """The problems of a translated request, told of the request as it was sent."""
    problems = translation.relocated(field_problems(error, model), _CONFIG)
    in_config = all(problem.pointer == _CONFIG or problem.pointer.startswith(_CONFIG + "/") for problem in problems)
    kind = InvalidConfigError if in_config else InvalidRequestError
    return kind(problem_summary(problems), errors=problems, hint="The schema stands at /docs.")


class JobCreate(WithConfig):
    """A quantization to run."""

    model_id: NounId
    calibration_dataset_id: NounId | None = Field(
        default=None, description="May be left out where the config has random_calibration, or calibrates nothing."
    )
    evaluation_dataset_id: NounId | None = Field(
        default=None, description="Without one, the models are compared on the calibration data."
    )
    ranges_from: NounId | None = Field(default=None, description=_RANGES_FROM)
    name: Text | None = None
    labels: Labels = Field(default_factory=dict)


class JobValidate(WithConfig):
    """As JobCreate, but nouns may be left out; what is given is checked."""

    model_id: NounId | None = None
    calibration_dataset_id: NounId | None = None
    evaluation_dataset_id: NounId | None = None
    ranges_from: NounId | None = Field(default=None, description=_RANGES_FROM)
    name: Text | None = None
    labels: Labels = Field(default_factory=dict)


class JobValidated(BaseModel):
    """What would be run."""

    config: QuantizationConfig = Field(description="The config with everything filled in.")
    warnings: list[str] = Field(description="Nothing that stops the job, but worth a thought.")


class Progress(BaseModel):
    """How far the stage has come; ``total`` is null while unknown."""

    done: int
    total: int | None
    unit: str
    message: str


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
    artifacts: str


class JobOut(BaseModel):
    """A job. Tolerate states and stages that you do not know: there may be more of them one day."""

    id: str
    kind: str
    name: str | None
    labels: dict[str, str]
    state: ShownState = Field(description="canceling is running with a cancel requested.")
    stage: str | None = Field(description="What the running attempt is doing, for people.")
    progress: Progress | None
    verdict: Literal["pass", "fail", "none"] | None = Field(description="Of the report, once succeeded.")
    error: Problem | None = Field(description="Why it failed.")
    attempt: int = Field(description="Number of the current or last attempt, 0 before the first.")
    max_attempts: int
    interruptions: int = Field(description="Attempts that were cut short by a shutdown and are not held against it.")
    model_id: str | None
    dataset_id: str | None = Field(description="Of an inspect_dataset job.")
    calibration_dataset_id: str | None
    evaluation_dataset_id: str | None
    config: dict[str, Any] | None = Field(description="The resolved QuantizationConfig.")
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
