"""The receiver of docs/webhooks.md takes what the service sends, and nothing else."""

from __future__ import annotations

import http.server
import threading
from typing import Any

import httpx

from service.db import Database
from service.egress.addresses import parse_allowed
from service.egress.sending import Bounds, Egress
from service.settings import Settings
from service.webhooks import outbox
from tests.docs.blocks import ROOT, fenced
from tests.support.patience import PATIENCE_SECONDS
from tests.support.webhooks import TENANT, add_endpoint, deliver, deliveries

PAGE = ROOT / "docs" / "webhooks.md"


def test_the_receiver_of_the_page(sqlite_url: str, tmp_path: Any, monkeypatch: Any) -> None:
    (block,) = fenced(PAGE, "python")
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
