"""Migrations over a database in use: what was there is there afterwards, and points where it pointed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete, select, text, update
from sqlalchemy.exc import IntegrityError

from service.db import Database, migrate
from service.inspections import repository as inspections
from service.jobs import transitions
from service.models import repository as models
from service.tables import Artifact, Dataset, InspectionRow, Job, JobEvent, Model, ModelFile
from tests.db.rows_of_then import count, insert_job, insert_succeeded, stored
from tests.db.test_transitions import in_succeeded
from tests.support import services

BEFORE_INSPECTIONS = "20261120_spine"
BEFORE_ARCHIVES = "20261121_inspections"
BEFORE_VERSIONS = "20261122_random_calibration"
BEFORE_EVALUATIONS = "20261203_last_pass"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without any table."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    services.require(services.postgres_trouble())
    with services.new_postgres_database() as found:
        yield found


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    migrate(url, BEFORE_INSPECTIONS)
    found = Database(url)
    yield found
    found.close()


def add_inspection(database: Database, model_id: str) -> str:
    with database.write() as session:
        job = transitions.submit(
            session, tenant_id="default", kind="inspect_target", model_id=model_id, config={"target": "qnn"}
        )
        return inspections.create(session, job, config_sha256="0" * 64).id


def test_jobs_survive_the_rebuild_of_their_table_both_ways(url: str, database: Database) -> None:
    with database.write() as session:
        job_id = insert_succeeded(session)
    before = stored(database, "jobs", job_id)
    tables = ("jobs", "job_events", "reports", "artifacts")
    migrate(url)
    assert stored(database, "jobs", job_id)["report_job_id"] == job_id, "the database computes whose report it has"
    add_inspection(database, before["model_id"])
    migrate(url, BEFORE_INSPECTIONS)
    assert [count(database, table) for table in tables] == [1, 1, 1, 1]
    assert stored(database, "jobs", job_id) == before
    migrate(url)
    with pytest.raises(IntegrityError), database.write() as session:
        session.execute(delete(Job).where(Job.id == job_id))


def test_older_code_is_left_no_archives_and_nothing_made_of_them(url: str, database: Database) -> None:
    migrate(url)
    with database.write() as session:
        kept, gone = in_succeeded(session), in_succeeded(session)
        archive = Dataset.id == gone.calibration_dataset_id
        session.execute(update(Dataset).where(archive).values(format="tar.gz", thumbnails_sha256="0" * 64))
    migrate(url, BEFORE_ARCHIVES)
    with database.read() as session:
        assert session.scalars(select(Job.id)).all() == [kept.id]
        assert gone.calibration_dataset_id not in session.scalars(select(Dataset.id)).all()
        assert (
            set(session.scalars(select(JobEvent.job_id))) == set(session.scalars(select(Artifact.job_id))) == {kept.id}
        )
    migrate(url)
    with pytest.raises(IntegrityError), database.write() as session:
        session.execute(update(Dataset).values(format="rar"))


def test_models_survive_their_versions_both_ways(url: str, database: Database) -> None:
    migrate(url, BEFORE_VERSIONS)
    with database.write() as session:
        session.execute(
            text(
                "INSERT INTO models (id, tenant_id, name, format, status, row_version, created_at, updated_at)"
                " VALUES ('mdl_old', 'default', 'net', 'onnx', 'validating', 1, 0, 0)"
            )
        )
    migrate(url)
    with database.write() as session:
        old = session.get_one(Model, "mdl_old")
        assert (old.version, old.skeleton_model_id) == (1, None)
        made = in_succeeded(session).model_id
        session.execute(update(Model).where(Model.id == "mdl_old").values(status="ready", summary={}))
        version = {"skeleton_model_id": "mdl_old", "version": 2, "format": "safetensors"}
        session.execute(update(Model).where(Model.id == made).values(status="ready", summary={}, **version))
        session.execute(delete(ModelFile).where(ModelFile.model_id == made))
        for path in ("model.onnx", "state.safetensors"):
            is_main = path == "model.onnx"
            file = {"path": path, "sha256": "0" * 64, "size_bytes": 1, "is_main": is_main}
            session.add(ModelFile(tenant_id="default", model_id=made, **file))
        session.flush()
        unmade = models.create(session, "default", name="n", format="safetensors", files=[], skeleton=old)
        transitions.submit(session, tenant_id="default", kind="inspect_model", model_id=unmade.id)
    migrate(url, BEFORE_VERSIONS)
    with database.read() as session:
        formats = session.execute(text("SELECT id, format FROM models"))
        assert {(made, "onnx"), ("mdl_old", "onnx")} <= {(row.id, row.format) for row in formats}
        assert session.scalars(select(ModelFile.path).where(ModelFile.model_id == made)).all() == ["model.onnx"]
        assert session.scalar(text("SELECT count(*) FROM models WHERE id = :id"), {"id": unmade.id}) == 0
    migrate(url)


@pytest.mark.parametrize("values", [{"version": 0}, {"skeleton_model_id": "mdl_that_is_not_there"}])
def test_a_version_counts_and_its_skeleton_is_there(url: str, database: Database, values: dict[str, object]) -> None:
    migrate(url)
    with database.write() as session:
        model_id = in_succeeded(session).model_id
    with pytest.raises(IntegrityError), database.write() as session:
        session.execute(update(Model).where(Model.id == model_id).values(**values))


def test_the_older_schema_knows_no_inspections(database: Database) -> None:
    with pytest.raises(IntegrityError), database.write() as session:
        insert_job(session, kind="inspect_target")


@pytest.mark.parametrize(
    "values",
    [
        {"status": "ready"},
        {"status": "failed"},
        {"status": "odd"},
        {"result": {}},
        {"problem": {}},
        {"model_id": "mdl_that_is_not_there"},
    ],
    ids=lambda values: ",".join(values),
)
def test_an_inspection_cannot_be_made_inconsistent(url: str, database: Database, values: dict[str, object]) -> None:
    migrate(url)
    with database.write() as session:
        model_id = str(in_succeeded(session).model_id)
    inspection_id = add_inspection(database, model_id)
    with pytest.raises(IntegrityError), database.write() as session:
        session.execute(update(InspectionRow).where(InspectionRow.id == inspection_id).values(**values))


def test_a_model_has_one_lasting_inspection_by_a_config(url: str, database: Database) -> None:
    migrate(url)
    with database.write() as session:
        model_id = str(in_succeeded(session).model_id)
    first = add_inspection(database, model_id)
    with pytest.raises(IntegrityError):
        add_inspection(database, model_id)
    with database.write() as session:
        session.execute(
            update(InspectionRow).where(InspectionRow.id == first).values(status="failed", problem={"code": "x"})
        )
    add_inspection(database, model_id)


def test_an_inspection_job_has_a_model_and_a_config(url: str, database: Database) -> None:
    migrate(url)
    for missing in ({"model_id": None}, {"config": None}):
        with database.write() as session:
            model_id = str(in_succeeded(session).model_id)
        given = {"model_id": model_id, "config": {"target": "qnn"}, **missing}
        with pytest.raises(IntegrityError), database.write() as session:
            transitions.submit(session, tenant_id="default", kind="inspect_target", **given)


def test_a_job_without_calibration_data_is_known_from_its_migration_on(url: str, database: Database) -> None:
    with database.write() as session:
        kept = insert_succeeded(session)
    with pytest.raises(IntegrityError), database.write() as session:
        insert_job(session, calibration_dataset_id=None)
    migrate(url)
    with database.write() as session:
        insert_job(session, calibration_dataset_id=None)
    assert count(database, "jobs") == 2
    migrate(url, BEFORE_INSPECTIONS)
    with database.read() as session:
        assert session.scalars(text("SELECT id FROM jobs")).all() == [kept]


def test_older_code_is_left_no_evaluations(url: str, database: Database) -> None:
    migrate(url)
    with database.write() as session:
        kept, gone = in_succeeded(session), in_succeeded(session)
        values = {"kind": "evaluate", "evaluation_dataset_id": gone.calibration_dataset_id}
        session.execute(update(Job).where(Job.id == gone.id).values(**values))
    migrate(url, BEFORE_EVALUATIONS)
    assert [count(database, table) for table in ("jobs", "reports", "artifacts")] == [1, 1, 1]
    migrate(url)
    with database.read() as session:
        assert session.scalars(select(Job.id)).all() == [kept.id]
        assert session.scalar(text("SELECT report_job_id FROM jobs")) == kept.id
