"""The receiver of docs/webhooks.md takes what the service sends, and nothing else."""

from __future__ import annotations

import http.server
import re
import threading
from typing import Any

import httpx

from service.contracts.webhooks import EVENT_TYPES, PING, patterns
from service.db import Database
from service.egress import retries
from service.egress.allowed import parse_allowed
from service.egress.sending import Bounds, Egress
from service.settings import Settings
from service.webhooks import outbox
from tests.docs.blocks import ROOT, fenced
from tests.support.patience import PATIENCE_SECONDS
from tests.support.webhooks import TENANT, add_endpoint, deliver, deliveries

PAGE = ROOT / "docs" / "webhooks.md"


def test_the_receiver_of_the_page(sqlite_url: str, tmp_path: Any, monkeypatch: Any) -> None:
    (block,) = fenced(PAGE, "python")
    assert len([line for line in block.splitlines() if line.strip()]) <= 15
    database, settings = Database(sqlite_url), Settings(data_dir=tmp_path, database_url=sqlite_url)
    servers: list[http.server.HTTPServer] = []
    made = threading.Event()

    class Noted(http.server.HTTPServer):
        def __init__(self, address: tuple[str, int], handler: Any) -> None:
            super().__init__(("127.0.0.1", address[1]), handler)
            servers.append(self)
            made.set()

    monkeypatch.setattr(http.server, "HTTPServer", Noted)
    names: dict[str, Any] = {"PORT": 0, "SEEN": {}, "SECRET": None}
    thread = threading.Thread(target=exec, args=(compile(block, "webhooks.md", "exec"), names), daemon=True)
    thread.start()
    assert made.wait(PATIENCE_SECONDS)
    port = servers[0].server_address[1]
    _, names["SECRET"] = add_endpoint(database, f"http://127.0.0.1:{port}/")
    with database.write() as session:
        outbox.emit(session, TENANT, "job.succeeded", {"id": "job_1"})
    egress = Egress(parse_allowed(f"http://127.0.0.1:{port}"), Bounds(seconds=PATIENCE_SECONDS))
    deliver(database, settings, egress)
    (row,) = deliveries(database)
    assert (row.state, row.last_status) == ("delivered", 204)
    assert names["SEEN"][row.event_id]["data"] == {"id": "job_1"}
    assert httpx.post(f"http://127.0.0.1:{port}/", content=b"{}").status_code == 400
    assert list(names["SEEN"]) == [row.event_id]
    servers[0].shutdown()
    thread.join(PATIENCE_SECONDS)
    servers[0].server_close()
    database.close()


def test_the_page_names_all_events() -> None:
    text = PAGE.read_text()
    table = text.split("| event | told once |")[1].split("\n\n")[0]
    known = {f"{noun}.{name}" for noun, names in EVENT_TYPES.items() for name in names} | {PING}
    assert set(re.findall(r"`(\w+\.\w+)`", table)) == known
    for pattern in patterns():
        if pattern.endswith("*"):
            assert f"`{pattern}`" in text, pattern


def test_the_page_tells_the_bounds_that_hold() -> None:
    text, settings = PAGE.read_text(), Settings()
    pauses = retries.parse_schedule(settings.webhook_retry_seconds)
    assert pauses == (5, 30, 120, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600)
    assert len(pauses) + 1 == 10
    assert "ten times in all" in text
    assert f"{outbox.MOST_WAITING} events wait" in text
    assert f"a reconciler's {settings.webhook_slots} for one tenant" in text
    assert (settings.webhook_seconds, settings.webhook_endpoint_slots) == (15, 4)
    assert (settings.webhook_failing_seconds, settings.webhook_retention_seconds) == (86_400, 30 * 86_400)
    assert (outbox.MOST_BYTES, retries.LONGEST_ASKED_SECONDS) == (20 * 1024, 6 * 3600)
