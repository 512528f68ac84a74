"""Real reconcilers and a receiver on loopback: killed after a request, and several at once. On both databases."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.db import Database
from service.webhooks import outbox
from tests.support.patience import PATIENCE_SECONDS
from tests.support.scripted import Scripted, scripted
from tests.support.webhooks import PEPPER, TENANT, add_endpoint, answering, deliveries, received
from tests.worker.running import environment
from tests.worker.workbench import wait_for

pytestmark = pytest.mark.slow  # starts processes
KILLED = -9


@contextmanager
def reconciler(folder: Path, url: str, port: int, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """``quantmill reconcile``, which reaches the receiver by plain HTTP."""
    known = {
        "QUANTMILL_DATA_DIR": str(folder), "QUANTMILL_DATABASE_URL": url, "QUANTMILL_KEY_PEPPER": PEPPER,
        "QUANTMILL_EGRESS_ALLOWED": f"http://127.0.0.1:{port}", "QUANTMILL_RECONCILE_SECONDS": "0.1",
    }  # fmt: skip
    with (folder.parent / "reconciler.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "worker.cli", "reconcile"], env=environment(**(known | variables)), stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted(answering(200)) as running:
        yield running


def emit(database: Database, count: int = 1) -> None:
    for number in range(count):
        with database.write() as session:
            outbox.emit(session, TENANT, "job.succeeded", {"id": number})


def all_delivered(database: Database) -> bool:
    return all(row.state == "delivered" for row in deliveries(database))


def test_killed_between_request_and_note_it_is_sent_again_under_the_same_id(
    database: Database, database_url: str, folder: Path, server: Scripted
) -> None:
    add_endpoint(database, f"http://127.0.0.1:{server.port}/")
    emit(database)
    armed = {
        "QUANTMILL_FAILPOINTS": "after_webhook_sent=kill", "QUANTMILL_WEBHOOK_SECONDS": "4",
        "QUANTMILL_LEASE_SECONDS": "4", "QUANTMILL_RENEW_SECONDS": "0.5",
    }  # fmt: skip
    with reconciler(folder, database_url, server.port, **armed) as process:
        assert process.wait(PATIENCE_SECONDS) == KILLED
    assert len(received(server)) == 1
    assert [row.state for row in deliveries(database)] == ["waiting"]
    with reconciler(folder, database_url, server.port):
        wait_for(lambda: all_delivered(database), message="it was lost")
    first, second = received(server)
    assert (first.id, first.body) == (second.id, second.body)
    assert [row.attempts for row in deliveries(database)] == [2]


def test_three_reconcilers_at_once_send_each_delivery_once(
    database: Database, database_url: str, folder: Path, server: Scripted
) -> None:
    add_endpoint(database, f"http://127.0.0.1:{server.port}/one")
    add_endpoint(database, f"http://127.0.0.1:{server.port}/other")
    with (
        reconciler(folder, database_url, server.port),
        reconciler(folder, database_url, server.port),
        reconciler(folder, database_url, server.port),
    ):
        emit(database, 40)
        wait_for(lambda: all_delivered(database), message="not all were delivered")
    assert {row.attempts for row in deliveries(database)} == {1}
    assert set(Counter(request.id for request in received(server)).values()) == {2}, "once to each of two endpoints"
    assert len(received(server)) == 80


def test_a_reconciler_that_is_asked_to_stop_ends_what_is_under_way(
    database: Database, database_url: str, folder: Path, server: Scripted
) -> None:
    add_endpoint(database, f"http://127.0.0.1:{server.port}/")
    with reconciler(folder, database_url, server.port) as process:
        emit(database, 20)
        wait_for(lambda: received(server))
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0
    sent = Counter(request.id for request in received(server))
    assert set(sent.values()) == {1}
    assert {row.event_id for row in deliveries(database, state="delivered")} == set(sent)
