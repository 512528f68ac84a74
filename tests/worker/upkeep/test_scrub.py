"""Damage of stored files is found, told and repaired."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import IO

import pytest
from sqlalchemy import delete
from sqlalchemy.orm import Session

from service.files import repository as files
from service.storage import StoredFileCorruptError
from service.tables import Dataset
from tests.worker.upkeep.yard import Yard, digest_of
from worker.upkeep import scrub
from worker.upkeep.scrub import Scrubber

DATA = [b"first", b"second", b"third"]


@pytest.fixture
def scrubber(yard: Yard) -> Scrubber:
    for data in DATA:
        for _ in yard.publish(data):
            pass
    return Scrubber(yard.database, yard.store, period_seconds=1000)


def damage(yard: Yard, data: bytes) -> None:
    path = yard.store.path(digest_of(data))
    path.chmod(0o600)
    path.write_bytes(b"x" * len(data))


def make_unreadable(yard: Yard, data: bytes) -> None:
    """Reading this file fails with EIO, as that of a damaged sector does."""
    path = yard.store.path(digest_of(data))
    path.unlink()
    path.symlink_to("/proc/self/mem")


def damaged(yard: Yard) -> dict[str, str]:
    with yard.database.read() as session:
        return {found.sha256: found.damage for found in files.damaged(session)}


def whole_pass(scrubber: Scrubber) -> list[str]:
    return [found.sha256 for found in iter(scrubber.step, None)]


def test_a_pass_sees_every_file_once_and_finds_what_is_wrong(yard: Yard, scrubber: Scrubber) -> None:
    damage(yard, DATA[0])
    yard.store.path(digest_of(DATA[1])).unlink()
    assert whole_pass(scrubber) == sorted(map(digest_of, DATA))
    assert damaged(yard) == {digest_of(DATA[0]): "digest", digest_of(DATA[1]): "missing"}
    assert whole_pass(scrubber) == [], "no pass is due"
    with yard.database.read() as session:
        assert [row.kind for row in files.names_of(session, digest_of(DATA[0]))] == ["dataset"]
        files.refuse_damaged(session, digest_of(DATA[2]))
        with pytest.raises(StoredFileCorruptError):
            files.refuse_damaged(session, digest_of(DATA[0]))


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no file here that cannot be read")
def test_a_pass_goes_on_behind_what_the_disk_cannot_give(yard: Yard, scrubber: Scrubber) -> None:
    make_unreadable(yard, DATA[1])
    assert whole_pass(scrubber) == sorted(map(digest_of, DATA))
    assert damaged(yard) == {digest_of(DATA[1]): "unreadable"}
    with yard.database.read() as session, pytest.raises(StoredFileCorruptError):
        files.refuse_damaged(session, digest_of(DATA[1]))


def test_a_pass_stops_where_the_disk_is_away(yard: Yard, scrubber: Scrubber, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(sha256: str) -> IO[bytes]:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patched:
        patched.setattr(yard.store, "open", away)
        with pytest.raises(OSError, match="Stale"):
            scrubber.step()
    assert damaged(yard) == {}
    assert whole_pass(scrubber) == sorted(map(digest_of, DATA)), "and goes on with it"


def test_a_pass_goes_on_where_it_stopped(yard: Yard, scrubber: Scrubber) -> None:
    first = scrubber.step()
    other = Scrubber(yard.database, yard.store, period_seconds=1000)
    assert first is not None
    assert [first.sha256, *whole_pass(other)] == sorted(map(digest_of, DATA))


def test_names_are_read_some_at_a_time(yard: Yard, scrubber: Scrubber, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "PAGE", 2)
    looks: list[str] = []
    real = files.list_named

    def counted(session: Session, *, after: str, limit: int) -> list[files.NamedFile]:
        looks.append(after)
        return real(session, after=after, limit=limit)

    monkeypatch.setattr(files, "list_named", counted)
    every = sorted(map(digest_of, DATA))
    assert whole_pass(scrubber) == every
    assert looks == ["", every[1], every[2]]
    scrubber.begin_anew()
    assert whole_pass(scrubber) == every, "what was read before is of no use to a pass that begins anew"


def test_two_processes_share_a_pass(yard: Yard, scrubber: Scrubber) -> None:
    other = Scrubber(yard.database, yard.store, period_seconds=1000)
    every = sorted(map(digest_of, DATA))
    turns = (scrubber, other, scrubber)
    assert [found.sha256 for one in turns if (found := one.step())] == every
    assert other.step() is None
    scrubber.begin_anew()
    assert [found.sha256 for one in turns if (found := one.step())] == every


def test_a_file_that_was_forgotten_meanwhile_is_not_flagged(yard: Yard, scrubber: Scrubber) -> None:
    first = scrubber.step()
    with yard.database.write() as session:
        session.execute(delete(Dataset))
    for data in DATA:
        yard.store.path(digest_of(data)).unlink()
    assert first is not None
    assert len(whole_pass(scrubber)) == 2
    assert damaged(yard) == {}


def test_the_same_bytes_again_repair_a_file(yard: Yard, scrubber: Scrubber) -> None:
    damage(yard, DATA[0])
    whole_pass(scrubber)
    yard.put(DATA[0])
    scrubber.begin_anew()
    whole_pass(scrubber)
    assert damaged(yard) == {}


def test_a_file_that_is_repaired_while_it_is_read_is_not_flagged(yard: Yard, scrubber: Scrubber) -> None:
    damage(yard, DATA[0])

    def repair(_: int) -> None:
        yard.put(DATA[0])

    whole_pass(Scrubber(yard.database, yard.store, period_seconds=1000, pause=repair))
    assert damaged(yard) == {}


def test_damage_of_what_nobody_names_is_forgotten(yard: Yard, scrubber: Scrubber) -> None:
    damage(yard, DATA[0])
    whole_pass(scrubber)
    with yard.database.write() as session:
        session.execute(delete(Dataset))
    scrubber.begin_anew()
    assert whole_pass(scrubber) == []
    assert damaged(yard) == {}
