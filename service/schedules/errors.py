"""Errors around schedules."""

from __future__ import annotations

from service.contracts.errors import QuantmillError


class ScheduleNotFoundError(QuantmillError):
    """There is no such schedule (or it belongs to somebody else)."""

    code = "schedule-not-found"
    title = "No such schedule"
    status = 404

    def __init__(self, schedule_id: str) -> None:
        super().__init__(
            f"There is no schedule {schedule_id!r}.", path_parameter="schedule_id", hint="GET /v1/schedules lists them."
        )


class RunNotFoundError(QuantmillError):
    """The schedule has no such run, or it has been forgotten."""

    code = "run-not-found"
    title = "No such run"
    status = 404

    def __init__(self, schedule_id: str, run_id: str) -> None:
        super().__init__(
            f"There is no run {run_id!r} of the schedule {schedule_id!r}.",
            path_parameter="run_id",
            hint=f"GET /v1/schedules/{schedule_id}/runs lists those that are kept.",
        )


class ScheduleNameTakenError(QuantmillError):
    """Another schedule of the tenant has the name."""

    code = "schedule-name-taken"
    title = "The name is taken"
    status = 409

    def __init__(self, name: str, schedule_id: str) -> None:
        super().__init__(
            f"The schedule {schedule_id} is called {name!r}.",
            pointer="/name",
            hint=f"Take another name, or change that one: PATCH /v1/schedules/{schedule_id}.",
        )


class TooManySchedulesError(QuantmillError):
    """The tenant has as many schedules as it may."""

    code = "too-many-schedules"
    title = "There are too many schedules"
    status = 409

    def __init__(self, most: int) -> None:
        super().__init__(f"There are {most} schedules, as many as there may be.", hint="Delete one that is not needed.")


class ScheduleBusyError(QuantmillError):
    """The schedule's last job has not ended, and another is not to be submitted meanwhile."""

    code = "schedule-busy"
    title = "The schedule's last job has not ended"
    status = 409

    def __init__(self, schedule_id: str, overlap: str) -> None:
        super().__init__(
            f"The last run of the schedule {schedule_id} has not ended, and its overlap is {overlap}.",
            hint="Wait for its end, or cancel its job.",
        )


class ScheduleChangedError(QuantmillError):
    """Somebody changed the schedule while it was run."""

    code = "schedule-changed"
    title = "The schedule was changed meanwhile"
    status = 409

    def __init__(self, schedule_id: str) -> None:
        super().__init__(f"The schedule {schedule_id} was changed meanwhile; nothing was run.", hint="Run it again.")
