"""Batches as seen over HTTP, and what may be wrong with a request for one."""

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
    """Jobs that are asked for as one: the grid of models, presets and configs, or a list of requests."""

    model_config = ConfigDict(extra="forbid")

    name: Text | None = Field(default=None, description="Of the batch, and of the grid's jobs.")
    labels: Labels = Field(default_factory=dict, description="Of the batch, and of the grid's jobs.")
    models: Annotated[list[Reference], Field(max_length=MOST_MEMBERS)] = Field(default_factory=list)
    presets: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=64)]], Field(max_length=MOST_MEMBERS)
    ] = Field(default_factory=list, description="Names of presets; without any, those of the configs.")
    configs: Annotated[list[dict[str, Any]], Field(max_length=MOST_MEMBERS)] = Field(
        default_factory=list,
        description="Each as the config of POST /v1/jobs; laid over each of the presets, if there are any.",
    )
    calibration_dataset_id: Reference | None = None
    evaluation_dataset_id: Reference | None = None
    priority: Priority = 0
    device: DeviceChoice = "auto"
    reuse: bool = Field(default=False, description="As of POST /v1/jobs, for each member by itself.")
    members: Annotated[list[dict[str, Any]], Field(max_length=MOST_MEMBERS)] = Field(
        default_factory=list, description="In place of a grid: each as the body of POST /v1/jobs."
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
                f"{problem.pointer or '/'}: {problem.message}", errors=(problem,), hint="The schema is at /docs."
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
            told = "a batch is either a grid or a list of members, whose fields stand in them"
            return FieldProblem(pointer=f"/{both[0]}", code="grid-and-list", message=told)
        if not self.size:
            told = "a batch has models (and presets, configs), or members"
            return FieldProblem(pointer="", code="no-members", message=told)
        if self.size > MOST_MEMBERS:
            told = f"the grid has {self.size} members; a batch has {MOST_MEMBERS} at most"
            return FieldProblem(pointer="", code="too-many-members", message=told)
        times = self.size // max(1, len(self.configs))
        if config_chars(self.members, self.configs, times) > MOST_CONFIG_CHARS:
            told = f"the configs of all members have more than {MOST_CONFIG_CHARS} characters together"
            return FieldProblem(pointer="/members" if self.members else "/configs", code="too-large", message=told)
        return clash(self.presets, self.configs)


class BatchGrid(BaseModel):
    """What was multiplied."""

    models: list[str]
    presets: list[str]
    configs: int = Field(description="How many; 0: the presets alone.")


class BatchCounts(BaseModel):
    """How many members stand so."""

    total: int
    queued: int = 0
    running: int = 0
    canceling: int = 0
    succeeded: int = 0
    failed: int = 0
    canceled: int = 0
    gone: int = Field(default=0, description="Their jobs were deleted.")


class BatchLinks(BaseModel):
    """Where to go from a batch."""

    self: str
    events: str
    cancel: str
    retry_failed: str


class BatchListed(Brief, BaseModel):
    """A batch as lists tell of it."""

    id: str
    name: str | None
    labels: dict[str, str]
    state: BatchState = Field(
        description="queued: none has begun. running: some are queued or running. Once all have ended: failed, if one "
        "has failed; else canceled, if one was; else succeeded."
    )
    counts: BatchCounts
    grid: BatchGrid | None = Field(description="Null for a list of members.")
    request_id: str | None
    created_at: datetime
    links: BatchLinks

    def _brief(self) -> Iterator[Row]:
        yield "id", self.id
        yield "name", self.name or ""
        yield "state", self.state
        yield "jobs", ", ".join(f"{count} {word}" for word, count in self.counts.model_dump().items() if count)


class BatchMemberOut(BaseModel):
    """One member of a batch: its place, and what became of its job."""

    member: int = Field(description="Its number, from 0: for each model all presets, for each of these all configs.")
    model: str = Field(description="As it was asked for.")
    preset: str | None = Field(description="Of the grid; else that of the job's config.")
    config: int | None = Field(description="Number of the grid's config, from 0.")
    job_id: str
    state: MemberState = Field(description="gone: the job was deleted.")
    reused: bool = Field(description="The job was there before, and is not the batch's to cancel.")
    attempts: int = Field(description="Jobs that it has had: more than 1 after retries.")
    model_id: str | None
    model_name: str | None
    model_version: int | None
    verdict: Verdict | None
    error: Problem | None = Field(description="Why it failed.")
    figures: ReportOutline | None = Field(description="Of the report, once succeeded.")
    size_bytes: int | None = Field(description="Of the quantized model.")
    seconds: float | None = Field(description="From its first start to its end.")


class BatchBest(BaseModel):
    """The best member of one model: no verdict fail, then by the metric, then by size."""

    model: str
    member: int
    job_id: str
    verdict: Verdict | None
    metric: str | None = Field(description="The first that its report has; null: judged by sqnr_db.")
    value: float | None = Field(description="Of the quantized model.")
    drop: float | None = Field(description="Change for the worse against float.")
    size_bytes: int | None


class BatchOut(BatchListed):
    """A batch with one summary of its members."""

    started_at: datetime | None
    finished_at: datetime | None = Field(description="Once all have ended.")
    failing: list[int] = Field(description="Members that have failed; each tells its error.")
    best: list[BatchBest] = Field(description="For each model with a result that its gate does not refuse.")
    members: list[BatchMemberOut]


class BatchEventOut(EventOut):
    """One entry of the log of one member's job."""

    position: str = Field(description="Send it as ?after= or Last-Event-ID to go on behind it.")
    job_id: str
    members: list[int] = Field(description="Whose job it is; two members may have one.")


class BatchEventPage(BaseModel):
    """Events behind ``after``, oldest first."""

    items: list[BatchEventOut]
    next_after: str = Field(description="Send it as ?after= to go on.")
    has_more: bool
    state: BatchState


# What may be wrong with a request for or about a batch.

# Of each member so many of its problems are told.
_MOST_TOLD = 5


class BatchNotFoundError(QuantmillError, code="batch-not-found", title="No such batch", status=404):
    """The tenant has no such batch."""

    def __init__(self, batch_id: str) -> None:
        super().__init__(
            f"There is no batch {batch_id[:64]!r}.", path_parameter="batch_id", hint="GET /v1/batches lists them."
        )


class BatchRefusedError(QuantmillError, code="batch-refused", title="Members of the batch are not valid", status=422):
    """Some members of the batch cannot be run as they were asked for; none was stored. ``where`` names all of them."""

    def __init__(self, members: int, faults: Sequence[tuple[dict[str, Any], Sequence[FieldProblem]]]) -> None:
        named = [told["member"] for told, _ in faults]
        super().__init__(
            f"{len(named)} of {members} members cannot be run: {', '.join(map(str, named[:20]))}"
            + ("" if len(named) <= 20 else ", ..."),
            hint="Nothing was stored. Correct or leave out what `where.members` names, each with its reason.",
            errors=tuple(problem for _, problems in faults for problem in problems[:_MOST_TOLD]),
            members=[told for told, _ in faults],
        )


class BatchNotEndedError(QuantmillError, code="batch-not-ended", title="The batch has not ended", status=409):
    """Jobs of the batch are queued or running."""

    def __init__(self, batch_id: str, live: int) -> None:
        super().__init__(
            f"Of the batch {batch_id} {live} jobs are queued or running.",
            hint="Wait until it ends, or cancel it with POST /v1/batches/{id}/cancel.",
        )


class NothingToRetryError(QuantmillError, code="nothing-to-retry", title="There is nothing to run again", status=409):
    """No member of the batch has failed or was canceled, or it was retried as often as it may be."""
