"""Whatever is done takes its locks in the order that is written down: else two wait for each other on PostgreSQL."""

from __future__ import annotations

import pytest

from service.jobs import transitions
from service.principal import DEFAULT_TENANT
from service.quotas import service as quotas
from tests.api.test_every_route import REQUESTS
from tests.support.batches import grid_body, submitted
from tests.support.front import WORKER, Front, taken
from tests.support.locks import locks_of, out_of_order
from tests.support.schedules import HOUR, MANY, add_schedule, fire, move_clock, settle, succeed


@pytest.mark.both_databases
@pytest.mark.postgres
@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_locks_are_taken_in_the_written_order(front: Front) -> None:
    """SQLite has one lock, and its statements do not name it."""
    http, app, match = front.http, front.app, {"If-Match": "*"}
    limits = {"jobs_queued": MANY, "jobs_per_day": MANY, "jobs_running": MANY, "stored_bytes": 10**9}
    taken(http.put(f"/v1/tenants/{DEFAULT_TENANT}/quota", json=limits))
    taken(http.post("/v1/webhooks", json={"url": "https://8.8.8.8/"}), 201)
    with locks_of(app.database) as transactions:
        made = {}
        for what, make in REQUESTS.items():
            path, body = make(front)
            answer = http.post(path, json=body)
            assert answer.is_success, answer.text
            made[what] = path.split("/")[3] if what == "hand-over" else answer.json()["id"]
        nightly = add_schedule(front, front.job_body(), overlap="cancel_running", promote_to="prod")["id"]
        for _ in range(2):
            move_clock(app.database, HOUR)
            assert fire(app) > 0
        taken(http.patch(f"/v1/schedules/{nightly}", json={"name": "x"}, headers=match))
        submitted(front, grid_body(front, reuse=True))
        assert http.post(f"/v1/batches/{made['batch']}/cancel").is_success
        job_id = taken(http.post(f"/v1/schedules/{nightly}/run"), 202)["job_id"]
        succeed(front, job_id)
        assert settle(app) > 0
        with app.database.write() as session:
            assert quotas.may_start(session, app.settings, DEFAULT_TENANT)
            assert transitions.claim(session, made["job"], worker_id=WORKER, lease_seconds=-1)
            transitions.expire_leases(session)
        succeed(front, made["hand-over"])
        for what in ("model", "dataset"):  # with what validates them
            front.run_late(front.inspect_job(**{f"{what}_id": made[what]}))
        for path in (f"jobs/{made['hand-over']}", f"webhooks/{made['webhook']}", f"schedules/{made['schedule']}"):
            assert http.delete(f"/v1/{path}").is_success
    held = {lock.table for one in transactions for lock in one}
    assert held >= {"tenants", "schedules", "models", "jobs", "names", "webhook_endpoints"}
    assert out_of_order(transactions) == []
