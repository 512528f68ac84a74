"""How PostgreSQL carries statements out: its own plans of what ran, those of foreign keys and triggers among them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from sqlalchemy import event, text
from sqlalchemy.orm import Session

from service.db import Database

# The module explains every statement of the session as it runs, and tells the client as it would tell the log.
_SETUP = """
LOAD 'auto_explain';
SET auto_explain.log_min_duration = 0;
SET auto_explain.log_analyze = on;
SET auto_explain.log_buffers = on;
SET auto_explain.log_timing = off;
SET auto_explain.log_nested_statements = on;
SET auto_explain.log_format = json;
SET client_min_messages = log;
"""
_PLAN = "plan:\n"
_LAST = text("SELECT 1")


@dataclass(frozen=True)
class Plan:
    """One statement as it ran."""

    words: str  # of the statement
    milliseconds: float  # that it took
    blocks: int  # pages of tables and indexes that it looked at; one of them may count several times
    examined: int  # rows of tables and entries of indexes that it looked at
    scanned: frozenset[str]  # tables that were read from end to end
    nodes: tuple[str, ...]  # the plan's nodes: kind, index or table

    @classmethod
    def of(cls, told: dict[str, Any], milliseconds: float) -> Plan:
        """From the document that EXPLAIN makes in JSON."""
        top = told["Plan"]
        nodes = list(_nodes(top))
        blocks = top["Shared Hit Blocks"] + top["Shared Read Blocks"]
        scanned = {node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan" and node["Actual Loops"]}
        names = (
            f"{node['Node Type']} {node.get('Index Name') or node.get('Relation Name') or ''}".strip() for node in nodes
        )
        return cls(
            told["Query Text"], milliseconds, blocks, sum(map(_examined, nodes)), frozenset(scanned), tuple(names)
        )

    def __str__(self) -> str:
        return f"{self.examined} rows, {self.blocks} blocks, {' / '.join(self.nodes)}\n    {self.words[:2000]}"


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _examined(node: dict[str, Any]) -> int:
    """Of scans alone: what nodes above them see was counted there."""
    if "Scan" not in node["Node Type"] or node["Node Type"] in {"Subquery Scan", "CTE Scan", "WorkTable Scan"}:
        return 0
    removed = ("Rows Removed by Filter", "Rows Removed by Index Recheck", "Rows Removed by Join Filter")
    rows = node["Actual Rows"] + sum(node.get(name, 0) for name in removed)
    return int(rows * node["Actual Loops"])


@contextmanager
def undone(database: Database) -> Iterator[Session]:
    """A transaction that writes, and is rolled back: whoever looks next finds the same rows."""
    with database.write() as session, session.begin_nested() as all_of_it:
        yield session
        all_of_it.rollback()


def plans_of(url: str, look: Callable[[Session], object]) -> list[Plan]:
    """How PostgreSQL carries a look out, statement by statement; nothing of it stays."""
    found: list[Plan] = []

    def note(diagnostic: psycopg.errors.Diagnostic) -> None:
        told = diagnostic.message_primary or ""
        if _PLAN in told:
            head, _, document = told.partition(_PLAN)
            found.append(Plan.of(json.loads(document), float(head.split()[1])))

    database = Database(url)

    @event.listens_for(database.engine, "connect")
    def _connect(connection: Any, _: Any) -> None:
        connection.add_notice_handler(note)
        with connection.cursor() as cursor:
            cursor.execute(_SETUP)
        connection.commit()

    try:
        with undone(database) as session:
            session.execute(_LAST)
            found.clear()
            look(session)
            session.execute(_LAST)  # a statement is told of once the next one begins
            return [plan for plan in found if plan.words != _LAST.text]
    finally:
        database.close()
