"""``quantmill keys``, ``tenants`` and ``audit`` on a service that runs; and who finds the key of whom."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import update
from typer.testing import CliRunner, Result

from service.db import Database
from service.keys.files import LOCAL_KEY_FILE
from service.tables import AuditEvent
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import Tiny
from tests.worker.conftest import tiny
from tests.worker.running import Service
from tests.worker.workbench import wait_for
from worker.cli import app

__all__ = ["tiny"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("keys") / "home", QUANTMILL_OPEN="false") as running:
        yield running


def run(service: Service, *words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, [*words, "--data-dir", str(service.folder)])
    assert done.exit_code == code, done.output
    return done


def status(service: Service, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.get(f"{service.url}/v1/jobs", headers=headers, timeout=PATIENCE_SECONDS).status_code


def test_nobody_gets_in_without_a_key_and_the_owner_finds_it(service: Service) -> None:
    path = service.folder / LOCAL_KEY_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert status(service, "") == 401
    assert status(service, path.read_text().strip()) == 200
    assert list(service.client.jobs()) == [], "a client of the same user finds the key by itself"


def test_a_key_lives_from_create_to_revoke(service: Service) -> None:
    made = run(service, "keys", "create", "nightly", "--tenant", "vision", "--scope", "read", "--days", "90")
    key = made.stdout.strip()
    assert re.fullmatch(r"qm_[0-9a-z]{26}_[\w-]{43}", key)
    assert status(service, key) == 200
    (told,) = json.loads(run(service, "keys", "list", "--tenant", "vision", "--json").stdout)["items"]
    assert (told["tenant"], told["scope"], told["state"], told["last4"]) == ("vision", "read", "good", key[-4:])
    assert key not in run(service, "keys", "list").stdout
    successor = run(service, "keys", "rotate", told["id"], "--grace-hours", "0").stdout.strip()
    assert status(service, successor) == 200
    wait_for(lambda: status(service, key) == 401, message="a key that was replaced stays good")
    newest = json.loads(run(service, "keys", "list", "--tenant", "vision", "--json").stdout)["items"][0]
    run(service, "keys", "revoke", newest["id"])
    wait_for(lambda: status(service, successor) == 401, message="a key that was revoked stays good")
    again = CliRunner().invoke(app, ["keys", "revoke", newest["id"], "--data-dir", str(service.folder)])
    assert again.exit_code == 1


@pytest.mark.parametrize("tenant", ["", "a b", "../x", "x" * 65, "ä", "a\nb"])
def test_a_tenants_name_is_plain(service: Service, tenant: str) -> None:
    run(service, "keys", "create", "ci", "--tenant", tenant, code=2)


@pytest.mark.parametrize("words", [("",), ("a\nb",), ("ci", "--scope", "root"), ("ci", "--days", "0")])
def test_a_key_that_makes_no_sense_is_refused(service: Service, words: tuple[str, ...]) -> None:
    run(service, "keys", "create", *words, code=2)


def test_limits_are_set_and_shown(service: Service) -> None:
    run(service, "tenants", "set", "vision", "jobs_queued=5", "stored_bytes=none")
    found = json.loads(run(service, "tenants", "show", "vision", "--json").stdout)
    assert found["own"] == {"jobs_queued": 5, "stored_bytes": None}
    assert "jobs_queued" in run(service, "tenants", "show", "vision").stdout
    for wrong in ("jobs=5", "jobs_queued=-1", "jobs_queued=many", "jobs_queued"):
        run(service, "tenants", "set", "vision", wrong, code=2)
    assert json.loads(run(service, "tenants", "show", "vision", "--json").stdout)["own"]["jobs_queued"] == 5


def test_the_time_that_jobs_compute_is_counted(service: Service, tiny: Tiny) -> None:
    job = service.client.submit(**service.upload(tiny), config={"preset": "int8"})
    assert service.wait_for_state(job.id, "succeeded", "failed").state == "succeeded"
    usage = json.loads(run(service, "tenants", "show", "default", "--json").stdout)["usage"]
    assert usage["cpu_seconds_per_day"] > 0
    assert usage["stored_bytes"] > 0
    assert usage["jobs_per_day"] == 1


def test_what_was_done_stands_in_the_audit_and_a_change_of_it_is_found(service: Service) -> None:
    run(service, "keys", "create", "audited")
    rows = json.loads(run(service, "audit", "list", "--json").stdout)["items"]
    made = next(row for row in rows if row["action"] == "key.create")
    assert made["actor"] == "command-line"
    assert "as they were written" in run(service, "audit", "verify").stdout
    over_http = httpx.get(
        f"{service.url}/v1/audit", params={"limit": 50},
        headers={"Authorization": f"Bearer {(service.folder / LOCAL_KEY_FILE).read_text().strip()}"},
        timeout=PATIENCE_SECONDS,
    ).json()  # fmt: skip
    # the service may have noted something of its own meanwhile
    assert made["hash"] in [row["hash"] for row in over_http["items"]]
    database = Database(f"sqlite:///{service.folder / 'service.db'}")
    for action in ("forged", rows[-1]["action"]):
        with database.write() as session:
            session.execute(update(AuditEvent).where(AuditEvent.seq == rows[-1]["seq"]).values(action=action))
        found = json.loads(run(service, "audit", "verify", "--json", code=int(action == "forged")).stdout)
        assert found["fault"] == ("changed" if action == "forged" else None)
    database.close()


def test_an_open_service_says_so(tmp_path: Path) -> None:
    with Service(tmp_path / "home", QUANTMILL_OPEN="true") as running:
        assert status(running, "") == 200
        assert running.process.stdout is not None
        assert b"without a key" in running.process.stdout.readline()
        assert not (tmp_path / "home" / LOCAL_KEY_FILE).exists()
