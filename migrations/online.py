"""Changes of tables in use that keep nobody from them: what migrations on PostgreSQL are made of.

An index is built and a constraint checked outside of a transaction, beside everything else that goes on. Each function
may be broken off at any place: run again, it drops what was left half done and does it anew. SQLite has one writer, and
its tables are rebuilt in the one transaction of a migration.

A revision of such changes has no others: what stands beside them is committed with them, and would be done twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from alembic import op


def is_postgresql() -> bool:
    """Whether this is PostgreSQL, not SQLite."""
    return op.get_context().dialect.name == "postgresql"


@contextmanager
def beside_others() -> Iterator[None]:
    """Statements of the block are each a transaction of its own, and wait as long as it takes for those of others.

    Only for such that block nobody while they wait: CREATE INDEX CONCURRENTLY, VALIDATE CONSTRAINT.
    """
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")
        try:
            yield
        finally:
            op.execute("RESET lock_timeout")


def create_index_concurrently(
    name: str,
    table: str,
    columns: Sequence[str | sa.TextClause],
    *,
    where: str | None = None,
    unique: bool = False,
    using: str | None = None,
) -> None:
    """Create an index on a table that may be large.

    Args:
        name: of the index; one of this name is dropped, such as an invalid one that was broken off.
        table: its table.
        columns: their names, or expressions as ``sa.text``.
        where: condition of the rows that it has.
        unique: whether no two rows may be alike in it.
        using: PostgreSQL's access method.
    """
    condition = None if where is None else sa.text(where)
    options: dict[str, Any] = {"unique": unique, "postgresql_where": condition, "sqlite_where": condition}
    if not is_postgresql():
        op.drop_index(name, table, if_exists=True)
        op.create_index(name, table, list(columns), **options)
        return
    drop_index_concurrently(name, table)
    with beside_others():
        if using is not None:
            options["postgresql_using"] = using
        op.create_index(name, table, list(columns), postgresql_concurrently=True, **options)


def drop_index_concurrently(name: str, table: str) -> None:
    """Drop an index, if it is there."""
    if not is_postgresql():
        op.drop_index(name, table, if_exists=True)
        return
    with beside_others():
        op.drop_index(name, table, if_exists=True, postgresql_concurrently=True)


def add_check_not_valid(name: str, table: str, condition: str, *, replaces: bool = False) -> None:
    """Add a CHECK constraint: at once for new rows, then the old ones are read while others write.

    Args:
        name: of the constraint, whole.
        table: its table.
        condition: SQL. The version before writes on meanwhile: what it writes must fulfil it.
        replaces: whether a constraint of this name is there that takes less.
    """
    if not is_postgresql():
        with op.batch_alter_table(table) as batch:
            if replaces:
                batch.drop_constraint(op.f(name), type_="check")
            batch.create_check_constraint(op.f(name), sa.text(condition))
        return
    _add_not_valid(name, table, f"CHECK ({condition})")


def add_foreign_key_not_valid(
    name: str, table: str, columns: Sequence[str], other: str, other_columns: Sequence[str], *, on_delete: str = ""
) -> None:
    """Add a foreign key: at once for new rows, then the old ones are looked up while others write.

    Args:
        name: of the constraint, whole.
        table: whose rows refer.
        columns: by these.
        other: the table referred to.
        other_columns: its key.
        on_delete: such as CASCADE.
    """
    if not is_postgresql():
        with op.batch_alter_table(table) as batch:
            batch.create_foreign_key(op.f(name), other, list(columns), list(other_columns), ondelete=on_delete or None)
        return
    refers = f"FOREIGN KEY ({', '.join(columns)}) REFERENCES {other} ({', '.join(other_columns)})"
    _add_not_valid(name, table, f"{refers} ON DELETE {on_delete}" if on_delete else refers)


def _add_not_valid(name: str, table: str, definition: str) -> None:
    with op.get_context().autocommit_block():  # the lock is not to be held while rows are read
        anew = f"DROP CONSTRAINT IF EXISTS {name}, ADD CONSTRAINT {name} {definition} NOT VALID"
        op.execute(f"ALTER TABLE {table} {anew}")
    with beside_others():
        op.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}")
