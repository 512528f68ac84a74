"""What ``--json`` writes: what the service gives, under the names by which the service gives it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel


def print_json(found: BaseModel | dict[str, Any]) -> None:
    """One document on standard output, as people can read it."""
    typer.echo(json.dumps(plain(found), indent=2))


def print_items(found: Iterable[BaseModel | dict[str, Any]], *, has_more: bool | None = None) -> None:
    """A list as the service gives lists: an object with ``items``, and ``has_more`` where that is known."""
    more = {} if has_more is None else {"has_more": has_more}
    print_json({"items": [plain(item) for item in found], **more})


def print_line(found: BaseModel | dict[str, Any]) -> None:
    """One document in one line, for what comes one after the other (NDJSON)."""
    typer.echo(json.dumps(plain(found)))


def print_deleted(reference: str, *, as_json: bool) -> None:
    """That something is no more."""
    if as_json:
        print_line({"id": reference, "deleted": True})
    else:
        typer.echo(f"{reference} is deleted")


def plain(found: BaseModel | dict[str, Any]) -> Any:
    """What JSON can hold. By pydantic's own JSON: it has no NaN, and names fields as the service does."""
    return found if isinstance(found, dict) else json.loads(found.model_dump_json(by_alias=True))
