"""``quantmill jobs retry|clone|label|logs|rm``: what is done to jobs that are there."""

from __future__ import annotations

import json as js
from typing import Annotated, Any

import typer

from worker.commands.jobs import JobId
from worker.commands.options import Json, Key, Server

Patch = Annotated[
    str, typer.Argument(metavar="JSON", help='Changes of the request, such as \'{"config": {"preset": "xint8"}}\'.')
]


def retry(job: JobId, server: Server = None, key: Key = None, json: Json = False) -> None:
    """Submit what a job that has ended was asked for once more; prints the new job's id."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        made = client.retry(job)
    typer.echo(made.model_dump_json(indent=2) if json else made.id)


def clone(job: JobId, changes: Patch, server: Server = None, key: Key = None, json: Json = False) -> None:
    """Submit what a job was asked for with changes, null takes a field away; prints the new job's id."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        made = client.clone(job, _object(changes))
    typer.echo(made.model_dump_json(indent=2) if json else made.id)


def label(
    job: JobId,
    labels: Annotated[list[str], typer.Argument(metavar="KEY=VALUE|KEY=", help="KEY= takes the label away.")],
    server: Server = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """Change the labels of a job, whatever its state; those that are not named stay."""
    from worker.commands.server import connected

    given = [text.partition("=") for text in labels]
    if not all(sign for _, sign, _ in given):
        raise typer.BadParameter("a label is KEY=VALUE.", param_hint="KEY=VALUE")
    with connected(server, key) as client:
        found = client.rename(job, {"labels": {name: value or None for name, _, value in given}})
    typer.echo(found.model_dump_json(indent=2) if json else " ".join(f"{k}={v}" for k, v in found.labels.items()))


def logs(job: JobId, server: Server = None, key: Key = None) -> None:
    """The log of a job: a line per entry, with time in UTC, attempt and level."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        typer.echo(client.logs(job), nl=False)


def rm(job: JobId, server: Server = None, key: Key = None, json: Json = False) -> None:
    """Forget a job that has ended, with its log, report and artifacts."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        client.delete_job(job)
    typer.echo(js.dumps({"id": job, "deleted": True}) if json else f"{job} is deleted")


def _object(text: str) -> dict[str, Any]:
    try:
        found = js.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"this is no JSON: {error}", param_hint="JSON") from None
    if not isinstance(found, dict):
        raise typer.BadParameter("the changes are an object: {...}", param_hint="JSON")
    return found


COMMANDS = (retry, clone, label, logs, rm)
