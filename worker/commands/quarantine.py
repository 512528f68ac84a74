"""``quantmill quarantine``: models that kill the process that works on them; see them, release them."""

from __future__ import annotations

from typing import Annotated

import typer

from worker.commands.json_output import print_items, print_line
from worker.commands.options import Json, Key, Server

app = typer.Typer(
    name="quarantine", help="Models that kill their runner, and are refused: list, release.", no_args_is_help=True
)

Digest = Annotated[str, typer.Argument(metavar="DIGEST", help="As list shows it: 64 hexadecimal digits.")]


@app.command("list")
def list_models(server: Server = None, key: Key = None, json: Json = False) -> None:
    """All models in quarantine, each with what happened the last time."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        found = client.quarantine()
    if json:
        print_items(found)
        return
    for item in found:
        typer.echo(f"{item.digest}  {item.quarantined_at:%Y-%m-%d %H:%M}  {item.crashes} times  {item.reason}")
        typer.echo(f"  the last time: model {item.model_id}, job {item.job_id}")
    if not found:
        typer.echo("No model is in quarantine.")


@app.command()
def release(digest: Digest, server: Server = None, key: Key = None, json: Json = False) -> None:
    """Release a model: jobs with it are accepted and run again."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        client.release(digest)
    if json:
        print_line({"digest": digest, "released": True})
    else:
        typer.echo(f"{digest} is released")
