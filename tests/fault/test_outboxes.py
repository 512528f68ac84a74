"""Real reconcilers and a receiver on loopback: killed after a request, several at once, and asked to stop."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from service.settings import Settings
from service.webhooks import outbox
from tests.api.conftest import app, front
from tests.support import hand_overs
from tests.support.front import Front
from tests.support.patience import PATIENCE_SECONDS
from tests.support.scripted import Scripted, scripted
from tests.support.webhooks import PEPPER, TENANT, add_endpoint, answering, deliveries, received
from tests.worker.running import command, environment
from tests.worker.workbench import wait_for

__all__ = ["app", "front"]
pytestmark = pytest.mark.slow  # starts processes
KILLED = -9


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted(answering(200)) as running:
        yield running


@pytest.fixture
def settings(tmp_path: Any, database_url: str, server: Scripted) -> Settings:
    return Settings(
        data_dir=tmp_path / "data", database_url=database_url, min_free_bytes=0, key_pepper=PEPPER,
        egress_allowed=f"http://127.0.0.1:{server.port}",
    )  # fmt: skip


class Webhooks:
    failpoint = "after_webhook_sent"

    def __init__(self, front: Front, port: int) -> None:
        self.front, self.database = front, front.app.database
        self.places = (f"http://127.0.0.1:{port}/one", f"http://127.0.0.1:{port}/other")

    def fill(self, count: int) -> None:
        for place in self.places[: 2 if count > 1 else 1] if not deliveries(self.database) else ():
            add_endpoint(self.database, place)
        for number in range((count + 1) // 2):
            with self.database.write() as session:
                outbox.emit(session, TENANT, "job.succeeded", {"id": number})

    def attempts(self) -> list[int]:
        rows = deliveries(self.database)
        return [row.attempts for row in rows] if all(row.state == "delivered" for row in rows) else []


class HandOvers(Webhooks):
    """Jobs, each with two files and a document to hand over."""

    failpoint = "after_hand_over_sent"

    def fill(self, count: int) -> None:
        puts = [{"kind": "put", "url": place} for place in self.places[: 2 if count > 1 else 0]]
        for _ in range((count + 2) // 3):
            job_id = self.front.new_job(hand_over=[*puts, {"kind": "post", "url": f"{self.places[0]}/in"}])
            hand_overs.succeed(self.front, job_id, "pass", b"quantized bytes" * 10_000)

    def attempts(self) -> list[int]:
        rows = hand_overs.rows(self.database)
        return [row.attempts for row in rows] if all(row.state == "done" for row in rows) else []


@pytest.fixture(params=[Webhooks, HandOvers])
def outgoing(request: pytest.FixtureRequest, front: Front, server: Scripted) -> Webhooks:
    made: Webhooks = request.param(front, server.port)
    return made


@contextmanager
def reconciler(settings: Settings, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """``quantmill reconcile``, which reaches the receiver by plain HTTP."""
    known = {
        "QUANTMILL_DATA_DIR": str(settings.data_dir), "QUANTMILL_DATABASE_URL": settings.database_url,
        "QUANTMILL_KEY_PEPPER": PEPPER, "QUANTMILL_EGRESS_ALLOWED": settings.egress_allowed,
        "QUANTMILL_RECONCILE_SECONDS": "0.1",
    }  # fmt: skip
    with settings.data_dir.with_name("reconciler.log").open("ab") as log:
        process = subprocess.Popen(command("reconcile"), env=environment(**(known | variables)), stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)


@pytest.mark.long
def test_killed_between_request_and_note_the_same_is_sent_again(outgoing, settings, server):
    outgoing.fill(1)
    armed = {
        "QUANTMILL_FAILPOINTS": f"{outgoing.failpoint}=kill", "QUANTMILL_WEBHOOK_SECONDS": "2",
        "QUANTMILL_LEASE_SECONDS": "2", "QUANTMILL_RENEW_SECONDS": "0.5",
    }  # fmt: skip
    with reconciler(settings, **armed) as process:
        assert process.wait(PATIENCE_SECONDS) == KILLED
    assert len(received(server)) == 1
    assert outgoing.attempts() == []
    with reconciler(settings) as process:
        wait_for(outgoing.attempts, message="it was lost")
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0
    first, second = received(server)
    assert (first.headers.get("webhook-id"), first.body) == (second.headers.get("webhook-id"), second.body)
    assert outgoing.attempts() == [2]


@pytest.mark.long
@pytest.mark.both_databases
def test_three_reconcilers_at_once_send_each_once(outgoing: Webhooks, settings: Settings, server: Scripted) -> None:
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(reconciler(settings))
        outgoing.fill(20)
        wait_for(outgoing.attempts, message="not all arrived")
    assert set(outgoing.attempts()) == {1}
    assert len(received(server)) == len(outgoing.attempts()) >= 20
    came = Counter((request.split(b" HTTP/1.1")[0], request.partition(b"\r\n\r\n")[2]) for request in server.requests)
    puts = {count for (line, _), count in came.items() if line.startswith(b"PUT")}
    assert puts <= {7}
    assert {count for (line, _), count in came.items() if line.startswith(b"POST")} == {1}
