"""The schema: migrations go up and down, end where the tables are, and hold the invariants. On both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import delete, inspect, update
from sqlalchemy.exc import IntegrityError

from service.db import Database, current_revision, db_now, head_revision, migrate
from service.tables import Base, Job, JobEvent, Model, ReportRow
from tests.db.test_concurrency import at_once
from tests.db.test_transitions import in_succeeded, running, submit
from tests.support import services


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without any table."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    services.require(services.postgres_trouble())
    with services.new_postgres_database() as url:
        yield url


def open_database(url: str) -> Database:
    return Database(url)


def test_up_down_up(empty_url: str) -> None:
    database = open_database(empty_url)
    for revision, expected in (("head", head_revision()), ("base", None), ("head", head_revision())):
        migrate(empty_url, revision)
        assert current_revision(database) == expected
        tables = set(inspect(database.engine).get_table_names()) - {"alembic_version"}
        assert tables == (set() if expected is None else set(Base.metadata.tables))
    database.close()


def test_migrating_twice_is_harmless(empty_url: str) -> None:
    migrate(empty_url)
    migrate(empty_url)
    database = open_database(empty_url)
    assert current_revision(database) == head_revision()
    database.close()


def test_processes_that_migrate_at_once_wait_for_each_other(empty_url: str) -> None:
    at_once(4, lambda _: migrate(empty_url))
    database = open_database(empty_url)
    assert current_revision(database) == head_revision()
    database.close()


def test_tables_and_migrations_agree(empty_url: str) -> None:
    migrate(empty_url)
    database = open_database(empty_url)
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    migrated = _constraints(database)
    migrate(empty_url, "base")
    Base.metadata.create_all(database.engine)
    assert _constraints(database) == migrated
    database.close()


def _constraints(database: Database) -> dict[str, Any]:
    """Everything that autogenerate does not compare: checks, keys, nullability."""
    inspector = inspect(database.engine)
    return {
        table: {
            "checks": sorted((check["name"], check["sqltext"]) for check in inspector.get_check_constraints(table)),
            "primary": inspector.get_pk_constraint(table),
            "foreign": sorted(str(key) for key in inspector.get_foreign_keys(table)),
            "unique": sorted(str(key) for key in inspector.get_unique_constraints(table)),
            "columns": {
                column["name"]: (str(column["type"]), column["nullable"]) for column in inspector.get_columns(table)
            },
            "indexes": sorted(map(_index, inspector.get_indexes(table))),
        }
        for table in Base.metadata.tables
    }


def _index(found: Any) -> tuple[str, ...]:
    """Its name, its columns, and what it leaves out."""
    conditions = {name: str(told) for name, told in found.get("dialect_options", {}).items() if name.endswith("_where")}
    return found["name"], str(found["column_names"]), str(found["unique"]), str(conditions)


@pytest.mark.parametrize(
    "values",
    [
        {"state": "running"},
        {"state": "dreaming"},
        {"state": "failed", "finished_at": 1.0},
        {"state": "succeeded"},
        {"state": "canceled"},
        {"finished_at": 1.0},
        {"error": {"code": "x"}},
        {"cancel_requested_at": 1.0},
        {"attempt": -1},
        {"interruptions": 1},
        {"kind": "cook"},
        {"config": None},
        {"model_id": None},
        {"model_id": "mdl_that_is_not_there"},
    ],
    ids=lambda values: ",".join(values),
)
def test_a_queued_job_cannot_be_made_inconsistent(database: Database, values: dict[str, Any]) -> None:
    with database.write() as session:
        job = submit(session)
    with pytest.raises(IntegrityError), database.write() as session:
        session.execute(update(Job).where(Job.id == job.id).values(**values))


@pytest.mark.parametrize(
    "values", [{"lease_until": None}, {"worker_id": None}, {"attempt": 0}], ids=lambda v: next(iter(v))
)
def test_a_running_job_has_lease_worker_and_attempt(database: Database, values: dict[str, Any]) -> None:
    with database.write() as session:
        job = running(session)
    with pytest.raises(IntegrityError), database.write() as session:
        session.execute(update(Job).where(Job.id == job.id).values(**values))


def test_a_job_has_one_report(database: Database) -> None:
    with database.write() as session:
        job = in_succeeded(session)
    with pytest.raises(IntegrityError), database.write() as session:
        session.add(
            ReportRow(tenant_id="default", job_id=job.id, attempt=2, verdict="pass", body={}, created_at=db_now())
        )


def test_event_numbers_are_unique(database: Database) -> None:
    with database.write() as session:
        job = submit(session)
    with pytest.raises(IntegrityError), database.write() as session:
        event = {"seq": 1, "attempt": 0, "type": "log", "data": {}, "created_at": db_now()}
        session.add(JobEvent(tenant_id="default", job_id=job.id, **event))


def test_what_a_job_needs_cannot_be_deleted(database: Database) -> None:
    with database.write() as session:
        job = submit(session)
    with pytest.raises(IntegrityError), database.write() as session:
        session.execute(delete(Model).where(Model.id == job.model_id))


@pytest.mark.parametrize(
    "values", [{"status": "ready"}, {"status": "rejected"}, {"status": "odd"}], ids=lambda v: v["status"]
)
def test_a_model_is_ready_only_with_a_summary(database: Database, values: dict[str, Any]) -> None:
    with database.write() as session:
        job = submit(session)
    with pytest.raises(IntegrityError), database.write() as session:
        session.execute(update(Model).where(Model.id == job.model_id).values(**values))
