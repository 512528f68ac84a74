"""The checker itself: on a healthy installation it finds nothing, and it finds each single damage, under its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import delete, insert, update

from service.contracts.errors import EngineError
from service.db import Database
from service.jobs import transitions
from service.jobs.outcome import NewArtifact, QuantizeOutcome
from service.resources import new_id
from service.storage import FileStore
from service.tables import Dataset, JobEvent, ModelFile
from tests.db.test_transitions import add_dataset, add_model
from tests.fault.ledger import KEY_LABEL, Ledger, check
from tests.support.front import make_report


class Healed:
    """What is left after the faults: one job was acknowledged and has succeeded, under the key ``k``."""

    def __init__(self, database: Database, folder: Path, model: Path) -> None:
        self.database, self.store = database, FileStore(folder / "storage")
        self.ledger, self.model, self.folder = Ledger(folder / "ledger.jsonl"), model.read_bytes(), folder
        uploaded = self.put(b"uploaded")
        with database.write() as session:
            self.given = {"model_id": add_model(session), "calibration_dataset_id": add_dataset(session)}
            file = {"path": "net.onnx", "sha256": uploaded, "size_bytes": 8, "is_main": True}
            session.execute(insert(ModelFile).values(tenant_id="default", model_id=self.given["model_id"], **file))
            session.get_one(Dataset, self.given["calibration_dataset_id"]).sha256 = uploaded
        self.uploaded, self.made = self.store.path(uploaded), self.store.path(self.put(self.model))
        self.job_id = self.acknowledge("k", self.succeed(self.submit("k")))

    def put(self, data: bytes) -> str:
        (self.folder / "incoming").write_bytes(data)
        return self.store.put_file(self.folder / "incoming").sha256

    def submit(self, key: str) -> str:
        with self.database.write() as session:
            given = {**self.given, "config": {}, "labels": {KEY_LABEL: key}}
            return transitions.submit(session, transitions.NewJob(tenant_id="default", kind="quantize", **given)).id

    def acknowledge(self, key: str, job_id: str) -> str:
        self.ledger.asked(key, {})
        self.ledger.acknowledged(key, 202, job_id)
        return job_id

    def refuse(self, key: str, code: str) -> None:
        self.ledger.asked(key, {})
        self.ledger.refused(key, 500, code)

    def succeed(self, job_id: str, data: bytes | None = None, told_sha256: str | None = None) -> str:
        """With a model, and a report about that model or another."""
        sha256 = self.put(data or self.model)
        report = make_report()
        manifest = report.manifest.model_copy(update={"output_sha256": told_sha256 or sha256})
        made = NewArtifact("model", "net.onnx", "application/octet-stream", sha256, len(data or self.model))
        outcome = QuantizeOutcome(report.model_copy(update={"manifest": manifest}), (made,))
        with self.database.write() as session:
            assert transitions.claim(session, job_id, worker_id="w", lease_seconds=60.0) is not None
            assert transitions.succeed(session, job_id, 1, result=outcome)
        return job_id

    def fail(self, job_id: str) -> str:
        with self.database.write() as session:
            assert transitions.claim(session, job_id, worker_id="w", lease_seconds=60.0) is not None
            assert transitions.fail(session, job_id, 1, problem=EngineError("boom").problem())
        return job_id

    def cancel(self, job_id: str) -> str:
        with self.database.write() as session:
            transitions.request_cancel(session, "default", job_id)
        return job_id

    def event(self, action, seq: int) -> None:
        with self.database.write() as session:
            assert session.execute(action.where(JobEvent.job_id == self.job_id, JobEvent.seq == seq)).rowcount == 1

    def overwrite(self, path: Path, data: bytes) -> None:
        path.chmod(0o600)
        path.write_bytes(data)


@pytest.fixture
def healed(sqlite_url, tiny, tmp_path):
    database = Database(sqlite_url)
    healed = Healed(database, tmp_path, tiny.model)
    yield healed
    healed.ledger.close()
    database.close()


FAILED = {"name": "job.failed", "state": "failed"}
DAMAGES = [
    ("lost", lambda it: it.overwrite(it.made, it.made.read_bytes()[:-1]), "is damaged"),
    ("lost", lambda it: it.made.unlink(), "is not in the store"),
    ("lost", lambda it: it.overwrite(it.uploaded, b"UPLOADED"), ") is damaged"),
    ("lost", lambda it: it.acknowledge("o", it.succeed(it.submit("o"), b"no model at all")), "does not load"),
    ("lost", lambda it: it.acknowledge("o", it.succeed(it.submit("o"), None, "0" * 64)), "about another model"),
    ("lost", lambda it: it.acknowledge("gone", "job_gone"), "job_gone was acknowledged (gone) and has no row"),
    ("lost", lambda it: it.acknowledge("o", it.submit("o")), "has not ended: queued"),
    ("duplicated", lambda it: it.succeed(it.submit("k")), "k made"),
    ("unexpected", lambda it: it.event(delete(JobEvent), 2), "have gaps: [1, 3]"),
    ("unexpected", lambda it: it.event(update(JobEvent).values(data=FAILED), 3), "its events say ['failed']"),
    ("unexpected", lambda it: it.event(update(JobEvent).values(attempt=2), 2), "attempts that it never had"),
    ("unexpected", lambda it: it.acknowledge("o", it.fail(it.submit("o"))), "failed on attempt 1: engine"),
    ("unexpected", lambda it: it.acknowledge("o", it.cancel(it.submit("o"))), "nobody asked for that"),
    ("unexpected", lambda it: it.succeed(it.submit("stranger")), "was never asked for"),
    ("unexpected", lambda it: it.made.with_name("model.onnx.tmp").touch(), "model.onnx.tmp was left in the store"),
    ("unexpected", lambda it: it.refuse("k", "internal"), "was answered with 500 internal"),
]


@pytest.mark.parametrize(("kind", "damage", "words"), DAMAGES)
def test_every_damage_is_found(healed, kind, damage, words):
    damage(healed)
    verdict = check(healed.ledger, healed.database, healed.store)
    found = {"lost": verdict.lost, "duplicated": verdict.duplicated_effects, "unexpected": verdict.unexpected}
    assert {name: len(findings) for name, findings in found.items() if findings} == {kind: 1}, verdict.told()
    assert words in verdict.told()
    assert not verdict.clean


def test_what_is_healthy_or_meant_or_collected_is_none_of_the_findings(healed):
    orphan, forgotten = healed.put(b"made by an attempt that did not come to its end"), new_id("upl")
    (healed.store.incoming / forgotten).write_bytes(b"half")
    healed.acknowledge("o", healed.fail(healed.submit("o")))
    verdict = check(healed.ledger, healed.database, healed.store, may_fail={"o"}, leftovers={4711: "quantmill"})
    assert verdict.states == {"succeeded": 1, "failed": 1}
    assert verdict.told().splitlines()[1:] == ["  unexpected: process 4711 was left: quantmill"]
    assert not healed.store.path(orphan).exists()
    assert not (healed.store.incoming / forgotten).exists()
