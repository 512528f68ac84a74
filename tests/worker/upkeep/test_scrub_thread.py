"""Verification in the background: it finds damage by itself, outlives trouble, and holds up nobody who stops."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.db import Database
from service.files import repository as files
from service.settings import Settings
from service.storage import BLOCK_BYTES
from tests.worker.upkeep.test_scrub import DATA, damage, damaged
from tests.worker.upkeep.yard import Yard, digest_of
from tests.worker.workbench import wait_for
from worker.upkeep import scrub
from worker.upkeep.scrub import ScrubThread

FAST_BYTES_PER_SECOND = 10**9


class Reached(Database):
    """A database that can be away, and counts how often it was asked for in vain."""

    away = False
    asked_in_vain = 0

    @contextmanager
    def write(self) -> Iterator[Session]:
        if self.away:
            self.asked_in_vain += 1
            raise OperationalError("SELECT 1", {}, OSError("connection refused"))
        with super().write() as session:
            yield session


@pytest.fixture(autouse=True)
def _restless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "_IDLE_SECONDS", 0.01)


@pytest.fixture
def reached(yard: Yard) -> Iterator[Reached]:
    database = Reached(yard.database.engine.url.render_as_string(hide_password=False))
    yield database
    database.close()


def background(yard: Yard, database: Database | None = None, *, pace: int = FAST_BYTES_PER_SECOND) -> ScrubThread:
    settings = Settings(data_dir=yard.folder, scrub_bytes_per_second=pace, scrub_period_seconds=1000)
    return ScrubThread(settings, database or yard.database, yard.store)


def store(yard: Yard, *contents: bytes) -> None:
    for data in contents:
        for _ in yard.publish(data):
            pass


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "scrub"]


def test_it_finds_damage_and_goes_through_every_file(yard: Yard) -> None:
    store(yard, *DATA)
    damage(yard, DATA[0])
    yard.store.path(digest_of(DATA[1])).unlink()
    with background(yard):
        wait_for(lambda: len(damaged(yard)) == 2)
    assert damaged(yard) == {digest_of(DATA[0]): "digest", digest_of(DATA[1]): "missing"}
    assert not threads()


def test_it_finds_what_is_damaged_later_in_the_next_pass(yard: Yard) -> None:
    store(yard, *DATA)
    settings = Settings(data_dir=yard.folder, scrub_bytes_per_second=FAST_BYTES_PER_SECOND, scrub_period_seconds=0.02)
    with ScrubThread(settings, yard.database, yard.store):
        wait_for(lambda: scrubbed(yard))
        damage(yard, DATA[2])
        wait_for(lambda: damaged(yard) == {digest_of(DATA[2]): "digest"})


def scrubbed(yard: Yard) -> bool:
    """True once a whole pass is over."""
    with yard.database.read() as session:
        found = files.current_pass(session)
    return found is not None and found.finished_at is not None


def test_a_database_that_is_away_ends_it_not(yard: Yard, reached: Reached, caplog: pytest.LogCaptureFixture) -> None:
    store(yard, *DATA)
    damage(yard, DATA[0])
    reached.away = True
    with background(yard, reached):
        wait_for(lambda: reached.asked_in_vain >= 2)
        assert "scrub.failed" in caplog.text
        reached.away = False
        wait_for(lambda: damaged(yard))
    assert damaged(yard) == {digest_of(DATA[0]): "digest"}


def test_whoever_stops_waits_for_no_file(yard: Yard) -> None:
    """At a byte per second it would take days. The file is neither read on nor judged; the next process begins it."""
    data = b"y" * (3 * BLOCK_BYTES)
    store(yard, data)
    damage(yard, data)
    blocks: list[int] = []
    thread = background(yard, pace=1)
    pause = thread._scrubber._pause

    def told(count: int) -> None:
        blocks.append(count)
        pause(count)

    thread._scrubber._pause = told
    with thread:
        wait_for(lambda: blocks)
    assert not threads()
    assert blocks == [BLOCK_BYTES]
    assert damaged(yard) == {}
    with background(yard):
        wait_for(lambda: damaged(yard) == {digest_of(data): "digest"})


def test_no_pace_is_no_thread(yard: Yard) -> None:
    with background(yard, pace=0):
        assert not threads()
