"""``quantmill webhooks``: where a service tells of events, and what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, get_args

import typer

from worker.commands import options
from worker.commands.json_output import print_deleted, print_items, print_json
from worker.commands.options import Json, Key, Server

if TYPE_CHECKING:
    from service.webhooks.schemas import DeliveryOut, WebhookMade, WebhookOut

app = typer.Typer(
    name="webhooks", help="Have URLs told of events: jobs, models, datasets, aliases, schedules.", no_args_is_help=True
)

WebhookId = Annotated[str, typer.Argument(metavar="WEBHOOK", help="As list shows it: whk_...")]
DeliveryId = Annotated[str, typer.Argument(metavar="DELIVERY", help="As deliveries shows it: dlv_...")]
_HOUR_SECONDS = 3600.0


def _delivery_states() -> tuple[str, ...]:
    from service.webhooks.schemas import DeliveryState

    return get_args(DeliveryState)


@app.command()
def create(
    url: Annotated[str, typer.Argument(metavar="URL", help="https, of a host on the public internet.")],
    server: Server = None,
    key: Key = None,
    event: Annotated[
        list[str] | None, typer.Option(help="Such as 'job.*' or model.ready; may be given again. Default: all.")
    ] = None,
    description: Annotated[str | None, typer.Option(help="For people.")] = None,
    as_json: Json = False,
) -> None:
    """Have a URL told of events. Prints the secret that its requests are signed by, once."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        made = client.create_webhook(url, event or ["*"], description=description)
    _show_made(made, as_json)


@app.command("list")
def list_webhooks(server: Server = None, key: Key = None, as_json: Json = False) -> None:
    """All webhooks, the newest first."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        found = list(client.webhooks())
    if as_json:
        print_items(found)
        return
    for item in found:
        typer.echo(_line(item))
    if not found:
        typer.echo("There is no webhook.")


@app.command()
def show(webhook_id: WebhookId, server: Server = None, key: Key = None, as_json: Json = False) -> None:
    """One webhook, with what is wrong with it."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        found = client.webhook(webhook_id)
    if as_json:
        print_json(found)
        return
    typer.echo(_line(found))
    for name in ("description", "disabled_at", "failing_since", "previous_secret_ends_at"):
        value = getattr(found, name)
        if value is not None:
            typer.echo(f"  {name.replace('_', ' ')}: {value}")
    if found.dropped_events:
        typer.echo(f"  dropped events: {found.dropped_events}")


@app.command()
def rotate(
    webhook_id: WebhookId,
    server: Server = None,
    key: Key = None,
    grace_hours: Annotated[float, typer.Option(min=0, help="Until the old secret ends.")] = 24.0,
    as_json: Json = False,
) -> None:
    """A new secret, printed once; until the old one ends, both sign."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        made = client.rotate_webhook(webhook_id, grace_seconds=grace_hours * _HOUR_SECONDS)
    _show_made(made, as_json)


@app.command()
def ping(webhook_id: WebhookId, server: Server = None, key: Key = None, as_json: Json = False) -> None:
    """Send webhook.ping; deliveries tells what became of it."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        _show_delivery(client.ping_webhook(webhook_id), as_json)


@app.command()
def deliveries(
    webhook_id: WebhookId,
    server: Server = None,
    key: Key = None,
    state: Annotated[
        str | None,
        typer.Option(callback=options.one_of(_delivery_states), help="waiting, delivered or failed. Default: all."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="The newest so many.")] = 50,
    as_json: Json = False,
) -> None:
    """What was sent, or waits to be, the newest first."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        found = client.webhook_deliveries(webhook_id, state=state, limit=limit).items
    if as_json:
        print_items(found)
        return
    for item in found:
        typer.echo(_delivery_line(item))
    if not found:
        typer.echo("There is no delivery.")


@app.command()
def redeliver(
    webhook_id: WebhookId, delivery_id: DeliveryId, server: Server = None, key: Key = None, as_json: Json = False
) -> None:
    """Send a delivery (again) now; the receiver knows it by its id."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        _show_delivery(client.redeliver(webhook_id, delivery_id), as_json)


@app.command()
def rm(webhook_id: WebhookId, server: Server = None, key: Key = None, as_json: Json = False) -> None:
    """Delete a webhook with its deliveries; what waits for it is never sent."""
    from worker.commands.server import connected

    with connected(server, key) as client:
        client.delete_webhook(webhook_id)
    print_deleted(webhook_id, as_json=as_json)


def _show_made(made: WebhookMade, as_json: bool) -> None:
    """The secret alone on standard output, as ``keys create`` has it."""
    if as_json:
        print_json(made)
        return
    typer.echo(f"{_line(made)}\nIts secret, which is shown this once:", err=True)
    typer.echo(made.secret)


def _show_delivery(found: DeliveryOut, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        typer.echo(_delivery_line(found))


def _line(item: WebhookOut) -> str:
    state = "enabled" if item.enabled else f"disabled ({item.disabled_reason})"
    return f"{item.id}  {state}  {item.url}  {','.join(item.event_types)}"


def _delivery_line(item: DeliveryOut) -> str:
    told = str(item.last_status or item.last_error or "-")
    return f"{item.id}  {item.created_at:%Y-%m-%d %H:%M:%S}  {item.type}  {item.state}  {item.attempts}  {told}"
