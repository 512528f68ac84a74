"""API schemas and errors of batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, StringConstraints, model_validator

from service.batches.grid import (
    MOST_CONFIG_CHARS,
    MOST_MEMBERS,
    Fault,
    MemberRequest,
    clash,
    config_chars,
    listed,
    multiplied,
    validated,
)
from service.contracts.base import Labels, Text
from service.contracts.brief import Brief, Row
from service.contracts.devices import DeviceChoice
from service.contracts.errors import FieldProblem, InvalidRequestError, Problem, QuantmillError
from service.contracts.evaluation_report import ReportOutline
from service.contracts.report import Verdict
from service.idempotency.requests import RepeatableBody
from service.jobs.schemas import EventOut, Priority, Reference

BatchState = Literal["queued", "running", "succeeded", "failed", "canceled"]
MemberState = Literal["queued", "running", "canceling", "succeeded", "failed", "canceled", "gone"]
# Jobs of a batch, those of retries among them.
MOST_JOBS = 500
POSITION = rf"^(0|[1-9][0-9]{{0,9}})(\.(0|[1-9][0-9]{{0,9}})){{0,{MOST_JOBS - 1}}}$"
MOST_POSITION_CHARS = 11 * MOST_JOBS
_SHARED = ("calibration_dataset_id", "evaluation_dataset_id", "priority", "device", "reuse")
_OF_GRID = ("models", "presets", "configs", *_SHARED)


class BatchCreate(RepeatableBody):
    """Jobs to submit as one batch: a grid of models, presets and configs, or a list of requests."""

    model_config = ConfigDict(extra="forbid")

    name: Text | None = Field(default=None, description="Name of the batch and of the grid's jobs.")
    labels: Labels = Field(default_factory=dict, description="Labels of the batch and of the grid's jobs.")
    models: Annotated[list[Reference], Field(max_length=MOST_MEMBERS)] = Field(default_factory=list)
    presets: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=64)]], Field(max_length=MOST_MEMBERS)
    ] = Field(default_factory=list, description="Names of presets; if empty, the presets of the configs apply.")
    configs: Annotated[list[dict[str, Any]], Field(max_length=MOST_MEMBERS)] = Field(
        default_factory=list,
        description="Configs as for POST /v1/jobs; each is combined with each of the presets, if there are any.",
    )
    calibration_dataset_id: Reference | None = None
    evaluation_dataset_id: Reference | None = None
    priority: Priority = 0
    device: DeviceChoice = "auto"
    reuse: bool = Field(
        default=False,
        description="Reuse existing jobs with the same result, as for POST /v1/jobs, separately for each member.",
    )
    members: Annotated[list[dict[str, Any]], Field(max_length=MOST_MEMBERS)] = Field(
        default_factory=list, description="Jobs of the batch instead of a grid, each as the body of POST /v1/jobs."
    )
    _asked: list[MemberRequest] = PrivateAttr(default_factory=list)
    _faults: list[Fault] = PrivateAttr(default_factory=list)

    @property
    def asked(self) -> list[MemberRequest]:
        """Its members that are valid, as far as the request alone can tell."""
        return self._asked

    @property
    def faults(self) -> list[Fault]:
        """What is wrong with the others."""
        return self._faults

    @property
    def size(self) -> int:
        """How many members it has."""
        return len(self.members) or len(self.models) * max(1, len(self.presets)) * max(1, len(self.configs))

    @property
    def grid(self) -> dict[str, Any] | None:
        """What is multiplied, without configs, of which there is the number; None for a list."""
        if self.members:
            return None
        return {"models": self.models, "presets": self.presets, "configs": len(self.configs)}

    @model_validator(mode="after")
    def _expanded(self) -> Self:
        problem = self._form_problem()
        if problem is not None:
            raise InvalidRequestError(
                f"{problem.pointer or '/'}: {problem.message}", errors=(problem,), hint="See the schema at /docs."
            )
        if self.members:
            members = listed(self.members)
        else:
            shared = {name: getattr(self, name) for name in (*_SHARED, "name", "labels")}
            members = multiplied(self.models, self.presets, self.configs, shared)
        self._asked, self._faults = validated(members)
        return self

    def _form_problem(self) -> FieldProblem | None:
        """What keeps its members from being looked at."""
        both = [name for name in _OF_GRID if name in self.model_fields_set]
        if self.members and both:
            told = "a batch has either a grid or a list of members; set this field in each member"
            return FieldProblem(pointer=f"/{both[0]}", code="grid-and-list", message=told)
        if not self.size:
            told = "a batch needs models (and presets, configs), or members"
            return FieldProblem(pointer="", code="no-members", message=told)
        if self.size > MOST_MEMBERS:
            told = f"the grid has {self.size} members; the maximum is {MOST_MEMBERS}"
            return FieldProblem(pointer="", code="too-many-members", message=told)
        times = self.size // max(1, len(self.configs))
        if config_chars(self.members, self.configs, times) > MOST_CONFIG_CHARS:
            told = f"the configs of all members together have more than {MOST_CONFIG_CHARS} characters"
            return FieldProblem(pointer="/members" if self.members else "/configs", code="too-large", message=told)
        return clash(self.presets, self.configs)


class BatchGrid(BaseModel):
    """The models, presets and configs that a grid combines."""

    models: list[str]
    presets: list[str]
    configs: int = Field(description="Number of configs; 0: the presets only.")


class BatchCounts(BaseModel):
    """Number of members by state."""

    total: int
    queued: int = 0
    running: int = 0
    canceling: int = 0
    succeeded: int = 0
    failed: int = 0
    canceled: int = 0
    gone: int = Field(default=0, description="Members with a deleted job.")


class BatchLinks(BaseModel):
    """Related URLs of a batch."""

    self: str
    events: str
    cancel: str
    retry_failed: str


class BatchListed(Brief, BaseModel):
    """A batch as returned in lists."""

    id: str
    name: str | None
    labels: dict[str, str]
    state: BatchState = Field(
        description="State of the batch. queued: no job has started. running: some jobs are queued or running. "
        "When all have ended: failed if at least one failed; otherwise canceled if at least one was "
        "canceled; otherwise succeeded."
    )
    counts: BatchCounts
    grid: BatchGrid | None = Field(description="Grid of the batch; null for a list of members.")
    request_id: str | None
    created_at: datetime
    links: BatchLinks

    def _brief(self) -> Iterator[Row]:
        yield "id", self.id
        yield "name", self.name or ""
        yield "state", self.state
        yield "jobs", ", ".join(f"{count} {word}" for word, count in self.counts.model_dump().items() if count)


class BatchMemberOut(BaseModel):
    """One member of a batch: its position and the state of its job."""

    member: int = Field(
        description="Number of the member, from 0: for each model all presets, for each preset all configs."
    )
    model: str = Field(description="Model as given in the request.")
    preset: str | None = Field(description="Preset of the grid; otherwise the preset of the job's config.")
    config: int | None = Field(description="Index of the config in the grid, starting at 0.")
    job_id: str
    state: MemberState = Field(description="State of the member's job; gone: the job was deleted.")
    reused: bool = Field(description="The job existed before the batch; canceling the batch does not cancel it.")
    attempts: int = Field(description="Number of jobs of the member; more than 1 after retries.")
    model_id: str | None
    model_name: str | None
    model_version: int | None
    verdict: Verdict | None
    error: Problem | None = Field(description="Error that the job failed with; null unless it has failed.")
    figures: ReportOutline | None = Field(description="Main figures of the report; null until the job has succeeded.")
    size_bytes: int | None = Field(description="Size of the quantized model in bytes.")
    seconds: float | None = Field(description="Seconds from the job's first start to its end.")


class BatchBest(BaseModel):
    """The best member of a model: members with verdict fail are excluded, then ranked by the metric, then by size."""

    model: str
    member: int
    job_id: str
    verdict: Verdict | None
    metric: str | None = Field(description="First metric of the report; null: ranked by sqnr_db.")
    value: float | None = Field(description="Value of the metric for the quantized model.")
    drop: float | None = Field(description="Drop of the metric compared with the float model; positive: worse.")
    size_bytes: int | None


class BatchOut(BatchListed):
    """A batch with a summary of its members."""

    started_at: datetime | None
    finished_at: datetime | None = Field(description="When the last job ended; null until all have ended.")
    failing: list[int] = Field(description="Members that failed, with their errors.")
    best: list[BatchBest] = Field(
        description="Best member of each model; models without a result that passes its gate are omitted."
    )
    members: list[BatchMemberOut]


class BatchEventOut(EventOut):
    """One entry of the event log of a member's job."""

    position: str = Field(description="Pass it as ?after= or Last-Event-ID to continue after this event.")
    job_id: str
    members: list[int] = Field(description="Members that the event's job belongs to; two members may share a job.")


class BatchEventPage(BaseModel):
    """Events after position ``after``, oldest first."""

    items: list[BatchEventOut]
    next_after: str = Field(description="Pass it as ?after= to get the next page.")
    has_more: bool
    state: BatchState


# What may be wrong with a request for or about a batch.

# Of each member so many of its problems are told.
_MOST_TOLD = 5


class BatchNotFoundError(QuantmillError, code="batch-not-found", title="Batch not found", status=404):
    """The batch does not exist or belongs to another tenant."""

    def __init__(self, batch_id: str) -> None:
        super().__init__(
            f"Batch {batch_id[:64]!r} not found.",
            path_parameter="batch_id",
            hint="List all batches with GET /v1/batches.",
        )


class BatchRefusedError(QuantmillError, code="batch-refused", title="Batch members not valid", status=422):
    """Some members of the batch are not valid; no job was stored. ``where`` lists all of these members."""

    def __init__(self, members: int, faults: Sequence[tuple[dict[str, Any], Sequence[FieldProblem]]]) -> None:
        named = [told["member"] for told, _ in faults]
        super().__init__(
            f"{len(named)} of {members} members are not valid: {', '.join(map(str, named[:20]))}"
            + ("" if len(named) <= 20 else ", ..."),
            hint="Nothing was stored. Correct or remove the members in `where.members`; each has its reason.",
            errors=tuple(problem for _, problems in faults for problem in problems[:_MOST_TOLD]),
            members=[told for told, _ in faults],
        )


class BatchNotEndedError(QuantmillError, code="batch-not-ended", title="Batch has not ended", status=409):
    """The operation requires a batch that has ended; some of its jobs are queued or running."""

    def __init__(self, batch_id: str, live: int) -> None:
        super().__init__(
            f"Batch {batch_id} has {live} queued or running jobs.",
            hint="Wait until the batch has ended, or cancel it first with POST /v1/batches/{id}/cancel.",
        )


class NothingToRetryError(QuantmillError, code="nothing-to-retry", title="Nothing to retry", status=409):
    """No member of the batch failed or was canceled, or the maximum number of retries is reached."""
