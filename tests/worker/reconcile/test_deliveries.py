"""Deliveries to real receivers on loopback: signed, tried again, given up, shared out. On both databases."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import trustme
from sqlalchemy import event, update
from standardwebhooks import Webhook, WebhookVerificationError

from quantmill.webhooks import verify
from service.db import Database, db_now
from service.settings import Settings
from service.tables import WebhookDelivery, WebhookEndpoint
from service.webhooks import outbox, repository
from service.webhooks.deliveries import repository as queue
from service.webhooks.secrets import Vault, make_secret
from tests.support.patience import PATIENCE_SECONDS
from tests.support.scripted import Scripted, scripted
from tests.support.webhooks import (
    HOST,
    PEPPER,
    TENANT,
    VAULT,
    add_endpoint,
    answering,
    deliver,
    deliveries,
    egress_for,
    endpoint,
    make_due,
    over_tls,
    received,
    set_endpoint,
)
from tests.worker.workbench import wait_for
from worker.reconcile.delivering import Deliverer

EVENT = {"id": "job_1", "state": "succeeded", "labels": {"größe": "1"}}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def settings(tmp_path: Any, database_url: str) -> Settings:
    return Settings(data_dir=tmp_path / "data", database_url=database_url, key_pepper=PEPPER)


@pytest.fixture
def server(authority: trustme.CA) -> Iterator[Scripted]:
    """A receiver that is content."""
    with over_tls(answering(200), authority) as running:
        yield running


def url(server: Scripted) -> str:
    return f"https://{HOST}:{server.port}/in"


def emit(database: Database, count: int = 1) -> None:
    for _ in range(count):
        with database.write() as session:
            outbox.emit(session, TENANT, "job.succeeded", EVENT)


def one(database: Database) -> WebhookDelivery:
    (row,) = deliveries(database)
    return row


def test_a_delivery_is_signed_and_arrives(
    database: Database, settings: Settings, authority: trustme.CA, server: Scripted
) -> None:
    hook, secret = add_endpoint(database, url(server))
    emit(database)
    assert deliver(database, settings, egress_for(authority, server.port)) == 1
    (request,) = received(server)
    assert server.requests[0].startswith(b"POST /in HTTP/1.1\r\n")
    assert request.headers["content-type"] == "application/json"
    document = Webhook(secret).verify(request.body, request.headers)
    assert document["data"] == EVENT
    assert verify(request.body, request.headers, secret) == document
    row = one(database)
    assert (row.state, row.attempts, row.last_status, row.event_id) == ("delivered", 1, 200, request.id)
    assert (row.next_attempt_at, row.lease_until, row.response_excerpt) == (None, None, "<200>")
    assert endpoint(database, hook).failing_since is None
    assert deliver(database, settings, egress_for(authority, server.port)) == 0


def test_two_secrets_sign_until_the_old_one_ends(
    database: Database, settings: Settings, authority: trustme.CA, server: Scripted
) -> None:
    hook, old = add_endpoint(database, url(server))
    new = make_secret()
    with database.write() as session:
        row = session.get_one(WebhookEndpoint, hook)
        repository.rotate(session, row, sealed=VAULT.seal(hook, new), pepper_id=VAULT.pepper_id, grace_seconds=3600)
    emit(database)
    deliver(database, settings, egress_for(authority, server.port))
    set_endpoint(database, hook, previous_ends_at=1.0)
    emit(database)
    deliver(database, settings, egress_for(authority, server.port))
    both, last = received(server)
    assert [len(request.headers["webhook-signature"].split(" ")) for request in (both, last)] == [2, 1]
    for secret in (old, new):
        Webhook(secret).verify(both.body, both.headers)
    Webhook(new).verify(last.body, last.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(old).verify(last.body, last.headers)


def test_500_then_200_is_the_same_message_twice(database: Database, settings: Settings, authority: trustme.CA) -> None:
    with over_tls(answering(500, 200), authority) as server:
        hook, secret = add_endpoint(database, url(server))
        emit(database)
        out = egress_for(authority, server.port)
        deliver(database, settings, out)
        row = one(database)
        assert (row.state, row.attempts, row.last_status, row.response_excerpt) == ("waiting", 1, 500, "<500>")
        assert row.next_attempt_at is not None
        assert row.last_attempt_at is not None
        assert timedelta(seconds=3.9) < row.next_attempt_at - row.last_attempt_at < timedelta(seconds=6.1)
        assert endpoint(database, hook).failing_since is not None
        assert deliver(database, settings, out) == 0, "it is not due yet"
        make_due(database)
        deliver(database, settings, out)
        first, second = received(server)
    assert (first.id, first.body) == (second.id, second.body)
    Webhook(secret).verify(second.body, second.headers)
    assert (one(database).state, one(database).attempts) == ("delivered", 2)
    assert endpoint(database, hook).failing_since is None


def test_what_is_never_taken_fails_after_the_last_attempt(
    database: Database, settings: Settings, authority: trustme.CA
) -> None:
    short = settings.model_copy(update={"webhook_retry_seconds": "5,30"})
    with over_tls(answering(503), authority) as server:
        add_endpoint(database, url(server))
        emit(database)
        for attempts, state in ((1, "waiting"), (2, "waiting"), (3, "failed")):
            deliver(database, short, egress_for(authority, server.port))
            assert (one(database).attempts, one(database).state) == (attempts, state)
            make_due(database)
        assert deliver(database, short, egress_for(authority, server.port)) == 0
        with database.write() as session:
            queue.send_again(session, one(database).id)
        assert deliver(database, short, egress_for(authority, server.port)) == 1
        assert len({request.id for request in received(server)}) == 1
    assert (one(database).attempts, one(database).state) == (4, "failed")


@pytest.mark.parametrize(
    ("asked", "least", "most"), [("600", 600, 601), ("1", 3.9, 6.1), ("999999", 21_600, 21_601), ("soon", 3.9, 6.1)]
)
def test_retry_after_is_heeded_within_bounds(
    database: Database, settings: Settings, authority: trustme.CA, asked: str, least: float, most: float
) -> None:
    with over_tls(answering(429, headers=f"Retry-After: {asked}\r\n"), authority) as server:
        add_endpoint(database, url(server))
        emit(database)
        deliver(database, settings, egress_for(authority, server.port))
    row = one(database)
    assert row.next_attempt_at is not None
    assert row.last_attempt_at is not None
    assert timedelta(seconds=least - 0.1) < row.next_attempt_at - row.last_attempt_at < timedelta(seconds=most)


def test_gone_disables_the_endpoint_and_the_others_are_told(
    database: Database, settings: Settings, authority: trustme.CA, server: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    with over_tls(answering(410), authority) as gone:
        hook, _ = add_endpoint(database, url(gone), ["job.*"])
        other, _ = add_endpoint(database, url(server), ["webhook.*"])
        foreign, _ = add_endpoint(database, url(server), ["webhook.*"], tenant="other")
        emit(database)
        out = egress_for(authority, gone.port, server.port)
        deliver(database, settings, out)
    found = endpoint(database, hook)
    assert (found.enabled, found.disabled_reason, found.disabled_at is None) == (False, "gone", False)
    assert f"webhook.disabled webhook_id={hook} reason=gone" in caplog.text
    (row,) = deliveries(database, endpoint_id=hook)
    assert (row.state, row.last_status) == ("failed", 410)
    emit(database)
    assert len(deliveries(database, endpoint_id=hook)) == 1, "nothing is kept for it any more"
    deliver(database, settings, out)
    (told,) = received(server)
    assert json.loads(told.body)["type"] == "webhook.disabled"
    assert json.loads(told.body)["data"] == {"id": hook, "state": "disabled", "reason": "gone"}
    assert deliveries(database, endpoint_id=foreign) == []
    assert endpoint(database, other).enabled


def test_a_day_of_failures_disables_the_endpoint_and_holds_what_waits(
    database: Database, settings: Settings, authority: trustme.CA
) -> None:
    with over_tls(answering(500), authority) as server:
        hook, _ = add_endpoint(database, url(server))
        emit(database)
        deliver(database, settings, egress_for(authority, server.port))
        with database.write() as session:
            since = db_now() - settings.webhook_failing_seconds
            session.execute(update(WebhookEndpoint).values(failing_since=since))
        make_due(database)
        deliver(database, settings, egress_for(authority, server.port))
        found = endpoint(database, hook)
        assert (found.enabled, found.disabled_reason) == (False, "failing")
        row = one(database)
        assert (row.state, row.next_attempt_at) == ("waiting", None)
        assert deliver(database, settings, egress_for(authority, server.port)) == 0
        with database.write() as session:
            repository.enable(session, hook)
        assert deliver(database, settings, egress_for(authority, server.port)) == 1
        assert endpoint(database, hook).enabled, "its time begins anew"
        assert len(received(server)) == 3


def test_a_success_ends_the_time_of_failures(
    database: Database, settings: Settings, authority: trustme.CA, server: Scripted
) -> None:
    hook, _ = add_endpoint(database, url(server))
    set_endpoint(database, hook, failing_since=1.0)
    emit(database)
    deliver(database, settings, egress_for(authority, server.port))
    assert (endpoint(database, hook).enabled, endpoint(database, hook).failing_since) == (True, None)


def test_a_delivery_written_while_its_endpoint_was_being_disabled_is_held(
    database: Database, settings: Settings, authority: trustme.CA, server: Scripted
) -> None:
    hook, _ = add_endpoint(database, url(server))
    emit(database)
    set_endpoint(database, hook, enabled=False, disabled_reason="client", disabled_at=1.0)
    assert deliver(database, settings, egress_for(authority, server.port)) == 0
    assert one(database).next_attempt_at is None
    assert server.connections == 0


def test_a_redirect_is_a_failure_and_is_not_followed(
    database: Database, settings: Settings, authority: trustme.CA
) -> None:
    with scripted(answering(200)) as inner:
        to = f"Location: http://127.0.0.1:{inner.port}/\r\n"
        with over_tls(answering(307, headers=to), authority) as server:
            add_endpoint(database, url(server))
            emit(database)
            deliver(database, settings, egress_for(authority, server.port))
        assert inner.connections == 0
    assert (one(database).state, one(database).last_status) == ("waiting", 307)


def test_an_answer_is_kept_in_part_and_without_control_characters(
    database: Database, settings: Settings, authority: trustme.CA
) -> None:
    body = b"\x00\x1b[31m\xff" + b"x" * 100_000
    reply = b"HTTP/1.1 500 No\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with over_tls(lambda connection: connection.sendall(reply), authority) as server:
        add_endpoint(database, url(server))
        emit(database)
        deliver(database, settings, egress_for(authority, server.port))
    excerpt = one(database).response_excerpt or ""
    assert excerpt.startswith("  [31m\ufffdxxx")
    assert len(excerpt) == 1024


@pytest.mark.parametrize("address", ["169.254.169.254", "127.0.0.1", "10.0.0.1", "::1"])
def test_a_name_that_leads_inside_is_refused_and_that_is_told(
    database: Database, settings: Settings, authority: trustme.CA, server: Scripted, address: str
) -> None:
    add_endpoint(database, f"https://{HOST}/in")
    emit(database)
    deliver(database, settings, egress_for(authority, resolver=lambda *_: [address], allowed=""))
    row = one(database)
    assert (row.state, row.attempts, row.last_status, row.last_error) == ("waiting", 1, None, "address-not-allowed")
    assert "not on the public internet" in (row.response_excerpt or "")
    assert address not in (row.response_excerpt or "")


def test_a_name_that_is_bound_anew_is_refused(database: Database, settings: Settings, authority: trustme.CA) -> None:
    """Harmless when it was made and at its first delivery, inside at the next: each attempt is judged by itself."""
    answers = iter((["127.0.0.2"], ["127.0.0.1"], ["127.0.0.2", "169.254.169.254"]))
    with scripted(answering(200), host="127.0.0.2") as meant:
        allowed = f"127.0.0.2/32,http://other.example:{meant.port}"
        out = egress_for(authority, resolver=lambda *_: next(answers), allowed=allowed)
        out = type(out)(
            type(out.allowed)(out.allowed.networks, plain=frozenset({(HOST, meant.port)})),
            out.bounds,
            out.resolver,
            out.tls,
        )
        add_endpoint(database, f"http://{HOST}:{meant.port}/")
        emit(database, 3)
        one_by_one = settings.model_copy(update={"webhook_endpoint_slots": 1})
        for _ in range(3):
            deliver(database, one_by_one, out)
        assert meant.connections == 1
    told = sorted(row.last_error or str(row.last_status) for row in deliveries(database))
    assert told == ["200", "address-not-allowed", "address-not-allowed"]


def test_a_secret_of_another_pepper_is_told_and_tried_again(
    database: Database, settings: Settings, authority: trustme.CA, server: Scripted
) -> None:
    add_endpoint(database, url(server))
    emit(database)
    stranger = Deliverer(
        settings, database, Vault("another-pepper-of-length"), egress=egress_for(authority, server.port)
    )
    stranger.round()
    stranger.close()
    assert (one(database).state, one(database).last_error) == ("waiting", "webhook-secret-unreadable")
    assert server.connections == 0
    make_due(database)
    deliver(database, settings, egress_for(authority, server.port))
    assert one(database).state == "delivered"


def test_a_receiver_that_hangs_keeps_nobody_waiting(
    database: Database, settings: Settings, authority: trustme.CA, server: Scripted
) -> None:
    """It takes its share of the slots and no more; what hangs ends, and is told."""
    release = threading.Event()
    few = settings.model_copy(update={"webhook_slots": 6, "webhook_endpoint_slots": 2})
    with over_tls(lambda _: release.wait(PATIENCE_SECONDS) and None, authority) as hanging:
        dead, _ = add_endpoint(database, url(hanging))
        emit(database, 10)
        live, _ = add_endpoint(database, url(server))
        with database.write() as session:
            outbox.emit(session, TENANT, "job.succeeded", EVENT)
        out = egress_for(authority, hanging.port, server.port)
        deliverer = Deliverer(few, database, VAULT, egress=out)
        assert deliverer.round() == 3
        wait_for(lambda: [row.state for row in deliveries(database, endpoint_id=live)] == ["delivered"])
        assert deliverer.round() == 0, "the endpoint has its share under way"
        assert [row.attempts for row in deliveries(database, endpoint_id=dead)] == [1, 1] + [0] * 9
        release.set()
        deliverer.close()
    told = {row.last_error for row in deliveries(database, endpoint_id=dead) if row.attempts}
    assert told == {"egress-no-reply"}


def test_a_tenant_has_half_of_the_slots(
    database: Database, settings: Settings, authority: trustme.CA, server: Scripted
) -> None:
    release = threading.Event()
    few = settings.model_copy(update={"webhook_slots": 4, "webhook_endpoint_slots": 1})
    with over_tls(lambda _: release.wait(PATIENCE_SECONDS) and None, authority) as hanging:
        for _ in range(5):
            add_endpoint(database, url(hanging))
        emit(database)
        deliverer = Deliverer(few, database, VAULT, egress=egress_for(authority, hanging.port, server.port))
        assert deliverer.round() == 2
        live, _ = add_endpoint(database, url(server), tenant="other")
        with database.write() as session:
            outbox.emit(session, "other", "job.succeeded", EVENT)
        assert deliverer.round() == 1
        wait_for(lambda: [row.state for row in deliveries(database, endpoint_id=live)] == ["delivered"])
        release.set()
        deliverer.close()


def test_several_at_once_send_each_delivery_once(
    database: Database, settings: Settings, authority: trustme.CA, server: Scripted
) -> None:
    for _ in range(3):
        add_endpoint(database, url(server))
    emit(database, 15)
    rounds = threading.Barrier(3)

    def reconciler() -> None:
        deliverer = Deliverer(settings, database, VAULT, egress=egress_for(authority, server.port))
        rounds.wait(PATIENCE_SECONDS)
        wait_for(lambda: deliverer.round() == 0 and all(row.state == "delivered" for row in deliveries(database)))
        deliverer.close()

    threads = [threading.Thread(target=reconciler) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    sent = [(request.id, request.headers["webhook-signature"]) for request in received(server)]
    assert len(sent) == 45
    assert len({event_id for event_id, _ in sent}) == 15
    assert {row.attempts for row in deliveries(database)} == {1}


def test_whoever_lost_its_lease_notes_nothing(
    database: Database, settings: Settings, authority: trustme.CA, server: Scripted
) -> None:
    add_endpoint(database, url(server))
    emit(database)
    share = queue.Share(4, 8)
    with database.write() as session:
        (lost,) = queue.claim(session, free=4, share=share, lease_seconds=-1)
    assert deliver(database, settings, egress_for(authority, server.port)) == 1
    with database.write() as session:
        assert not queue.settle(session, lost, state="failed", finished_at=db_now())
    assert (one(database).state, one(database).attempts) == ("delivered", 2)


def test_a_webhook_that_is_deleted_while_it_is_sent_to(
    database: Database, settings: Settings, authority: trustme.CA
) -> None:
    begun, release = threading.Event(), threading.Event()

    def script(connection: Any) -> None:
        begun.set()
        release.wait(PATIENCE_SECONDS)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with over_tls(script, authority) as server:
        hook, _ = add_endpoint(database, url(server))
        emit(database)
        deliverer = Deliverer(settings, database, VAULT, egress=egress_for(authority, server.port))
        deliverer.round()
        assert begun.wait(PATIENCE_SECONDS)
        with database.write() as session:
            repository.get(session, TENANT, hook, locked=True)
            repository.remove(session, hook)
        release.set()
        deliverer.close()
    assert deliveries(database) == []


def test_nothing_is_written_while_nothing_is_due(database: Database, settings: Settings) -> None:
    statements: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *found: statements.append(found[2]))
    with database.read() as session:
        assert not queue.any_due(session)
    assert [found.split()[0] for found in statements if not found.startswith("BEGIN")] == ["SELECT"]
