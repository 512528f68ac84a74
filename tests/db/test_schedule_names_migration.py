"""Schedules of one name get names of their own; both ways, on both databases."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from service.db import Database, migrate
from tests.db.test_last_pass_migration import _INSERT
from tests.db.test_schedule_migration import own_url as own_url

BEFORE = "20261206_hand_overs"
LIKE_AN_ID = "sch_" + "0" * 26
NAMES = {
    "a": ("default", "nightly"),
    "b": ("default", "nightly"),
    "c": ("default", "nightly-2"),
    "d": ("default", "nightly"),
    "e": ("other", "nightly"),
    "f": ("default", "n" * 200),
    "g": ("default", "n" * 200),
    "h": ("default", LIKE_AN_ID),
    "i": ("default", "Nightly"),
}


def insert(database: Database) -> None:
    with database.write() as session:
        for key, (tenant, name) in NAMES.items():
            session.execute(_INSERT, {"id": key, "job": None, "print": None, "no": False})
            update = text("UPDATE schedules SET tenant_id = :tenant, name = :name WHERE id = :key")
            session.execute(update, {"tenant": tenant, "name": name, "key": key})


@pytest.mark.parametrize("back", [False, True])
def test_the_oldest_keeps_its_name(own_url: str, back: bool) -> None:
    migrate(own_url, BEFORE)
    database = Database(own_url)
    insert(database)
    database.close()
    migrate(own_url)
    if back:
        migrate(own_url, BEFORE)
    database = Database(own_url)
    with database.read() as session:
        found = {row.id: row.name for row in session.execute(text("SELECT id, name FROM schedules"))}
    assert found == {
        "a": "nightly",
        "b": "nightly-3",
        "c": "nightly-2",
        "d": "nightly-4",
        "e": "nightly",
        "f": "n" * 200,
        "g": "n" * 198 + "-2",
        "h": f"{LIKE_AN_ID}-2",
        "i": "Nightly",
    }
    again = text("UPDATE schedules SET name = 'nightly' WHERE id = 'b'")
    if back:
        with database.write() as session:
            session.execute(again)
    else:
        with pytest.raises(IntegrityError), database.write() as session:
            session.execute(again)
    database.close()
