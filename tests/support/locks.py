"""In which order transactions lock rows, read off the statements that they send to PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, event

from service.db import Database

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"
_ORDER = re.compile(r"^\d+\. (.*)$", re.MULTILINE)
# Shared locks on what is told of an event keep nobody waiting but those who change it, who wait for none of the others.
_LOCK = re.compile(
    r"SELECT .*?\sFROM (\w+)(?!.* SKIP LOCKED).*\sFOR (?!KEY SHARE)|UPDATE (\w+) SET|INSERT INTO (\w+) .*DO UPDATE",
    re.S,
)
_ID = re.compile(r"[a-z]{2,5}_[0-9A-Za-z]{26}")
_NOUNS = ("models", "datasets")
_PREFIXES = {"models": "mdl", "datasets": "dst", "schedules": "sch", "batches": "bat", "jobs": "job"}
_VALIDATED = "what a job validates"


def written_order() -> dict[str, float]:
    """Rank by table, as docs/extending.md has it; what jobs validate stands behind them under a name of its own."""
    section = _PAGE.read_text().split("## The order of locks")[1].split("\n## ")[0]
    ranks: dict[str, float] = {}
    for rank, line in enumerate(_ORDER.findall(section)):
        for place, table in enumerate(re.findall(r"`(\w+)`", line)):
            ranks[table] = rank + place / 10
        if line.startswith(_VALIDATED):
            ranks[_VALIDATED] = rank
    return ranks


class Lock(NamedTuple):
    """Rows of one table, by the least of their ids."""

    rank: float
    id: str
    table: str


@contextmanager
def locks_of(database: Database) -> Iterator[list[list[Lock]]]:
    """The rows that each transaction locks from here on, in its order, none twice; those that it passes over not."""
    ranks, transactions = written_order(), list[list[Lock]]()

    def on_begin(connection: Connection) -> None:
        transactions.append([])
        connection.info["locks"] = (transactions[-1], set())

    def on_execute(connection: Connection, _: Any, statement: str, parameters: Any, *__: Any) -> None:
        found = _LOCK.match(statement)
        table = found and next(name for name in found.groups() if name)
        if table not in ranks or "locks" not in connection.info:
            return
        locks, held = connection.info["locks"]
        given = parameters if isinstance(parameters, list | tuple) else [parameters]
        texts = {str(value) for one in given if isinstance(one, dict) for value in one.values()}
        ids = {text for text in texts if _ID.fullmatch(text) and text.startswith(_PREFIXES.get(table, " "))} or {""}
        if not {(table, one) for one in ids} <= held:
            validated = table in _NOUNS and statement.startswith("UPDATE")
            locks.append(Lock(ranks[_VALIDATED if validated else table], min(ids), table))
            held |= {(table, one) for one in ids}

    listeners = (("begin", on_begin), ("before_cursor_execute", on_execute))
    for name, listener in listeners:
        event.listen(database.engine, name, listener)
    try:
        yield transactions
    finally:
        for name, listener in listeners:
            event.remove(database.engine, name, listener)


def out_of_order(transactions: list[list[Lock]]) -> list[list[str]]:
    """The tables of those transactions that do not lock in order."""
    return [[lock.table for lock in one] for one in transactions if one != sorted(one, key=lambda lock: lock[:2])]
