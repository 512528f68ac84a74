"""Deliveries to real receivers on loopback: signed, tried again, given up, shared out."""

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
from service.egress.sending import Egress
from service.settings import Settings
from service.tables import WebhookDelivery, WebhookEndpoint
from service.webhooks import outbox, repository
from service.webhooks import repository as queue
from service.webhooks.service import WebhookVault, make_secret
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
    webhook_sender,
)
from tests.worker.workbench import finish, wait_for
from worker.reconcile.sending import WebhookSender

EVENT = {"id": "job_1", "state": "succeeded", "labels": {"größe": "1"}}


class Post:
    """An installation that delivers; receivers are believed by one authority."""

    def __init__(self, database: Database, settings: Settings, authority: trustme.CA) -> None:
        self.database, self.settings, self.authority = database, settings, authority

    def hook(self, server: Scripted, *types: str, tenant: str = TENANT) -> tuple[str, str]:
        return add_endpoint(self.database, f"https://{HOST}:{server.port}/in", types or ("*",), tenant=tenant)

    def emit(self, count: int = 1, tenant: str = TENANT) -> None:
        for _ in range(count):
            with self.database.write() as session:
                outbox.emit(session, tenant, "job.succeeded", EVENT)

    def egress(self, *servers: Scripted) -> Egress:
        return egress_for(self.authority, *(server.port for server in servers))

    def deliver(self, *servers: Scripted, **changes: Any) -> int:
        return deliver(self.database, self.settings.model_copy(update=changes), self.egress(*servers))

    def sender(self, *servers: Scripted, vault: WebhookVault = VAULT, **changes: Any) -> WebhookSender:
        settings = self.settings.model_copy(update=changes)
        return webhook_sender(self.database, settings, self.egress(*servers), vault)

    def all(self, **columns: Any) -> list[WebhookDelivery]:
        return deliveries(self.database, **columns)

    @property
    def one(self) -> WebhookDelivery:
        (row,) = self.all()
        return row

    @property
    def pause(self) -> timedelta:
        assert self.one.next_attempt_at is not None
        assert self.one.last_attempt_at is not None
        return self.one.next_attempt_at - self.one.last_attempt_at


@pytest.fixture
def post(tmp_path: Any, database: Database, database_url: str, authority: trustme.CA) -> Post:
    settings = Settings(data_dir=tmp_path / "data", database_url=database_url, key_pepper=PEPPER)
    return Post(database, settings, authority)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def hanging(authority: trustme.CA, release: threading.Event) -> Iterator[Scripted]:
    """A receiver that says nothing until it is released, and ends then."""
    with over_tls(lambda _: release.wait(PATIENCE_SECONDS) and None, authority) as running:
        yield running


def test_a_delivery_is_signed_and_arrives(post: Post, server: Scripted) -> None:
    hook, secret = post.hook(server)
    set_endpoint(post.database, hook, failing_since=1.0)
    post.emit()
    assert post.deliver(server) == 1
    (request,) = received(server)
    assert server.requests[0].startswith(b"POST /in HTTP/1.1\r\n")
    assert request.headers["content-type"] == "application/json"
    document = Webhook(secret).verify(request.body, request.headers)
    assert document["data"] == EVENT
    assert verify(request.body, request.headers, secret) == document
    row = post.one
    assert (row.state, row.attempts, row.last_status, row.event_id) == ("delivered", 1, 200, request.id)
    assert (row.next_attempt_at, row.lease_until, row.response_excerpt) == (None, None, "<200>")
    found = endpoint(post.database, hook)
    assert (found.enabled, found.failing_since) == (True, None), "a success ends the time of failures"
    assert post.deliver(server) == 0


def test_two_secrets_sign_until_the_old_one_ends(post: Post, server: Scripted) -> None:
    hook, old = post.hook(server)
    new = make_secret()
    with post.database.write() as session:
        row = session.get_one(WebhookEndpoint, hook)
        repository.rotate(session, row, sealed=VAULT.seal(hook, new), pepper_id=VAULT.pepper_id, grace_seconds=3600)
    post.emit()
    post.deliver(server)
    set_endpoint(post.database, hook, previous_ends_at=1.0)
    post.emit()
    post.deliver(server)
    both, last = received(server)
    assert [len(request.headers["webhook-signature"].split(" ")) for request in (both, last)] == [2, 1]
    for secret, request in ((old, both), (new, both), (new, last)):
        Webhook(secret).verify(request.body, request.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(old).verify(last.body, last.headers)


def test_500_and_a_redirect_then_200_is_the_same_message_again(post: Post, caplog: pytest.LogCaptureFixture) -> None:
    with over_tls(answering(500, 307, 200), post.authority) as server:
        hook, secret = post.hook(server)
        post.emit()
        post.deliver(server)
        row = post.one
        assert (row.state, row.attempts, row.last_status, row.response_excerpt) == ("waiting", 1, 500, "<500>")
        assert timedelta(seconds=3.9) < post.pause < timedelta(seconds=6.1)
        assert endpoint(post.database, hook).failing_since is not None
        assert post.deliver(server) == 0, "it is not due yet"
        for state, status in (("waiting", 307), ("delivered", 200)):
            make_due(post.database)
            post.deliver(server)
            assert (post.one.state, post.one.last_status) == (state, status)
        came = received(server)
    assert len({(request.id, request.body) for request in came}) == 1
    Webhook(secret).verify(came[-1].body, came[-1].headers)
    assert post.one.attempts == 3
    assert caplog.text.count("webhook.retried") == 2
    assert endpoint(post.database, hook).failing_since is None


def test_what_is_never_taken_fails_after_the_last_attempt(post: Post) -> None:
    short = {"webhook_retry_seconds": "5,30"}
    with over_tls(answering(503, headers="Retry-After: 600\r\n"), post.authority) as server:
        post.hook(server)
        post.emit()
        for attempts, state in ((1, "waiting"), (2, "waiting"), (3, "failed")):
            post.deliver(server, **short)
            assert (post.one.attempts, post.one.state) == (attempts, state)
            assert state == "failed" or timedelta(seconds=599) < post.pause < timedelta(seconds=601)
            make_due(post.database)
        assert post.deliver(server, **short) == 0
        with post.database.write() as session:
            queue.send_again(session, post.one.id)
        assert post.deliver(server, **short) == 1
        assert len({request.id for request in received(server)}) == 1
    assert (post.one.attempts, post.one.state) == (4, "failed")


def test_gone_disables_the_endpoint_and_the_others_are_told(post, server, caplog):
    with over_tls(answering(410), post.authority) as gone:
        hook, _ = post.hook(gone, "job.*")
        other, _ = post.hook(server, "webhook.*")
        foreign, _ = post.hook(server, "webhook.*", tenant="other")
        post.emit()
        post.deliver(gone, server)
        found = endpoint(post.database, hook)
        assert (found.enabled, found.disabled_reason, found.disabled_at is None) == (False, "gone", False)
        assert f"webhook.disabled webhook_id={hook} reason=gone" in caplog.text
        (row,) = post.all(endpoint_id=hook)
        assert (row.state, row.last_status) == ("failed", 410)
        post.emit()
        assert len(post.all(endpoint_id=hook)) == 1, "nothing is kept for it any more"
        post.deliver(gone, server)
    (told,) = received(server)
    assert json.loads(told.body)["type"] == "webhook.disabled"
    assert json.loads(told.body)["data"] == {"id": hook, "state": "disabled", "reason": "gone"}
    assert post.all(endpoint_id=foreign) == []
    assert endpoint(post.database, other).enabled


def test_a_day_of_failures_disables_the_endpoint_and_holds_what_waits(post: Post) -> None:
    with over_tls(answering(500), post.authority) as server:
        hook, _ = post.hook(server)
        post.emit()
        post.deliver(server)
        with post.database.write() as session:
            since = db_now() - post.settings.webhook_failing_seconds
            session.execute(update(WebhookEndpoint).values(failing_since=since))
        make_due(post.database)
        post.deliver(server)
        found = endpoint(post.database, hook)
        assert (found.enabled, found.disabled_reason) == (False, "failing")
        assert (post.one.state, post.one.next_attempt_at) == ("waiting", None)
        make_due(post.database)
        with post.database.write() as session:  # as if it had been written while its endpoint was being disabled
            session.execute(update(WebhookDelivery).values(next_attempt_at=1.0))
        assert post.deliver(server) == 0
        assert post.one.next_attempt_at is None
        with post.database.write() as session:
            repository.enable(session, hook)
        assert post.deliver(server) == 1
        assert endpoint(post.database, hook).enabled, "its time begins anew"
        assert len(received(server)) == 3


def test_an_answer_is_kept_in_part_and_without_control_characters(post: Post) -> None:
    body = b"\x00\x1b[31m\xff" + b"x" * 100_000
    reply = b"HTTP/1.1 500 No\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with over_tls(lambda connection: connection.sendall(reply), post.authority) as server:
        post.hook(server)
        post.emit()
        post.deliver(server)
    excerpt = post.one.response_excerpt or ""
    assert excerpt.startswith("  [31m\ufffdxxx")
    assert len(excerpt) == 1024


def test_a_name_that_is_bound_anew_leads_inside_and_is_refused(post: Post) -> None:
    """Harmless when it was made and at its first delivery, inside at the next: each attempt is judged by itself."""
    answers = iter((["127.0.0.2"], ["127.0.0.1"], ["127.0.0.2", "169.254.169.254"]))
    with scripted(answering(200), host="127.0.0.2") as meant:
        allowed = f"127.0.0.2/32,http://other.example:{meant.port}"
        out = egress_for(post.authority, resolver=lambda *_: next(answers), allowed=allowed)
        plain = type(out.allowed)(out.allowed.networks, plain=frozenset({(HOST, meant.port)}))
        out = type(out)(plain, out.bounds, out.resolver, out.tls)
        add_endpoint(post.database, f"http://{HOST}:{meant.port}/")
        post.emit(3)
        one_by_one = post.settings.model_copy(update={"webhook_endpoint_slots": 1})
        for _ in range(3):
            deliver(post.database, one_by_one, out)
        assert meant.connections == 1
    refused = [row for row in post.all() if row.last_error is not None]
    assert {(row.state, row.attempts, row.last_status, row.last_error) for row in refused} == {
        ("waiting", 1, None, "address-not-allowed")
    }
    assert len(refused) == 2
    for row in refused:
        assert "not on the public internet" in (row.response_excerpt or "")
        assert "169.254" not in (row.response_excerpt or "")


def test_a_secret_of_another_pepper_is_told_and_tried_again(post: Post, server: Scripted) -> None:
    post.hook(server)
    post.emit()
    stranger = post.sender(server, vault=WebhookVault("another-pepper-of-length"))
    stranger.round()
    stranger.close()
    assert (post.one.state, post.one.last_error) == ("waiting", "webhook-secret-unreadable")
    assert server.connections == 0
    make_due(post.database)
    post.deliver(server)
    assert post.one.state == "delivered"


@pytest.mark.both_databases
def test_a_receiver_that_hangs_keeps_nobody_waiting(post, server, hanging, release):
    dead, _ = post.hook(hanging)
    post.emit(10)
    live, _ = post.hook(server)
    post.emit()
    sender = post.sender(hanging, server, webhook_slots=6, webhook_endpoint_slots=2)
    assert sender.round() == 3
    wait_for(lambda: [row.state for row in post.all(endpoint_id=live)] == ["delivered"])
    assert sender.round() == 0, "the endpoint has its share under way"
    assert [row.attempts for row in post.all(endpoint_id=dead)] == [1, 1] + [0] * 9
    release.set()
    sender.close()
    assert {row.last_error for row in post.all(endpoint_id=dead) if row.attempts} == {"egress-no-reply"}


@pytest.mark.both_databases
def test_a_tenant_has_half_of_the_slots(post, server, hanging, release):
    for _ in range(5):
        post.hook(hanging)
    post.emit()
    sender = post.sender(hanging, server, webhook_slots=4, webhook_endpoint_slots=1)
    assert sender.round() == 2
    live, _ = post.hook(server, tenant="other")
    post.emit(tenant="other")
    assert sender.round() == 1
    wait_for(lambda: [row.state for row in post.all(endpoint_id=live)] == ["delivered"])
    release.set()
    sender.close()


@pytest.mark.both_databases
def test_several_at_once_send_each_delivery_once(post: Post, server: Scripted) -> None:
    for _ in range(3):
        post.hook(server)
    post.emit(10)
    rounds = threading.Barrier(3)

    def reconciler() -> None:
        sender = post.sender(server)
        rounds.wait(PATIENCE_SECONDS)
        wait_for(lambda: sender.round() == 0 and all(row.state == "delivered" for row in post.all()))
        sender.close()

    threads = [threading.Thread(target=reconciler) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        finish(thread)
    sent = [(request.id, request.headers["webhook-signature"]) for request in received(server)]
    assert (len(sent), len({event_id for event_id, _ in sent})) == (30, 10)
    assert {row.attempts for row in post.all()} == {1}


@pytest.mark.both_databases
def test_whoever_lost_its_lease_notes_nothing(post: Post, server: Scripted) -> None:
    post.hook(server)
    post.emit()
    with post.database.write() as session:
        (lost,) = queue.claim(session, free=4, most_of_endpoint=4, most_of_tenant=8, lease_seconds=-1)
    assert post.deliver(server) == 1
    with post.database.write() as session:
        assert not queue.OUTBOX.settle(session, lost, state="failed", finished_at=db_now())
    assert (post.one.state, post.one.attempts) == ("delivered", 2)


@pytest.mark.parametrize(("free", "of_tenant", "of_endpoint"), [(2, 8, 8), (8, 2, 8), (8, 8, 2)])
def test_no_more_is_claimed_than_each_share(
    post: Post, server: Scripted, free: int, of_tenant: int, of_endpoint: int
) -> None:
    post.hook(server)
    post.emit(5)
    with post.database.write() as session:
        share = {"most_of_tenant": of_tenant, "most_of_endpoint": of_endpoint}
        assert len(queue.claim(session, free=free, **share, lease_seconds=60)) == 2


@pytest.mark.both_databases
def test_a_webhook_that_is_deleted_while_it_is_sent_to(post: Post, hanging: Scripted, release: threading.Event) -> None:
    hook, _ = post.hook(hanging)
    post.emit()
    sender = post.sender(hanging)
    sender.round()
    wait_for(lambda: hanging.requests)
    with post.database.write() as session:
        repository.get(session, TENANT, hook, locked=True)
        repository.remove(session, hook)
    release.set()
    sender.close()
    assert post.all() == []


def test_nothing_is_written_while_nothing_is_due(post: Post) -> None:
    statements: list[str] = []
    event.listen(post.database.engine, "before_cursor_execute", lambda *found: statements.append(found[2]))
    with post.database.read() as session:
        assert not queue.OUTBOX.any_due(session)
    assert [found.split()[0] for found in statements if not found.startswith("BEGIN")] == ["SELECT"]
