"""Migrations over a database in use: what was there is there afterwards, and points where it pointed; both ways.

The schema goes up once, and stops where older code has left rows of a scene; down again, and up once more. Each scene
looks after its own rows alone.
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete, inspect, select, text, update
from sqlalchemy.orm import Session

from service.attestations import repository as attestations
from service.db import Database, current_revision, db_now, head_revision, migrate
from service.models import repository as models
from service.tables import Artifact, Base, Dataset, Job, JobEvent, Model, ModelFile, NounName
from tests.db.rows_of_then import add_inspection, insert_job, insert_row, insert_succeeded
from tests.db.scenes import Deeds, Notices, Operators, Scene
from tests.db.test_transitions import add_dataset, add_model, in_succeeded, submit

pytestmark = pytest.mark.both_databases

WHOLES = {"job_events": ("job_id", "jobs"), "reports": ("job_id", "jobs"), "model_files": ("model_id", "models")}
LIKE_AN_ID = "sch_" + "0" * 26
# Schedules of before: tenant and name, and the name afterwards.
NAMED = {
    "a": ("default", "nightly", "nightly"), "b": ("default", "nightly", "nightly-3"),
    "c": ("default", "nightly-2", "nightly-2"), "d": ("default", "nightly", "nightly-4"),
    "e": ("other", "nightly", "nightly"), "f": ("default", "n" * 200, "n" * 200),
    "g": ("default", "n" * 200, "n" * 198 + "-2"), "h": ("default", LIKE_AN_ID, f"{LIKE_AN_ID}-2"),
    "i": ("default", "Nightly", "Nightly"),
}  # fmt: skip


class Jobs(Scene):
    """The table of jobs is rebuilt: none is lost, and nothing that names one."""

    before = "20261120_spine"

    def parts(self) -> list[Any]:
        tables = ("job_events", "reports", "artifacts")
        return [self.ask(f"SELECT * FROM {table} WHERE job_id = :id", id=self.kept) for table in tables]

    def fill(self) -> None:
        with self.database.write() as session:
            self.kept = insert_succeeded(session)
        self.job = self.ask("SELECT * FROM jobs WHERE id = :id", id=self.kept)
        self.was = self.parts()
        self.fences()

    def fences(self) -> None:
        """What older code does not know."""
        for values in ({"kind": "inspect_target"}, {"calibration_dataset_id": None}):
            with self.refused() as session:
                insert_job(session, **values)

    def at_head(self) -> None:
        (found,) = self.ask("SELECT report_job_id FROM jobs WHERE id = :id", id=self.kept)
        assert found == self.kept, "the database computes whose report it has"
        with self.database.write() as session:
            self.gone = insert_job(session, calibration_dataset_id=None)
            model_id = session.scalar(select(Job.model_id).where(Job.id == self.kept))
            self.inspection = add_inspection(session, str(model_id)).job_id

    def back(self) -> None:
        assert self.ask("SELECT * FROM jobs WHERE id = :id", id=self.kept) == self.job
        assert [len(rows) for rows in self.parts()] == [1, 1, 1]
        assert self.parts() == self.was
        assert not {self.gone, self.inspection} & set(self.ask("SELECT id FROM jobs"))
        self.fences()

    def again(self) -> None:
        with self.refused() as session:
            session.execute(delete(Job).where(Job.id == self.kept))


class Archives(Scene):
    """Older code is left no archives, and nothing that was made of them."""

    before = "20261121_inspections"

    def at_head(self) -> None:
        with self.database.write() as session:
            self.kept, self.gone = in_succeeded(session), in_succeeded(session)
            archive = {"format": "tar.gz", "thumbnails_sha256": "0" * 64}
            session.execute(update(Dataset).where(Dataset.id == self.gone.calibration_dataset_id).values(archive))

    def back(self) -> None:
        with self.database.read() as session:
            for column in (Job.id, JobEvent.job_id, Artifact.job_id):
                assert set(session.scalars(select(column).where(column.in_([self.kept.id, self.gone.id])))) == {
                    self.kept.id
                }
        assert self.gone.calibration_dataset_id not in self.ask("SELECT id FROM datasets")

    def again(self) -> None:
        with self.refused() as session:
            session.execute(update(Dataset).values(format="rar"))


class Versions(Scene):
    """Models survive their versions; older code is left the whole ones, each with the file that it knows."""

    before = "20261122_random_calibration"

    def fill(self) -> None:
        with self.database.write() as session:
            insert_row(session, "models", id="mdl_old", name="older", format="onnx", status="validating")

    def at_head(self) -> None:
        with self.database.write() as session:
            old = session.get_one(Model, "mdl_old")
            assert (old.version, old.skeleton_model_id) == (1, None)
            self.made = in_succeeded(session).model_id
            ready: dict[str, Any] = {"status": "ready", "summary": {}}
            session.execute(update(Model).where(Model.id == "mdl_old").values(ready))
            version = {"skeleton_model_id": "mdl_old", "version": 2, "format": "safetensors"}
            session.execute(update(Model).where(Model.id == self.made).values(**ready, **version))
            session.execute(delete(ModelFile).where(ModelFile.model_id == self.made))
            for path, is_main in (("model.onnx", True), ("state.safetensors", False)):
                file = {"path": path, "sha256": "0" * 64, "size_bytes": 1, "is_main": is_main}
                session.add(ModelFile(tenant_id="default", model_id=self.made, **file))
            session.flush()
            self.unmade = models.create(session, "default", name="n", format="safetensors", files=[], skeleton=old).id
            submit(session, kind="inspect_model", model_id=self.unmade, calibration_dataset_id=None)

    def back(self) -> None:
        left = set(self.ask("SELECT id, format FROM models"))
        assert {(self.made, "onnx"), ("mdl_old", "onnx")} <= left
        assert self.unmade not in {model_id for model_id, _ in left}
        assert self.ask("SELECT path FROM model_files WHERE model_id = :id", id=self.made) == ["model.onnx"]


class Outlines(Scene):
    before = "20261123_waiting"

    def at_head(self) -> None:
        media = {"archive": "tar", "codecs": {"PNG": 1}, "classes": ["cat"], "smallest": [1], "largest": [1]}
        config = {"preset": "int8", "algorithms": [{"method": "adaround"}, {"method": "qat"}]}
        with self.database.write() as session:
            self.model, self.pictures, self.plain = add_model(session), add_dataset(session), add_dataset(session)
            for table, noun_id, summary in (
                (Model, self.model, {"node_names": ["a"], "node_count": 1}),
                (Dataset, self.pictures, {"media": media}),
                (Dataset, self.plain, {"media": None}),
            ):
                session.execute(update(table).where(table.id == noun_id).values(summary=summary, status="ready"))
            given = {"model_id": self.model, "calibration_dataset_id": self.pictures}
            self.jobs = [
                submit(session, config=config, size_class="short", device="cpu", **given).id,
                submit(session, config={"preset": "int8", "algorithms": []}, **given).id,
                submit(session, kind="inspect_model", model_id=self.model, config=None, calibration_dataset_id=None).id,
            ]

    def again(self) -> None:
        with self.database.read() as session:
            jobs = [session.get_one(Job, job_id) for job_id in self.jobs]
            found = [(job.preset, job.algorithms) for job in jobs]
            assert found == [("int8", ["adaround", "qat"]), ("int8", []), (None, None)]
            assert {(job.size_class, job.device) for job in jobs} == {("long", "auto")}
            assert session.get_one(Model, self.model).outline == {"node_count": 1}
            assert "classes" not in session.get_one(Dataset, self.pictures).outline["media"]
            assert session.get_one(Dataset, self.plain).outline == {"media": None}


class Parts(Scene):
    before = "20261125_tenants"

    def fill(self) -> None:
        """Two tenants, one of which has more; one without any part of one kind."""
        with self.database.write() as session:
            for tenant, jobs in (("it's vision", 3), ("plain", 2)):
                for _ in range(jobs):
                    job_id = insert_succeeded(session, tenant_id=tenant)
                    model_id = session.scalar(text("SELECT model_id FROM jobs WHERE id = :id"), {"id": job_id})
                    insert_row(session, "model_files", model_id=model_id, path="a.onnx", is_main=True)
            insert_job(session, tenant_id="third")
        self.was = self.parts("p.*")

    def parts(self, columns: str) -> dict[str, list[Any]]:
        mine = "w.tenant_id IN ('it''s vision', 'plain', 'third')"
        return {
            table: self.ask(f"SELECT {columns} FROM {table} p JOIN {whole} w ON w.id = p.{column} WHERE {mine}")
            for table, (column, whole) in WHOLES.items()
        }

    def at_head(self) -> None:
        for table, found in self.parts("p.tenant_id, w.tenant_id").items():
            assert len(found) == len(self.was[table]) >= 5
            assert all(mine == its for mine, its in found)
            assert {mine for mine, _ in found} >= {"plain", "it's vision"}

    def back(self) -> None:
        assert self.parts("p.*") == self.was


class Names(Scene):
    """What older code has stored is counted by name, and older code finds its own counting again."""

    before = "20261125_tenants"

    def fill(self) -> None:
        """A name given thrice, in another order than ids have, and by another tenant, too."""
        with self.database.write() as session:
            for row_id, tenant, name, created_at in (
                ("b", "default", "net", 1.0), ("c", "default", "net", 2.0), ("a", "default", "net", 3.0),
                ("d", "default", "other", 2.5), ("e", "acme", "net", 2.5),
            ):  # fmt: skip
                row = {"tenant_id": tenant, "name": name, "created_at": created_at, "status": "validating"}
                insert_row(session, "models", id=f"mdl_{row_id}", format="onnx", **row)
                insert_row(session, "datasets", id=f"dst_{row_id}", format="npz", sha256="0" * 64, **row)
            weights = {"created_at": 4.0, "status": "validating", "format": "safetensors"}
            insert_row(session, "models", id="mdl_f", name="net", skeleton_model_id="mdl_a", version=2, **weights)
            insert_row(session, "models", id="mdl_g", name="tuesday", skeleton_model_id="mdl_f", version=3, **weights)
        self.was = self.versions("models")

    def versions(self, table: str) -> dict[str, int]:
        found = self.ask(f"SELECT id, version FROM {table} WHERE length(id) = 5")
        return {row_id[4:]: version for row_id, version in found}

    def at_head(self) -> None:
        counted = {"b": 1, "c": 2, "a": 3, "d": 1, "e": 1}
        assert self.versions("models") == {**counted, "f": 4, "g": 1}
        assert self.versions("datasets") == counted
        with self.database.write() as session:
            made = models.create(session, "default", name="net", format="onnx", files=[])
            assert (made.version, made.tags, made.description, made.deleted_at) == (5, {}, None, None)
            assert session.get_one(NounName, ("default", "dataset", "net")).last_version == 3
            gone = {"status": "ready", "summary": {}, "deleted_at": db_now()}
            session.execute(update(Model).where(Model.id == "mdl_b").values(**gone))
            session.execute(update(Dataset).where(Dataset.id == "dst_b").values(**gone, sha256=""))

    def back(self) -> None:
        assert self.versions("models") == self.was
        for table, row_id in (("models", "mdl_b"), ("datasets", "dst_b")):
            assert self.ask(f"SELECT id FROM {table} WHERE status = 'rejected'") == [row_id], "nothing usable"

    def again(self) -> None:
        assert {name: self.versions("models")[name] for name in "bcade"} == {"b": 1, "c": 2, "a": 3, "d": 1, "e": 1}


class Attestations(Scene):
    """What had succeeded before is signed once there are attestations."""

    before = "20261129_names"

    def fill(self) -> None:
        with self.database.write() as session:
            self.jobs = [("default", insert_succeeded(session)) for _ in range(2)]

    def unattested(self) -> list[tuple[str, str]]:
        with self.database.read() as session:
            return [job for job in attestations.unattested_jobs(session, 1000) if job in self.jobs]

    def at_head(self) -> None:
        assert sorted(self.unattested()) == sorted(self.jobs)
        (tenant_id, job_id), (_, other) = self.jobs
        signed = {"attempt": 1, "key_id": "0" * 16, "envelope": "{}"}
        with self.database.write() as session:
            attestations.add_attestation(session, tenant_id, job_id, **signed)
            attestations.add_attestation(session, "other", other, **signed)
        assert self.unattested() == self.jobs[1:]
        assert self.ask("SELECT job_id FROM attestations") == [job_id]

    def again(self) -> None:
        assert sorted(self.unattested()) == sorted(self.jobs)


def insert_schedule(session: Session, key: str, **values: Any) -> None:
    schedule = {"id": key, "name": key, "overlap": "skip", "misfire": "skip", "skip_unchanged": False, **values}
    insert_row(session, "schedules", **schedule)


class LastPass(Scene):
    """Schedules keep the job that they accepted last, where it is there."""

    before = "20261202_batches"

    def fill(self) -> None:
        with self.database.write() as session:
            self.job = insert_succeeded(session)
            for key, last in (("there", self.job), ("gone", "job_gone"), ("none", None)):
                insert_schedule(session, key, last_pass_job_id=last, last_pass_fingerprint=last and "1" * 64)

    def at_head(self) -> None:
        found = self.ask(
            "SELECT id, last_pass_job_id, last_pass_fingerprint FROM schedules WHERE id IN ('gone', 'none', 'there')"
        )
        assert found == [("gone", None, None), ("none", None, None), ("there", self.job, "1" * 64)]

    back = at_head


class Evaluations(Scene):
    before = "20261203_last_pass"

    def at_head(self) -> None:
        with self.database.write() as session:
            self.kept, self.gone = in_succeeded(session), in_succeeded(session)
            values = {"kind": "evaluate", "evaluation_dataset_id": self.gone.calibration_dataset_id}
            session.execute(update(Job).where(Job.id == self.gone.id).values(**values))

    def back(self) -> None:
        for column in ("jobs.id", "reports.job_id", "artifacts.job_id"):
            found = self.ask(f"SELECT {column} FROM {column.split('.')[0]}")
            assert self.kept.id in found
            assert self.gone.id not in found

    def again(self) -> None:
        assert self.ask("SELECT report_job_id FROM jobs WHERE id = :id", id=self.kept.id) == [self.kept.id]


class ScheduleNames(Scene):
    """Of schedules of one name the oldest keeps it, and the others get names of their own."""

    before = "20261206_hand_overs"

    def fill(self) -> None:
        with self.database.write() as session:
            for key, (tenant, name, _) in NAMED.items():
                insert_schedule(session, key, tenant_id=tenant, name=name)

    def named(self) -> None:
        found = dict(self.ask("SELECT id, name FROM schedules WHERE length(id) = 1"))
        assert found == {key: name for key, (_, _, name) in NAMED.items()}

    def call_alike(self, session: Session) -> None:
        session.execute(text("UPDATE schedules SET name = 'nightly' WHERE id = 'b'"))

    def at_head(self) -> None:
        self.named()
        with self.refused() as session:
            self.call_alike(session)

    def back(self) -> None:
        self.named()
        with self.database.write() as session:
            self.call_alike(session)


SCENES = (
    Jobs, Archives, Versions, Outlines, Parts, Names, Attestations, LastPass, Evaluations, ScheduleNames, Deeds,
    Operators, Notices,
)  # fmt: skip


def tables(database: Database) -> set[str]:
    return set(inspect(database.engine).get_table_names()) - {"alembic_version"}


@pytest.mark.slow
def test_what_was_there_is_there_afterwards_both_ways(empty_url: str) -> None:
    database = Database(empty_url)
    scenes = [make(database) for make in SCENES]
    stops = list(dict.fromkeys(scene.before for scene in scenes))
    for revision in stops:
        migrate(empty_url, revision)
        for scene in scenes:
            if scene.before == revision:
                scene.fill()
    migrate(empty_url)
    assert current_revision(database) == head_revision()
    assert tables(database) == set(Base.metadata.tables)
    for scene in scenes:
        scene.at_head()
    for revision in reversed(stops):
        migrate(empty_url, revision)
        for scene in scenes:
            if scene.before == revision:
                scene.back()
    migrate(empty_url)
    migrate(empty_url)
    for scene in scenes:
        scene.again()
    migrate(empty_url, "base")
    assert (tables(database), current_revision(database)) == (set(), None)
    database.close()
