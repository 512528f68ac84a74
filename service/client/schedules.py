"""Schedules: jobs that are submitted by the clock, and what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack
from urllib.parse import quote

from service.client.connection import Connection, as_parameters, with_config
from service.client.driving import Call, Each
from service.client.options import ScheduleOptions
from service.client.steps import Items, Sleep, Steps
from service.contracts.regression import RegressionGate
from service.pagination import Page
from service.schedules.schemas import RunOut, RunState, ScheduleListed, ScheduleOut

_PATH = "/v1/schedules"
_PAUSE_SECONDS = 1.0
_SCHEDULE_DEFAULTS: ScheduleOptions = {
    "timezone": "UTC",
    "overlap": "skip",
    "misfire": "run_once",
    "misfire_grace_seconds": 600,
    "jitter_seconds": 0,
    "skip_unchanged": False,
    "promote_to": None,
    "paused": False,
}


class ScheduleCalls(Connection):
    """Calls of ``/v1/schedules``; to make, change and delete them takes a key of scope ``manage``."""

    @Call
    def create_schedule(
        self, name: str, cron: str, template: Mapping[str, Any], **options: Unpack[ScheduleOptions]
    ) -> Steps[ScheduleOut]:
        """Have a job submitted by the clock.

        Args:
            name: none of the others has it; it stands for the id in all calls.
            cron: minute, hour, day of month, month, day of week, on the clock of the time zone.
            template: the request for the job, as ``POST /v1/jobs`` takes it; NAME@ALIAS is looked up when it is due.
            timezone: IANA name.
            overlap: what to do while the last job has not ended: skip, queue or cancel_running.
            misfire: what to do with what was due for longer than the grace: run_once or skip.
            misfire_grace_seconds: so late is not a misfire.
            jitter_seconds: it may be so much later.
            skip_unchanged: submit no job where nothing has changed since the last accepted one.
            gate: how a job is judged against one that was accepted before.
            promote_to: alias that moves to the version that was quantized, on pass.
            paused: True: it is not due until it is resumed.
            idempotency_key: default: a fresh one, so that only this call's own retries are the same request.

        Raises:
            ConfigRefusedError: the template's config is not valid; names the fields.
        """
        gate = options.get("gate")
        body = {
            "name": name,
            "cron": cron,
            "template": with_config(template),
            **_SCHEDULE_DEFAULTS,
            **options,
            "gate": gate.model_dump(mode="json") if isinstance(gate, RegressionGate) else dict(gate or {}),
        }
        body.pop("idempotency_key", None)
        return ScheduleOut.model_validate((yield from self._create(_PATH, body, options.get("idempotency_key"))))

    @Each
    def schedules(self, *, limit: int | None = None) -> Items[ScheduleListed, None]:
        """All schedules, the newest first, read page by page; at most ``limit``."""
        yield from self._all(_PATH, ScheduleListed, {}, limit)

    @Call
    def schedule(self, schedule_id: str) -> Steps[ScheduleOut]:
        """One schedule, by its id or its name, as in all calls that take one."""
        return (yield from self._get(ScheduleOut, _at(schedule_id)))

    @Call
    def change_schedule(self, schedule: ScheduleListed, changes: Mapping[str, Any]) -> Steps[ScheduleOut]:
        """Change a schedule that was seen: the fields of ``create_schedule`` by name; what is not named stays.

        Args:
            schedule: as client.schedule(NAME) gives it.
            changes: such as {"paused": True}.

        Raises:
            ApiError: ``precondition-failed``, if it was due, or somebody else has changed it, since.
        """
        wanted = dict(changes)
        if wanted.get("template") is not None:
            wanted["template"] = with_config(wanted["template"])
        headers = {"If-Match": f'"{schedule.row_version}"'}
        answer = yield from self._json("PATCH", f"{_PATH}/{schedule.id}", json=wanted, headers=headers)
        return ScheduleOut.model_validate(answer)

    @Call
    def delete_schedule(self, schedule_id: str) -> Steps[None]:
        """Delete a schedule with its history; its jobs stay."""
        yield from self._request("DELETE", _at(schedule_id))

    @Call
    def run_schedule(self, schedule_id: str, *, idempotency_key: str | None = None) -> Steps[RunOut]:
        """Run a schedule now, also a paused one, and also where nothing has changed.

        Raises:
            ConflictError: its last job has not ended, and its overlap is skip.
        """
        return RunOut.model_validate((yield from self._create(f"{_at(schedule_id)}/run", {}, idempotency_key)))

    @Call
    def pause_schedule(self, schedule_id: str) -> Steps[ScheduleOut]:
        """Let a schedule not be due until it is resumed."""
        return ScheduleOut.model_validate((yield from self._json("POST", f"{_at(schedule_id)}/pause", repeatable=True)))

    @Call
    def resume_schedule(self, schedule_id: str) -> Steps[ScheduleOut]:
        """Let a paused schedule be due again, from now on."""
        answer = yield from self._json("POST", f"{_at(schedule_id)}/resume", repeatable=True)
        return ScheduleOut.model_validate(answer)

    @Call
    def schedule_runs(
        self, schedule_id: str, *, state: RunState | None = None, limit: int = 50, cursor: str | None = None
    ) -> Steps[Page[RunOut]]:
        """What became of the times that it was due, the newest first: one page, and the cursor of the next."""
        parameters = as_parameters({"state": state, "limit": limit, "cursor": cursor})
        return (yield from self._get(Page[RunOut], f"{_at(schedule_id)}/runs", params=parameters))

    @Call
    def schedule_run(self, schedule_id: str, run_id: str) -> Steps[RunOut]:
        """One of them."""
        return (yield from self._get(RunOut, f"{_at(schedule_id)}/runs/{run_id}"))

    @Call
    def wait_run(self, run: RunOut, *, timeout_seconds: float | None = None) -> Steps[RunOut]:
        """Wait until a run was judged, or came to nothing; look at its ``state``.

        Raises:
            WaitTimeoutError: it has taken longer than ``timeout_seconds``.
        """
        path = f"{_PATH}/{run.schedule_id}/runs/{run.id}"

        def look(left_seconds: float) -> Steps[RunOut]:
            yield Sleep(min(_PAUSE_SECONDS, left_seconds))
            return (yield from self._get(RunOut, path))

        if run.finished_at is not None:
            return run
        return (
            yield from self._wait(look, lambda seen: seen.finished_at is not None, timeout_seconds, f"The run {run.id}")
        )


def _at(schedule: str) -> str:
    return f"{_PATH}/{quote(schedule, safe='')}"
