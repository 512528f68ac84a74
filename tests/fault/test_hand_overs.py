"""Real reconcilers that hand over to a receiver on loopback: killed after a request, and several at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.settings import Settings
from tests.api.conftest import app, front
from tests.fault.test_webhooks import KILLED, reconciler
from tests.support.front import Front
from tests.support.hand_overs import rows, succeed
from tests.support.patience import PATIENCE_SECONDS
from tests.support.scripted import Scripted, scripted
from tests.support.webhooks import PEPPER, answering, received
from tests.worker.workbench import wait_for

__all__ = ["app", "front"]
pytestmark = pytest.mark.slow  # starts processes
DATA = b"quantized bytes" * 100_000


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted(answering(200)) as running:
        yield running


@pytest.fixture
def settings(tmp_path: Path, database_url: str, server: Scripted) -> Settings:
    return Settings(
        data_dir=tmp_path / "data",
        database_url=database_url,
        min_free_bytes=0,
        key_pepper=PEPPER,
        egress_allowed=f"http://127.0.0.1:{server.port}",
    )


def handed(front: Front, server: Scripted, count: int = 1) -> None:
    place = f"http://127.0.0.1:{server.port}"
    targets: list[dict[str, Any]] = [{"kind": "put", "url": f"{place}/{number}"} for number in range(count)]
    job_id = front.new_job(hand_over=[*targets, {"kind": "post", "url": f"{place}/in"}])
    succeed(front, job_id, "pass", DATA)


def all_done(front: Front) -> bool:
    return all(row.state == "done" for row in rows(front.desk.database))


def test_killed_between_request_and_note_the_same_is_sent_again(
    front: Front, settings: Settings, server: Scripted
) -> None:
    handed(front, server, 0)
    armed = {
        "QUANTMILL_FAILPOINTS": "after_hand_over_sent=kill", "QUANTMILL_WEBHOOK_SECONDS": "4",
        "QUANTMILL_LEASE_SECONDS": "4", "QUANTMILL_RENEW_SECONDS": "0.5",
    }  # fmt: skip
    place = (settings.data_dir, settings.database_url, server.port)
    with reconciler(*place, **armed) as process:
        assert process.wait(PATIENCE_SECONDS) == KILLED
    assert [row.state for row in rows(front.desk.database)] == ["pending"]
    with reconciler(*place):
        wait_for(lambda: all_done(front), message="it was lost")
    first, second = received(server)
    assert first.body == second.body
    assert [row.attempts for row in rows(front.desk.database)] == [2]


def test_three_reconcilers_at_once_send_each_once(front: Front, settings: Settings, server: Scripted) -> None:
    place = (settings.data_dir, settings.database_url, server.port)
    with reconciler(*place), reconciler(*place), reconciler(*place):
        for _ in range(4):
            handed(front, server, 5)
        wait_for(lambda: all_done(front), message="not all arrived")
    assert {row.attempts for row in rows(front.desk.database)} == {1}
    came = Counter(request.split(b" HTTP/1.1")[0] for request in server.requests)
    assert came == {f"PUT /{number}".encode(): 4 for number in range(5)} | {b"POST /in": 4}
    assert {request.body for request in received(server) if request.body[:1] != b"{"} == {DATA}
