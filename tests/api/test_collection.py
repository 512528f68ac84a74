"""Files and uploads are collected while requests rely on them: each is held at its worst moment, on either database.

Nothing is ever too young here: what holds must hold however long anybody is held.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from service.db import Database, db_now
from service.files import repository as files
from service.storage import file_sha256
from service.tables import Upload
from tests.support.failing import Holds
from tests.support.front import Front
from worker.upkeep.garbage import discard_garbage, empty_trash, expire_uploads

DATA = b"the bytes"
SHA256 = hashlib.sha256(DATA).hexdigest()
ANY_AGE = -1.0
# For which somebody who should wait for a lock is watched: whoever does not wait is done long before.
WATCHED_SECONDS = 0.3
pytestmark = pytest.mark.both_databases
Deed = Callable[[], Any]


class Hall:
    """The API server, and collectors beside it."""

    def __init__(self, front: Front) -> None:
        self.front, self.app = front, front.app
        self.impatient = Database(front.app.settings.database_url, lock_seconds=0.1)

    # requests that rely on the file SHA256: prepared here, done later
    def upload(self) -> Deed:
        """The last bytes of an upload come in."""
        made = self.front.http.post("/v1/uploads", json={"filename": "net.onnx", "size_bytes": len(DATA)})
        return self.content(made.json()["id"])

    def content(self, upload_id: str) -> Deed:
        return lambda: self.front.http.put(f"/v1/uploads/{upload_id}/content", content=DATA).raise_for_status()

    # collectors

    def discard(self, database: Database | None = None) -> int:
        return discard_garbage(database or self.app.database, self.app.store, 100, age_seconds=ANY_AGE).items

    def empty(self, database: Database | None = None) -> int:
        return empty_trash(database or self.app.database, self.app.store, 100, age_seconds=ANY_AGE).items

    def expire(self, database: Database | None = None) -> int:
        return expire_uploads(database or self.app.database, self.app.store, 100, expiry_seconds=60).items

    def try_all(self) -> int:
        """Every collector, as far as it comes without waiting; how much went."""
        gone = 0
        for collect in (self.expire, self.discard, self.empty):
            with suppress(OperationalError):  # SQLite: somebody else writes
                gone += collect(self.impatient)
        return gone

    # what is there

    def expired(self, upload_id: str) -> str:
        """The upload, which is past its expiry from now on."""
        with self.app.database.write() as session:
            session.execute(update(Upload).where(Upload.id == upload_id).values(expires_at=db_now() - 1))
        return upload_id

    def check(self, *, named: bool) -> None:
        """The file is there if and only if a row names it, whatever collectors do from now on."""
        for _ in range(2):
            self.discard()
            self.empty()
        with self.app.database.read() as session:
            assert bool(files.named(session, [SHA256])) is named
        path = self.app.store.path(SHA256)
        assert path.exists() is named
        assert not named or file_sha256(path) == SHA256
        assert list(self.app.store.trash.iterdir()) == []


@pytest.fixture
def hall(front: Front) -> Iterator[Hall]:
    hall = Hall(front)
    yield hall
    hall.impatient.close()


@pytest.fixture
def holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Holds]:
    holds = Holds(tmp_path / "holds", monkeypatch)
    yield holds
    holds.close()


def assert_waits(doing: Future[Any]) -> None:
    wait([doing], timeout=WATCHED_SECONDS)
    assert not doing.done()


def test_what_goes_to_the_trash_before_it_is_named_comes_back(hall: Hall, holds: Holds) -> None:
    named = holds.start_until("before_files_named", hall.upload())
    assert hall.discard() == 1
    holds.release("before_files_named")
    named.result()
    hall.check(named=True)


def test_nothing_goes_between_the_naming_and_the_commit(hall: Hall, holds: Holds) -> None:
    named = holds.start_until("after_files_named", hall.upload())
    assert hall.try_all() == 0
    assert hall.app.store.path(SHA256).exists()
    holds.release("after_files_named")
    named.result()
    hall.check(named=True)


def test_a_row_that_comes_between_the_look_and_the_deed_has_its_file(hall: Hall, holds: Holds) -> None:
    """The collector has found no row that names the file; nobody makes one before the file is in the trash."""
    named = holds.start_until("before_files_named", hall.upload())
    collected = holds.start_until("before_files_discarded", hall.discard)
    holds.release("before_files_named")
    assert_waits(named)
    holds.release("before_files_discarded")
    assert collected.result() == 1
    named.result()
    hall.check(named=True)


def test_an_upload_whose_bytes_have_gone_for_good_is_told_so_and_may_be_sent_again(hall: Hall, holds: Holds) -> None:
    """Only who is held longer than the trash is kept comes to this."""
    upload = hall.upload()
    named = holds.start_until("before_files_named", upload)
    hall.discard()
    emptied = holds.start_until("before_trash_emptied", hall.empty)
    holds.release("before_files_named")
    assert_waits(named)
    holds.release("before_trash_emptied")
    assert emptied.result() == 1
    assert "409" in str(named.exception()), "it is not the service that failed: the next request stores it again"
    hall.check(named=False)
    upload()
    hall.check(named=True)


def test_bytes_that_are_sent_while_the_same_go_for_good_stay(hall: Hall, holds: Holds) -> None:
    hall.front.store(DATA)
    hall.discard()
    upload = hall.upload()
    emptied = holds.start_until("before_trash_emptied", hall.empty)
    sent = holds.start(upload)
    assert_waits(sent)
    holds.release("before_trash_emptied")
    emptied.result()
    sent.result()
    hall.check(named=True)


def test_an_upload_does_not_expire_while_its_last_bytes_come_in(hall: Hall, holds: Holds) -> None:
    made = hall.front.http.post("/v1/uploads", json={"filename": "n", "size_bytes": len(DATA)}).json()
    hall.expired(made["id"])
    sent = holds.start_until("before_files_named", hall.content(made["id"]))
    assert hall.expire() == 0
    holds.release("before_files_named")
    sent.result()
    hall.check(named=True)
