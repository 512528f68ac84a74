"""The audit: one row per deed, in its transaction; a row that was changed, taken or moved is found."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import delete, update

from service.audit import repository
from service.audit.service import note, verify
from service.db import Database
from service.principal import Principal
from service.tables import AuditEvent
from tests.api.test_quarantine import quarantine
from tests.support.front import Front, problem

BY = Principal("acme", "key_1", "submit", "192.0.2.1", "req_1")
ROWS = 5


def fill(database: Database) -> None:
    for number in range(ROWS):
        with database.write() as session:
            note(session, BY, "job.create", f"job_{number}")


def rows(front: Front) -> list[tuple[str, str, str]]:
    with front.desk.database.read() as session:
        found = repository.page(session, tenant_id=None, before=None, limit=100)
    return [(row.action, row.object, row.request_id) for row in reversed(found)]


def test_an_audit_as_it_was_written_is_good(database: Database) -> None:
    with database.read() as session:
        assert verify(session).fault is None
    fill(database)
    with database.read() as session:
        found = verify(session)
        newest = repository.page(session, tenant_id="acme", before=None, limit=1)[0]
    assert (found.rows, found.fault, found.head) == (ROWS, None, newest.hash)
    assert (newest.actor, newest.address, newest.object) == ("key_1", "192.0.2.1", "job_4")


@pytest.mark.parametrize("column", ["tenant_id", "actor", "action", "object", "request_id", "address", "at"])
@pytest.mark.parametrize("seq", [1, 3, ROWS])
def test_a_changed_row_is_found(database: Database, column: str, seq: int) -> None:
    fill(database)
    with database.write() as session:
        value = AuditEvent.at + 0.001 if column == "at" else "forged"
        session.execute(update(AuditEvent).where(AuditEvent.seq == seq).values({column: value}))
    with database.read() as session:
        assert (verify(session).fault, verify(session).seq) == ("changed", seq)


@pytest.mark.parametrize("seq", [1, 3])
def test_a_missing_row_is_found(database: Database, seq: int) -> None:
    fill(database)
    with database.write() as session:
        session.execute(delete(AuditEvent).where(AuditEvent.seq == seq))
    with database.read() as session:
        assert (verify(session).fault, verify(session).seq) == ("missing", seq + 1)


def test_a_missing_end_is_found(database: Database) -> None:
    fill(database)
    with database.write() as session:
        session.execute(delete(AuditEvent).where(AuditEvent.seq > ROWS - 2))
    with database.read() as session:
        assert (verify(session).fault, verify(session).seq) == ("cut-off", ROWS - 1)


def test_rows_that_changed_places_are_found(database: Database) -> None:
    fill(database)
    with database.write() as session:
        for old, new in ((2, 99), (4, 2), (99, 4)):
            session.execute(update(AuditEvent).where(AuditEvent.seq == old).values(seq=new))
    with database.read() as session:
        assert verify(session).fault is not None
        assert verify(session).seq == 2


def test_a_row_whose_own_hash_was_made_anew_breaks_the_next(database: Database) -> None:
    from service.audit.service import hash_of

    fill(database)
    with database.write() as session:
        link = list(repository.links(session))[1]._replace(actor="forged")
        forged = {"actor": "forged", "hash": hash_of(link)}
        session.execute(update(AuditEvent).where(AuditEvent.seq == 2).values(forged))
    with database.read() as session:
        assert (verify(session).fault, verify(session).seq) == ("moved", 3)


def test_writers_at_once_make_one_chain(database: Database) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: fill(database), range(8)))
    with database.read() as session:
        found = verify(session)
    assert (found.rows, found.fault) == (8 * ROWS, None)


def test_what_is_rolled_back_leaves_no_row(database: Database) -> None:
    with pytest.raises(ZeroDivisionError), database.write() as session:
        note(session, BY, "job.create", "job_1")
        raise ZeroDivisionError
    with database.read() as session:
        assert verify(session).rows == 0


def test_every_mutating_route_leaves_one_row(sqlite_front: Front) -> None:
    """Each route of the document that is no reading one is named here with what it is called in the audit."""
    http = sqlite_front.http
    done: dict[tuple[str, str], str] = {}

    def send(method: str, route: str, action: str, about: str = "", **request: Any) -> dict[str, Any]:
        before = rows(sqlite_front)
        names = ("upload_id", "model_id", "dataset_id", "job_id", "digest", "tenant", "webhook_id", "schedule_id")
        names += ("batch_id",)
        path = route.format(**dict.fromkeys(names, about.partition("@")[0]), alias=about.partition("@")[2])
        headers = {"X-Request-ID": "audited", **request.pop("headers", {})}
        answer = http.request(method, path, headers=headers, **request)
        assert answer.is_success, answer.text
        body = answer.json() if answer.content else {}
        added = rows(sqlite_front)[len(before) :]
        assert added == [(action, about or body["id"], "audited")], route
        done[method, route] = action
        return body

    def upload() -> str:
        made = send("POST", "/v1/uploads", "upload.create", json={"filename": "a.bin", "size_bytes": 4})
        send("PUT", "/v1/uploads/{upload_id}/content", "upload.complete", made["id"], content=b"1234")
        return str(made["id"])

    parts = send("POST", "/v1/uploads", "upload.create", json={"filename": "a.bin", "size_bytes": 4})
    for offset, action in ((0, "upload.append"), (2, "upload.complete")):
        headers = {"Upload-Offset": str(offset), "Content-Type": "application/partial-upload"}
        send("PATCH", "/v1/uploads/{upload_id}", action, parts["id"], content=b"12", headers=headers)
    files = [{"upload_id": upload(), "path": "model.onnx"}]
    send("POST", "/v1/models", "model.create", json={"name": "m", "files": files})
    send("POST", "/v1/datasets", "dataset.create", json={"name": "d", "upload_id": upload(), "format": "npz"})
    job = send("POST", "/v1/jobs", "job.create", json=sqlite_front.job_body())
    targets = {"targets": [{"kind": "post", "url": "https://hooks.invalid/"}]}
    send("POST", "/v1/jobs/{job_id}/hand-over", "job.hand-over", job["id"], json=targets)
    send("POST", "/v1/jobs/{job_id}/cancel", "job.cancel", job["id"])
    for deed in ("retry", "clone"):
        before = rows(sqlite_front)
        made = http.post(f"/v1/jobs/{job['id']}/{deed}", json={})
        assert made.is_success, made.text
        assert [row[:2] for row in rows(sqlite_front)[len(before) :]] == [(f"job.{deed}", made.json()["id"])]
        done["POST", f"/v1/jobs/{{job_id}}/{deed}"] = f"job.{deed}"
    evaluation = {"model_id": sqlite_front.ready_model(), "evaluation_dataset_id": sqlite_front.ready_dataset()}
    send("POST", "/v1/evaluations", "evaluation.create", json=evaluation)
    send("PATCH", "/v1/jobs/{job_id}", "job.rename", job["id"], json={"name": "other"})
    send("DELETE", "/v1/jobs/{job_id}", "job.delete", job["id"])
    members = {"members": [sqlite_front.job_body()]}
    batch = send("POST", "/v1/batches", "batch.create", json=members)["id"]
    send("POST", "/v1/batches/{batch_id}/cancel", "batch.cancel", batch)
    send("POST", "/v1/batches/{batch_id}/retry-failed", "batch.retry-failed", batch)
    send("POST", "/v1/batches/{batch_id}/cancel", "batch.cancel", batch)
    send("DELETE", "/v1/batches/{batch_id}", "batch.delete", batch)
    before = rows(sqlite_front)
    model_id = sqlite_front.ready_model()
    answer = http.post(f"/v1/models/{model_id}/inspect", json={})
    assert [row[0] for row in rows(sqlite_front)[len(before) :]].count("inspection.create") == 1, answer.text
    done["POST", "/v1/models/{model_id}/inspect"] = "inspection.create"

    for noun, noun_id in (("model", sqlite_front.ready_model()), ("dataset", sqlite_front.ready_dataset())):
        send("PATCH", f"/v1/{noun}s/{{{noun}_id}}", f"{noun}.update", noun_id, json={}, headers={"If-Match": "*"})
        alias, about = f"/v1/{noun}s/{{{noun}_id}}/aliases/{{alias}}", f"{noun_id}@prod"
        send("PUT", alias, f"{noun}.set_alias", about, headers={"If-None-Match": "*"})
        send("DELETE", alias, f"{noun}.drop_alias", about)
        send("DELETE", f"/v1/{noun}s/{{{noun}_id}}", f"{noun}.delete", noun_id)

    digest = quarantine(sqlite_front, sqlite_front.ready_model())
    send("DELETE", "/v1/quarantine/{digest}", "quarantine.release", digest)
    send("PUT", "/v1/tenants/{tenant}/quota", "tenant.set_quota", "beta", json={})
    hook = send("POST", "/v1/webhooks", "webhook.create", json={"url": "https://hooks.invalid/"})["id"]
    change = {"json": {"description": "d"}, "headers": {"If-Match": "*"}}
    send("PATCH", "/v1/webhooks/{webhook_id}", "webhook.update", hook, **change)
    send("POST", "/v1/webhooks/{webhook_id}/rotate", "webhook.rotate", hook)
    delivery = send("POST", "/v1/webhooks/{webhook_id}/ping", "webhook.ping", hook)["id"]
    before = rows(sqlite_front)
    answer = http.post(f"/v1/webhooks/{hook}/deliveries/{delivery}/redeliver")
    added = [row[:2] for row in rows(sqlite_front)[len(before) :]]
    assert added == [("webhook.redeliver", delivery)], answer.text
    done["POST", "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver"] = "webhook.redeliver"
    send("DELETE", "/v1/webhooks/{webhook_id}", "webhook.delete", hook)
    body = {"name": "nightly", "cron": "0 2 * * *", "template": sqlite_front.job_body()}
    nightly = send("POST", "/v1/schedules", "schedule.create", json=body)["id"]
    one = "/v1/schedules/{schedule_id}"
    send("PATCH", one, "schedule.update", nightly, json={"name": "weekly"}, headers={"If-Match": "*"})
    for deed in ("pause", "resume"):
        send("POST", f"{one}/{deed}", f"schedule.{deed}", nightly)
    before = rows(sqlite_front)
    run = http.post(f"/v1/schedules/{nightly}/run")
    assert [row[:2] for row in rows(sqlite_front)[len(before) :]] == [("schedule.run", run.json()["id"])], run.text
    done["POST", f"{one}/run"] = "schedule.run"
    send("DELETE", one, "schedule.delete", nightly)
    document = http.get("/openapi.json").json()
    mutating = {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method in operations
        if method not in ("get", "head")
    }
    left = mutating - set(done)
    changes_nothing = {"/v1/jobs:validate", "/v1/jobs/{job_id}/events/token", "/v1/batches/{batch_id}/events/token"}
    assert left == {("POST", path) for path in changes_nothing}, left


def test_a_refused_request_leaves_no_row(sqlite_front: Front) -> None:
    refused = {**sqlite_front.job_body(), "model_id": "mdl_none"}
    before = rows(sqlite_front)
    problem(sqlite_front.http.post("/v1/jobs", json=refused), 404, "model-not-found")
    assert rows(sqlite_front) == before


def test_the_same_request_again_leaves_no_second_row(sqlite_front: Front) -> None:
    body = sqlite_front.job_body()
    for _ in range(3):
        assert sqlite_front.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "once"}).is_success
    assert [row[0] for row in rows(sqlite_front)].count("job.create") == 1
