"""``quantmill jobs retry|clone|label|logs|rm``: what is done to jobs that are there."""

from __future__ import annotations

import json as js
from pathlib import Path
from typing import Annotated, Any

import typer

from worker.commands.job_waiting import FailOnGate, Timeout, Wait, Waiting, finish
from worker.commands.jobs import JobId
from worker.commands.json_output import print_deleted, print_json, print_line
from worker.commands.options import Json, Key, Quiet, Server

Patch = Annotated[
    str | None,
    typer.Argument(metavar="JSON", help='Changes of the request, such as \'{"config": {"preset": "xint8"}}\'.'),
]


def retry(
    job: JobId,
    wait: Wait = False,
    timeout: Timeout = None,
    fail_on_gate: FailOnGate = False,
    server: Server = None,
    key: Key = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Submit what a job that has ended was asked for once more; prints the new job's id."""
    from worker.commands.server import connected

    waiting = Waiting(wait, timeout, fail_on_gate)
    waiting.check()
    with connected(server, key) as client:
        finish(client, client.retry(job), waiting, as_json=json, quiet=quiet)


def clone(
    job: JobId,
    changes: Patch = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json|.yaml|.toml", exists=True, dir_okay=False, help="A recipe, laid over the job's config."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the new job.")] = None,
    wait: Wait = False,
    timeout: Timeout = None,
    fail_on_gate: FailOnGate = False,
    server: Server = None,
    key: Key = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Submit what a job was asked for with changes, null takes a field away; prints the new job's id."""
    from worker.commands import local
    from worker.commands.server import connected

    waiting = Waiting(wait, timeout, fail_on_gate)
    waiting.check()
    wanted = {} if changes is None else _object(changes)
    for option, field, value in (("--config", "config", config), ("--name", "name", name)):
        if value is not None and field in wanted:
            raise typer.BadParameter(f"{field} stands in JSON as well.", param_hint=option)
    if changes is None and config is None and name is None:
        raise typer.BadParameter("say what is to be another: JSON, --config or --name; retry changes nothing.")
    if config is not None:
        wanted["config"] = local.recipe_document(config)
    if name is not None:
        wanted["name"] = name
    with connected(server, key) as client:
        finish(client, client.clone(job, wanted), waiting, as_json=json, quiet=quiet)


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
    if json:
        print_json(found)
    else:
        typer.echo(" ".join(f"{k}={v}" for k, v in found.labels.items()))


def logs(
    job: JobId,
    server: Server = None,
    key: Key = None,
    json: Annotated[bool, typer.Option("--json", help="An entry a line, as JSON on standard output.")] = False,
) -> None:
    """The log of a job: a line per entry, with time in UTC, attempt and level."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        text = client.logs(job)
    if not json:
        typer.echo(text, nl=False)
        return
    for line in text.splitlines():
        moment, attempt, level, message = line.split(" ", 3)
        print_line({"created_at": moment, "attempt": int(attempt), "level": level.lower(), "message": message})


def rm(job: JobId, server: Server = None, key: Key = None, json: Json = False) -> None:
    """Forget a job that has ended, with its log, report and artifacts."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        client.delete_job(job)
    print_deleted(job, as_json=json)


def _object(text: str) -> dict[str, Any]:
    try:
        found = js.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"this is no JSON: {error}", param_hint="JSON") from None
    if not isinstance(found, dict):
        raise typer.BadParameter("the changes are an object: {...}", param_hint="JSON")
    return found


COMMANDS = (retry, clone, label, logs, rm)
