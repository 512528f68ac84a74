"""The page of workers."""

from __future__ import annotations

from pathlib import Path

from fastapi.testclient import TestClient

from service.app import create_app
from service.keys import service as keys
from service.principal import COMMAND_LINE, DEFAULT_TENANT, Principal
from service.settings import Settings
from service.workers import repository

PEPPER = "9f2c7be1d0a84e5536c1aa70b9de4f18"
BY = Principal(DEFAULT_TENANT, COMMAND_LINE, "admin")


def test_workers_are_shown_and_who_reads_cannot_release(tmp_path: Path, sqlite_url: str) -> None:
    settings = Settings(data_dir=tmp_path, database_url=sqlite_url, min_free_bytes=0, open=False, key_pepper=PEPPER)
    app = create_app(settings)
    with TestClient(app) as client:
        desk = app.state.desk
        with desk.database.write() as session:
            made = keys.create(session, PEPPER, BY, tenant_id=DEFAULT_TENANT, name="r", scope="read", days=None)
            repository.announce(session, "host-7", ["cpu"], slots=3)
        assert client.post("/sign-in", data={"key": made.text}, follow_redirects=False).status_code == 303
        shown = client.get("/workers")
        assert shown.status_code == 200
        assert "host-7" in shown.text and "reach it" in shown.text
        unguarded = client.post("/workers/quarantine/abc/release")
        assert unguarded.status_code == 403 and "does not come from a page" in unguarded.text
        guard = desk.keyring.guard(client.cookies["quantmill_session"])
        refused = client.post("/workers/quarantine/abc/release", data={"csrf": guard})
        assert refused.status_code == 403 and "may not do this" in refused.text
