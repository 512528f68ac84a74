"""The checker itself: on a healthy installation it finds nothing, and it finds each single damage, under its name."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert, update

from service.contracts.errors import EngineError
from service.db import Database
from service.ids import new_id
from service.jobs import events, transitions
from service.jobs.outcome import NewArtifact, QuantizeOutcome
from service.storage import FileStore
from service.tables import Dataset, JobEvent, ModelFile, ReportRow
from service.uploads import repository as uploads
from tests.db.test_transitions import add_dataset, add_model
from tests.fault.ledger import KEY_LABEL, Ledger, Verdict, check
from tests.support.front import make_report
from tests.support.tiny import Tiny

CLEAN = "lost=0 duplicated_effects=0 unexpected=0"
LOST = "lost=1 duplicated_effects=0 unexpected=0"
DUPLICATED = "lost=0 duplicated_effects=1 unexpected=0"
UNEXPECTED = "lost=0 duplicated_effects=0 unexpected=1"


@dataclass
class Healed:
    """What is left after the faults: one job was acknowledged and has succeeded, under the key ``k``."""

    database: Database
    store: FileStore
    ledger: Ledger
    model: Path
    folder: Path
    model_id: str = ""
    dataset_id: str = ""
    job_id: str = ""

    def put(self, data: bytes) -> str:
        path = self.folder / "incoming"
        path.write_bytes(data)
        return self.store.put_file(path).sha256

    def submit(self, key: str = "k", *, acknowledged: bool = True) -> str:
        """A queued job, as the client knows of it."""
        with self.database.write() as session:
            job_id = transitions.submit(
                session,
                tenant_id="default",
                kind="quantize",
                model_id=self.model_id,
                calibration_dataset_id=self.dataset_id,
                config={},
                labels={KEY_LABEL: key},
            ).id
        if acknowledged:
            self.ledger.asked(key, {})
            self.ledger.acknowledged(key, 202, job_id)
        return job_id

    def claim(self, job_id: str) -> None:
        with self.database.write() as session:
            assert transitions.claim(session, job_id, worker_id="w", lease_seconds=60.0) is not None

    def succeed(self, job_id: str, data: bytes | None = None, *, told_sha256: str | None = None) -> None:
        """Claim it and have it succeed with a model and a log, and a report about that model or another."""
        model, text = self.put(data or self.model.read_bytes()), self.put(b"worked")
        report = make_report()
        manifest = report.manifest.model_copy(update={"output_sha256": told_sha256 or model})
        artifacts = (
            NewArtifact("model", "net.onnx", "application/octet-stream", model, self.store.path(model).stat().st_size),
            NewArtifact("log", "log.txt", "text/plain", text, len(b"worked")),
        )
        self.claim(job_id)
        with self.database.write() as session:
            outcome = QuantizeOutcome(report.model_copy(update={"manifest": manifest}), artifacts)
            assert transitions.succeed(session, job_id, 1, result=outcome)

    def execute(self, statement: Any) -> None:
        with self.database.write() as session:
            assert session.execute(statement).rowcount == 1

    def verdict(self, **options: Any) -> Verdict:
        return check(self.ledger, self.database, self.store, **options)


@pytest.fixture
def healed(sqlite_url: str, tiny: Tiny, tmp_path: Path) -> Iterator[Healed]:
    database, ledger = Database(sqlite_url), Ledger(tmp_path / "ledger.jsonl")
    healed = Healed(database, FileStore(tmp_path / "storage"), ledger, tiny.model, tmp_path)
    uploaded = healed.put(b"uploaded")
    with database.write() as session:
        healed.model_id, healed.dataset_id = add_model(session), add_dataset(session)
        file = {"path": "net.onnx", "sha256": uploaded, "size_bytes": 8, "is_main": True}
        session.execute(insert(ModelFile).values(tenant_id="default", model_id=healed.model_id, **file))
        session.get_one(Dataset, healed.dataset_id).sha256 = uploaded
    healed.job_id = healed.submit()
    healed.succeed(healed.job_id)
    yield healed
    ledger.close()
    database.close()


def stored_model(healed: Healed) -> Path:
    with healed.database.read() as session:
        report = session.get_one(ReportRow, healed.job_id)
    return healed.store.path(report.body["manifest"]["output_sha256"])


def event(healed: Healed, seq: int) -> Any:
    return (JobEvent.job_id == healed.job_id, JobEvent.seq == seq)


def a_changed_byte(healed: Healed) -> None:
    path = stored_model(healed)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


def a_missing_byte(healed: Healed) -> None:
    path = stored_model(healed)
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1])


def a_missing_artifact(healed: Healed) -> None:
    stored_model(healed).unlink()


def a_missing_upload(healed: Healed) -> None:
    with healed.database.read() as session:
        healed.store.path(session.get_one(Dataset, healed.dataset_id).sha256).unlink()


def a_damaged_upload(healed: Healed) -> None:
    with healed.database.read() as session:
        path = healed.store.path(session.get_one(Dataset, healed.dataset_id).sha256)
    path.chmod(0o600)
    path.write_bytes(b"UPLOADED")


def a_file_that_nothing_collects(healed: Healed) -> None:
    stored_model(healed).with_name("model.onnx.tmp").touch()


def a_file_in_the_wrong_folder(healed: Healed) -> None:
    path = stored_model(healed)
    shutil.copyfile(path, healed.store.trash / f"{path.name}.old")


def a_model_that_does_not_load(healed: Healed) -> None:
    healed.succeed(healed.submit("other"), b"no model at all")


def a_report_of_another_model(healed: Healed) -> None:
    healed.succeed(healed.submit("other"), told_sha256="0" * 64)


def no_row(healed: Healed) -> None:
    healed.ledger.asked("gone", {})
    healed.ledger.acknowledged("gone", 202, "job_gone")


def left_queued(healed: Healed) -> None:
    healed.submit("other")


def left_running(healed: Healed) -> None:
    healed.claim(healed.submit("other"))


def two_jobs_for_a_key(healed: Healed) -> None:
    healed.succeed(healed.submit("k", acknowledged=False))


def two_ends(healed: Healed) -> None:
    with healed.database.write() as session:
        events.append(session, healed.job_id, 1, "state", {"name": "job.succeeded", "state": "succeeded"})


def a_missing_event(healed: Healed) -> None:
    healed.execute(delete(JobEvent).where(*event(healed, 2)))


def a_wrong_end(healed: Healed) -> None:
    data = {"name": "job.failed", "state": "failed"}
    healed.execute(update(JobEvent).where(*event(healed, 3)).values(data=data))


def an_event_of_an_attempt_that_never_was(healed: Healed) -> None:
    healed.execute(update(JobEvent).where(*event(healed, 2)).values(attempt=2))


def a_job_that_failed(healed: Healed) -> None:
    job_id = healed.submit("other")
    healed.claim(job_id)
    with healed.database.write() as session:
        assert transitions.fail(session, job_id, 1, problem=EngineError("boom").problem())


def a_cancel_that_nobody_asked_for(healed: Healed) -> None:
    job_id = healed.submit("other")
    with healed.database.write() as session:
        transitions.request_cancel(session, "default", job_id)


def a_job_that_nobody_asked_for(healed: Healed) -> None:
    healed.succeed(healed.submit("stranger", acknowledged=False))


def a_job_that_was_refused(healed: Healed) -> None:
    healed.succeed(healed.submit("refused", acknowledged=False))
    healed.ledger.asked("refused", {})
    healed.ledger.refused("refused", 503, "service-busy")


def an_answer_500(healed: Healed) -> None:
    healed.ledger.asked("k", {})
    healed.ledger.refused("k", 500, "internal")


def test_what_is_healthy_is_clean(healed: Healed) -> None:
    verdict = healed.verdict()

    assert verdict.told() == CLEAN
    assert verdict.clean
    assert verdict.states == {"succeeded": 1}


@pytest.mark.parametrize(
    ("damage", "count", "words"),
    [
        (a_changed_byte, LOST, "is damaged"),
        (a_missing_byte, LOST, "is damaged"),
        (a_missing_artifact, LOST, "is not in the store"),
        (a_missing_upload, LOST, ") is not in the store"),
        (a_damaged_upload, LOST, ") is damaged"),
        (a_model_that_does_not_load, LOST, "does not load"),
        (a_report_of_another_model, LOST, "about another model"),
        (no_row, LOST, "job_gone was acknowledged (gone) and has no row"),
        (left_queued, LOST, "has not ended: queued"),
        (left_running, LOST, "has not ended: running"),
        (two_jobs_for_a_key, DUPLICATED, "k made"),
        (two_ends, DUPLICATED, "ended 2 times"),
        (a_missing_event, UNEXPECTED, "have gaps: [1, 3]"),
        (a_wrong_end, UNEXPECTED, "its events say ['failed']"),
        (an_event_of_an_attempt_that_never_was, UNEXPECTED, "attempts that it never had"),
        (a_job_that_failed, UNEXPECTED, "failed on attempt 1: engine"),
        (a_cancel_that_nobody_asked_for, UNEXPECTED, "nobody asked for that"),
        (a_job_that_nobody_asked_for, UNEXPECTED, "was never asked for"),
        (a_job_that_was_refused, UNEXPECTED, "was refused"),
        (a_file_that_nothing_collects, UNEXPECTED, "model.onnx.tmp was left in the store"),
        (a_file_in_the_wrong_folder, UNEXPECTED, ".old was left in the store"),
        (an_answer_500, UNEXPECTED, "was answered with 500 internal"),
    ],
)
def test_every_damage_is_found(healed: Healed, damage: Callable[[Healed], None], count: str, words: str) -> None:
    damage(healed)

    verdict = healed.verdict()

    assert str(verdict) == count, verdict.told()
    assert words in verdict.told()
    assert not verdict.clean


def test_what_a_collection_takes_is_none_of_the_findings(healed: Healed) -> None:
    orphan = healed.put(b"made by an attempt that did not come to its end")
    healed.store.discard(healed.put(b"in the trash already"))
    part = healed.store.incoming / new_id("upl")
    part.write_bytes(b"of an upload that was forgotten")

    assert healed.verdict().told() == CLEAN
    assert not healed.store.path(orphan).exists()
    assert not part.exists()
    assert list(healed.store.trash.iterdir()) == []


def test_the_bytes_of_an_upload_on_its_way_are_expected(healed: Healed) -> None:
    with healed.database.write() as session:
        upload = uploads.create(
            session, "default", filename="n", kind=None, size_bytes=9, sha256=None, expiry_seconds=60
        )
    part = healed.store.incoming / upload.id
    part.write_bytes(b"half")

    assert healed.verdict().told() == CLEAN
    assert part.exists()


def test_a_process_that_was_left_behind_is_told_of(healed: Healed) -> None:
    verdict = healed.verdict(leftovers={4711: "quantmill worker"})

    assert str(verdict) == UNEXPECTED
    assert "process 4711 was left: quantmill worker" in verdict.told()


def test_a_job_that_was_sent_to_fail_may_fail(healed: Healed) -> None:
    a_job_that_failed(healed)

    assert healed.verdict(may_fail={"other"}).told() == CLEAN
