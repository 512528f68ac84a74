"""The schema: the migrations end where the tables are, and the database itself holds the invariants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import MetaData, delete, inspect, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.db import Database, current_revision, db_now, head_revision, migrate
from service.jobs import transitions
from service.tables import Base, InspectionRow, JobEvent, Model, ReportRow
from tests.db.conftest import new_database
from tests.db.rows_of_then import add_inspection, insert_row
from tests.db.test_concurrency import at_once
from tests.db.test_transitions import add_model, in_succeeded, running, submit
from tests.support.each import each

pytestmark = pytest.mark.both_databases


@pytest.mark.slow
def test_who_migrates_at_once_waits_for_the_others(empty_url: str) -> None:
    at_once(3, lambda _: migrate(empty_url))
    database = Database(empty_url)
    assert current_revision(database) == head_revision()
    database.close()


def test_tables_and_migrations_agree(database: Database, tmp_path: Path) -> None:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    with new_database(database.engine.dialect.name, tmp_path) as url:
        created = Database(url)
        # of a copy: what is made on PostgreSQL changes how it is made on SQLite
        copy = MetaData(naming_convention=Base.metadata.naming_convention)
        for table in Base.metadata.sorted_tables:
            table.to_metadata(copy)
        copy.create_all(created.engine)
        assert _constraints(created) == _constraints(database)
        created.close()


def _constraints(database: Database) -> dict[str, Any]:
    inspector = inspect(database.engine)
    kinds: dict[str, Callable[[Any], Any]] = {
        "check_constraints": lambda check: (check["name"], check["sqltext"]),
        "foreign_keys": str,
        "unique_constraints": str,
        "columns": lambda column: (column["name"], str(column["type"]), column["nullable"]),
        "indexes": _index,
    }
    found = {
        kind: {table: sorted(map(tell, rows)) for (_, table), rows in getattr(inspector, f"get_multi_{kind}")().items()}
        for kind, tell in kinds.items()
    }
    found["primary"] = {table: [str(key)] for (_, table), key in inspector.get_multi_pk_constraint().items()}
    assert set(Base.metadata.tables) <= set(found["primary"])
    return {kind: {table: rows[table] for table in Base.metadata.tables} for kind, rows in found.items()}


def _index(found: Any) -> tuple[str, ...]:
    """Its name, its columns, and what it leaves out."""
    conditions = {name: str(told) for name, told in found.get("dialect_options", {}).items() if name.endswith("_where")}
    return found["name"], str(found["column_names"]), str(found["unique"]), str(conditions)


def inspected(session: Session) -> InspectionRow:
    return add_inspection(session, str(in_succeeded(session).model_id))


def model_of(session: Session) -> Model:
    return session.get_one(Model, submit(session).model_id)


REFUSED: dict[Callable[[Session], Any], list[dict[str, Any]]] = {
    submit: [
        {"state": "running"}, {"state": "dreaming"}, {"state": "failed", "finished_at": 1.0}, {"state": "succeeded"},
        {"state": "canceled"}, {"finished_at": 1.0}, {"error": {"code": "x"}}, {"cancel_requested_at": 1.0},
        {"attempt": -1}, {"interruptions": 1}, {"kind": "cook"}, {"config": None}, {"model_id": None},
        {"model_id": "mdl_that_is_not_there"}, {"kind": "inspect_target", "config": None},
    ],
    running: [{"lease_until": None}, {"worker_id": None}, {"attempt": 0}],
    model_of: [
        {"status": "ready"}, {"status": "rejected"}, {"status": "odd"}, {"version": 0},
        {"skeleton_model_id": "mdl_that_is_not_there"},
    ],
    inspected: [
        {"status": "ready"}, {"status": "failed"}, {"status": "odd"}, {"result": {}}, {"problem": {}},
        {"model_id": "mdl_that_is_not_there"},
    ],
}  # fmt: skip


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_no_row_can_be_made_inconsistent(database: Database, make: Callable[[Session], Any]) -> None:
    with database.write() as session:
        made = make(session)
    table = type(made)
    for values in REFUSED[make]:
        with pytest.raises(IntegrityError), database.write() as session:
            session.execute(update(table).where(table.id == made.id).values(**values))
            pytest.fail(f"{values} is taken")


def test_a_model_has_one_lasting_inspection_by_a_config(database: Database) -> None:
    with database.write() as session:
        first = inspected(session)
    with pytest.raises(IntegrityError), database.write() as session:
        add_inspection(session, first.model_id)
    with database.write() as session:
        failed = update(InspectionRow).where(InspectionRow.id == first.id)
        session.execute(failed.values(status="failed", problem={"code": "x"}))
        add_inspection(session, first.model_id)


@each("missing", [{"model_id": None}, {"config": None}])
def test_an_inspection_job_has_a_model_and_a_config(database: Database, missing: dict[str, None]) -> None:
    with database.write() as session:
        given = {"model_id": str(in_succeeded(session).model_id), "config": {"target": "qnn"}, **missing}
    with pytest.raises(IntegrityError), database.write() as session:
        transitions.submit(session, transitions.NewJob(tenant_id="default", kind="inspect_target", **given))


def test_reports_and_event_numbers_are_unique_and_what_a_job_needs_stays(database: Database) -> None:
    with database.write() as session:
        job, done = submit(session), in_succeeded(session)
    event = {"job_id": job.id, "seq": 1, "attempt": 0, "type": "log", "data": {}}
    report = {"job_id": done.id, "attempt": 2, "verdict": "pass", "body": {}}
    for table, values in ((JobEvent, event), (ReportRow, report)):
        with pytest.raises(IntegrityError), database.write() as session:
            session.add(table(tenant_id="default", created_at=db_now(), **values))
    with pytest.raises(IntegrityError), database.write() as session:
        session.execute(delete(Model).where(Model.id == job.model_id))


EVENT = (
    "INSERT INTO job_events (job_id, seq, attempt, type, data, created_at) VALUES (:id, 2, 0, 'progress', '{}', 1.0)"
)
FILE = "INSERT INTO model_files (model_id, path, sha256, size_bytes, is_main) VALUES (:id, 'b.bin', 'x', 1, :no)"


def test_older_code_goes_on_where_it_may_run_meanwhile(database: Database) -> None:
    """Its INSERTs know no tenant; on SQLite there is none, since one host migrates before anything starts."""
    with database.write() as session:
        model_id = add_model(session, "vision")
        job_id = submit(session, tenant_id="vision", model_id=model_id, calibration_dataset_id=None).id
    with pytest.raises(IntegrityError), database.write() as session:
        session.execute(text(EVENT), {"id": "job_of_nobody"})
    with pytest.raises(IntegrityError), database.write() as session:
        insert_row(session, "job_events", job_id="job_of_nobody", tenant_id="vision", data={})
    inserts = (("job_events", EVENT, {"id": job_id}), ("model_files", FILE, {"id": model_id, "no": False}))
    for table, statement, values in inserts:
        if database.engine.dialect.name == "sqlite":
            with pytest.raises(IntegrityError, match="tenant_id"), database.write() as session:
                session.execute(text(statement), values)
            continue
        with database.write() as session:
            session.execute(text(statement), values)
            assert set(session.scalars(text(f"SELECT tenant_id FROM {table}"))) == {"vision"}
