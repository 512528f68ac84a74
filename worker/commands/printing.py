"""What commands print on standard output: JSON under the names that the service gives, tables, and named values."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console

# A text, or a text and its style; such as rich takes them.
Cell = str | tuple[str, str]
_LEAST_NAME_WIDTH = 10


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


def plain(found: BaseModel | dict[str, Any]) -> Any:
    """What JSON can hold. By pydantic's own JSON: it has no NaN, and names fields as the service does."""
    return found if isinstance(found, dict) else json.loads(found.model_dump_json(by_alias=True))


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    whole: Collection[str] = (),
    narrow: bool = False,
    cut: Mapping[str, int] | None = None,
    console: Console | None = None,
) -> None:
    """Rows below the heads of their columns.

    Args:
        columns: heads.
        rows: a cell for each column.
        whole: columns that are never broken into lines: an id is there to be copied.
        narrow: for more columns than there is room for: without rules, what is long is folded.
        cut: columns that are shortened to so many characters.
        console: to print on; default: standard output.
    """
    from rich.table import Column, Table

    from worker.commands.console import NARROW, make_console

    limits = cut or {}
    heads = [
        Column(name, overflow="ellipsis", no_wrap=True, max_width=limits[name])
        if name in limits
        else Column(name, overflow="fold" if narrow else "ellipsis", no_wrap=name in whole)
        for name in columns
    ]
    table = Table(*heads, **(NARROW if narrow else {}))
    for row in rows:
        table.add_row(*map(_text, row))
    (console or make_console()).print(table)


def print_facts(facts: Iterable[tuple[str, Cell | None]]) -> None:
    """A line for each name and its value; those without a value are left out."""
    from rich.text import Text

    from worker.commands.console import make_console

    console = make_console()
    told = [(name, value) for name, value in facts if value]
    width = max(_LEAST_NAME_WIDTH, *(len(name) + 2 for name, _ in told))
    for name, value in told:
        console.print(Text.assemble(f"{name:<{width}}", _text(value)), soft_wrap=True)


def _text(cell: Cell) -> Any:
    from rich.text import Text

    return Text(cell) if isinstance(cell, str) else Text(*cell)
