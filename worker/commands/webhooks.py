"""Where a service tells of events and sends results: ``quantmill webhooks`` and ``quantmill jobs hand-over``."""

from __future__ import annotations

import json as js
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from worker.commands import options
from worker.commands.command import Done, Service, command, deleted, job_id, remote
from worker.commands.command import show as show_answer
from worker.commands.options import JobId
from worker.commands.printing import print_table

if TYPE_CHECKING:
    from service.client import Client
    from service.hand_overs.schemas import HandOverOut
    from service.webhooks.schemas import DeliveryOut, WebhookMade, WebhookOut

app = typer.Typer(name="webhooks", help="Manage webhooks.", no_args_is_help=True)

WebhookId = Annotated[str, typer.Argument(metavar="WEBHOOK", help="The webhook's id: whk_...")]
DeliveryId = Annotated[str, typer.Argument(metavar="DELIVERY", help="The delivery's id: dlv_...")]
Targets = Annotated[
    str | None,
    typer.Option(metavar="FILE.json", help="Targets to send the results to (JSON list); - reads standard input."),
]
_STDIN = "-"
_HOUR_SECONDS = 3600.0


_DELIVERY_STATES = options.one_of("service.webhooks.schemas", "DeliveryState")
_CONDITIONS = options.one_of("service.hand_overs.schemas", "Condition")


def _line(item: WebhookOut) -> str:
    state = "enabled" if item.enabled else f"disabled ({item.disabled_reason})"
    return f"{item.id}  {state}  {item.url}  {','.join(item.event_types)}"


def _print_webhooks(found: list[WebhookOut]) -> None:
    rows = [
        (one.id, "enabled" if one.enabled else f"disabled ({one.disabled_reason})", one.url, ",".join(one.event_types))
        for one in found
    ]
    print_table(("webhook", "state", "url", "events"), rows, whole=("webhook",), narrow=True)


def _print_deliveries(found: list[DeliveryOut]) -> None:
    rows = [
        (
            one.id,
            f"{one.created_at:%m-%d %H:%M}Z",
            one.type,
            one.state,
            str(one.attempts),
            str(one.last_status or one.last_error or "-"),
            "-" if one.next_attempt_at is None else f"{one.next_attempt_at:%m-%d %H:%M}Z",
        )
        for one in found
    ]
    heads = ("delivery", "created", "event", "state", "attempts", "result", "next attempt")
    print_table(heads, rows, whole=("delivery", "created", "result"), narrow=True)


def _next(item: DeliveryOut) -> str:
    return "" if item.next_attempt_at is None else f"{item.next_attempt_at:%Y-%m-%d %H:%M:%S}Z"


def _delivery_line(item: DeliveryOut) -> str:
    told = str(item.last_status or item.last_error or "-")
    if item.last_error is not None and item.response_excerpt:
        told += f": {item.response_excerpt}"
    after = f"  next attempt {_next(item)}" if _next(item) else ""
    return f"{item.id}  {item.created_at:%Y-%m-%d %H:%M:%S}Z  {item.type}  {item.state}  {item.attempts}  {told}{after}"


def _hand_over_line(item: HandOverOut) -> str:
    what = "post" if item.artifact is None else f"{item.kind} {item.artifact}"
    why = "" if item.detail is None else f"  {item.detail}"
    return f"{item.id}  {item.state:8}  {what:16}  {item.host}  attempts {item.attempts}{why}"


def _print_made(made: WebhookMade) -> None:
    """The secret alone on standard output, as ``keys create`` has it."""
    typer.echo(f"{_line(made)}\nSecret, shown only once:", err=True)
    typer.echo(made.secret)


def _print_webhook(found: WebhookOut) -> None:
    typer.echo(_line(found))
    for name in ("description", "disabled_at", "failing_since", "previous_secret_ends_at"):
        value = getattr(found, name)
        if value is not None:
            typer.echo(f"  {name.replace('_', ' ')}: {value}")
    if found.dropped_events:
        typer.echo(f"  dropped events: {found.dropped_events}")


@remote(app, text=_print_made)
def create(
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="HTTPS URL of a public host, or URL of an allowed host."),
    ],
    client: Client,
    event: Annotated[
        list[str] | None, typer.Option(help="Event type, such as 'job.*' or model.ready; repeatable. Default: all.")
    ] = None,
    description: Annotated[str | None, typer.Option(help="Description.")] = None,
) -> WebhookMade:
    """Create a webhook; print its signing secret once."""
    return client.create_webhook(url, event or ["*"], description=description)


@remote(app, "list", text=_print_webhooks, empty="No webhooks yet.")
def list_webhooks(client: Client) -> list[WebhookOut]:
    """List all webhooks."""
    return list(client.webhooks())


@remote(app, text=_print_webhook)
def show(webhook_id: WebhookId, client: Client) -> WebhookOut:
    """Show a webhook and its failures."""
    return client.webhook(webhook_id)


@remote(app, text=_print_made)
def rotate(
    webhook_id: WebhookId,
    client: Client,
    grace_hours: Annotated[float, typer.Option(min=0, help="Hours until the old secret expires.")] = 24.0,
) -> WebhookMade:
    """Replace the signing secret; print the new one once."""
    return client.rotate_webhook(webhook_id, grace_seconds=grace_hours * _HOUR_SECONDS)


@remote(app, line=_delivery_line)
def ping(webhook_id: WebhookId, client: Client) -> DeliveryOut:
    """Send a webhook.ping event."""
    typer.echo(f"to {client.webhook(webhook_id).url}", err=True)
    return client.ping_webhook(webhook_id)


@remote(app, text=_print_deliveries, empty="No deliveries found.")
def deliveries(
    webhook_id: WebhookId,
    client: Client,
    state: Annotated[
        str | None,
        typer.Option(
            callback=_DELIVERY_STATES,
            help="waiting, delivered or failed. Default: all.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Show at most this many, newest first.")] = 50,
) -> list[DeliveryOut]:
    """List the deliveries of a webhook, newest first."""
    return client.webhook_deliveries(webhook_id, state=state, limit=limit).items


@remote(app, line=_delivery_line)
def redeliver(webhook_id: WebhookId, delivery_id: DeliveryId, client: Client) -> DeliveryOut:
    """Send a delivery again, with the same id."""
    return client.redeliver(webhook_id, delivery_id)


@remote(app)
def rm(webhook_id: WebhookId, client: Client) -> Done:
    """Delete a webhook with its deliveries."""
    client.delete_webhook(webhook_id)
    return deleted(webhook_id)


def given_targets(place: str | None) -> list[dict[str, Any]]:
    """Targets of a file or of standard input (URLs are no arguments for all to see); errors quote none of it.

    Raises:
        typer.BadParameter: it cannot be read, or holds no list of objects.
    """
    if place is None:
        return []
    try:
        text = sys.stdin.read() if place == _STDIN else Path(place).read_text()
        found = js.loads(text)
    except OSError as error:
        raise typer.BadParameter(f"cannot be read: {error.strerror}", param_hint="--targets") from None
    except ValueError:
        raise typer.BadParameter("not JSON.", param_hint="--targets") from None
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise typer.BadParameter("must be a list: [{...}]", param_hint="--targets")
    return found


def register_hand_over(jobs: typer.Typer) -> None:
    """Add ``hand-over`` to the commands of jobs."""
    command(jobs, "hand-over")(hand_over)


def hand_over(
    job: JobId,
    put: Annotated[
        list[str] | None,
        typer.Option(metavar="ARTIFACT=URL", help="Upload this artifact to a presigned URL by PUT; repeatable."),
    ] = None,
    post: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="Send the job's facts to this URL by POST; repeatable.")
    ] = None,
    targets: Targets = None,
    when: Annotated[
        str,
        typer.Option(
            callback=_CONDITIONS,
            help="When --put and --post are sent: pass (the gate passed) or success (whatever the verdict).",
        ),
    ] = "pass",
    *,
    service: Service,
    json: options.Json = False,
) -> None:
    """Send the results of a job to buckets and URLs; without targets, list them."""
    wanted = [*given_targets(targets), *map(_put, put or ()), *({"kind": "post", "url": url} for url in post or ())]
    for target in wanted:
        target.setdefault("when", when)
    with service.connected() as client:
        found_job = job_id(client, job)
        found = client.hand_over(found_job, wanted) if wanted else client.hand_overs(found_job)
    show_answer(found, json=json, line=_hand_over_line, empty="No hand-overs.")


def _put(text: str) -> dict[str, Any]:
    artifact, sign, url = text.partition("=")
    if not sign or "/" in artifact:
        raise typer.BadParameter("must be ARTIFACT=URL, such as model=https://...", param_hint="--put")
    return {"kind": "put", "artifact": artifact, "url": url}
