"""Names: what older code has stored is counted by name, and older code finds its own counting again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text, update

from service.db import Database, db_now, migrate
from service.models import repository as models
from service.tables import Dataset, Model, NounName
from tests.db.rows_of_then import insert_row
from tests.support import services

BEFORE = "20261125_tenants"
DIGEST = "0" * 64


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    services.require(services.postgres_trouble())
    with services.new_postgres_database() as found:
        yield found


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    """As older code has left it: a name given thrice, in another order than ids have, and by another tenant, too."""
    migrate(url, BEFORE)
    found = Database(url)
    with found.write() as session:
        for row_id, tenant, name, created_at in (
            ("b", "default", "net", 1.0), ("c", "default", "net", 2.0), ("a", "default", "net", 3.0),
            ("d", "default", "other", 2.5), ("e", "acme", "net", 2.5),
        ):  # fmt: skip
            row = {"tenant_id": tenant, "name": name, "created_at": created_at, "status": "validating"}
            insert_row(session, "models", id=f"mdl_{row_id}", format="onnx", **row)
            insert_row(session, "datasets", id=f"dst_{row_id}", format="npz", sha256=DIGEST, **row)
        weights = {"tenant_id": "default", "created_at": 4.0, "status": "validating", "format": "safetensors"}
        insert_row(session, "models", id="mdl_f", name="net", skeleton_model_id="mdl_a", version=2, **weights)
        insert_row(session, "models", id="mdl_g", name="tuesday", skeleton_model_id="mdl_f", version=3, **weights)
    yield found
    found.close()


def versions(database: Database, table: str) -> dict[str, int]:
    with database.read() as session:
        return {row.id[4:]: row.version for row in session.execute(text(f"SELECT id, version FROM {table}"))}


def test_rows_are_counted_by_tenant_and_name_in_the_order_of_their_making(url: str, database: Database) -> None:
    migrate(url)
    counted = {"b": 1, "c": 2, "a": 3, "d": 1, "e": 1}
    assert versions(database, "models") == {**counted, "f": 4, "g": 1}
    assert versions(database, "datasets") == counted
    with database.write() as session:
        made = models.create(session, "default", name="net", format="onnx", files=[])
        assert (made.version, made.tags, made.description, made.deleted_at) == (5, {}, None, None)
        known = session.get_one(NounName, ("default", "dataset", "net"))
        assert known.last_version == 3


def test_older_code_finds_its_own_counting_and_nothing_usable_that_was_deleted(url: str, database: Database) -> None:
    before = versions(database, "models")
    migrate(url)
    with database.write() as session:
        gone = {"status": "ready", "summary": {}, "deleted_at": db_now()}
        session.execute(update(Model).where(Model.id == "mdl_b").values(**gone))
        session.execute(update(Dataset).where(Dataset.id == "dst_b").values(**gone, sha256=""))
    migrate(url, BEFORE)
    assert versions(database, "models") == before
    with database.read() as session:
        for table in ("models", "datasets"):
            found = session.execute(text(f"SELECT id FROM {table} WHERE status = 'rejected'")).scalars().all()
            assert [row_id[4:] for row_id in found] == ["b"]
    migrate(url)
    assert versions(database, "models")["f"] == 4
