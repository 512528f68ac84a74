"""``quantmill schedules``: jobs that are submitted by the clock, and what became of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from service.contracts.exits import ExitCode
from worker.commands import options
from worker.commands.job_waiting import Timeout
from worker.commands.json_output import print_deleted, print_items, print_json
from worker.commands.options import Json, Key, Quiet, Server

if TYPE_CHECKING:
    from service.schedules.schemas import RunOut, ScheduleListed, ScheduleOut

app = typer.Typer(
    name="schedules", help="Have jobs submitted by the clock, and judged against the last.", no_args_is_help=True
)

ScheduleId = Annotated[str, typer.Argument(metavar="SCHEDULE", help="Its name, or its id, as list shows it: sch_...")]


def _overlaps() -> tuple[str, ...]:
    from service.schedules.schemas import Overlap

    return get_args(Overlap)


def _misfires() -> tuple[str, ...]:
    from service.schedules.schemas import Misfire

    return get_args(Misfire)


def _run_states() -> tuple[str, ...]:
    from service.schedules.schemas import RunState

    return get_args(RunState)


@app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="None of the others has it.")],
    cron: Annotated[str, typer.Argument(metavar="CRON", help="Such as '0 2 * * *': every night at two.")],
    template: Annotated[
        Path,
        typer.Argument(metavar="JOB.json", exists=True, dir_okay=False, help="The request, as of POST /v1/jobs."),
    ],
    server: Server = None,
    key: Key = None,
    timezone: Annotated[str, typer.Option(help="IANA name of the clock that the times are of.")] = "UTC",
    overlap: Annotated[
        str,
        typer.Option(
            callback=options.one_of(_overlaps), help="While the last has not ended: skip, queue or cancel_running."
        ),
    ] = "skip",
    misfire: Annotated[
        str, typer.Option(callback=options.one_of(_misfires), help="What was due long ago: run_once or skip.")
    ] = "run_once",
    misfire_grace: Annotated[int, typer.Option(min=1, help="Seconds; so late is not long ago.")] = 600,
    jitter: Annotated[int, typer.Option(min=0, help="Seconds that it may be later.")] = 0,
    skip_unchanged: Annotated[
        bool, typer.Option("--skip-unchanged", help="Submit nothing where nothing has changed.")
    ] = False,
    gate: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A regression gate, as JSON. Default: none.")
    ] = None,
    promote_to: Annotated[str | None, typer.Option(help="Alias that moves to the version, on pass.")] = None,
    paused: Annotated[bool, typer.Option("--paused", help="It is not due until it is resumed.")] = False,
    as_json: Json = False,
) -> None:
    """Have a job submitted by the clock."""
    from worker.commands.server import connected

    request, regression = _document(template), {} if gate is None else _document(gate)
    with connected(server, key) as client:
        made = client.create_schedule(
            name,
            cron,
            request,
            timezone=timezone,
            overlap=overlap,  # type: ignore[arg-type]  # the callbacks have checked the words
            misfire=misfire,  # type: ignore[arg-type]
            misfire_grace_seconds=misfire_grace,
            jitter_seconds=jitter,
            skip_unchanged=skip_unchanged,
            gate=regression,
            promote_to=promote_to,
            paused=paused,
        )
    _show(made, as_json)


@app.command("set")
def set_schedule(
    schedule_id: ScheduleId,
    server: Server = None,
    key: Key = None,
    name: Annotated[str | None, typer.Option(help="Another name.")] = None,
    cron: Annotated[str | None, typer.Option(help="Such as '0 2 * * *': every night at two.")] = None,
    template: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="The request for the job, as JSON.")
    ] = None,
    timezone: Annotated[str | None, typer.Option(help="IANA name of the clock that the times are of.")] = None,
    overlap: Annotated[
        str | None, typer.Option(callback=options.one_of(_overlaps), help="skip, queue or cancel_running.")
    ] = None,
    misfire: Annotated[str | None, typer.Option(callback=options.one_of(_misfires), help="run_once or skip.")] = None,
    misfire_grace: Annotated[int | None, typer.Option(min=1, help="Seconds; so late is not long ago.")] = None,
    jitter: Annotated[int | None, typer.Option(min=0, help="Seconds that it may be later.")] = None,
    skip_unchanged: Annotated[
        bool | None, typer.Option("--skip-unchanged/--no-skip-unchanged", help="Submit nothing where nothing changed.")
    ] = None,
    gate: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Another regression gate, as JSON.")
    ] = None,
    promote_to: Annotated[
        str | None, typer.Option(help="Alias that moves to the version, on pass; '' for none.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Change a schedule: what is not named stays. With other times it is planned anew, from now on."""
    from worker.commands.server import connected

    given = {
        "name": name,
        "cron": cron,
        "template": None if template is None else _document(template),
        "timezone": timezone,
        "overlap": overlap,
        "misfire": misfire,
        "misfire_grace_seconds": misfire_grace,
        "jitter_seconds": jitter,
        "skip_unchanged": skip_unchanged,
        "gate": None if gate is None else _document(gate),
    }
    changes: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
    if promote_to is not None:
        changes["promote_to"] = promote_to or None
    if not changes:
        raise typer.BadParameter("name what is to be another, such as --cron.")
    with connected(server, key) as client:
        made = client.change_schedule(client.schedule(schedule_id), changes)
    _show(made, as_json)


@app.command("list")
def list_schedules(server: Server = None, key: Key = None, as_json: Json = False) -> None:
    """All schedules, the newest first."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        found = list(client.schedules())
    if as_json:
        print_items(found)
        return
    for item in found:
        typer.echo(_line(item))
    if not found:
        typer.echo("There is no schedule.")


@app.command()
def show(schedule_id: ScheduleId, server: Server = None, key: Key = None, as_json: Json = False) -> None:
    """One schedule, with its rules; --json shows its template, too."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        found = client.schedule(schedule_id)
    if as_json:
        print_json(found)
        return
    typer.echo(_line(found))
    for field in ("overlap", "misfire", "jitter_seconds", "skip_unchanged", "promote_to", "last_pass_job_id"):
        typer.echo(f"  {field.replace('_', ' ')}: {getattr(found, field)}")
    typer.echo(f"  baseline: {found.gate.baseline.model_dump_json()}")
    typer.echo(f"  on undecided: {found.gate.on_undecided}")
    for clause in found.gate.clauses:
        typer.echo(f"  clause: {clause.model_dump_json(exclude_none=True)}")


@app.command()
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
    server: Server = None,
    key: Key = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a schedule now; its times stay as they are."""
    from worker.commands.schedule_waiting import wait_run
    from worker.commands.server import connected

    if timeout is not None and not wait:
        raise typer.BadParameter("goes with --wait.", param_hint="--timeout")
    with connected(server, key) as client:
        made = client.run_schedule(schedule_id)
        if wait:
            made = wait_run(client, made, timeout_seconds=timeout, quiet=quiet)
    if as_json:
        print_json(made)
    else:
        typer.echo(_run_line(made))
    if wait and made.state != "passed":
        raise typer.Exit(ExitCode.GATE_FAILED if made.state == "failed" else ExitCode.ERROR)


@app.command()
def pause(schedule_id: ScheduleId, server: Server = None, key: Key = None, as_json: Json = False) -> None:
    """Let a schedule not be due until it is resumed."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        _show(client.pause_schedule(schedule_id), as_json)


@app.command()
def resume(schedule_id: ScheduleId, server: Server = None, key: Key = None, as_json: Json = False) -> None:
    """Let a paused schedule be due again, from now on."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        _show(client.resume_schedule(schedule_id), as_json)


@app.command()
def runs(
    schedule_id: ScheduleId,
    server: Server = None,
    key: Key = None,
    state: Annotated[
        str | None,
        typer.Option(
            callback=options.one_of(_run_states),
            help="waiting, running, passed, failed, skipped or refused. Default: all.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="The newest so many.")] = 50,
    as_json: Json = False,
) -> None:
    """What became of the times that it was due, the newest first."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        found = client.schedule_runs(schedule_id, state=state, limit=limit).items  # type: ignore[arg-type]
    if as_json:
        print_items(found)
        return
    for item in found:
        typer.echo(_run_line(item))
    if not found:
        typer.echo("There is no run.")


@app.command()
def rm(schedule_id: ScheduleId, server: Server = None, key: Key = None, as_json: Json = False) -> None:
    """Delete a schedule with its history; its jobs stay."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        client.delete_schedule(schedule_id)
    print_deleted(schedule_id, as_json=as_json)


def _document(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{path} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{path} holds no JSON object.")
    return found


def _show(found: ScheduleOut, as_json: bool) -> None:
    for warning in found.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if as_json:
        print_json(found)
    else:
        typer.echo(_line(found))


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
