"""``quantmill jobs hand-over``: have results of a job sent to places of one's own, and see how far that has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from worker.commands import options
from worker.commands.hand_over_targets import Targets, given_targets
from worker.commands.jobs import JobId
from worker.commands.json_output import print_items
from worker.commands.options import Json, Key, Server

if TYPE_CHECKING:
    from service.hand_overs.schemas import HandOverOut


def _conditions() -> tuple[str, ...]:
    from service.hand_overs.schemas import Condition

    return get_args(Condition)


def hand_over(
    job: JobId,
    put: Annotated[
        list[str] | None,
        typer.Option(metavar="ARTIFACT=URL", help="Send this file by PUT to a presigned URL; may be given again."),
    ] = None,
    post: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="POST what is known of the job; may be given again.")
    ] = None,
    targets: Targets = None,
    when: Annotated[
        str,
        typer.Option(
            callback=options.one_of(_conditions),
            help="Of --put and --post. pass: if the gate is passed; success: whatever the verdict is.",
        ),
    ] = "pass",
    server: Server = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """Send results of a job to places of yours once it has succeeded; without any, list what goes where."""
    from worker.commands.server import connected

    wanted = [*given_targets(targets), *map(_put, put or ()), *({"kind": "post", "url": url} for url in post or ())]
    for target in wanted:
        target.setdefault("when", when)
    with connected(server, key) as client:
        found = client.hand_over(job, wanted) if wanted else client.hand_overs(job)
    if json:
        print_items(found)
        return
    for item in found:
        typer.echo(_line(item))
    if not found:
        typer.echo("Nothing of this job is handed over.")


def _put(text: str) -> dict[str, Any]:
    artifact, sign, url = text.partition("=")
    if not sign or "/" in artifact:
        raise typer.BadParameter("say which file goes there: model=https://...", param_hint="--put")
    return {"kind": "put", "artifact": artifact, "url": url}


def _line(item: HandOverOut) -> str:
    what = "post" if item.artifact is None else f"{item.kind} {item.artifact}"
    why = "" if item.detail is None else f"  {item.detail}"
    return f"{item.id}  {item.state:8}  {what:16}  {item.host}  attempts {item.attempts}{why}"
