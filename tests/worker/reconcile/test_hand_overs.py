"""Hand-overs to real receivers on loopback: sent, sent again, given up, shared out."""

from __future__ import annotations

import hashlib
import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import trustme
from sqlalchemy import Double, insert, select, type_coerce, update

from service.attestations import repository as attestations
from service.db import db_now
from service.egress.addresses import Allowed
from service.egress.attempts import SendResult
from service.egress.urls import check_url
from service.hand_overs import asking
from service.hand_overs import repository as queue
from service.hand_overs.asking import HandOverVault
from service.hand_overs.outbox import settle
from service.ids import new_id
from service.jobs import transitions
from service.settings import Settings
from service.tables import HandOver, Model
from tests.api.conftest import app, front
from tests.support.front import Front
from tests.support.hand_overs import (
    SIGNATURE,
    TOKEN,
    carry,
    dump,
    make_due,
    post,
    put,
    rows,
    sender_of,
    states,
    succeed,
)
from tests.support.patience import PATIENCE_SECONDS
from tests.support.scripted import Script, Scripted
from tests.support.webhooks import HOST, PEPPER, answering, egress_for, over_tls, received
from tests.worker.workbench import wait_for
from worker.reconcile import hand_overs
from worker.reconcile.hand_overs import SLOTS

__all__ = ["app", "front"]
EXPIRED = b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message><Signature>5ec2e7c0ffee</Signature>"


@pytest.fixture
def settings(tmp_path: Any, database_url: str) -> Settings:
    return Settings(
        data_dir=tmp_path / "data",
        database_url=database_url,
        min_free_bytes=0,
        key_pepper=PEPPER,
        egress_allowed=f"{HOST}:1,{HOST}:2",
    )


@pytest.fixture(autouse=True)
def any_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports of receivers are known once they run: what may be asked for is not what these tests are about."""
    monkeypatch.setattr(asking, "refuse_destination", _taken_apart)


def _taken_apart(url: str, *_: Any, **__: Any) -> Any:
    port = int(url.split("/")[2].rpartition(":")[2])
    return check_url(url, Allowed(ports=frozenset({(HOST, port)})))


class Out:
    def __init__(self, front: Front, authority: trustme.CA) -> None:
        self.front, self.authority = front, authority

    def carry(self, *servers: Scripted, times: int = 1, **egress: Any) -> int:
        """Rounds, each once the pauses of all that waits are over; what the last one began with."""
        begun = 0
        for number in range(times):
            if number:
                make_due(self.front.app.database)
            begun = carry(self.front, egress_for(self.authority, *(server.port for server in servers), **egress))
        return begun

    @contextmanager
    def receiver(self, *statuses: int) -> Iterator[Scripted]:
        with over_tls(answering(*statuses), self.authority) as running:
            yield running


@pytest.fixture
def out(front: Front, authority: trustme.CA) -> Out:
    return Out(front, authority)


def handed(front: Front, *targets: dict[str, Any], data: bytes = b"quantized bytes", verdict: str = "pass") -> str:
    job_id = front.new_job(hand_over=list(targets))
    succeed(front, job_id, verdict, data)
    return job_id


def test_a_file_arrives_as_it_is(front: Front, out: Out, server: Scripted) -> None:
    data = bytes(range(256)) * 12_000  # three blocks
    job_id = handed(front, put(server.port, headers={"x-amz-meta-a": "b"}), data=data)
    assert out.carry(server) == 1
    (request,) = received(server)
    assert server.requests[0].startswith(f"PUT /b/model?{SIGNATURE} HTTP/1.1\r\n".encode())
    assert request.body == data
    assert request.headers == {
        "host": f"{HOST}:{server.port}", "connection": "close", "accept-encoding": "identity",
        "content-length": str(len(data)), "x-amz-meta-a": "b",
    }  # fmt: skip
    assert states(front, job_id) == [("done", None)]
    (row,) = rows(front.app.database)
    assert (row.attempts, row.last_status, row.sealed, row.lease_until) == (1, 200, None, None)
    assert f"hand-over {row.id} (PUT of model to {HOST}:{server.port}): done" in logs(front, job_id)
    assert out.carry(server) == 0


def logs(front: Front, job_id: str) -> str:
    return front.http.get(f"/v1/jobs/{job_id}/logs").text


def test_a_post_tells_of_the_job_and_an_attestation_is_made(front: Front, out: Out, server: Scripted) -> None:
    job_id = handed(front, post(server.port), put(server.port, "attestation"))
    out.carry(server)
    request, attestation = sorted(received(server), key=lambda request: "content-type" not in request.headers)
    with front.app.database.read() as session:
        kept = attestations.attestation_of(session, "default", job_id)
    assert kept is not None, "it is made where it is not there yet"
    assert attestation.body.decode() == kept.envelope
    assert {head.split(b" ")[0] for head in server.requests} == {b"POST", b"PUT"}
    assert request.headers["content-type"] == "application/json"
    assert request.headers["authorization"] == f"Bearer {TOKEN}"
    document = json.loads(request.body)
    told = document["job"]
    assert document["type"] == "job.hand_over"
    assert document["id"] in {row.id for row in rows(front.app.database) if row.kind == "post"}
    assert (told["id"], told["verdict"], told["links"]["self"]) == (job_id, "pass", f"/v1/jobs/{job_id}")
    by_kind = {artifact["kind"]: artifact["sha256"] for artifact in told["artifacts"]}
    assert by_kind["model"] == hashlib.sha256(b"quantized bytes").hexdigest()
    assert told["figures"]["metrics"][0]["name"] == "top1"


def test_500_then_200_is_the_same_twice(front: Front, out: Out) -> None:
    with out.receiver(500, 503, 200) as server:
        job_id = handed(front, post(server.port))
        out.carry(server)
        (item,) = front.http.get(f"/v1/jobs/{job_id}/hand-over").json()["items"]
        assert (item["state"], item["reason"], item["last_status"], item["attempts"]) == ("pending", "status", 500, 1)
        assert item["detail"] == f"{HOST}:{server.port} responded with 500."
        assert out.carry(server) == 0, "it is not due yet"
        front.http.patch(f"/v1/jobs/{job_id}", json={"name": "called otherwise since"})
        out.carry(server, times=3)
        bodies = {request.body for request in received(server)}
    assert len(bodies) == 1
    assert states(front, job_id) == [("done", None)]
    assert "called otherwise" not in bodies.pop().decode()


@pytest.mark.parametrize("status", [400, 404, 410])
def test_a_refusal_is_not_asked_for_again(front: Front, out: Out, status: int) -> None:
    with out.receiver(status) as server:
        job_id = handed(front, put(server.port), post(server.port))
        out.carry(server)
    assert states(front, job_id) == [("failed", "status")] * 2
    assert {row.sealed for row in rows(front.app.database)} == {None}
    assert f"failed. {HOST}:{server.port} responded with {status}." in logs(front, job_id)


@pytest.mark.parametrize("status", [202, 307, 408, 429])
def test_a_store_that_is_busy_is_asked_again_for_a_day(front: Front, out: Out, status: int) -> None:
    with out.receiver(status) as server:
        job_id = handed(front, put(server.port))
        out.carry(server)
        assert states(front, job_id) == [("pending", "status")]
        out.carry(server)
        out.carry(server, times=10)
        assert len(received(server)) == 10
    assert states(front, job_id) == [("failed", "status")], "given up after a day of failures"


def test_of_what_a_store_says_its_code_alone_is_kept(front: Front, out: Out, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    def script(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 403 No\r\nContent-Length: %d\r\n\r\n%s" % (len(EXPIRED), EXPIRED))

    with over_tls(script, out.authority) as server:
        job_id = handed(front, put(server.port), post(server.port))
        out.carry(server)
        page = front.http.get(f"/v1/jobs/{job_id}/hand-over")
        assert page.json()["items"][0]["detail"] == f"{HOST}:{server.port} responded with 403 (AccessDenied)."
    for secret in ("5ec2e7c0ffee", "/b/model", TOKEN):
        assert secret not in page.text
        assert secret not in caplog.text
        assert secret not in logs(front, job_id)
        assert secret not in dump(front.app.database)


def test_nothing_is_sent_inside_and_a_receiver_that_is_away_is_tried_again(front, out, server):
    inside = {"allowed": "10.1.0.0/16", "resolver": lambda *_: ["127.0.0.1"]}
    plain, tls = handed(front, put(server.port)), handed(front, put(443))
    out.carry(**inside)
    assert states(front, plain) == [("failed", "url-not-allowed")]
    assert states(front, tls) == [("failed", "address-not-allowed")]
    assert server.connections == 0
    away = handed(front, put(443))
    out.carry(resolver=lambda *_: [])
    assert states(front, away) == [("pending", "host-unresolved")]


def test_a_damaged_file_never_arrives_whole(front: Front, out: Out, server: Scripted) -> None:
    data = b"x" * 100_000
    job_id = handed(front, put(server.port), data=data)
    path = front.app.store.path(hashlib.sha256(data).hexdigest())
    path.chmod(0o600)
    path.write_bytes(b"y" * len(data))
    out.carry(server)
    assert states(front, job_id) == [("pending", "stored-file-corrupt")]
    (request,) = wait_for(lambda: server.requests)  # it is noted once the sender has gone
    assert len(request.partition(b"\r\n\r\n")[2]) < len(data)


def test_a_url_of_another_pepper_is_told_and_waits(front, out, server, monkeypatch):
    job_id = handed(front, put(server.port))
    monkeypatch.setattr("tests.support.hand_overs.VAULT", HandOverVault("another-pepper-of-length"))
    out.carry(server)
    assert states(front, job_id) == [("pending", "hand-over-unreadable")]


@pytest.mark.both_databases
def test_an_attempt_whose_lease_is_over_settles_nothing(front: Front, out: Out, server: Scripted) -> None:
    job_id = handed(front, put(server.port))
    with front.app.database.write() as session:
        (stale,) = queue.claim(session, free=1, most_of_tenant=2, lease_seconds=-1.0)
    out.carry(server)
    assert states(front, job_id) == [("done", None)]
    with front.app.database.write() as session:
        assert settle(session, stale, SendResult(500, None, ""), schedule=(1.0,)) == "fenced"
    assert front.http.delete(f"/v1/jobs/{job_id}").status_code == 204
    with front.app.database.write() as session:
        assert settle(session, stale, SendResult(200, None, ""), schedule=(1.0,)) == "fenced"


# More than what the kernel takes of a connection that nobody reads.
LARGE = bytes(range(256)) * 128 * 1024


def reading_once(opened: threading.Event) -> Script:
    """Takes nothing of the body until it is opened, then all of it."""

    def script(connection: socket.socket) -> None:
        assert opened.wait(PATIENCE_SECONDS)
        missing = len(LARGE)
        while missing > 0 and (part := connection.recv(1 << 20)):
            missing -= len(part)
        if missing <= 0:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    return script


class Slow:
    """A hand-over of a large file under way to a receiver that reads once it is opened."""

    def __init__(self, out: Out, **settings: Any) -> None:
        self.opened = threading.Event()
        self.stack = ExitStack()
        self.server = self.stack.enter_context(over_tls(reading_once(self.opened), out.authority, bodies=False))
        self.database = out.front.app.database
        self.job_id = handed(out.front, put(self.server.port), data=LARGE)
        egress = egress_for(out.authority, self.server.port)
        self.sender = sender_of(out.front, egress, **settings)
        allowed = self.sender._within(60 * hand_overs.SLOWEST_BYTES_PER_SECOND).bounds.seconds
        assert allowed == egress.bounds.seconds + 60
        assert self.sender.round() == 1
        wait_for(lambda: self.server.requests, message="it has not begun")

    def set(self, **values: Any) -> None:
        with self.database.write() as session:
            session.execute(update(HandOver).values(**values))

    def lease_left(self) -> float | None:
        with self.database.read() as session:
            return session.scalar(select(type_coerce(HandOver.lease_until, Double) - db_now()))


def test_a_process_that_ends_leaves_what_lasts_to_another(front: Front, out: Out) -> None:
    slow = Slow(out)
    with slow.stack:
        slow.sender.interrupt()
        slow.opened.set()
        slow.sender.close()
        (row,) = rows(front.app.database)
        assert (row.state, row.lease_until, row.attempts) == ("pending", None, 1)
        assert out.carry(slow.server) == 1, "it is due at once"
    assert states(front, slow.job_id) == [("done", None)]


@pytest.mark.both_databases
def test_a_lease_is_renewed_for_as_long_as_a_file_takes(front: Front, out: Out) -> None:
    slow = Slow(out, renew_seconds=0.0)
    with slow.stack:
        slow.set(lease_until=db_now() + 3600.0)
        slow.opened.set()
        wait_for(lambda: (slow.lease_left() or 0.0) < 1800.0, message="it was not renewed")
        slow.sender.close()
    assert states(front, slow.job_id) == [("done", None)]


def test_whoever_has_lost_its_lease_stops_sending(front: Front, out: Out) -> None:
    slow = Slow(out, renew_seconds=0.0)
    with slow.stack:
        slow.set(attempts=2, lease_until=db_now() + 60.0)
        slow.opened.set()
        slow.sender.close()
    (row,) = rows(front.app.database)
    assert (row.state, row.attempts, row.last_status) == ("pending", 2, None)
    assert row.lease_until is not None, "it is the other one's"


def test_a_fault_of_ours_is_an_attempt_too(front, out, server, monkeypatch, caplog):
    def broken(*_: Any) -> Any:
        raise OSError(5, "Input/output error")

    job_id = handed(front, put(server.port))
    monkeypatch.setattr(hand_overs, "open_file", broken)
    out.carry(server, times=10)
    assert states(front, job_id) == [("failed", "internal-error")]
    assert rows(front.app.database)[0].sealed is None
    assert "Input/output error" in caplog.text


@pytest.mark.both_databases
def test_a_crowd_of_one_tenant_keeps_nobody_waiting(front: Front, server: Scripted) -> None:
    handed(front, *[put(server.port)] * 8)
    with front.app.database.write() as session:
        (first, *_) = session.scalars(select(HandOver)).all()
        copied = {column.key: getattr(first, column.key) for column in HandOver.__table__.columns}
        many = [copied | {"id": new_id("hov"), "next_attempt_at": 1.0} for _ in range(300)]
        session.execute(insert(HandOver), many)
        now = db_now()
        model = {"id": new_id("mdl"), "tenant_id": "other", "name": "net", "format": "onnx", "status": "validating"}
        session.execute(insert(Model).values(**model, row_version=1, created_at=now, updated_at=now))
        job = transitions.submit(
            session, transitions.NewJob(tenant_id="other", kind="inspect_model", model_id=model["id"])
        )
        late = {"id": new_id("hov"), "tenant_id": "other", "job_id": job.id, "next_attempt_at": 2.0}
        session.execute(insert(HandOver), [copied | late])
        claimed = queue.claim(session, free=SLOTS, most_of_tenant=2, lease_seconds=60.0)
        assert sorted(one.tenant_id for one in claimed) == ["default", "default", "other"]
        assert {one.attempt for one in claimed} == {1}
        assert "sealed" not in repr(claimed[0])
        assert queue.claim(session, free=SLOTS, most_of_tenant=2, lease_seconds=60.0) == [], "a lease holds"
        session.rollback()
