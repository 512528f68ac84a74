"""What had succeeded before there were attestations is signed afterwards; jobs and reports survive both ways."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.attestations import repository
from service.db import Database, migrate
from tests.db.rows_of_then import count, insert_succeeded
from tests.support import services

BEFORE = "20261129_names"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: Any, tmp_path: Path) -> Iterator[str]:
    """A database of the test's own, at the schema before."""
    if request.param == "sqlite":
        migrate(f"sqlite:///{tmp_path / 'own.db'}", BEFORE)
        yield f"sqlite:///{tmp_path / 'own.db'}"
        return
    services.require(services.postgres_trouble())
    with services.new_postgres_database() as found:
        migrate(found, BEFORE)
        yield found


def unattested(database: Database) -> list[tuple[str, str]]:
    with database.read() as session:
        return repository.unattested_jobs(session, 10)


def test_jobs_of_before_are_signed_once_there_are_attestations(url: str) -> None:
    database = Database(url)
    with database.write() as session:
        jobs = [("default", insert_succeeded(session)) for _ in range(2)]
    database.close()
    migrate(url)
    database = Database(url)
    assert sorted(unattested(database)) == sorted(jobs)
    tenant_id, job_id = jobs[0]
    with database.write() as session:
        repository.add_attestation(session, tenant_id, job_id, attempt=1, key_id="0" * 16, envelope="{}")
        repository.add_attestation(session, "other", jobs[1][1], attempt=1, key_id="0" * 16, envelope="{}")
    assert unattested(database) == jobs[1:]
    assert count(database, "attestations") == 1
    database.close()
    migrate(url, BEFORE)
    migrate(url)
    database = Database(url)
    assert count(database, "reports") == count(database, "jobs") == 2
    assert sorted(unattested(database)) == sorted(jobs)
    database.close()
