"""``quantmill audit``: who did what, and whether the record of it is as it was written."""

from __future__ import annotations

from typing import Annotated

import typer

from worker.commands.json_output import print_items, print_json
from worker.commands.keys import As_json, installation
from worker.commands.options import DataDir

EXIT_TAMPERED = 1
app = typer.Typer(name="audit", help="The record of all deeds: list, verify.", no_args_is_help=True)


@app.command("list")
def list_events(
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="Of this tenant. Default: of all.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many, the newest first.")] = 50,
    as_json: As_json = False,
    data_dir: DataDir = None,
) -> None:
    """The newest deeds: when, whose key, from where, what, on what."""
    from service.audit import service

    with installation(data_dir) as (_, database):
        rows, _ = service.list_page(database, tenant, before=None, limit=limit)
    if as_json:
        names = ("seq", "tenant_id", "actor", "action", "object", "request_id", "address", "hash")
        print_items({name: getattr(row, name) for name in names} | {"at": row.at.isoformat()} for row in rows)
        return
    for row in rows:
        told = f"{row.tenant_id}  {row.actor}  {row.address or '-'}  {row.action}  {row.object}"
        typer.echo(f"{row.seq:>8}  {row.at:%Y-%m-%d %H:%M:%S}  {told}")


@app.command()
def verify(as_json: As_json = False, data_dir: DataDir = None) -> None:
    """Go through the chain of hashes. Exits with 1 and the number of the first row that is not as it was written."""
    from service.audit import service

    with installation(data_dir) as (_, database):
        found = service.verify_all(database)
    if as_json:
        print_json({"rows": found.rows, "head": found.head, "fault": found.fault, "seq": found.seq})
    elif found.fault is None:
        typer.echo(f"{found.rows} rows, as they were written; head {found.head}")
    else:
        typer.echo(f"row {found.seq} is {found.fault}; {found.rows} rows before it are as they were written", err=True)
    if found.fault is not None:
        raise typer.Exit(EXIT_TAMPERED)
