"""A file that the tenant has already does not travel again; nobody learns what others have."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from sqlalchemy import delete, insert

from service.db import db_now
from service.files import repository as files
from service.tables import DamagedFile, Model, ModelFile, Upload
from tests.support.front import Front, npz_bytes, problem
from worker.upkeep.garbage import discard_garbage

DATA = b"some bytes of a model"


def announce(front: Front, data: bytes, **changes: Any) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    body = {"filename": "again.bin", "size_bytes": len(data), "sha256": digest, **changes}
    answer = front.http.post("/v1/uploads", json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    assert answer.headers["upload-offset"] == str(made["offset"])
    return made


def forget_uploads(front: Front) -> None:
    with front.desk.database.write() as session:
        session.execute(delete(Upload))


@pytest.mark.both_databases
@pytest.mark.parametrize("held_by", ["upload", "model", "dataset", "result"])
def test_a_file_of_the_tenant_is_complete_at_once(front: Front, held_by: str) -> None:
    data = {"model": b"model bytes", "dataset": npz_bytes()}.get(held_by, DATA)
    if held_by == "upload":
        front.upload(data)
    else:
        {"model": front.new_model, "dataset": front.new_dataset, "result": lambda: front.succeeded_job(data)}[held_by]()
        forget_uploads(front)
    made = announce(front, data)
    assert (made["state"], made["offset"], made["size_bytes"]) == ("complete", len(data), len(data))
    assert made["sha256"] == hashlib.sha256(data).hexdigest()
    assert front.http.get(made["links"]["self"]).json() == made
    problem(front.http.put(made["links"]["content"], content=data), 409, "upload-complete")
    body = {"name": "new", "files": [{"upload_id": made["id"], "path": "m.onnx"}]}
    assert front.http.post("/v1/models", json=body).status_code == 201


def test_without_digest_and_size_every_file_is_sent(front: Front) -> None:
    announce(front, DATA)
    assert announce(front, DATA)["state"] == "open", "bytes that have not all come are no file"
    front.upload(DATA)
    for changes in ({"size_bytes": None}, {"sha256": None}, {"size_bytes": len(DATA) + 1}):
        assert announce(front, DATA, **changes)["state"] == "open"
    assert announce(front, DATA + b"!")["state"] == "open"


def test_a_file_that_is_damaged_or_gone_is_sent_again_and_healed(front: Front) -> None:
    front.upload(DATA)
    digest = hashlib.sha256(DATA).hexdigest()
    with front.desk.database.write() as session:
        session.execute(insert(DamagedFile).values(sha256=digest, damage="digest", found_at=db_now()))
    made = announce(front, DATA)
    assert made["state"] == "open"
    assert front.http.put(made["links"]["content"], content=DATA).json()["state"] == "complete"
    assert announce(front, DATA)["state"] == "complete"
    front.desk.store.path(digest).unlink()
    assert announce(front, DATA)["state"] == "open"


def test_its_quota_is_that_of_a_file_that_is_sent(front: Front) -> None:
    front.upload(DATA)
    front.http.put("/v1/tenants/default/quota", json={"upload_bytes": len(DATA) - 1})
    digest = hashlib.sha256(DATA).hexdigest()
    body = {"filename": "a", "size_bytes": len(DATA), "sha256": digest}
    problem(front.http.post("/v1/uploads", json=body), 429, "quota-exceeded")
    front.http.put("/v1/tenants/default/quota", json={"stored_bytes": 2 * len(DATA)})
    assert front.http.post("/v1/uploads", json=body).json()["state"] == "complete"
    assert front.http.get("/v1/quota").json()["usage"]["stored_bytes"] == len(DATA)


def test_what_was_taken_over_is_not_collected(front: Front) -> None:
    first = front.upload(DATA)
    second = announce(front, DATA)["id"]
    with front.desk.database.write() as session:
        session.execute(delete(Upload).where(Upload.id == first))
    collected = discard_garbage(front.desk.database, front.desk.store, 100, age_seconds=-1.0)
    assert collected.items == 0
    files = [{"upload_id": second, "path": "m.onnx"}]
    assert front.http.post("/v1/models", json={"name": "m", "files": files}).status_code == 201


@pytest.mark.both_databases
@pytest.mark.parametrize("emptied", [False, True], ids=["in the trash", "gone"])
def test_collection_between_the_look_and_the_row(front: Front, monkeypatch: pytest.MonkeyPatch, emptied: bool) -> None:
    """What went to the trash meanwhile comes back; what is gone for good has to be sent."""
    front.upload(DATA)
    look = files.has_file

    def look_and_collect(*args: Any) -> bool:
        found = look(*args)
        with front.desk.database.write() as session:
            for table in (Upload, ModelFile, Model):
                session.execute(delete(table))
        assert discard_garbage(front.desk.database, front.desk.store, 100, age_seconds=-1.0).items == 1
        if emptied:
            for path in front.desk.store.trash.rglob("*"):
                if path.is_file():
                    path.unlink()
        return found

    monkeypatch.setattr(files, "has_file", look_and_collect)
    made = announce(front, DATA)
    assert made["state"] == ("open" if emptied else "complete")
    assert front.desk.store.path(hashlib.sha256(DATA).hexdigest()).exists() is not emptied
