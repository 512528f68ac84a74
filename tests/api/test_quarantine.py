"""Models in quarantine over HTTP: refused in words wherever they are used, listed, and released."""

from __future__ import annotations

from service.contracts.errors import PoisonError
from service.jobs import transitions
from service.quarantine import suspects
from tests.support.front import Front, pointers, problem


def quarantine(front: Front, model_id: str) -> str:
    """As a worker does it after two faults; gives the digest."""
    job = front.claim(front.new_job(model_id=model_id))
    poison = PoisonError("it crashed").problem()
    with front.app.database.write() as session:
        assert suspects.note_crash(session, job, "ended by SIGSEGV", poison) is None
        told = suspects.note_crash(session, job, "ended by SIGSEGV", poison)
        assert told is not None
        transitions.fail(session, job.id, job.attempt, problem=told)
    return str(told.where["quarantine"])


def test_a_model_in_quarantine_is_refused_until_it_is_released(front: Front) -> None:
    model_id = front.ready_model()
    digest = quarantine(front, model_id)
    (item,) = front.http.get("/v1/quarantine").json()["items"]
    assert (item["digest"], item["model_id"], item["crashes"]) == (digest, model_id, 2)
    assert item["reason"] == "ended by SIGSEGV"
    refused = problem(front.http.post("/v1/jobs", json=front.job_body(model_id=model_id)), 409, "model-quarantined")
    assert pointers(refused) == ["/model_id"]
    assert item["job_id"] in refused["detail"]
    assert f"DELETE /v1/quarantine/{digest}" in refused["hint"]
    problem(front.http.post(f"/v1/models/{model_id}/inspect"), 409, "model-quarantined")
    files = [{"path": "model.onnx", "upload_id": front.upload()}]
    again = problem(front.http.post("/v1/models", json={"name": "again", "files": files}), 409, "model-quarantined")
    assert pointers(again) == ["/files"]
    assert front.http.delete(f"/v1/quarantine/{digest}").status_code == 204
    assert front.http.get("/v1/quarantine").json() == {"items": []}
    problem(front.http.delete(f"/v1/quarantine/{digest}"), 404, "quarantine-not-found")
    assert front.http.post("/v1/jobs", json=front.job_body(model_id=model_id)).status_code == 202
