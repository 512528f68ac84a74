"""``quantmill keys``, ``tenants``, ``audit``, ``queues``, ``quarantine``: who may what, who did what, what waits.

They work on the database itself, so that the first key can be made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from service.contracts.quota import Quota
from service.contracts.validation import field_problems
from service.principal import COMMAND_LINE, DEFAULT_TENANT, Principal, Scope
from service.settings import Settings
from worker.commands import options, views
from worker.commands.command import Done, remote, show
from worker.commands.options import DataDir, PlainJson
from worker.commands.printing import print_items, print_json, print_table

if TYPE_CHECKING:
    from service.client import Client
    from service.db import Database
    from service.keys.schemas import KeyOut
    from service.keys.service import MadeKey
    from service.quarantine.schemas import QuarantineOut
    from service.queues.schemas import QueueOut
    from service.tables import SigningKeyRow
app = typer.Typer(
    name="keys",
    help="Manage API keys and signing keys.",
    no_args_is_help=True,
)
KeyId = Annotated[str, typer.Argument(metavar="KEY_ID", help="The key's id: key_...")]
Tenant = Annotated[
    str,
    typer.Option(metavar="NAME", help="Tenant of the key: letters, digits, - and _, up to 64."),
]
_TENANT_LENGTH = 64


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the key, such as nightly-ci.")],
    tenant: Tenant = DEFAULT_TENANT,
    scope: Annotated[
        Scope,
        typer.Option(
            help="read; submit: also upload, submit and cancel; manage: also delete, release and webhooks; admin: also "
            "keys and audit log of the tenant; operator: also those of all tenants, and quotas."
        ),
    ] = "submit",
    days: Annotated[float | None, typer.Option(min=0.001, help="Days until it expires. Default: never.")] = None,
    as_json: PlainJson = False,
    data_dir: DataDir = None,
) -> None:
    """Create an API key; print it once."""
    from service.keys import service

    _check_name(name, 255)
    checked = check_tenant(tenant)
    with installation(data_dir) as (settings, database):
        pepper = service.pepper_of(settings)
        with database.write() as session:
            made = service.create(session, pepper, operator(), tenant_id=checked, name=name, scope=scope, days=days)
    _show_made(made, as_json)


@app.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="Only this tenant. Default: all.")] = None,
    as_json: PlainJson = False,
    data_dir: DataDir = None,
) -> None:
    """List all API keys, newest first."""
    from service.keys import repository
    from service.keys.service import key_out

    with installation(data_dir) as (settings, database), database.read() as session:
        rows, now = repository.list_all(session, tenant), repository.datetime_now(session)
    shown = [key_out(row, now) for row in rows]
    show(shown, json=as_json, text=_print_keys, empty=f"No keys yet.{_own_key(settings)}")


def _print_keys(found: list[KeyOut]) -> None:
    rows = [
        (
            one.id,
            f"...{one.last4}",
            one.tenant,
            one.scope,
            one.state,
            "never" if one.last_used_at is None else f"{one.last_used_at:%Y-%m-%d %H:%M}Z",
            one.name,
        )
        for one in found
    ]
    print_table(("key", "ends in", "tenant", "scope", "state", "last used", "name"), rows, whole=("key",), narrow=True)


@app.command()
def revoke(key_id: KeyId, as_json: PlainJson = False, data_dir: DataDir = None) -> None:
    """Revoke an API key within two seconds."""
    from service.keys import service

    with installation(data_dir) as (_, database), database.write() as session:
        service.revoke(session, operator(), key_id)
    show(Done({"id": key_id, "revoked": True}, f"{key_id} is revoked"), json=as_json)


@app.command()
def rotate(
    key_id: KeyId,
    grace_hours: Annotated[
        float, typer.Option(min=0.0, help="Hours until the old key expires; 0 revokes it at once.")
    ] = 24.0,
    as_json: PlainJson = False,
    data_dir: DataDir = None,
) -> None:
    """Replace an API key by a new one with the same tenant, name and scope; print it once."""
    from service.keys import service

    with installation(data_dir) as (settings, database):
        pepper = service.pepper_of(settings)
        with database.write() as session:
            made = service.rotate(session, pepper, operator(), key_id, grace_seconds=grace_hours * 3600.0)
    _show_made(made, as_json)


@app.command("signing")
def list_signing(as_json: PlainJson = False, data_dir: DataDir = None) -> None:
    """Print the public signing keys (PEM), which verify attestations."""
    from service.attestations.signing import known_keys

    with installation(data_dir) as (settings, database):
        rows = known_keys(database, settings)
    _show_signing(rows, as_json)


@app.command("rotate-signing")
def rotate_signing(as_json: PlainJson = False, data_dir: DataDir = None) -> None:
    """Create a new signing key; print its public half. Earlier attestations stay valid."""
    from service.attestations import signing

    with installation(data_dir) as (settings, database):
        row = signing.rotate(database, settings, operator())
    _show_signing([row], as_json)


@contextmanager
def installation(data_dir: Any) -> Iterator[tuple[Settings, Database]]:
    """The settings and the migrated database; where nothing says which, that of this user's own service.

    Raises:
        NoServiceDataError: there is no database: a new one would be of no running service.
        SchemaBehindError: it has not been migrated.
    """
    from service.db import Database, migrate
    from service.schema import require_current

    settings = options.load_settings(data_dir=data_dir)
    if not settings.model_fields_set & {"data_dir", "database_url"} and not _has_data(settings):
        folder = _own_folder()
        settings = settings if folder is None else options.load_settings(data_dir=folder)
    _require_data(settings)
    settings.make_folders()
    if settings.embedded_database:
        migrate(settings.database_url)  # as `up` does
    database = Database(settings.database_url)
    try:
        require_current(database)
        yield settings, database
    finally:
        database.close()


def _own_folder() -> Path | None:
    """The data directory of the one service that this user runs on this host."""
    from service.keys import local

    found = list(local.own_services().values())
    return found[0] if len(found) == 1 else None


def _has_data(settings: Settings) -> bool:
    from sqlalchemy import make_url

    file = make_url(settings.database_url).database if settings.embedded_database else None
    return file is None or Path(file).exists()


def _require_data(settings: Settings) -> None:
    from service.client.connection import SERVER_VARIABLE
    from service.contracts.command_errors import NoServiceDataError
    from service.keys import local

    if _has_data(settings):
        return
    hint = "Give --data-dir, or QUANTMILL_DATABASE_URL; `quantmill up` and `quantmill migrate` create a new database."
    running = [str(folder) for folder in local.own_services().values() if folder is not None]
    if running:
        hint = f"Give --data-dir: your service on this host uses {' or '.join(running)}."
    place = settings.data_dir if settings.data_dir.is_absolute() else f"./{settings.data_dir}"
    told = f"No service data in {place}."
    if os.environ.get(SERVER_VARIABLE):
        told += f" This command works on the data directory, not over HTTP: {SERVER_VARIABLE} has no effect on it."
    raise NoServiceDataError(told, hint=hint)


def operator() -> Principal:
    """Who works on the database itself."""
    return Principal(DEFAULT_TENANT, COMMAND_LINE, "operator")


def check_tenant(name: str) -> str:
    """The tenant's name.

    Raises:
        typer.BadParameter: it cannot be one.
    """
    plain = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    if not plain or len(name) > _TENANT_LENGTH:
        raise typer.BadParameter(f"{name!r} is not a tenant name: letters, digits, - and _, up to {_TENANT_LENGTH}")
    return name


def _own_key(settings: Settings) -> str:
    """That the service can be used all the same: by a key which nobody has made here."""
    from service.keys.files import LOCAL_KEY_FILE

    if settings.api_key is not None:
        return " The service accepts QUANTMILL_API_KEY."
    place = settings.data_dir / LOCAL_KEY_FILE
    if not place.exists():
        return ""
    return f" `quantmill up` created a key for this user in {place}; commands on this host use it."


def _check_name(name: str, length: int) -> None:
    if not name.strip() or not name.isprintable() or len(name) > length:
        raise typer.BadParameter(f"{name!r} is not a name: printable characters, up to {length}")


def _show_made(made: MadeKey, as_json: bool) -> None:
    from service.keys.service import key_made

    if as_json:
        print_json(key_made(made, datetime.now(UTC)))
        return
    typer.echo(made.text)
    typer.echo(f"{made.row.id} of tenant {made.row.tenant_id}, scope {made.row.scope}; shown only once", err=True)


def _show_signing(rows: list[SigningKeyRow], as_json: bool) -> None:
    from service.attestations.signing import signing_key_out

    shown = [signing_key_out(row) for row in rows]
    if as_json:
        print_items(shown)
        return
    for key in shown:
        state = "signs now" if key.retired_at is None else f"retired {key.retired_at:%Y-%m-%d %H:%M}"
        typer.echo(f"{key.id}  {key.algorithm}  since {key.created_at:%Y-%m-%d %H:%M}  {state}", err=True)
        typer.echo(key.public_key, nl=False)


tenants = typer.Typer(name="tenants", help="Manage quotas of tenants.", no_args_is_help=True)
TenantName = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's name.")]
_LIMITS = ", ".join(Quota.model_fields)


@tenants.command("show")
def show_tenant(tenant: TenantName, as_json: PlainJson = False, data_dir: DataDir = None) -> None:
    """Show the quota of a tenant and its usage."""
    from service.quotas import service

    checked = check_tenant(tenant)
    with installation(data_dir) as (settings, database), database.read() as session:
        found = service.tenant_out(session, settings, checked)
    if as_json:
        print_json(found)
        return
    used = found.usage.model_dump()
    for name, limit in found.quota.model_dump().items():
        whose = "its own" if name in found.own else "default"
        told = f"{used[name]:g} used" if name in used else ""
        typer.echo(f"{name:<24} {'no limit' if limit is None else f'{limit:g}':>16}  {whose:<8} {told}".rstrip())


@tenants.command("set")
def set_quota(
    tenant: TenantName,
    limits: Annotated[
        list[str], typer.Argument(metavar="NAME=NUMBER...", help=f"NAME=none removes the limit. Names: {_LIMITS}.")
    ],
    as_json: PlainJson = False,
    data_dir: DataDir = None,
) -> None:
    """Set the quota of a tenant; limits not given go back to the default."""
    from service.quotas import service

    checked, own = check_tenant(tenant), _parsed(limits)
    with installation(data_dir) as (settings, database):
        with database.write() as session:
            service.set_quota(session, operator(), checked, own)
        if as_json:
            with database.read() as session:
                print_json(service.tenant_out(session, settings, checked))
            return
    typer.echo(f"{checked}: {json.dumps(own.model_dump(exclude_unset=True))}")


def _number(text: str) -> float | str:
    """A number, or what is none as it is: the contract tells what is wrong with it."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _parsed(limits: list[str]) -> Quota:
    """The limits of the command line.

    Raises:
        typer.BadParameter: no such limit, or no number.
    """
    own: dict[str, Any] = {}
    for entry in limits:
        name, _, value = entry.partition("=")
        own[name] = None if value == "none" else _number(value)
    try:
        return Quota.model_validate(own)
    except ValidationError as error:
        told = "; ".join(
            f"{found.pointer.removeprefix('/')}: {found.message}" for found in field_problems(error, Quota)
        )
        raise typer.BadParameter(f"{told}. Limits are {_LIMITS}") from None


EXIT_TAMPERED = 1
_AUDIT_COLUMNS = ("seq", "time", "tenant", "actor", "address", "action", "object")
_QUARANTINE_COLUMNS = ("digest", "quarantined", "crashes", "model", "job", "last crash")
audit = typer.Typer(name="audit", help="Audit log: list, verify.", no_args_is_help=True)


@audit.command("list")
def list_events(
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="Only this tenant. Default: all.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Show at most this many, newest first.")] = 50,
    as_json: PlainJson = False,
    data_dir: DataDir = None,
) -> None:
    """List the newest entries of the audit log."""
    from service.audit import changes, service

    with installation(data_dir) as (_, database):
        rows, _ = service.list_page(database, tenant, before=None, limit=limit)
    if as_json:
        names = ("seq", "tenant_id", "actor", "action", "object", "request_id", "address", "hash")
        print_items(
            {name: getattr(row, name) for name in names}
            | {"at": row.at.isoformat(), "changes": [one.model_dump() for one in changes.read(row.changes)]}
            for row in rows
        )
        return
    if not rows:
        typer.echo("The audit log is empty.")
        return
    told = (
        (
            str(row.seq),
            f"{row.at:%Y-%m-%d %H:%M:%SZ}",
            row.tenant_id,
            row.actor,
            row.address or "-",
            row.action,
            row.object,
        )
        for row in rows
    )
    print_table(_AUDIT_COLUMNS, told, whole=("seq", "time", "object"), narrow=True)


@audit.command()
def verify(as_json: PlainJson = False, data_dir: DataDir = None) -> None:
    """Verify the hash chain of the audit log. Exit code 1 if an entry was changed."""
    from service.audit import service

    with installation(data_dir) as (_, database):
        found = service.verify_all(database)
    if as_json:
        print_json({"rows": found.rows, "head": found.head, "fault": found.fault, "seq": found.seq})
    elif found.fault is None:
        typer.echo(f"{found.rows} entries verified; head {found.head}")
    else:
        typer.echo(f"entry {found.seq} is {found.fault}; {found.rows} entries before it verified", err=True)
    if found.fault is not None:
        raise typer.Exit(EXIT_TAMPERED)


# ``quantmill queues`` and ``quarantine``: what waits in a service and who takes it, and which models it refuses.

quarantine = typer.Typer(name="quarantine", help="Models that crash their runner: list, release.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the command ``queues`` to ``app``."""
    remote(app, text=views.print_queues, about_json="JSON on standard output.")(queues)


def queues(client: Client) -> list[QueueOut]:
    """Show queued and running jobs and worker slots of each queue."""
    return client.queues()


def _print_quarantined(items: list[QuarantineOut]) -> None:
    rows = (
        (one.digest, f"{one.quarantined_at:%Y-%m-%d %H:%MZ}", str(one.crashes), one.model_id, one.job_id, one.reason)
        for one in items
    )
    print_table(_QUARANTINE_COLUMNS, rows, whole=("digest",), narrow=True)


@remote(quarantine, "list", text=_print_quarantined, empty="No model is in quarantine.")
def list_models(client: Client) -> list[QuarantineOut]:
    """List the models in quarantine, each with its last crash."""
    return client.quarantine()


@remote(quarantine)
def release(
    digest: Annotated[str, typer.Argument(metavar="DIGEST", help="SHA-256 digest of the model.")],
    client: Client,
) -> Done:
    """Release a model from quarantine."""
    client.release(digest)
    return Done({"digest": digest, "released": True}, f"{digest} is released")
