"""``quantmill keys``, ``tenants`` and ``audit`` beside a service; and who finds the key of whom."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import update
from typer.testing import CliRunner, Result

from service.contracts.command_errors import NoServiceDataError
from service.keys import keyring as keyrings
from service.keys import local
from service.keys.files import LOCAL_KEY_FILE
from service.settings import Settings
from service.tables import AuditEvent
from tests.api.conftest import front_of
from tests.security.conftest import bearer
from tests.support.front import Front
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import Tiny
from tests.worker.conftest import tiny
from tests.worker.running import Service
from worker.cli import app as commands

__all__ = ["tiny"]


@pytest.fixture
def home(app: FastAPI, tmp_path: Path, _sqlite_template: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    """An API server with keys, and its folder; it remembers no key."""
    monkeypatch.setattr(keyrings, "REMEMBERED_SECONDS", 0.0)
    settings = Settings(data_dir=tmp_path / "home", open=False, min_free_bytes=0)
    settings.data_dir.mkdir()
    shutil.copyfile(_sqlite_template, settings.data_dir / "service.db")
    with front_of(app, settings) as front:
        yield front


def run(folder: Path, *words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(commands, [*words, "--data-dir", str(folder)])
    assert done.exit_code == code, done.output
    return done


def told(folder: Path, *words: str, code: int = 0) -> dict:
    return json.loads(run(folder, *words, "--json", code=code).stdout)


def local_key(folder: Path) -> dict[str, str]:
    return bearer((folder / LOCAL_KEY_FILE).read_text().strip())


def test_a_key_lives_from_create_to_revoke(home: Front) -> None:
    folder = home.app.settings.data_dir

    def status(key: str) -> int:
        return home.http.get("/v1/jobs", headers=bearer(key)).status_code

    key = run(
        folder, "keys", "create", "nightly", "--tenant", "vision", "--scope", "read", "--days", "90"
    ).stdout.strip()
    assert re.fullmatch(r"qm_[0-9a-z]{26}_[\w-]{43}", key)
    assert status(key) == 200
    (made,) = told(folder, "keys", "list", "--tenant", "vision")["items"]
    assert (made["tenant"], made["scope"], made["state"], made["last4"]) == ("vision", "read", "good", key[-4:])
    assert key not in run(folder, "keys", "list").stdout
    successor = run(folder, "keys", "rotate", made["id"], "--grace-hours", "0").stdout.strip()
    assert (status(successor), status(key)) == (200, 401)
    newest = told(folder, "keys", "list", "--tenant", "vision")["items"][0]
    run(folder, "keys", "revoke", newest["id"])
    assert status(successor) == 401
    run(folder, "keys", "revoke", newest["id"], code=1)
    for tenant in ("", "a b", "../x", "x" * 65, "ä", "a\nb"):
        run(folder, "keys", "create", "ci", "--tenant", tenant, code=2)
    for words in (("",), ("a\nb",), ("ci", "--scope", "root"), ("ci", "--days", "0")):
        run(folder, "keys", "create", *words, code=2)


def test_limits_are_set_and_shown(home: Front) -> None:
    folder = home.app.settings.data_dir
    run(folder, "tenants", "set", "vision", "jobs_queued=5", "stored_bytes=none")
    assert told(folder, "tenants", "show", "vision")["own"] == {"jobs_queued": 5, "stored_bytes": None}
    assert "jobs_queued" in run(folder, "tenants", "show", "vision").stdout
    for wrong in ("jobs=5", "jobs_queued=-1", "jobs_queued=many", "jobs_queued"):
        run(folder, "tenants", "set", "vision", wrong, code=2)
    assert told(folder, "tenants", "show", "vision")["own"]["jobs_queued"] == 5


def test_what_was_done_stands_in_the_audit_and_a_change_of_it_is_found(home: Front) -> None:
    folder = home.app.settings.data_dir
    for name in ("audited", "other"):
        run(folder, "keys", "create", name)
    rows = told(folder, "audit", "list")["items"]
    made = next(row for row in rows if row["action"] == "key.create")
    assert made["actor"] == "command-line"
    assert "entries verified" in run(folder, "audit", "verify").stdout
    over_http = home.http.get("/v1/audit", params={"limit": 50}, headers=local_key(folder)).json()
    assert made["hash"] in [row["hash"] for row in over_http["items"]]
    for action, fault in (("forged", "changed"), (rows[-1]["action"], None)):
        with home.app.database.write() as session:
            session.execute(update(AuditEvent).where(AuditEvent.seq == rows[-1]["seq"]).values(action=action))
        assert told(folder, "audit", "verify", code=int(fault is not None))["fault"] == fault


@pytest.mark.long
@pytest.mark.slow
def test_nobody_gets_in_without_a_key_the_owner_finds_it_and_time_is_counted(tmp_path: Path, tiny: Tiny) -> None:
    with Service(tmp_path / "home", QUANTMILL_OPEN="false") as running:
        url = f"{running.url}/v1/jobs"
        assert httpx.get(url, timeout=PATIENCE_SECONDS).status_code == 401
        assert httpx.get(url, headers=local_key(running.folder), timeout=PATIENCE_SECONDS).status_code == 200
        job = running.client.submit(**running.upload(tiny), config={"preset": "int8"})
        assert running.wait_for_state(job.id, "succeeded", "failed").state == "succeeded"
        usage = told(running.folder, "tenants", "show", "default")["usage"]
    assert usage["cpu_seconds_per_day"] > 0
    assert usage["stored_bytes"] > 0
    assert usage["jobs_per_day"] == 1


@pytest.mark.long
@pytest.mark.slow
def test_an_open_service_says_so(tmp_path: Path) -> None:
    with Service(tmp_path / "home", QUANTMILL_OPEN="true") as running:
        assert httpx.get(f"{running.url}/v1/jobs", timeout=PATIENCE_SECONDS).status_code == 200
        assert running.process.stdout is not None
        assert b"no key is required" in running.process.stdout.readline()
        assert not (tmp_path / "home" / LOCAL_KEY_FILE).exists()


def test_keys_are_those_of_the_users_own_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "home", "migrate")
    run(tmp_path / "home", "keys", "create", "ci")
    monkeypatch.delenv("QUANTMILL_DATA_DIR", raising=False)
    monkeypatch.delenv("QUANTMILL_DATABASE_URL", raising=False)
    monkeypatch.setattr(local, "own_services", lambda: {"http://127.0.0.1:8000": tmp_path / "home"})
    monkeypatch.chdir(tmp_path)
    listed = CliRunner().invoke(commands, ["keys", "list"], catch_exceptions=False).stdout
    assert listed.startswith("key ")
    assert " ci" in listed and "key_" in listed


@pytest.mark.parametrize("words", [("keys", "create", "ci"), ("audit", "list"), ("tenants", "show", "default")])
def test_where_no_service_has_data_none_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(local, "own_services", dict)
    with pytest.raises(NoServiceDataError, match="No service data in") as caught:
        CliRunner().invoke(commands, [*words, "--data-dir", str(tmp_path / "new")], catch_exceptions=False)
    assert "--data-dir" in str(caught.value.hint)
    monkeypatch.setattr(local, "own_services", lambda: {"http://127.0.0.1:8000": tmp_path / "other"})
    with pytest.raises(NoServiceDataError) as caught:
        CliRunner().invoke(commands, [*words, "--data-dir", str(tmp_path / "new")], catch_exceptions=False)
    assert str(tmp_path / "other") in str(caught.value.hint)
    assert not (tmp_path / "new").exists()
    run(tmp_path / "new", "migrate")
    run(tmp_path / "new", *words)
