"""Schedules as seen over HTTP, and their errors."""

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
_CRON = "Five fields: minute, hour, day of month, month, day of week, on the clock of the time zone."
_ZONE = "IANA name, such as Europe/Berlin."
_TEMPLATE = "The request for the job, as POST /v1/jobs takes it; NAME@ALIAS is looked up whenever it is due."
_OVERLAP = (
    "While the last job has not ended: skip this time; queue: wait for its end, one run at most; "
    "cancel_running: cancel it."
)
_MISFIRE = "What was due while no reconciler ran, for longer than the grace: run once for all of it, or skip it."
_GRACE = "So late is not a misfire."
_JITTER = "Up to so much later, by a number that follows from the schedule and the due time."
_UNCHANGED = (
    "Submit no job where nothing has changed since the last one that was accepted: the bytes of model and data, "
    "config, device and engine."
)
_PROMOTE = "On pass, this alias of the model's name comes to stand for the version that was quantized."


def _no_id(name: str) -> str:
    if is_id(name, "sch"):
        raise ValueError("must not be spelled as an id is")
    return name


ScheduleName = Annotated[
    Text, AfterValidator(_no_id), Field(description="No other of the tenant's schedules has it; stands for the id.")
]


class ScheduleCreate(RepeatableBody):
    """When to submit what, and how to judge it."""

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
    """What is to be another; what is left out stays. Another gate forgets what was accepted for skip_unchanged."""

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
    promote_to: AliasWord | None = Field(default=None, description=_PROMOTE + " Null: none does.")


class ScheduleLinks(BaseModel):
    """Where this lives."""

    self: str
    runs: str


class ScheduleListed(BaseModel):
    """A schedule, as lists tell of it: all but its template, which may have megabytes."""

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
    next_due_at: datetime | None = Field(description="Null while it is paused, and once it is never due again.")
    fires_at: datetime | None = Field(description="The same with its jitter.")
    last_pass_job_id: str | None = Field(description="The job that was accepted last; it cannot be deleted.")
    created_by: str = Field(description="The key that has made it.")
    row_version: int
    created_at: datetime
    updated_at: datetime
    links: ScheduleLinks


class ScheduleOut(ScheduleListed):
    """A schedule."""

    template: dict[str, Any] = Field(description="The request for the job, with the config resolved.")
    warnings: list[str] = Field(
        default_factory=list, description="When it is made or changed: nothing that stops it, but worth a thought."
    )


class RunLinks(BaseModel):
    """Where to go from a run."""

    schedule: str
    job: str | None


class RunOut(BaseModel):
    """One time that a schedule was due, or was run by request."""

    id: str
    schedule_id: str
    due_at: datetime
    trigger: Literal["time", "request"]
    state: RunState = Field(
        description="waiting: for the end of the last one. running: its job has not been judged. passed: accepted. "
        "failed: not accepted. skipped: no job was submitted, on purpose. refused: the job could not be submitted."
    )
    reason: str | None = Field(
        description="A word for it: overlap, unchanged, misfire, job-failed, job-canceled, job-gone, report, verdict, "
        "gate, promotion; or the code of the problem. Others may follow."
    )
    detail: str | None = Field(description="The same in words.")
    missed: int = Field(description="Due times before it that it takes the place of; 1000 at most.")
    job_id: str | None
    model_id: str | None = Field(description="The version that was, or was to be, quantized.")
    verdict: str | None = Field(description="Of the job's report.")
    fallback: str | None = Field(
        default=None, description="Which model the job returns, if the planned one was too slow: see jobs."
    )
    problem: Problem | None = Field(description="Why the job could not be submitted, or the alias not be moved.")
    clauses: list[ClauseResult] = Field(description="What came of the regression gate.")
    promoted_to: str | None = Field(description="The alias that was moved.")
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    links: RunLinks


# Errors around schedules.


class ScheduleNotFoundError(
    ResourceNotFoundError, word="schedule", code="schedule-not-found", title="No such schedule"
):
    """There is no such schedule (or it belongs to somebody else)."""


class RunNotFoundError(QuantmillError, code="run-not-found", title="No such run", status=404):
    """The schedule has no such run, or it has been forgotten."""

    def __init__(self, schedule_id: str, run_id: str) -> None:
        super().__init__(
            f"There is no run {run_id!r} of the schedule {schedule_id!r}.",
            path_parameter="run_id",
            hint=f"GET /v1/schedules/{schedule_id}/runs lists the runs that are kept.",
        )


class ScheduleNameTakenError(QuantmillError, code="schedule-name-taken", title="The name is taken", status=409):
    """Another schedule of the tenant has the name."""

    def __init__(self, name: str, schedule_id: str) -> None:
        super().__init__(
            f"The schedule {schedule_id} is called {name!r}.",
            pointer="/name",
            hint=f"Choose another name, or rename that schedule with PATCH /v1/schedules/{schedule_id}.",
        )


class TooManySchedulesError(
    QuantmillError, code="too-many-schedules", title="There are too many schedules", status=409
):
    """The tenant has as many schedules as it may."""

    def __init__(self, most: int) -> None:
        super().__init__(f"There are {most} schedules, as many as there may be.", hint="Delete one that is not needed.")


class ScheduleBusyError(
    QuantmillError, code="schedule-busy", title="The schedule's last job has not ended", status=409
):
    """The schedule's last job has not ended, and another is not to be submitted meanwhile."""

    def __init__(self, schedule_id: str, overlap: str) -> None:
        super().__init__(
            f"The last run of the schedule {schedule_id} has not ended, and its overlap is {overlap}.",
            hint="Wait for its end, or cancel its job.",
        )


class ScheduleChangedError(
    QuantmillError, code="schedule-changed", title="The schedule was changed meanwhile", status=409
):
    """Somebody changed the schedule while it was run."""

    def __init__(self, schedule_id: str) -> None:
        super().__init__(f"The schedule {schedule_id} was changed meanwhile; nothing was run.", hint="Run it again.")
