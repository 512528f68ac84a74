"""``quantmill schedules``: jobs that are submitted by the clock, and what became of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.contracts.exits import ExitCode
from worker.commands.jobs import Timeout
from worker.commands.options import Json, Key, Server

if TYPE_CHECKING:
    from pydantic import BaseModel

    from service.schedules.schemas import RunOut, ScheduleListed

app = typer.Typer(
    name="schedules", help="Have jobs submitted by the clock, and judged against the last.", no_args_is_help=True
)

ScheduleId = Annotated[str, typer.Argument(metavar="SCHEDULE", help="As list shows it: sch_...")]


@app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="For people.")],
    cron: Annotated[str, typer.Argument(metavar="CRON", help="Such as '0 2 * * *': every night at two.")],
    template: Annotated[
        Path,
        typer.Argument(metavar="JOB.json", exists=True, dir_okay=False, help="The request, as of POST /v1/jobs."),
    ],
    server: Server = None,
    key: Key = None,
    timezone: Annotated[str, typer.Option(help="IANA name of the clock that the times are of.")] = "UTC",
    overlap: Annotated[str, typer.Option(help="While the last has not ended: skip, queue or cancel_running.")] = "skip",
    misfire: Annotated[str, typer.Option(help="What was due long ago: run_once or skip.")] = "run_once",
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
            overlap=overlap,  # type: ignore[arg-type]  # the service says what there is
            misfire=misfire,  # type: ignore[arg-type]
            misfire_grace_seconds=misfire_grace,
            jitter_seconds=jitter,
            skip_unchanged=skip_unchanged,
            gate=regression,
            promote_to=promote_to,
            paused=paused,
        )
    _show(made, as_json)


@app.command("list")
def list_schedules(server: Server = None, key: Key = None, as_json: Json = False) -> None:
    """All schedules, the newest first."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        found = list(client.schedules())
    if as_json:
        typer.echo(json.dumps([item.model_dump(mode="json") for item in found], indent=2))
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
        _print_json(found)
        return
    typer.echo(_line(found))
    for field in ("overlap", "misfire", "jitter_seconds", "skip_unchanged", "promote_to", "last_pass_job_id"):
        typer.echo(f"  {field.replace('_', ' ')}: {getattr(found, field)}")
    for clause in found.gate.clauses:
        typer.echo(f"  clause: {clause.model_dump_json(exclude_none=True)}")


@app.command()
def run(
    schedule_id: ScheduleId,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", help="Wait until it was judged: exit 3 if it was not accepted, 1 if it came to nothing."
        ),
    ] = False,
    timeout: Timeout = None,
    server: Server = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Run a schedule now; its times stay as they are."""
    from worker.commands.server import connected

    if timeout is not None and not wait:
        raise typer.BadParameter("goes with --wait.", param_hint="--timeout")
    with connected(server, key) as client:
        made = client.run_schedule(schedule_id)
        if wait:
            made = client.wait_run(made, timeout_seconds=timeout)
    if as_json:
        _print_json(made)
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
        str | None, typer.Option(help="waiting, running, passed, failed, skipped or refused. Default: all.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="The newest so many.")] = 50,
    as_json: Json = False,
) -> None:
    """What became of the times that it was due, the newest first."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        found = client.schedule_runs(schedule_id, state=state, limit=limit).items  # type: ignore[arg-type]
    if as_json:
        typer.echo(json.dumps([item.model_dump(mode="json") for item in found], indent=2))
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
    typer.echo(json.dumps({"id": schedule_id, "deleted": True}) if as_json else f"{schedule_id} is deleted")


def _document(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{path} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{path} holds no JSON object.")
    return found


def _print_json(found: BaseModel) -> None:
    typer.echo(found.model_dump_json(indent=2))


def _show(found: ScheduleListed, as_json: bool) -> None:
    if as_json:
        _print_json(found)
    else:
        typer.echo(_line(found))


def _line(item: ScheduleListed) -> str:
    due = "never due again" if item.next_due_at is None else f"next {item.next_due_at:%Y-%m-%d %H:%M} UTC"
    state = "paused" if item.paused_at is not None else due
    return f"{item.id}  {item.name}  {item.cron}  {item.timezone}  {state}"


def _run_line(item: RunOut) -> str:
    told = " ".join(word for word in (item.job_id, item.reason, item.detail) if word)
    return f"{item.id}  {item.due_at:%Y-%m-%d %H:%M:%S}  {item.trigger}  {item.state}  {told or '-'}"
