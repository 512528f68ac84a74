"""``quantmill batches``: a grid of jobs submitted, looked at, followed to the end of the last, canceled, as one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.contracts.errors import InvalidRequestError
from service.contracts.exits import GATE_EXITS, ExitCode
from worker.commands import options
from worker.commands.job_waiting import FailOnGate, Timeout
from worker.commands.json_output import print_deleted, print_items, print_json
from worker.commands.options import Json, Key, Quiet, Server

if TYPE_CHECKING:
    from service.batches.schemas import BatchEventOut, BatchOut
    from service.client import Client

app = typer.Typer(
    name="batches",
    help="Many jobs as one: submit a grid of models, presets and configs, list, show, follow, cancel, retry, rm.",
    no_args_is_help=True,
)

BatchId = Annotated[str, typer.Argument(metavar="BATCH", help="As list shows it: bat_...")]


@app.command()
def submit(
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", help="Id of a model, NAME@3 or NAME@latest; may be given again."),
    ] = None,
    preset: Annotated[list[str] | None, typer.Option(help="Name of a preset; may be given again.")] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.json|.yaml|.toml",
            exists=True,
            dir_okay=False,
            help="A recipe, laid over each preset; may be given again.",
        ),
    ] = None,
    calibration: Annotated[str | None, typer.Option(metavar="DATASET", help="Id of a dataset, for all.")] = None,
    evaluation: Annotated[str | None, typer.Option(metavar="DATASET", help="Id of another one.")] = None,
    members: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            exists=True,
            dir_okay=False,
            help="In place of all these: a list of requests, each as the body of POST /v1/jobs.",
        ),
    ] = None,
    name: options.JobName = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="To find the jobs by; may be given again.")
    ] = None,
    priority: options.JobPriority = 0,
    device: options.JobDevice = None,
    reuse: Annotated[bool, typer.Option("--reuse", help="Take jobs that would give the same, if there are.")] = False,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="WORD", help="The same command with the same word makes no second batch.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the batch to its end, and print its summary.")] = False,
    timeout: Timeout = None,
    fail_on_gate: FailOnGate = False,
    server: Server = None,
    key: Key = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Submit a job for each model with each preset and each config; prints the batch's id. All are stored, or none."""
    from worker.commands import local
    from worker.commands.server import connected

    for option in (name for name, given in (("--timeout", timeout), ("--fail-on-gate", fail_on_gate)) if given):
        if not wait:
            raise typer.BadParameter(f"{option} is for a batch that is waited for: give --wait.")
    if members is None and not model:
        raise typer.BadParameter("Say what to run: --model and --preset, or --members.")
    labels = options.labels(label or ())
    documents = [local.recipe_document(path) for path in config or ()]
    with connected(server, key) as client:
        made = client.submit_batch(
            model or (),
            presets=preset or (),
            configs=documents,
            calibration=calibration,
            evaluation=evaluation,
            members=() if members is None else _members(members),
            name=name,
            labels=labels,
            priority=priority,
            device=device or "auto",
            reuse=reuse,
            idempotency_key=idempotency_key,
        )
        if not as_json:
            typer.echo(made.id)
        if wait:
            _follow(client, made.id, timeout, fail_on_gate=fail_on_gate, as_json=as_json, quiet=quiet)
        elif as_json:
            print_json(made)


@app.command("list")
def list_batches(
    server: Server = None,
    key: Key = None,
    name: Annotated[str | None, typer.Option(help="Those of exactly this name.")] = None,
    limit: options.Newest = 20,
    as_json: Json = False,
) -> None:
    """The newest batches, one line each."""
    from worker.commands.batch_views import print_batches
    from worker.commands.server import connected

    with connected(server, key) as client:
        found = list(client.batches(name=name, limit=limit))
    if as_json:
        print_items(found)
        return
    print_batches(found)


@app.command()
def show(batch: BatchId, server: Server = None, key: Key = None, as_json: Json = False) -> None:
    """One batch: every member with what became of it, the best of each model, and why members failed."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        _show(client.batch(batch), as_json)


@app.command()
def follow(
    batch: BatchId,
    server: Server = None,
    key: Key = None,
    timeout: Timeout = None,
    fail_on_gate: FailOnGate = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Follow a batch to the end of its last job; print its summary. Exit code 1 if one failed or was canceled."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        _follow(client, batch, timeout, fail_on_gate=fail_on_gate, as_json=as_json, quiet=quiet)


@app.command()
def cancel(batch: BatchId, server: Server = None, key: Key = None, as_json: Json = False) -> None:
    """Cancel its queued jobs, ask its running ones to stop; those that have ended stay as they are."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        found = client.cancel_batch(batch)
    if as_json:
        print_json(found)
        return
    counts = found.counts
    typer.echo(f"{found.id} is {found.state}: {counts.canceled} canceled, {counts.canceling} being stopped")


@app.command()
def retry(batch: BatchId, server: Server = None, key: Key = None, as_json: Json = False) -> None:
    """Give each member that has failed or was canceled a new job, once the batch has ended."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        found = client.retry_batch(batch)
    if as_json:
        print_json(found)
        return
    typer.echo(f"{found.id} is {found.state}: {found.counts.queued} queued")


@app.command()
def rm(batch: BatchId, server: Server = None, key: Key = None, as_json: Json = False) -> None:
    """Forget a batch that has ended; its jobs stay."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        client.delete_batch(batch)
    print_deleted(batch, as_json=as_json)


def _follow(
    client: Client, batch_id: str, timeout: float | None, *, fail_on_gate: bool, as_json: bool, quiet: bool
) -> None:
    try:
        found = client.wait_batch(batch_id, on_event=None if quiet else _tell, timeout_seconds=timeout)
    except KeyboardInterrupt:
        typer.echo(
            f"the batch {batch_id} goes on in the service; follow it: quantmill batches follow {batch_id}", err=True
        )
        raise
    if as_json or not quiet:
        _show(found, as_json)
    _end(found, fail_on_gate=fail_on_gate)


def _end(found: BatchOut, *, fail_on_gate: bool) -> None:
    """End with a code that tells of the batch: of several reasons that of a job that did not succeed comes first."""
    if found.state != "succeeded":
        raise typer.Exit(ExitCode.ERROR)
    verdicts = {member.verdict for member in found.members}
    for verdict, code in GATE_EXITS.items():
        if fail_on_gate and verdict in verdicts:
            raise typer.Exit(code)


def _tell(event: BatchEventOut) -> None:
    """One line on standard error for what is worth one: progress of many jobs at once is none."""
    data = event.data
    if event.type == "state":
        told = str(data.get("name", data.get("state", "")))
    elif event.type == "log" and data.get("level") != "info":
        told = f"{data.get('level')}: {data.get('message', '')}"
    else:
        return
    members = ",".join(map(str, event.members))
    typer.echo(f"member {members}  {event.job_id}  {told}", err=True)


def _show(found: BatchOut, as_json: bool) -> None:
    from worker.commands.batch_views import print_batch

    if as_json:
        print_json(found)
    else:
        print_batch(found)


def _members(path: Path) -> list[dict[str, Any]]:
    """The requests in a file."""
    from worker.commands.config_files import read_document

    found = read_document(path)
    if not isinstance(found, list) or not found or not all(isinstance(member, dict) for member in found):
        raise InvalidRequestError(
            f"{path} holds no list of requests.", hint='Each is as the body of POST /v1/jobs: [{"model_id": ...}].'
        )
    return found
