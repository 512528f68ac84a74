"""API schemas and errors of schedules."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from service.contracts.base import Text
from service.contracts.errors import Problem, QuantmillError
from service.contracts.regression import AliasWord, ClauseResult, RegressionGate
from service.idempotency.requests import RepeatableBody
from service.ids import is_id
from service.jobs.schemas import JobCreate
from service.resources import ResourceNotFoundError
from service.schedules.times import MOST_CRON_CHARS, MOST_ZONE_CHARS, check_cron, check_zone

DAY_SECONDS = 24 * 3600
Overlap = Literal["skip", "queue", "cancel_running"]
Misfire = Literal["run_once", "skip"]
RunState = Literal["waiting", "running", "passed", "failed", "skipped", "refused"]
Cron = Annotated[str, Field(min_length=1, max_length=MOST_CRON_CHARS), AfterValidator(check_cron)]
Zone = Annotated[str, Field(min_length=1, max_length=MOST_ZONE_CHARS), AfterValidator(check_zone)]
Grace = Annotated[int, Field(ge=1, le=DAY_SECONDS)]
Jitter = Annotated[int, Field(ge=0, le=DAY_SECONDS)]
_CRON = "Cron expression with five fields: minute, hour, day of month, month, day of week, in the schedule's time zone."
_ZONE = "IANA time zone name, such as Europe/Berlin."
_TEMPLATE = "Request for the job, as for POST /v1/jobs; NAME@ALIAS is resolved at each run."
_OVERLAP = (
    "What to do if the last job has not ended. skip: skip this run; queue: wait until it has ended, at "
    "most one run waits; cancel_running: cancel it."
)
_MISFIRE = (
    "What to do with runs that were due while no reconciler was running, if they are late by more than the "
    "grace period: run once for all of them, or skip them."
)
_GRACE = "Grace period in seconds: a run that is late by no more than this is not a misfire."
_JITTER = "Maximum delay in seconds; the actual delay is derived from the schedule and the due time."
_UNCHANGED = (
    "Submit no job if nothing has changed since the last accepted job: the bytes of model and data, "
    "config, device and engine."
)
_PROMOTE = "Alias of the model's name that is moved to the quantized version when a run passes."


def _no_id(name: str) -> str:
    if is_id(name, "sch"):
        raise ValueError("must not have the format of an id")
    return name


ScheduleName = Annotated[
    Text,
    AfterValidator(_no_id),
    Field(description="Name of the schedule, unique within the tenant; can be used instead of the id."),
]


class ScheduleCreate(RepeatableBody):
    """A schedule to create: when to submit which job, and how its result is judged."""

    model_config = ConfigDict(extra="forbid")

    name: ScheduleName
    cron: Cron = Field(description=_CRON)
    timezone: Zone = Field(default="UTC", description=_ZONE)
    template: JobCreate = Field(description=_TEMPLATE)
    overlap: Overlap = Field(default="skip", description=_OVERLAP)
    misfire: Misfire = Field(default="run_once", description=_MISFIRE)
    misfire_grace_seconds: Grace = Field(default=600, description=_GRACE)
    jitter_seconds: Jitter = Field(default=0, description=_JITTER)
    skip_unchanged: bool = Field(default=False, description=_UNCHANGED)
    gate: RegressionGate = Field(default_factory=RegressionGate)
    promote_to: AliasWord | None = Field(default=None, description=_PROMOTE)
    paused: bool = False


class ScheduleChange(BaseModel):
    """Changes to a schedule. Omitted fields are unchanged. A new gate resets the last accepted job for
    skip_unchanged.
    """

    model_config = ConfigDict(extra="forbid")

    name: ScheduleName | None = None
    cron: Cron | None = Field(default=None, description=_CRON)
    timezone: Zone | None = Field(default=None, description=_ZONE)
    template: JobCreate | None = Field(default=None, description=_TEMPLATE)
    overlap: Overlap | None = Field(default=None, description=_OVERLAP)
    misfire: Misfire | None = Field(default=None, description=_MISFIRE)
    misfire_grace_seconds: Grace | None = Field(default=None, description=_GRACE)
    jitter_seconds: Jitter | None = Field(default=None, description=_JITTER)
    skip_unchanged: bool | None = Field(default=None, description=_UNCHANGED)
    gate: RegressionGate | None = None
    promote_to: AliasWord | None = Field(default=None, description=_PROMOTE + " Null: no alias.")


class ScheduleLinks(BaseModel):
    """Related URLs of a schedule."""

    self: str
    runs: str


class ScheduleListed(BaseModel):
    """A schedule as returned in lists: all fields but the template, which may be several megabytes in size."""

    id: str
    name: str
    cron: str
    timezone: str
    overlap: Overlap
    misfire: Misfire
    misfire_grace_seconds: int
    jitter_seconds: int
    skip_unchanged: bool
    gate: RegressionGate
    promote_to: str | None
    paused_at: datetime | None
    next_due_at: datetime | None = Field(
        description="Next due time; null while the schedule is paused, and if it will not be due again."
    )
    fires_at: datetime | None = Field(description="Next due time including jitter; null if next_due_at is null.")
    last_pass_job_id: str | None = Field(description="Job that was accepted last; it cannot be deleted.")
    created_by: str = Field(description="Id of the key that created the schedule.")
    row_version: int
    created_at: datetime
    updated_at: datetime
    links: ScheduleLinks


class ScheduleOut(ScheduleListed):
    """A schedule."""

    template: dict[str, Any] = Field(description="Request for the job, with the resolved config.")
    warnings: list[str] = Field(
        default_factory=list,
        description="Warnings that do not prevent the schedule from running; returned when it is created or changed.",
    )


class RunLinks(BaseModel):
    """Related URLs of a run."""

    schedule: str
    job: str | None


class RunOut(BaseModel):
    """One run of a schedule, when due or on request."""

    id: str
    schedule_id: str
    due_at: datetime
    trigger: Literal["time", "request"]
    state: RunState = Field(
        description="State of the run. waiting: waits until the last run has ended. running: its job has not been "
        "judged. passed: accepted. failed: not accepted. skipped: no job was submitted, as configured. "
        "refused: the job could not be submitted."
    )
    reason: str | None = Field(
        description="Reason code: overlap, unchanged, misfire, job-failed, job-canceled, job-gone, report, "
        "verdict, gate, promotion; or the code of the problem. More codes may be added."
    )
    detail: str | None = Field(description="Explanation of the reason, as text.")
    missed: int = Field(description="Number of earlier due times that this run replaces; at most 1000.")
    job_id: str | None
    model_id: str | None = Field(description="Model version that the run quantizes.")
    verdict: str | None = Field(description="Verdict of the job's report.")
    fallback: str | None = Field(
        default=None, description="Model that the job returns if the quantized one was too slow; see fallback of jobs."
    )
    problem: Problem | None = Field(
        description="Error because of which the job could not be submitted or the alias could not be moved."
    )
    clauses: list[ClauseResult] = Field(description="Results of the clauses of the regression gate.")
    promoted_to: str | None = Field(description="Alias that was moved to the quantized version.")
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    links: RunLinks


# Errors around schedules.


class ScheduleNotFoundError(
    ResourceNotFoundError, word="schedule", code="schedule-not-found", title="Schedule not found"
):
    """The schedule does not exist or belongs to another tenant."""


class RunNotFoundError(QuantmillError, code="run-not-found", title="Run not found", status=404):
    """The schedule has no such run, or the run was deleted because of its age."""

    def __init__(self, schedule_id: str, run_id: str) -> None:
        super().__init__(
            f"Run {run_id!r} of schedule {schedule_id!r} not found.",
            path_parameter="run_id",
            hint=f"List the stored runs with GET /v1/schedules/{schedule_id}/runs.",
        )


class ScheduleNameTakenError(
    QuantmillError, code="schedule-name-taken", title="Schedule name already in use", status=409
):
    """Another schedule of the tenant already has this name."""

    def __init__(self, name: str, schedule_id: str) -> None:
        super().__init__(
            f"Schedule {schedule_id} already has the name {name!r}.",
            pointer="/name",
            hint=f"Use another name, or update that schedule with PATCH /v1/schedules/{schedule_id}.",
        )


class TooManySchedulesError(QuantmillError, code="too-many-schedules", title="Too many schedules", status=409):
    """The tenant has the maximum number of schedules."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"The tenant has {most} schedules, which is the maximum.",
            hint="Delete a schedule that is no longer needed.",
        )


class ScheduleBusyError(QuantmillError, code="schedule-busy", title="Schedule is busy", status=409):
    """The schedule's last job has not ended, and its overlap setting allows no other job meanwhile."""

    def __init__(self, schedule_id: str, overlap: str) -> None:
        super().__init__(
            f"The last run of schedule {schedule_id} has not ended, and its overlap is {overlap}.",
            hint="Wait until the run has ended, or cancel its job.",
        )


class ScheduleChangedError(QuantmillError, code="schedule-changed", title="Schedule was changed", status=409):
    """The schedule was changed while the run was being prepared."""

    def __init__(self, schedule_id: str) -> None:
        super().__init__(
            f"Schedule {schedule_id} was changed during the request; nothing was run.", hint="Send the request again."
        )
