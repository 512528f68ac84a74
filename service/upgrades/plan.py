"""What ``quantmill migrate`` would do: the statements of the pending migrations, written down instead of run.

On PostgreSQL alembic writes them without a database. SQLite's depend on the tables that are there: they are run on a
copy of the schema without rows.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from alembic import command
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, create_engine, event, inspect

from service.db import Database, alembic_config, current_revision, head_revision, is_known_revision
from service.schema import SchemaAheadError
from service.upgrades.repository import file_bytes, rows_of, schema_statements, sizes
from service.upgrades.statements import Change, Work, change_of

# Measured on PostgreSQL 17 with two busy cores and a slow disk, a table of 400 000 rows: most hosts are faster.
BYTES_PER_SECOND: dict[Work, float] = {"scan": 200e6, "index": 60e6, "index beside writes": 45e6, "rewrite": 7e6}
ROWS_PER_SECOND = 6_000.0
_READS = re.compile(r"\s*(?:SELECT|WITH)\b", re.IGNORECASE)
_REBUILT = re.compile(r"CREATE TABLE _alembic_tmp_(\w+)")
_ALEMBICS = ("_alembic_tmp_", "alembic_version")


@dataclass(frozen=True)
class Step:
    """One change, with the size of its table."""

    change: Change
    own_transaction: bool = False  # outside of the migration's
    rows: int | None = None
    size_bytes: int | None = None
    seconds: float | None = None  # None: not known


@dataclass(frozen=True)
class PlannedRevision:
    """A migration that is pending."""

    revision: str
    title: str
    steps: tuple[Step, ...]
    reads_rows: bool = False  # what else it does depends on them


@dataclass(frozen=True)
class Plan:
    """All that are pending, in their order."""

    dialect: str
    current: str | None
    head: str
    revisions: tuple[PlannedRevision, ...]
    file_bytes: int | None = None  # of SQLite's file


class _ReadsRowsError(Exception):
    pass


def plan(url: str) -> Plan:
    """What is pending; nothing is changed, and a SQLite file that is not there is not made.

    Raises:
        SchemaAheadError: the database is of a newer version, or another program's.
    """
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        return Plan("sqlite", None, head_revision(), ())
    with closing(Database(url)) as database:
        current, dialect = current_revision(database), database.engine.dialect.name
        if current is not None and not is_known_revision(current):
            raise SchemaAheadError(current, head_revision())
        if current is None:
            return Plan(dialect, None, head_revision(), ())
        scripts = pending(current)
        with database.engine.connect() as connection:
            if dialect == "postgresql":
                revisions = _measured(planned(scripts), sizes(connection))
                return Plan(dialect, current, head_revision(), revisions)
            revisions = _on_copy(connection, current, scripts)
            return Plan(dialect, current, head_revision(), revisions, file_bytes(connection))


def pending(current: str | None) -> list[Script]:
    """Migrations that come after a revision, the next one first."""
    scripts = ScriptDirectory.from_config(alembic_config())
    return list(reversed(list(scripts.iterate_revisions("head", current or "base"))))


def planned(scripts: list[Script]) -> tuple[PlannedRevision, ...]:
    """What the migrations do to PostgreSQL, whatever is there."""
    created: set[str | None] = set()
    found = []
    for script in scripts:
        statements, reads_rows = _written(script)
        steps, outside = [], False
        for statement in statements:
            word = statement.strip().rstrip(";").upper()
            outside = word == "COMMIT" or (outside and word != "BEGIN")
            change = change_of(statement)
            if change is not None:
                steps.append(Step(_as_used(change, created), outside))
        found.append(PlannedRevision(script.revision, _title(script), tuple(steps), reads_rows))
    return tuple(found)


def _as_used(change: Change, created: set[str | None]) -> Change:
    """The change, as it is felt: nobody uses a table yet that one of the pending migrations makes."""
    if change.on_new_table:
        created.add(change.table)
    also = tuple(table for table in change.also_locks if table not in created)
    if change.table not in created:
        return replace(change, also_locks=also)
    return Change(change.words, change.table, also_locks=also, on_new_table=True, known=change.known)


def _written(script: Script) -> tuple[list[str], bool]:
    """The statements on PostgreSQL, as alembic writes them; whether they end where the migration reads rows."""
    statements: list[str] = []

    class Buffer:
        """Takes one statement at a time."""

        def write(self, statement: str) -> None:
            if _READS.match(statement):
                raise _ReadsRowsError
            statements.append(statement)

        def flush(self) -> None:
            """There is nothing behind it."""

    options = {"as_sql": True, "output_buffer": Buffer(), "transactional_ddl": True}
    context = MigrationContext.configure(dialect_name="postgresql", opts=options)
    with Operations.context(context):
        try:
            script.module.upgrade()
        except _ReadsRowsError:
            return statements, True
    return statements, False


def _measured(
    revisions: tuple[PlannedRevision, ...], tables: dict[str, tuple[int | None, int, int]]
) -> tuple[PlannedRevision, ...]:
    def measured(step: Step) -> Step:
        if step.change.table not in tables:
            return replace(step, seconds=0.0 if step.change.work == "none" else None)
        rows, row_bytes, all_bytes = tables[step.change.table]
        return replace(step, rows=rows, size_bytes=all_bytes, seconds=_seconds(step.change.work, rows, row_bytes))

    return tuple(replace(one, steps=tuple(map(measured, one.steps))) for one in revisions)


def _seconds(work: Work, rows: int | None, row_bytes: int) -> float | None:
    if work == "none":
        return 0.0
    if work == "rows":
        return None if rows is None else rows / ROWS_PER_SECOND
    return row_bytes / BYTES_PER_SECOND[work]


def _on_copy(connection: Connection, current: str, scripts: list[Script]) -> tuple[PlannedRevision, ...]:
    """The migrations on a copy of SQLite's schema, with the rows that the tables have in truth."""
    found = []
    tables = set(inspect(connection).get_table_names())
    indexes = {index["name"] for table in tables for index in inspect(connection).get_indexes(table)}
    with tempfile.TemporaryDirectory(prefix="quantmill-plan-") as folder:
        engine = create_engine(f"sqlite:///{Path(folder) / 'schema.db'}")
        sent: list[str] = []
        event.listen(engine, "before_cursor_execute", lambda _, __, statement, *___: sent.append(statement))
        with engine.begin() as copy:
            for statement in schema_statements(connection):
                copy.exec_driver_sql(statement)
            MigrationContext.configure(copy).stamp(ScriptDirectory.from_config(alembic_config()), current)
        for script in scripts:
            sent.clear()
            with engine.begin() as copy:
                config = alembic_config()
                config.attributes["connection"] = copy
                command.upgrade(config, script.revision)
            steps = [
                Step(change, rows=rows_of(connection, change.table) if change.table in tables else None)
                for change in _sqlite_changes(sent)
                if change.index not in indexes  # of a rebuilt table, made again
            ]
            found.append(PlannedRevision(script.revision, _title(script), tuple(steps)))
        engine.dispose()
    return tuple(found)


def _sqlite_changes(statements: list[str]) -> Iterator[Change]:
    """What alembic sends to alter a table in place of what SQLite lacks counts as one change."""
    dropped = None
    for statement in statements:
        text = statement.strip()
        rebuilt = _REBUILT.match(text)
        if rebuilt is not None:
            dropped = f"DROP TABLE {rebuilt[1]}"
            yield Change(f"rebuild table {rebuilt[1]}", rebuilt[1], work="rewrite")
        elif text != dropped and not any(word in text for word in _ALEMBICS) and not _READS.match(text):
            change = change_of(text)
            if change is not None:
                yield replace(change, lock=None, also_locks=())


def _title(script: Script) -> str:
    return script.doc.splitlines()[0]
