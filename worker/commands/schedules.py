"""``quantmill schedules``: jobs that are submitted by the clock, and what became of them."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from service.contracts.command_errors import ExitCode
from worker.commands import options
from worker.commands.command import Done, Printing, Service, command, deleted, remote
from worker.commands.command import show as show_answer
from worker.commands.job_results import Timeout
from worker.commands.options import Json
from worker.commands.printing import print_table

if TYPE_CHECKING:
    from service.client import Client
    from service.client.options import ScheduleOptions
    from service.schedules.schemas import RunOut, ScheduleListed, ScheduleOut

app = typer.Typer(name="schedules", help="Schedule jobs (cron).", no_args_is_help=True)

ScheduleId = Annotated[str, typer.Argument(metavar="SCHEDULE", help="The schedule's name or id.")]
# Options that are other words than the fields of requests.
_FIELDS = {"misfire_grace": "misfire_grace_seconds", "jitter": "jitter_seconds"}
_PAUSE_SECONDS = 1.0


_SCHEMAS = "service.schedules.schemas"


_OVERLAPS = options.one_of(_SCHEMAS, "Overlap")
_MISFIRES = options.one_of(_SCHEMAS, "Misfire")
_RUN_STATES = options.one_of(_SCHEMAS, "RunState")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """When a schedule is due, and what is done where times collide."""

    timezone: Annotated[str, typer.Option(help="Time zone of the times, by IANA name.")] = "UTC"
    overlap: Annotated[
        str,
        typer.Option(
            callback=_OVERLAPS,
            help="While the last job runs: skip, queue or cancel_running.",
        ),
    ] = "skip"
    misfire: Annotated[str, typer.Option(callback=_MISFIRES, help="Missed runs: run_once or skip.")] = "run_once"
    misfire_grace: Annotated[int, typer.Option(min=1, help="Seconds of delay before a run counts as missed.")] = 600
    jitter: Annotated[int, typer.Option(min=0, help="Longest random delay, in seconds.")] = 0
    skip_unchanged: Annotated[
        bool, typer.Option("--skip-unchanged", help="Skip runs if model and data are unchanged.")
    ] = False
    gate: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Regression gate (JSON). Default: none.")
    ] = None
    promote_to: Annotated[str | None, typer.Option(help="Alias to move when a run passes.")] = None
    paused: Annotated[bool, typer.Option("--paused", help="Create it paused.")] = False


@dataclass(frozen=True, kw_only=True)
class ScheduleChanges:
    """What of a schedule is to be another; None: it stays."""

    name: Annotated[str | None, typer.Option(help="New name.")] = None
    cron: Annotated[str | None, typer.Option(help="Times, such as '0 2 * * *': every night at two.")] = None
    template: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="Request for the job (JSON).")] = (
        None
    )
    timezone: Annotated[str | None, typer.Option(help="Time zone of the times, by IANA name.")] = None
    overlap: Annotated[
        str | None,
        typer.Option(callback=_OVERLAPS, help="While the last job runs: skip, queue or cancel_running."),
    ] = None
    misfire: Annotated[str | None, typer.Option(callback=_MISFIRES, help="Missed runs: run_once or skip.")] = None
    misfire_grace: Annotated[
        int | None, typer.Option(min=1, help="Seconds of delay before a run counts as missed.")
    ] = None
    jitter: Annotated[int | None, typer.Option(min=0, help="Longest random delay, in seconds.")] = None
    skip_unchanged: Annotated[
        bool | None,
        typer.Option("--skip-unchanged/--no-skip-unchanged", help="Skip runs if model and data are unchanged."),
    ] = None
    gate: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="Regression gate (JSON).")] = None
    promote_to: Annotated[str | None, typer.Option(help="Alias to move when a run passes; '' for none.")] = None


def _request(given: Rules | ScheduleChanges) -> dict[str, Any]:
    """What options say, under the names of requests; documents are read from their files."""
    request = {_FIELDS.get(name, name): value for name, value in asdict(given).items() if value is not None}
    return {name: _document(value) if isinstance(value, Path) else value for name, value in request.items()}


def _line(item: ScheduleListed) -> str:
    due = "no further runs" if item.next_due_at is None else f"next {item.next_due_at:%Y-%m-%d %H:%M} UTC"
    state = "paused" if item.paused_at is not None else due
    return f"{item.id}  {item.name}  {item.cron}  {item.timezone}  {state}"


def _print_schedules(found: list[ScheduleListed]) -> None:
    rows = [
        (
            one.id,
            one.name,
            one.cron,
            one.timezone,
            "paused" if one.paused_at else "active",
            "-" if one.next_due_at is None else f"{one.next_due_at:%Y-%m-%d %H:%M}Z",
        )
        for one in found
    ]
    print_table(("schedule", "name", "cron", "time zone", "state", "next run"), rows, whole=("schedule",), narrow=True)


def _print_runs(found: list[RunOut]) -> None:
    rows = [
        (one.id, f"{one.due_at:%m-%d %H:%M}Z", one.trigger, one.state, one.job_id or "-", _run_words(one))
        for one in found
    ]
    print_table(("run", "due", "trigger", "state", "job", "result"), rows, whole=("run", "due", "job"), narrow=True)


def _run_words(item: RunOut) -> str:
    moved = None if item.promoted_to is None else f"{item.promoted_to} moved"
    return " ".join(word for word in (_model(item), item.reason, item.detail, moved) if word) or "-"


def _run_line(item: RunOut) -> str:
    told = f"{item.job_id or '-'}  {_run_words(item)}"
    return f"{item.id}  {item.due_at:%Y-%m-%d %H:%M:%S}  {item.trigger}  {item.state}  {told}"


def _model(item: RunOut) -> str | None:
    """The version that was quantized: by its name, where the service tells that."""
    name, version = getattr(item, "model_name", None), getattr(item, "model_version", None)
    return item.model_id if name is None else f"{name}@{version}"


def _print_schedule(found: ScheduleOut) -> None:
    typer.echo(_line(found))
    for field in ("overlap", "misfire", "jitter_seconds", "skip_unchanged", "promote_to", "last_pass_job_id"):
        typer.echo(f"  {field.replace('_', ' ')}: {getattr(found, field)}")
    typer.echo(f"  baseline: {found.gate.baseline.model_dump_json()}")
    typer.echo(f"  on undecided: {found.gate.on_undecided}")
    for clause in found.gate.clauses:
        typer.echo(f"  clause: {clause.model_dump_json(exclude_none=True)}")


@command(app)
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.")],
    cron: Annotated[str, typer.Argument(metavar="CRON", help="Times, such as '0 2 * * *': every night at two.")],
    template: Annotated[
        Path,
        typer.Argument(metavar="JOB.json", exists=True, dir_okay=False, help="Request for the job (JSON)."),
    ],
    service: Service,
    rules: Rules,
    as_json: Json = False,
) -> None:
    """Create a schedule."""
    document, request = _document(template), _request(rules)
    with service.connected() as client:
        made = client.create_schedule(name, cron, document, **cast("ScheduleOptions", request))
    _show(made, as_json)


@command(app, "set")
def set_schedule(schedule_id: ScheduleId, service: Service, changes: ScheduleChanges, as_json: Json = False) -> None:
    """Change a schedule."""
    given = _request(changes)
    if not given:
        raise typer.BadParameter("Give at least one change, such as --cron.")
    if "promote_to" in given:
        given["promote_to"] = given["promote_to"] or None
    with service.connected() as client:
        made = client.change_schedule(client.schedule(schedule_id), given)
    _show(made, as_json)


@remote(app, "list", text=_print_schedules, empty="No schedules yet.")
def list_schedules(client: Client) -> list[ScheduleListed]:
    """List all schedules."""
    return list(client.schedules())


@remote(app, text=_print_schedule)
def show(schedule_id: ScheduleId, client: Client) -> ScheduleOut:
    """Show a schedule and its rules; with --json, its template as well."""
    return client.schedule(schedule_id)


@command(app)
def run(
    schedule_id: ScheduleId,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="Wait for the verdict: exit with code 0 if it passed, 3 if it failed, 1 if there is none, 5 after "
            "--timeout.",
        ),
    ] = False,
    timeout: Timeout = None,
    *,
    service: Service,
    printing: Printing,
) -> None:
    """Run a schedule now."""
    if timeout is not None and not wait:
        raise typer.BadParameter("requires --wait.", param_hint="--timeout")
    with service.connected() as client:
        made = client.run_schedule(schedule_id)
        if wait:
            made = _wait_run(client, made, timeout_seconds=timeout, quiet=printing.quiet)
    show_answer(made, json=printing.json, line=_run_line)
    if wait and made.state != "passed":
        raise typer.Exit(ExitCode.GATE_FAILED if made.state == "failed" else ExitCode.ERROR)


@remote(app, line=_line)
def pause(schedule_id: ScheduleId, client: Client) -> ScheduleOut:
    """Pause a schedule."""
    return _warned(client.pause_schedule(schedule_id))


@remote(app, line=_line)
def resume(schedule_id: ScheduleId, client: Client) -> ScheduleOut:
    """Resume a paused schedule."""
    return _warned(client.resume_schedule(schedule_id))


@remote(app, text=_print_runs, empty="No runs found.")
def runs(
    schedule_id: ScheduleId,
    client: Client,
    state: Annotated[
        str | None,
        typer.Option(
            callback=_RUN_STATES,
            help="waiting, running, passed, failed, skipped or refused. Default: all.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Show at most this many, newest first.")] = 50,
) -> list[RunOut]:
    """List the runs of a schedule, newest first."""
    return client.schedule_runs(schedule_id, state=state, limit=limit).items  # type: ignore[arg-type]  # checked above


@remote(app)
def rm(schedule_id: ScheduleId, client: Client) -> Done:
    """Delete a schedule with its runs; its jobs stay."""
    client.delete_schedule(schedule_id)
    return deleted(schedule_id)


def _document(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{path} contains no JSON object.")
    return found


def _show(found: ScheduleOut, as_json: bool) -> None:
    show_answer(_warned(found), json=as_json, line=_line)


def _warned(found: ScheduleOut) -> ScheduleOut:
    for warning in found.warnings:
        typer.echo(f"warning: {warning}", err=True)
    return found


def _wait_run(client: Client, run: RunOut, *, timeout_seconds: float | None, quiet: bool) -> RunOut:
    """Show the progress of the run's job on standard error; gives the run once it was judged, or came to nothing.

    Raises:
        WaitTimeoutError: it takes longer than that; the run goes on.
    """
    from worker.commands.console import ProgressView
    from worker.commands.remote import show_event

    ends = None if timeout_seconds is None else time.monotonic() + timeout_seconds

    def left() -> float | None:
        return None if ends is None else max(0.0, ends - time.monotonic())

    with ProgressView(quiet=quiet) as view:
        while run.job_id is None and run.finished_at is None and left() != 0.0:
            view.progress("waiting", message="for the end of the last job")
            time.sleep(_PAUSE_SECONDS)
            run = client.schedule_run(run.schedule_id, run.id)
        if run.job_id is not None:
            view.log(f"job {run.job_id}: follow it with `quantmill jobs follow {run.job_id}`")
            client.wait(run.job_id, on_event=lambda event: show_event(event, view), timeout_seconds=left())
            view.progress("verdict")
        return client.wait_run(run, timeout_seconds=left())
