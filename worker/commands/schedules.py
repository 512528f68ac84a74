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

if TYPE_CHECKING:
    from service.client import Client
    from service.client.options import ScheduleOptions
    from service.schedules.schemas import RunOut, ScheduleListed, ScheduleOut

app = typer.Typer(
    name="schedules", help="Have jobs submitted by the clock, and judged against the last.", no_args_is_help=True
)

ScheduleId = Annotated[str, typer.Argument(metavar="SCHEDULE", help="Its name, or its id, as list shows it: sch_...")]
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

    timezone: Annotated[str, typer.Option(help="IANA name of the clock that the times are of.")] = "UTC"
    overlap: Annotated[
        str,
        typer.Option(
            callback=_OVERLAPS,
            help="While the last has not ended: skip, queue or cancel_running.",
        ),
    ] = "skip"
    misfire: Annotated[str, typer.Option(callback=_MISFIRES, help="What was due long ago: run_once or skip.")] = (
        "run_once"
    )
    misfire_grace: Annotated[int, typer.Option(min=1, help="Seconds; so late is not long ago.")] = 600
    jitter: Annotated[int, typer.Option(min=0, help="Seconds that it may be later.")] = 0
    skip_unchanged: Annotated[
        bool, typer.Option("--skip-unchanged", help="Submit nothing where nothing has changed.")
    ] = False
    gate: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A regression gate, as JSON. Default: none.")
    ] = None
    promote_to: Annotated[str | None, typer.Option(help="Alias that moves to the version, on pass.")] = None
    paused: Annotated[bool, typer.Option("--paused", help="It is not due until it is resumed.")] = False


@dataclass(frozen=True, kw_only=True)
class ScheduleChanges:
    """What of a schedule is to be another; None: it stays."""

    name: Annotated[str | None, typer.Option(help="Another name.")] = None
    cron: Annotated[str | None, typer.Option(help="Such as '0 2 * * *': every night at two.")] = None
    template: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="The request for the job, as JSON.")
    ] = None
    timezone: Annotated[str | None, typer.Option(help="IANA name of the clock that the times are of.")] = None
    overlap: Annotated[str | None, typer.Option(callback=_OVERLAPS, help="skip, queue or cancel_running.")] = None
    misfire: Annotated[str | None, typer.Option(callback=_MISFIRES, help="run_once or skip.")] = None
    misfire_grace: Annotated[int | None, typer.Option(min=1, help="Seconds; so late is not long ago.")] = None
    jitter: Annotated[int | None, typer.Option(min=0, help="Seconds that it may be later.")] = None
    skip_unchanged: Annotated[
        bool | None, typer.Option("--skip-unchanged/--no-skip-unchanged", help="Submit nothing where nothing changed.")
    ] = None
    gate: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Another regression gate, as JSON.")
    ] = None
    promote_to: Annotated[str | None, typer.Option(help="Alias that moves to the version, on pass; '' for none.")] = (
        None
    )


def _request(given: Rules | ScheduleChanges) -> dict[str, Any]:
    """What options say, under the names of requests; documents are read from their files."""
    request = {_FIELDS.get(name, name): value for name, value in asdict(given).items() if value is not None}
    return {name: _document(value) if isinstance(value, Path) else value for name, value in request.items()}


def _line(item: ScheduleListed) -> str:
    due = "never due again" if item.next_due_at is None else f"next {item.next_due_at:%Y-%m-%d %H:%M} UTC"
    state = "paused" if item.paused_at is not None else due
    return f"{item.id}  {item.name}  {item.cron}  {item.timezone}  {state}"


def _run_line(item: RunOut) -> str:
    moved = None if item.promoted_to is None else f"{item.promoted_to} moved"
    told = " ".join(word for word in (item.job_id, _model(item), item.reason, item.detail, moved) if word)
    return f"{item.id}  {item.due_at:%Y-%m-%d %H:%M:%S}  {item.trigger}  {item.state}  {told or '-'}"


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
    name: Annotated[str, typer.Argument(metavar="NAME", help="None of the others has it.")],
    cron: Annotated[str, typer.Argument(metavar="CRON", help="Such as '0 2 * * *': every night at two.")],
    template: Annotated[
        Path,
        typer.Argument(metavar="JOB.json", exists=True, dir_okay=False, help="The request, as of POST /v1/jobs."),
    ],
    service: Service,
    rules: Rules,
    as_json: Json = False,
) -> None:
    """Have a job submitted by the clock."""
    document, request = _document(template), _request(rules)
    with service.connected() as client:
        made = client.create_schedule(name, cron, document, **cast("ScheduleOptions", request))
    _show(made, as_json)


@command(app, "set")
def set_schedule(schedule_id: ScheduleId, service: Service, changes: ScheduleChanges, as_json: Json = False) -> None:
    """Change a schedule: what is not named stays. With other times it is planned anew, from now on."""
    given = _request(changes)
    if not given:
        raise typer.BadParameter("name what is to be another, such as --cron.")
    if "promote_to" in given:
        given["promote_to"] = given["promote_to"] or None
    with service.connected() as client:
        made = client.change_schedule(client.schedule(schedule_id), given)
    _show(made, as_json)


@remote(app, "list", line=_line, empty="There is no schedule.")
def list_schedules(client: Client) -> list[ScheduleListed]:
    """All schedules, the newest first."""
    return list(client.schedules())


@remote(app, text=_print_schedule)
def show(schedule_id: ScheduleId, client: Client) -> ScheduleOut:
    """One schedule, with its rules; --json shows its template, too."""
    return client.schedule(schedule_id)


@command(app)
def run(
    schedule_id: ScheduleId,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="Follow its job, and wait until it was judged: exit 0 if it was accepted, 3 if not, 1 if it came to "
            "nothing, 5 after --timeout.",
        ),
    ] = False,
    timeout: Timeout = None,
    *,
    service: Service,
    printing: Printing,
) -> None:
    """Run a schedule now; its times stay as they are."""
    if timeout is not None and not wait:
        raise typer.BadParameter("goes with --wait.", param_hint="--timeout")
    with service.connected() as client:
        made = client.run_schedule(schedule_id)
        if wait:
            made = _wait_run(client, made, timeout_seconds=timeout, quiet=printing.quiet)
    show_answer(made, json=printing.json, line=_run_line)
    if wait and made.state != "passed":
        raise typer.Exit(ExitCode.GATE_FAILED if made.state == "failed" else ExitCode.ERROR)


@remote(app, line=_line)
def pause(schedule_id: ScheduleId, client: Client) -> ScheduleOut:
    """Let a schedule not be due until it is resumed."""
    return _warned(client.pause_schedule(schedule_id))


@remote(app, line=_line)
def resume(schedule_id: ScheduleId, client: Client) -> ScheduleOut:
    """Let a paused schedule be due again, from now on."""
    return _warned(client.resume_schedule(schedule_id))


@remote(app, line=_run_line, empty="There is no run.")
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
    limit: Annotated[int, typer.Option(min=1, max=200, help="The newest so many.")] = 50,
) -> list[RunOut]:
    """What became of the times that it was due, the newest first."""
    return client.schedule_runs(schedule_id, state=state, limit=limit).items  # type: ignore[arg-type]  # checked above


@remote(app)
def rm(schedule_id: ScheduleId, client: Client) -> Done:
    """Delete a schedule with its history; its jobs stay."""
    client.delete_schedule(schedule_id)
    return deleted(schedule_id)


def _document(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{path} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{path} holds no JSON object.")
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
            view.log(f"job {run.job_id}; follow it: quantmill jobs follow {run.job_id}")
            client.wait(run.job_id, on_event=lambda event: show_event(event, view), timeout_seconds=left())
            view.progress("judging")
        return client.wait_run(run, timeout_seconds=left())
