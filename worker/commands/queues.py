"""``quantmill queues``: what waits in a service, and who takes it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from worker.commands.json_output import print_items
from worker.commands.options import Key, Server

if TYPE_CHECKING:
    from rich.console import Console

    from service.queues.schemas import QueueOut


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(queues)


def queues(
    server: Server = None,
    key: Key = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> None:
    """Show what waits in each queue of a service, what runs, and the slots of its live workers."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        found = client.queues()
    if as_json:
        print_items(found)
    else:
        print_queues(found)


def print_queues(found: Iterable[QueueOut], console: Console | None = None) -> None:
    """One line per queue."""
    from rich.table import Table

    from worker.commands.console import make_console

    table = Table("queue", "due", "delayed", "running", "oldest", "workers", "slots")
    for queue in found:
        age, slots = queue.oldest_due_age_seconds, queue.slots
        table.add_row(
            queue.name,
            str(queue.queued.due),
            str(queue.queued.delayed),
            str(queue.running),
            "-" if age is None else f"{age:.0f} s",
            f"{queue.workers} ({queue.deaf_workers} deaf)" if queue.deaf_workers else str(queue.workers),
            f"{slots.busy} of {slots.total} busy",
        )
    (console or make_console()).print(table)
