"""What lists tell is taken out of the documents that were there before; both ways, on both databases."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from service.db import Database, migrate
from service.jobs import transitions
from service.tables import Dataset, Job, Model
from tests.db.test_transitions import add_dataset, add_model
from tests.support import services

BEFORE = "20261123_waiting"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def own_url(request, tmp_path):
    """A database of the test's own, at the newest schema."""
    if request.param == "sqlite":
        migrate(f"sqlite:///{tmp_path / 'own.db'}")
        yield f"sqlite:///{tmp_path / 'own.db'}"
        return
    services.require(services.postgres_trouble())
    with services.new_postgres_database() as found:
        migrate(found)
        yield found


def test_what_lists_tell_is_found_in_older_rows(own_url: str) -> None:
    database = Database(own_url)
    media = {"archive": "tar", "codecs": {"PNG": 1}, "classes": ["cat"], "smallest": [1], "largest": [1]}
    with database.write() as session:
        model_id, dataset_id, plain_id = add_model(session), add_dataset(session), add_dataset(session)
        ready = {"status": "ready"}
        session.execute(update(Model).values(summary={"node_names": ["a"], "node_count": 1}, **ready))
        session.execute(update(Dataset).where(Dataset.id == dataset_id).values(summary={"media": media}, **ready))
        session.execute(update(Dataset).where(Dataset.id == plain_id).values(summary={"media": None}, **ready))
        config = {"preset": "int8", "algorithms": [{"method": "adaround"}, {"method": "qat"}]}
        given = {"tenant_id": "default", "kind": "quantize", "model_id": model_id, "calibration_dataset_id": dataset_id}
        jobs = [
            transitions.submit(session, config=config, size_class="short", device="cpu", **given).id,
            transitions.submit(session, config={"preset": "int8", "algorithms": []}, **given).id,
            transitions.submit(session, tenant_id="default", kind="inspect_model", model_id=model_id).id,
        ]
    database.close()
    migrate(own_url, BEFORE)
    migrate(own_url)
    database = Database(own_url)
    with database.read() as session:
        rows = [session.get_one(Job, job) for job in jobs]
        assert [(job.preset, job.algorithms) for job in rows] == [
            ("int8", ["adaround", "qat"]), ("int8", []), (None, None),
        ]  # fmt: skip
        assert {(job.size_class, job.device) for job in rows} == {("long", "auto")}
        assert session.get_one(Model, model_id).outline == {"node_count": 1}
        assert "classes" not in session.get_one(Dataset, dataset_id).outline["media"]
        assert session.get_one(Dataset, plain_id).outline == {"media": None}
    database.close()
