"""The audit: one row per deed, in its transaction; a row that was changed, taken or moved is found."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import delete, update

from service.audit import repository
from service.audit.changes import changes_between
from service.audit.service import hash_of, link, note, verify
from service.db import Database
from service.principal import Principal
from service.tables import AuditEvent, NewAuditEvent
from tests.api.test_quarantine import quarantine
from tests.support.front import Front, problem

BY = Principal("acme", "key_1", "submit", "192.0.2.1", "req_1")
ROWS = 5


def fill(database: Database) -> None:
    for number in range(ROWS):
        with database.write() as session:
            changes = changes_between({"cron": "0 3 * * *"}, {"cron": f"0 {number} * * *"})
            note(session, BY, "job.create", f"job_{number}", changes=changes)
    link(database)


def rows(front: Front) -> list[tuple[str, str, str]]:
    link(front.app.database)
    with front.app.database.read() as session:
        found = repository.page(session, tenant_id=None, before=None, limit=100)
    return [(row.action, row.object, row.request_id) for row in reversed(found)]


@pytest.mark.both_databases
def test_an_audit_as_it_was_written_is_good(database: Database) -> None:
    with pytest.raises(ZeroDivisionError), database.write() as session:
        note(session, BY, "job.create", "job_1")
        raise ZeroDivisionError
    with database.read() as session:
        assert (verify(session).rows, verify(session).fault) == (0, None)
    fill(database)
    with database.read() as session:
        found = verify(session)
        newest = repository.page(session, tenant_id="acme", before=None, limit=1)[0]
    assert (found.rows, found.fault, found.head) == (ROWS, None, newest.hash)
    assert (newest.actor, newest.address, newest.object) == ("key_1", "192.0.2.1", "job_4")


@pytest.mark.both_databases
def test_a_row_that_was_changed_taken_or_moved_is_found(database: Database) -> None:
    fill(database)

    def of(seq: int) -> Any:
        return AuditEvent.seq == seq

    def found(*statements: Any) -> tuple[str | None, int | None]:
        """What is found after these, which are rolled back."""
        with database.read() as session:
            for statement in statements:
                session.execute(statement)
            told = verify(session)
            return told.fault, told.seq

    for seq, column in (
        (1, "tenant_id"), (ROWS, "actor"), (3, "action"), (3, "object"), (3, "request_id"), (3, "address"), (3, "at"),
        (2, "changes"), (4, "changes"),
    ):  # fmt: skip
        forged = {column: AuditEvent.at + 0.001 if column == "at" else "forged"}
        assert found(update(AuditEvent).where(of(seq)).values(forged)) == ("changed", seq), column
    for seq in (1, 3):
        assert found(delete(AuditEvent).where(of(seq))) == ("missing", seq + 1)
    assert found(delete(AuditEvent).where(AuditEvent.seq > ROWS - 2)) == ("cut-off", ROWS - 1)
    swapped = (update(AuditEvent).where(of(old)).values(seq=new) for old, new in ((2, 99), (4, 2), (99, 4)))
    fault, seq = found(*swapped)
    assert fault is not None
    assert seq == 2
    with database.read() as session:
        link = list(repository.links(session))[1]._replace(actor="forged")
    hashed = {"actor": "forged", "hash": hash_of(link)}
    assert found(update(AuditEvent).where(of(2)).values(hashed)) == ("moved", 3), "its own hash was made anew"


@pytest.mark.both_databases
def test_writers_at_once_make_one_chain(database: Database) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: fill(database), range(8)))
    link(database)
    with database.read() as session:
        found = verify(session)
    assert (found.rows, found.fault) == (8 * ROWS, None)


@pytest.mark.both_databases
@pytest.mark.postgres
@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_deed_that_hangs_holds_up_no_other_and_no_reader(database: Database) -> None:
    fill(database)
    with database.write() as hanging, database.write() as chaining:
        note(hanging, BY, "job.create", "job_hangs")
        assert repository.hold_ends(chaining) is not None
        with database.write() as session:
            note(session, BY, "job.create", "job_other")
        assert link(database) == 0, "somebody else does"
    assert link(database) == 2


@pytest.mark.both_databases
def test_the_oldest_rows_are_forgotten_and_the_chain_of_the_others_holds(database: Database) -> None:
    for number in range(ROWS):  # the third is the first that is young, and the fourth was written by a clock behind
        with database.write() as session:
            note(session, BY, "job.create", f"job_{number}")
            if number not in (2, 4):
                session.execute(update(NewAuditEvent).values(at=NewAuditEvent.at - 100.0))
        assert link(database) == 1
    with database.write() as session:
        assert repository.count_old(session, 50.0) == 2
        assert [repository.delete_old(session, 50.0, 1) for _ in range(3)] == [1, 1, 0]
        assert (verify(session).rows, verify(session).fault) == (3, None)
        assert repository.delete_old(session, 0.0, 100) == 3
        assert (verify(session).rows, verify(session).fault) == (0, None)
    fill(database)
    with database.read() as session:
        assert (verify(session).rows, verify(session).fault) == (ROWS, None)
        session.execute(delete(AuditEvent).where(AuditEvent.seq == ROWS + 1))
        assert (verify(session).fault, verify(session).seq) == ("missing", ROWS + 2)


def test_every_mutating_route_leaves_one_row(sqlite_front: Front) -> None:
    """Each route of the document that is no reading one is named here with what it is called in the audit."""
    http = sqlite_front.http
    done: set[tuple[str, str]] = set()

    def send(method: str, route: str, action: str, about: str = "", *, made: bool = False, **request: Any) -> str:
        """Gives the id of what is made: without ``about``, or where ``made`` says so, the row is about that."""
        before = rows(sqlite_front)
        one, _, other = about.partition("@")
        names = {name: other if name in ("alias", "delivery_id") else one for name in re.findall(r"{(\w+)}", route)}
        headers = {"X-Request-ID": "audited", **request.pop("headers", {})}
        answer = http.request(method, route.format(**names), headers=headers, **request)
        assert answer.is_success, answer.text
        body = answer.json() if answer.content else {}
        about = body["id"] if made or not about else about
        assert rows(sqlite_front)[len(before) :] == [(action, about, "audited")], route
        done.add((method, route))
        return str(body.get("id", ""))

    def upload() -> str:
        made = send("POST", "/v1/uploads", "upload.create", json={"filename": "a.bin", "size_bytes": 4})
        send("PUT", "/v1/uploads/{upload_id}/content", "upload.complete", made, content=b"1234")
        return made

    parts = send("POST", "/v1/uploads", "upload.create", json={"filename": "a.bin", "size_bytes": 4})
    for offset, action in ((0, "upload.append"), (2, "upload.complete")):
        headers = {"Upload-Offset": str(offset), "Content-Type": "application/partial-upload"}
        send("PATCH", "/v1/uploads/{upload_id}", action, parts, content=b"12", headers=headers)
    files = [{"upload_id": upload(), "path": "model.onnx"}]
    send("POST", "/v1/models", "model.create", json={"name": "m", "files": files})
    send("POST", "/v1/datasets", "dataset.create", json={"name": "d", "upload_id": upload(), "format": "npz"})
    job = send("POST", "/v1/jobs", "job.create", json=sqlite_front.job_body())
    targets = {"targets": [{"kind": "post", "url": "https://hooks.invalid/"}]}
    send("POST", "/v1/jobs/{job_id}/hand-over", "job.hand-over", job, json=targets)
    send("POST", "/v1/jobs/{job_id}/cancel", "job.cancel", job)
    for deed in ("retry", "clone"):
        send("POST", f"/v1/jobs/{{job_id}}/{deed}", f"job.{deed}", job, made=True, json={})
    evaluation = {"model_id": sqlite_front.ready_model(), "evaluation_dataset_id": sqlite_front.ready_dataset()}
    send("POST", "/v1/evaluations", "evaluation.create", json=evaluation)
    send("PATCH", "/v1/jobs/{job_id}", "job.rename", job, json={"name": "other"})
    send("DELETE", "/v1/jobs/{job_id}", "job.delete", job)
    batch = send("POST", "/v1/batches", "batch.create", json={"members": [sqlite_front.job_body()]})
    for deed in ("cancel", "retry-failed", "cancel"):
        send("POST", f"/v1/batches/{{batch_id}}/{deed}", f"batch.{deed}", batch)
    send("DELETE", "/v1/batches/{batch_id}", "batch.delete", batch)
    send("POST", "/v1/models/{model_id}/inspect", "inspection.create", sqlite_front.ready_model(), made=True, json={})
    for noun, noun_id in (("model", sqlite_front.ready_model()), ("dataset", sqlite_front.ready_dataset())):
        send("PATCH", f"/v1/{noun}s/{{{noun}_id}}", f"{noun}.update", noun_id, json={}, headers={"If-Match": "*"})
        alias, about = f"/v1/{noun}s/{{{noun}_id}}/aliases/{{alias}}", f"{noun_id}@prod"
        send("PUT", alias, f"{noun}.set_alias", about, headers={"If-None-Match": "*"})
        send("DELETE", alias, f"{noun}.drop_alias", about)
        send("DELETE", f"/v1/{noun}s/{{{noun}_id}}", f"{noun}.delete", noun_id)
    digest = quarantine(sqlite_front, sqlite_front.ready_model())
    send("DELETE", "/v1/quarantine/{digest}", "quarantine.release", digest)
    send("PUT", "/v1/tenants/{tenant}/quota", "tenant.set_quota", "beta", json={})
    made = send("POST", "/v1/keys", "key.create", json={"name": "ci"})
    before, answer = rows(sqlite_front), http.post(f"/v1/keys/{made}/rotate").json()
    assert [row[:2] for row in rows(sqlite_front)[len(before) :]] == [("key.rotate", f"{made}@{answer['id']}")]
    done.add(("POST", "/v1/keys/{key_id}/rotate"))
    send("POST", "/v1/keys/{key_id}/revoke", "key.revoke", made)
    hook = send("POST", "/v1/webhooks", "webhook.create", json={"url": "https://hooks.invalid/"})
    one = "/v1/webhooks/{webhook_id}"
    send("PATCH", one, "webhook.update", hook, json={"description": "d"}, headers={"If-Match": "*"})
    send("POST", f"{one}/rotate", "webhook.rotate", hook)
    delivery = send("POST", f"{one}/ping", "webhook.ping", hook)
    redeliver = f"{one}/deliveries/{{delivery_id}}/redeliver"
    send("POST", redeliver, "webhook.redeliver", f"{hook}@{delivery}", made=True)
    send("DELETE", one, "webhook.delete", hook)
    body = {"name": "nightly", "cron": "0 2 * * *", "template": sqlite_front.job_body()}
    nightly = send("POST", "/v1/schedules", "schedule.create", json=body)
    one = "/v1/schedules/{schedule_id}"
    send("PATCH", one, "schedule.update", nightly, json={"name": "weekly"}, headers={"If-Match": "*"})
    for deed in ("pause", "resume", "run"):
        send("POST", f"{one}/{deed}", f"schedule.{deed}", nightly, made=deed == "run")
    send("DELETE", one, "schedule.delete", nightly)
    paths = http.get("/openapi.json").json()["paths"].items()
    mutating = {(verb.upper(), path) for path, verbs in paths for verb in verbs if verb not in ("get", "head")}
    changes_nothing = {"/v1/jobs:validate", "/v1/jobs/{job_id}/events/token", "/v1/batches/{batch_id}/events/token"}
    assert mutating - done == {("POST", path) for path in changes_nothing}


def test_what_is_refused_or_said_again_leaves_no_row(sqlite_front: Front) -> None:
    body = sqlite_front.job_body()
    before = rows(sqlite_front)
    problem(sqlite_front.http.post("/v1/jobs", json={**body, "model_id": "mdl_none"}), 404, "model-not-found")
    assert rows(sqlite_front) == before
    for _ in range(3):
        assert sqlite_front.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "once"}).is_success
    assert [row[0] for row in rows(sqlite_front)].count("job.create") == 1
