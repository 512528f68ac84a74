"""Attestations over HTTP: signed once, by a key of the installation's that changes and stays known."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from fastapi import FastAPI
from sqlalchemy import select, update

from service.attestations import repository, signing
from service.attestations.dsse import SigningKey
from service.attestations.signing import attest
from service.contracts.errors import UnsupportedModelError
from service.db import Database, db_now
from service.jobs.outcome import QuantizeOutcome
from service.principal import COMMAND_LINE, Principal
from service.settings import Settings
from service.tables import Job, NewAuditEvent
from tests.api.conftest import front_of
from tests.support.attestations import opened
from tests.support.front import Front, make_report, npz_bytes, problem, taken
from tests.support.hand_overs import dump
from tests.support.patience import PATIENCE_SECONDS
from worker.reconcile.loops import Attester

OPERATOR = Principal("default", COMMAND_LINE, "operator")


def keys(front: Front) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = taken(front.http.get("/v1/keys/signing"))["items"]
    return items


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_what_a_job_made_is_attested_with_what_it_was_made_from(front: Front) -> None:
    job_id = front.new_job()
    files = (("model", b"quantized bytes"), ("report", b"{}"), ("costs", b"a"))
    made = tuple(front.kept(kind, f"{kind}.onnx", data) for kind, data in files)
    front.finish(job_id, QuantizeOutcome(make_report(), made))
    answer = front.http.get(f"/v1/jobs/{job_id}/attestation")
    assert answer.status_code == 200, answer.text
    (key,) = keys(front)
    statement = opened(answer.content, key["public_key"])
    digests = [subject["digest"] for subject in statement["subject"]]
    assert digests == [{"sha256": sha256(data)} for data in (b"quantized bytes", b"a", b"{}")]
    assert statement["subject"][0]["name"].endswith(".onnx")
    definition, run = statement["predicate"]["buildDefinition"], statement["predicate"]["runDetails"]
    given = {file["annotations"]["role"]: file for file in definition["resolvedDependencies"]}
    assert {role: file["digest"]["sha256"] for role, file in given.items()} == {
        "model": sha256(b"model bytes"),
        "calibration": sha256(npz_bytes()),
    }
    assert given["model"]["name"] == "tiny@1/model.onnx"
    assert given["calibration"]["name"] == "data@1"
    job, report = front.http.get(f"/v1/jobs/{job_id}").json(), front.http.get(f"/v1/jobs/{job_id}/report").json()
    assert definition["externalParameters"] == {"config": report["manifest"]["config"], "device": "auto"}
    assert run["builder"]["version"] == {"quantmill": report["manifest"]["engine_version"]}
    assert (run["metadata"]["invocationId"], run["metadata"]["quantmill_attempt"]) == (job_id, 1)
    assert run["metadata"]["finishedOn"] == job["finished_at"]
    with pytest.raises(InvalidSignature):
        opened(answer.content, SigningKey.made().public.pem)


def test_deleted_models_and_data_are_told_by_the_report(front: Front) -> None:
    job_id = front.succeeded_job()
    job = front.http.get(f"/v1/jobs/{job_id}").json()
    for path in (f"models/{job['model_id']}", f"datasets/{job['calibration_dataset_id']}"):
        assert front.http.delete(f"/v1/{path}").status_code == 204
    statement = opened(front.http.get(f"/v1/jobs/{job_id}/attestation").content, keys(front)[0]["public_key"])
    given = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert [(file["name"], file["digest"]["sha256"]) for file in given] == [("tiny@1", "0" * 64), ("data@1", "1" * 64)]


@pytest.mark.both_databases
def test_it_is_signed_once_and_what_changes_later_is_not_in_it(front: Front) -> None:
    path = f"/v1/jobs/{front.succeeded_job()}"
    first = front.http.get(f"{path}/attestation")
    front.http.patch(path, json={"name": "another"})
    with front.app.database.write() as session:
        session.execute(update(Job).values(finished_at=db_now() + 5.0, started_at=db_now()))
    signing.rotate(front.app.database, front.app.settings, OPERATOR)
    again = front.http.get(f"{path}/attestation")
    assert again.content == first.content
    assert again.json()["signatures"][0]["keyid"] == keys(front)[1]["id"]
    unchanged = {"If-None-Match": first.headers["etag"]}
    assert front.http.get(f"{path}/attestation", headers=unchanged).status_code == 304


def test_a_job_without_a_result_and_one_that_is_gone_have_none(front: Front) -> None:
    job_id, done = front.new_job(), front.succeeded_job()
    problem(front.http.get(f"/v1/jobs/{job_id}/attestation"), 409, "attestation-not-ready")
    front.fail(job_id, UnsupportedModelError("It has an operator that nobody knows."))
    problem(front.http.get(f"/v1/jobs/{job_id}/attestation"), 404, "attestation-not-found")
    front.http.get(f"/v1/jobs/{done}/attestation")
    assert front.http.delete(f"/v1/jobs/{done}").status_code == 204
    with front.app.database.read() as session:
        assert repository.attestation_of(session, "default", done) is None
    problem(front.http.get(f"/v1/jobs/{done}/attestation"), 404, "job-not-found")
    assert attest(front.app.database, front.app.settings, "default", done) is None


@pytest.mark.both_databases
def test_rotation_keeps_the_old_key_for_those_who_verify_and_no_secret_is_stored(front: Front) -> None:
    old_job, new_job = front.succeeded_job(), front.succeeded_job(b"other bytes")
    before = front.http.get(f"/v1/jobs/{old_job}/attestation").content
    made = signing.rotate(front.app.database, front.app.settings, OPERATOR)
    newest, oldest = keys(front)
    held, key = dump(front.app.database), signing.signing_key(front.app.database, front.app.settings)
    assert key.public.id in held
    for secret in (key.text, key.seed.hex(), repr(key.seed)[2:-1]):
        assert secret not in held
    assert (newest["id"], newest["retired_at"]) == (made.id, None)
    assert oldest["retired_at"] is not None
    opened(before, oldest["public_key"])
    opened(front.http.get(f"/v1/jobs/{new_job}/attestation").content, newest["public_key"])
    for key in (newest, oldest):
        public = load_pem_public_key(key["public_key"].encode())
        assert isinstance(public, Ed25519PublicKey)
        assert key["id"] == sha256(public.public_bytes_raw())[:16]


def test_a_key_of_another_pepper_signs_nothing_until_it_is_rotated(
    app: FastAPI, front: Front, settings: Settings
) -> None:
    job_id = front.succeeded_job()
    keys(front)
    other = settings.model_copy(update={"key_pepper": Settings(key_pepper="fedcba9876543210-of-length").key_pepper})
    with front_of(app, other) as elsewhere:
        refused = problem(elsewhere.http.get(f"/v1/jobs/{job_id}/attestation"), 409, "signing-key-unreadable")
        assert "rotate-signing" in refused["hint"]
        assert Attester(other, elsewhere.app.database).attest() == 0
        signing.rotate(elsewhere.app.database, other, OPERATOR)
        assert elsewhere.http.get(f"/v1/jobs/{job_id}/attestation").status_code == 200


@pytest.mark.postgres
def test_without_a_pepper_nothing_is_signed_and_the_service_says_so(
    app: FastAPI, tmp_path: Any, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(data_dir=tmp_path / "data", database_url=postgres_url, min_free_bytes=0)
    with front_of(app, settings) as front:
        job_id = front.succeeded_job()
        for path in (f"/v1/jobs/{job_id}/attestation", "/v1/keys/signing"):
            assert "QUANTMILL_KEY_PEPPER" in problem(front.http.get(path), 409, "signing-unavailable")["hint"]
        attester = Attester(settings, front.app.database)
        assert [attester.attest(), attester.attest()] == [0, 0]
    assert len([record for record in caplog.records if "not_signed" in record.message]) == 1


@pytest.mark.both_databases
def test_the_reconciler_signs_each_job_once(front: Front, settings: Settings) -> None:
    jobs = [front.succeeded_job(), front.succeeded_job(b"other bytes")]
    front.new_job()
    attester = Attester(settings, front.app.database)
    assert [attester.attest(), attester.attest()] == [2, 0]
    with front.app.database.read() as session:
        rows = [repository.attestation_of(session, "default", job_id) for job_id in jobs]
        assert repository.attestation_of(session, "other", jobs[0]) is None
    for job_id, row in zip(jobs, rows, strict=True):
        assert row is not None
        assert front.http.get(f"/v1/jobs/{job_id}/attestation").text == row.envelope


PARTIES = 4


@pytest.mark.both_databases
@pytest.mark.parametrize("work", ["need", "rotate"])
def test_processes_that_need_a_key_at_once_make_one(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """Each with connections of its own; none goes on before all have seen that there is no key."""
    settings.make_folders()
    made, barrier = SigningKey.made, threading.Barrier(PARTIES)

    def together() -> SigningKey:
        barrier.wait(PATIENCE_SECONDS)
        return made()

    monkeypatch.setattr(SigningKey, "made", together)

    def act(_: int) -> str:
        with closing(Database(settings.database_url)) as database:
            if work == "need":
                return signing.signing_key(database, settings).public.id
            return signing.rotate(database, settings, OPERATOR).id

    with ThreadPoolExecutor(PARTIES) as pool:
        ids = list(pool.map(act, range(PARTIES)))
    with closing(Database(settings.database_url)) as database, database.read() as session:
        rows = repository.signing_keys(session)
        noted = list(session.scalars(select(NewAuditEvent.object)))
    current = [row.id for row in rows if row.retired_at is None]
    assert len(current) == 1
    assert sorted(noted) == sorted(row.id for row in rows)
    assert set(ids) <= {row.id for row in rows}
    if work == "need":
        assert len(rows) == 1
