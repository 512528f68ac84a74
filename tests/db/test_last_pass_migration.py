"""Schedules of before keep the job that they accepted last, where it is there; both ways, on both databases."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from service.db import Database, migrate
from service.jobs import transitions
from tests.db.test_schedule_migration import own_url as own_url
from tests.db.test_transitions import add_dataset, add_model

BEFORE = "20261202_batches"
_INSERT = text(
    "INSERT INTO schedules (id, tenant_id, name, cron, timezone, template, overlap, misfire, misfire_grace_seconds,"
    " jitter_seconds, skip_unchanged, gate, last_pass_job_id, last_pass_fingerprint, row_version, created_by,"
    " created_at, updated_at) VALUES (:id, 'default', :id, '* * * * *', 'UTC', '{}', 'skip', 'skip', 0, 0, :no, '{}',"
    " :job, :print, 1, 'x', 0, 0)"
)


@pytest.mark.parametrize("back", [False, True])
def test_what_was_accepted_last_is_kept_if_it_is_there(own_url: str, back: bool) -> None:
    database = Database(own_url)
    with database.write() as session:
        given = {"model_id": add_model(session), "calibration_dataset_id": add_dataset(session)}
        job = transitions.submit(session, tenant_id="default", kind="quantize", config={"preset": "int8"}, **given).id
    database.close()
    migrate(own_url, BEFORE)
    database = Database(own_url)
    with database.write() as session:
        for name, last in (("there", job), ("gone", "job_gone"), ("none", None)):
            session.execute(_INSERT, {"id": name, "job": last, "print": last and "1" * 64, "no": False})
    database.close()
    migrate(own_url)
    if back:
        migrate(own_url, BEFORE)
    database = Database(own_url)
    with database.read() as session:
        found = session.execute(text("SELECT id, last_pass_job_id, last_pass_fingerprint FROM schedules ORDER BY id"))
        assert found.all() == [("gone", None, None), ("none", None, None), ("there", job, "1" * 64)]
    database.close()
