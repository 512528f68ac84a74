"""How large the tables of a database are, as it last counted."""

from __future__ import annotations

from sqlalchemy import Connection, text

# Rows (-1: never counted), bytes of the rows, bytes with indexes and large values.
_POSTGRESQL = """
SELECT relname, CAST(reltuples AS bigint), pg_table_size(oid), pg_total_relation_size(oid)
FROM pg_class WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace
"""


def sizes(connection: Connection) -> dict[str, tuple[int | None, int, int]]:
    """By table of PostgreSQL: its rows (estimated; None: not known), the bytes of its rows, and of all that it has."""
    return {
        table: (None if rows < 0 else rows, row_bytes, all_bytes)
        for table, rows, row_bytes, all_bytes in connection.execute(text(_POSTGRESQL))
    }


def file_bytes(connection: Connection) -> int:
    """Size of a SQLite file."""
    pages = connection.execute(text("PRAGMA page_count")).scalar_one()
    return int(pages) * int(connection.execute(text("PRAGMA page_size")).scalar_one())


def rows_of(connection: Connection, table: str) -> int:
    """The rows of a table, counted."""
    return int(connection.execute(text(f'SELECT count(*) FROM "{table}"')).scalar_one())  # noqa: S608 - of our schema


def schema_statements(connection: Connection) -> list[str]:
    """What makes the tables, indexes and triggers of a SQLite database, in its order."""
    made = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY rowid"
    return list(connection.execute(text(made)).scalars())
