"""``quantmill queues`` and ``quarantine``: what waits in a service and who takes it, and which models it refuses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from worker.commands.command import Done, remote

if TYPE_CHECKING:
    from service.client import Client
    from service.quarantine.schemas import QuarantineOut
    from service.queues.schemas import QueueOut

quarantine = typer.Typer(
    name="quarantine", help="Models that kill their runner, and are refused: list, release.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    """Add the command ``queues`` to ``app``."""
    remote(app, text=_print_queues, about_json="JSON on standard output.")(queues)


def _print_queues(found: Iterable[QueueOut]) -> None:
    from worker.commands.views import print_queues

    print_queues(found)


def queues(client: Client) -> list[QueueOut]:
    """Show what waits in each queue of a service, what runs, and the slots of its live workers."""
    return client.queues()


def _quarantined(item: QuarantineOut) -> str:
    return (
        f"{item.digest}  {item.quarantined_at:%Y-%m-%d %H:%M}  {item.crashes} times  {item.reason}\n"
        f"  the last time: model {item.model_id}, job {item.job_id}"
    )


@remote(quarantine, "list", line=_quarantined, empty="No model is in quarantine.")
def list_models(client: Client) -> list[QuarantineOut]:
    """All models in quarantine, each with what happened the last time."""
    return client.quarantine()


@remote(quarantine)
def release(
    digest: Annotated[str, typer.Argument(metavar="DIGEST", help="As list shows it: 64 hexadecimal digits.")],
    client: Client,
) -> Done:
    """Release a model: jobs with it are accepted and run again."""
    client.release(digest)
    return Done({"digest": digest, "released": True}, f"{digest} is released")
