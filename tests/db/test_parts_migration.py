"""Parts of nouns get the tenant of what they are a part of; both ways, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.db import Database, migrate
from tests.db.rows_of_then import insert_job, insert_row, insert_succeeded
from tests.support import services

BEFORE = "20261125_tenants"
PARTS = {"job_events": ("job_id", "jobs"), "reports": ("job_id", "jobs"), "model_files": ("model_id", "models")}
EVENT = (
    "INSERT INTO job_events (job_id, seq, attempt, type, data, created_at) VALUES (:id, 2, 0, 'progress', '{}', 1.0)"
)
FILE = "INSERT INTO model_files (model_id, path, sha256, size_bytes, is_main) VALUES (:id, 'b.bin', 'x', 1, :no)"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database before the migration."""
    if request.param == "sqlite":
        migrate(f"sqlite:///{tmp_path / 'own.db'}", BEFORE)
        yield f"sqlite:///{tmp_path / 'own.db'}"
        return
    services.require(services.postgres_trouble())
    with services.new_postgres_database() as found:
        migrate(found, BEFORE)
        yield found


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    found = Database(url)
    yield found
    found.close()


def fill(session: Session) -> None:
    """Two tenants, one of which has more; one without any part of one kind."""
    for tenant, jobs in (("it's vision", 3), ("default", 2)):
        for _ in range(jobs):
            job_id = insert_succeeded(session, tenant_id=tenant)
            model_id = session.scalar(text("SELECT model_id FROM jobs WHERE id = :id"), {"id": job_id})
            insert_row(session, "model_files", model_id=model_id, path="a.onnx", is_main=True)
    insert_job(session, tenant_id="third")


def rows(database: Database, table: str, columns: str = "*") -> list[tuple[object, ...]]:
    with database.read() as session:
        return sorted((tuple(row) for row in session.execute(text(f"SELECT {columns} FROM {table}"))), key=repr)


def test_parts_get_the_tenant_of_their_whole(url: str, database: Database) -> None:
    with database.write() as session:
        fill(session)
    before = {table: rows(database, table) for table in PARTS}
    migrate(url)
    for table, (column, whole) in PARTS.items():
        joined = f"{table} p JOIN {whole} w ON w.id = p.{column}"
        found = rows(database, joined, "p.tenant_id, w.tenant_id")
        assert len(found) == len(before[table]) >= 5
        assert all(mine == its for mine, its in found)
        assert {mine for mine, _ in found} >= {"default", "it's vision"}
    migrate(url, BEFORE)
    assert {table: rows(database, table) for table in PARTS} == before
    migrate(url)


def test_an_empty_database_is_migrated_and_refuses_parts_of_nobody(url: str, database: Database) -> None:
    migrate(url)
    with pytest.raises(IntegrityError), database.write() as session:
        session.execute(text(EVENT), {"id": "job_of_nobody"})


def test_older_code_goes_on_where_it_may_run_meanwhile(url: str, database: Database) -> None:
    """Its INSERTs know no tenant; on SQLite there is none, since one host migrates before anything starts."""
    with database.write() as session:
        job_id = insert_job(session, tenant_id="vision")
        model_id = session.scalar(text("SELECT model_id FROM jobs WHERE id = :id"), {"id": job_id})
    migrate(url)
    inserts = (("job_events", EVENT, {"id": job_id}), ("model_files", FILE, {"id": model_id, "no": False}))
    for table, statement, values in inserts:
        if url.startswith("sqlite"):
            with pytest.raises(IntegrityError, match="tenant_id"), database.write() as session:
                session.execute(text(statement), values)
            continue
        with database.write() as session:
            session.execute(text(statement), values)
        assert {tenant for (tenant,) in rows(database, table, "tenant_id")} == {"vision"}
