"""``quantmill batches``: a grid of jobs submitted, looked at, followed to the end of the last, canceled, as one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.contracts.command_errors import GATE_EXITS, ExitCode
from service.contracts.errors import InvalidRequestError
from worker.commands import options, views
from worker.commands.command import Done, Printing, Service, command, deleted, remote
from worker.commands.command import show as show_answer
from worker.commands.job_results import Judging, WaitOptions
from worker.commands.printing import print_json

if TYPE_CHECKING:
    from service.batches.schemas import BatchEventOut, BatchListed, BatchOut
    from service.client import Client
    from service.client.options import BatchOptions as ClientOptions

app = typer.Typer(
    name="batches",
    help="Submit and manage batches: a job for each model, preset and config.",
    no_args_is_help=True,
)

BatchId = Annotated[str, typer.Argument(metavar="BATCH", help="The batch's id: bat_...")]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Which jobs a batch is made of."""

    model: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", help="Id of a model, NAME@3 or NAME@latest; repeatable."),
    ] = None
    preset: Annotated[list[str] | None, typer.Option(help="Name of a preset; repeatable.")] = None
    config: Annotated[
        list[Path] | None,
        options.file_option("FILE.json|.yaml|.toml", "A config merged into each preset; repeatable."),
    ] = None
    calibration: Annotated[
        str | None, typer.Option(metavar="DATASET", help="Id of the calibration data of all jobs.")
    ] = None
    evaluation: Annotated[
        str | None, typer.Option(metavar="DATASET", help="Id of the evaluation data of all jobs.")
    ] = None
    members: Annotated[
        Path | None,
        options.file_option("FILE.json", "Instead of all these: a list of requests, each the body of POST /v1/jobs."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class BatchFlags(options.JobOptions):
    """What a batch takes beside its grid."""

    label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Label of the jobs; repeatable.")] = None
    device: options.JobDevice = None
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Use existing jobs with the same result, if there are any.")
    ] = False
    idempotency_key: Annotated[
        str | None,
        typer.Option(metavar="WORD", help="The same word never creates a second batch."),
    ] = None

    def request(self) -> ClientOptions:
        """The same as the client takes it."""
        return {
            **super().request(),
            "device": self.device or "auto",
            "reuse": self.reuse,
            "idempotency_key": self.idempotency_key,
        }


@dataclass(frozen=True, kw_only=True)
class BatchWaiting(WaitOptions):
    """The same of a batch."""

    wait: Annotated[bool, typer.Option("--wait", help="Follow the batch until it ends and print its summary.")] = False
    word = "batch"


@command(app)
def submit(
    grid: Grid,
    batch: BatchFlags,
    *,
    waiting: BatchWaiting,
    service: Service,
    printing: Printing,
) -> None:
    """Submit a job for each combination of model, preset and config; print the batch's id."""
    from service.contracts.documents import file_document

    waiting.check()
    if grid.members is None and not grid.model:
        raise typer.BadParameter("Give --model and --preset, or --members.")
    request = batch.request()
    documents = [file_document(path) for path in grid.config or ()]
    with service.connected() as client:
        made = client.submit_batch(
            grid.model or (),
            presets=grid.preset or (),
            configs=documents,
            calibration=grid.calibration,
            evaluation=grid.evaluation,
            members=() if grid.members is None else _members(grid.members),
            **request,
        )
        if not printing.json:
            typer.echo(made.id)
        if waiting.wait:
            _follow(client, made.id, waiting, printing)
        elif printing.json:
            print_json(made)


@remote(app, "list", text=views.print_batches, empty="No batches found.")
def list_batches(
    client: Client,
    name: Annotated[str | None, typer.Option(help="Batches with exactly this name.")] = None,
    limit: options.Newest = 20,
) -> list[BatchListed]:
    """List the newest batches."""
    return list(client.batches(name=name, limit=limit))


@remote(app, text=views.print_batch)
def show(batch: BatchId, client: Client) -> BatchOut:
    """Show a batch: its jobs with their results, and the best job of each model."""
    return client.batch(batch)


@command(app)
def follow(batch: BatchId, service: Service, judging: Judging, printing: Printing) -> None:
    """Follow a batch until it ends and print its summary."""
    with service.connected() as client:
        _follow(client, batch, judging, printing)


def _canceled(found: BatchOut) -> str:
    counts = found.counts
    return f"{found.id} is {found.state}: {counts.canceled} canceled, {counts.canceling} canceling"


@remote(app, line=_canceled)
def cancel(batch: BatchId, client: Client) -> BatchOut:
    """Cancel the jobs of a batch."""
    return client.cancel_batch(batch)


@remote(app, line=lambda found: f"{found.id} is {found.state}: {found.counts.queued} queued")
def retry(batch: BatchId, client: Client) -> BatchOut:
    """Submit the failed and canceled jobs of a finished batch again."""
    return client.retry_batch(batch)


@remote(app)
def rm(batch: BatchId, client: Client) -> Done:
    """Delete a finished batch; its jobs stay."""
    client.delete_batch(batch)
    return deleted(batch)


def _follow(client: Client, batch_id: str, judging: Judging | WaitOptions, printing: Printing) -> None:
    try:
        found = client.wait_batch(batch_id, on_event=None if printing.quiet else _tell, timeout_seconds=judging.timeout)
    except KeyboardInterrupt:
        typer.echo(
            f"The batch {batch_id} continues in the service. Follow it with `quantmill batches follow {batch_id}`.",
            err=True,
        )
        raise
    if printing.json or not printing.quiet:
        show_answer(found, json=printing.json, text=views.print_batch)
    _end(found, fail_on_gate=judging.fail_on_gate)


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


def _members(path: Path) -> list[dict[str, Any]]:
    from service.contracts.documents import read_document

    found = read_document(path)
    if not isinstance(found, list) or not found or not all(isinstance(member, dict) for member in found):
        raise InvalidRequestError(
            f"{path} contains no list of requests.", hint='Each is the body of a job: [{"model_id": ...}].'
        )
    return found
