"""``quantmill tenants``: what each may use, and uses. Works on the database itself."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from service.contracts.quota import Quota
from service.contracts.validation import field_problems
from worker.commands.json_output import print_json
from worker.commands.keys import As_json, check_tenant, installation, operator
from worker.commands.options import DataDir

app = typer.Typer(name="tenants", help="What tenants may use, and use: show, set.", no_args_is_help=True)

Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's name.")]
_LIMITS = ", ".join(Quota.model_fields)


@app.command()
def show(tenant: Tenant, as_json: As_json = False, data_dir: DataDir = None) -> None:
    """A tenant's limits, and how much of them it uses."""
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


@app.command("set")
def set_quota(
    tenant: Tenant,
    limits: Annotated[
        list[str], typer.Argument(metavar="NAME=NUMBER...", help=f"NAME=none: no limit. Names: {_LIMITS}.")
    ],
    as_json: As_json = False,
    data_dir: DataDir = None,
) -> None:
    """Set the tenant's own limits, in place of all that were set before; what is not named is the default's."""
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
