"""Damage of stored files is found, told and repaired: step by step, and by a thread in the background."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from sqlalchemy import delete
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.db import Database
from service.files import repository as files
from service.settings import Settings
from service.storage import BLOCK_BYTES, StoredFileCorruptError
from service.tables import Dataset
from tests.worker.upkeep.yard import Yard, digest_of
from tests.worker.workbench import wait_for
from worker.upkeep import scrub
from worker.upkeep.scrub import Scrubber, scrubbing

DATA = [b"first", b"second", b"third"]
FIRST, SECOND, THIRD = map(digest_of, DATA)
EVERY = sorted((FIRST, SECOND, THIRD))


@pytest.fixture
def stored(yard: Yard) -> Yard:
    store(yard, *DATA)
    return yard


@pytest.fixture
def scrubber(stored: Yard) -> Scrubber:
    return other(stored)


def other(yard: Yard, **options: Any) -> Scrubber:
    return Scrubber(yard.database, yard.store, period_seconds=1000, **options)


def store(yard: Yard, *contents: bytes) -> None:
    for data in contents:
        for _ in yard.publish(data):
            pass


def damage(yard: Yard, data: bytes) -> None:
    path = yard.store.path(digest_of(data))
    path.chmod(0o600)
    path.write_bytes(b"x" * len(data))


def damaged(yard: Yard) -> dict[str, str]:
    with yard.database.read() as session:
        return {found.sha256: found.damage for found in files.damaged(session)}


def forget_all(yard: Yard) -> None:
    with yard.database.write() as session:
        session.execute(delete(Dataset))


def whole_pass(scrubber: Scrubber) -> list[str]:
    return [found.sha256 for found in iter(scrubber.step, None)]


def test_a_pass_sees_every_file_once_and_finds_what_is_wrong(stored: Yard, scrubber: Scrubber) -> None:
    damage(stored, DATA[0])
    stored.store.path(SECOND).unlink()
    assert whole_pass(scrubber) == EVERY
    assert damaged(stored) == {FIRST: "digest", SECOND: "missing"}
    assert whole_pass(scrubber) == [], "no pass is due"
    with stored.database.read() as session:
        assert [row.kind for row in files.names_of(session, FIRST)] == ["dataset"]
        files.refuse_damaged(session, THIRD)
        with pytest.raises(StoredFileCorruptError):
            files.refuse_damaged(session, FIRST)
    stored.put(DATA[0])  # the same bytes again repair it
    scrubber.begin_anew()
    assert whole_pass(scrubber) == EVERY
    assert damaged(stored) == {SECOND: "missing"}
    forget_all(stored)
    scrubber.begin_anew()
    assert whole_pass(scrubber) == []
    assert damaged(stored) == {}, "of what nobody names it is forgotten"


def test_a_pass_goes_on_behind_what_the_disk_cannot_give(stored: Yard, scrubber: Scrubber) -> None:
    path = stored.store.path(SECOND)
    path.unlink()
    path.symlink_to("/proc/self/mem")  # reading it fails with EIO, as that of a damaged sector does
    assert whole_pass(scrubber) == EVERY
    assert damaged(stored) == {SECOND: "unreadable"}


def test_a_pass_stops_where_the_disk_is_away(stored: Yard, scrubber: Scrubber, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(sha256: str) -> Any:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patched:
        patched.setattr(stored.store, "open", away)
        with pytest.raises(OSError, match="Stale"):
            scrubber.step()
    assert damaged(stored) == {}
    assert whole_pass(scrubber) == EVERY, "and goes on with it"


@pytest.mark.both_databases
def test_processes_share_a_pass_and_go_on_where_it_stopped(stored: Yard, scrubber: Scrubber) -> None:
    second = other(stored)
    turns = (scrubber, second, scrubber)
    assert [found.sha256 for one in turns if (found := one.step())] == EVERY
    assert second.step() is None
    scrubber.begin_anew()
    first = scrubber.step()
    assert first is not None
    assert [first.sha256, *whole_pass(second)] == EVERY


def test_names_are_read_some_at_a_time(stored: Yard, scrubber: Scrubber, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "PAGE", 2)
    looks: list[str] = []
    real = files.list_named

    def counted(session: Session, *, after: str, limit: int) -> list[files.NamedFile]:
        looks.append(after)
        return real(session, after=after, limit=limit)

    monkeypatch.setattr(files, "list_named", counted)
    assert whole_pass(scrubber) == EVERY
    assert looks == ["", EVERY[1], EVERY[2]]
    scrubber.begin_anew()
    assert whole_pass(scrubber) == EVERY, "what was read before is of no use to a pass that begins anew"


def test_a_file_that_was_forgotten_or_repaired_meanwhile_is_not_flagged(stored: Yard, scrubber: Scrubber) -> None:
    damage(stored, DATA[0])
    repairing = other(stored, pause=lambda _: stored.put(DATA[0]))
    assert whole_pass(repairing) == EVERY
    assert damaged(stored) == {}
    scrubber.begin_anew()
    assert scrubber.step() is not None
    forget_all(stored)
    for data in DATA:
        stored.store.path(digest_of(data)).unlink()
    assert len(whole_pass(scrubber)) == 2
    assert damaged(stored) == {}


# --- in the background -----------------------------------------------------------------------------------------------


class Reached(Database):
    away = False
    asked_in_vain = 0

    @contextmanager
    def write(self) -> Iterator[Session]:
        if self.away:
            self.asked_in_vain += 1
            raise OperationalError("SELECT 1", {}, OSError("connection refused"))
        with super().write() as session:
            yield session


@pytest.fixture
def thread(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a thread of a pace that does not rest between its rounds."""
    monkeypatch.setattr(scrub, "_IDLE_SECONDS", 0.01)

    def made(
        database: Database | None = None, *, pace: int = 10**9, period: float = 1000
    ) -> AbstractContextManager[None]:
        settings = Settings(data_dir=yard.folder, scrub_bytes_per_second=pace, scrub_period_seconds=period)
        return scrubbing(settings, database or yard.database, yard.store)

    return made


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "scrub"]


def test_a_thread_goes_through_every_file_in_pass_after_pass(stored: Yard, thread: Any) -> None:
    def scrubbed() -> bool:
        with stored.database.read() as session:
            found = files.current_pass(session)
        return found is not None and found.finished_at is not None

    stored.store.path(SECOND).unlink()
    with thread(period=0.02):
        wait_for(scrubbed)
        damage(stored, DATA[2])
        wait_for(lambda: damaged(stored) == {SECOND: "missing", THIRD: "digest"})
    assert not threads()
    with thread(pace=0):
        assert not threads(), "no pace is no thread"


def test_a_database_that_is_away_ends_no_thread(stored: Yard, thread: Any, caplog: pytest.LogCaptureFixture) -> None:
    damage(stored, DATA[0])
    reached = Reached(stored.database.engine.url.render_as_string(hide_password=False))
    reached.away = True
    with thread(reached):
        wait_for(lambda: reached.asked_in_vain >= 2)
        assert "scrub.failed" in caplog.text
        reached.away = False
        wait_for(lambda: damaged(stored))
    assert damaged(stored) == {FIRST: "digest"}
    reached.close()


def test_whoever_stops_waits_for_no_file(yard: Yard, thread: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a byte per second it would take days. The file is neither read on nor judged; the next process begins it."""
    data = b"y" * (3 * BLOCK_BYTES)
    store(yard, data)
    damage(yard, data)
    blocks: list[int] = []

    class Watched(Scrubber):
        def __init__(self, *given: Any, pause: Any, **more: Any) -> None:
            super().__init__(*given, pause=lambda block: (blocks.append(len(block)), pause(block))[1], **more)

    with monkeypatch.context() as patched:
        patched.setattr(scrub, "Scrubber", Watched)
        with thread(pace=1):
            wait_for(lambda: blocks)
    assert not threads()
    assert (blocks, damaged(yard)) == ([BLOCK_BYTES], {})
    with thread():
        wait_for(lambda: damaged(yard) == {digest_of(data): "digest"})
