"""Whatever is committed is told, to whoever subscribes and by whichever way it came; nobody goes deaf in silence."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
from sqlalchemy import text, update
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from service import notifier, postgres
from service.db import Database, db_now
from service.jobs import events, transitions
from service.notifier import _TABLES, Changed, ChangeFeed, Watched
from service.queues import repository as workers
from service.tables import Batch, Dataset, Job, Model
from tests.db.rows_of_then import add_inspection, insert_row
from tests.db.test_transitions import claim, submit
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.workbench import wait_for

pytestmark = pytest.mark.both_databases

Heard = queue.Queue[Changed]
ON_POSTGRES = pytest.mark.parametrize("database_url", ["postgres"], indirect=True)


@contextmanager
def subscribed(database: Database) -> Iterator[Heard]:
    """What is told, once something can be heard."""
    heard: Heard = queue.Queue()
    with ChangeFeed(database).subscribe(heard.put):
        assert following(heard) is None
        yield heard


def following(heard: Heard) -> Changed:
    """What is told next."""
    return heard.get(timeout=PATIENCE_SECONDS)


def threads() -> set[threading.Thread]:
    """Those that listen; of another test one may be about to end."""
    return {thread for thread in threading.enumerate() if thread.name == "changes"}


def test_what_is_committed_is_told_and_nothing_else(database: Database) -> None:
    others = threads()
    with subscribed(database) as heard:
        with pytest.raises(ZeroDivisionError), database.write() as session:
            submit(session)
            raise ZeroDivisionError
        with database.write() as session:
            job = submit(session)
        told = following(heard)
        if database.engine.dialect.name == "sqlite":
            assert told is None
        else:
            rows = {("jobs", job.id), ("models", job.model_id), ("datasets", job.calibration_dataset_id)}
            rows.add(("queues", job.queue))
            assert told is not None and told <= rows
            while told != rows:  # they may come in several parts
                more = following(heard)
                assert more is not None and more <= rows
                told |= more
    wait_for(lambda: threads() <= others, message="it listens though nobody subscribes")


def test_all_subscribers_are_told_but_those_that_have_gone(database: Database) -> None:
    changes_of, first, second, third = ChangeFeed(database), queue.Queue(), queue.Queue(), queue.Queue()

    others = threads()

    def fail(changed: Changed) -> None:
        first.put(changed)
        raise ZeroDivisionError

    with changes_of.subscribe(fail):
        assert following(first) is None
        with changes_of.subscribe(second.put), changes_of.subscribe(third.put):
            with database.write() as session:
                submit(session)
            following(second), following(third)
            assert len(threads() - others) == 1
        with third.mutex:
            third.queue.clear()
        with database.write() as session:
            submit(session)
        following(first), following(first)
        assert third.empty()


def test_nothing_is_missed_between_subscribing_and_the_first_look(database: Database) -> None:
    """Whoever looks, and again whenever something is told, sees every commit, at whatever moment it came."""
    with database.write() as session:
        job_id = claim(session, submit(session)).id
    for number in range(10):
        heard: Heard = queue.Queue()
        go = threading.Event()
        writer = threading.Thread(target=append, args=(database, job_id, go))
        writer.start()
        with ChangeFeed(database).subscribe(heard.put):
            go.set()
            seen = last_seq(database, job_id)
            while seen < 3 + number:
                following(heard)
                seen = last_seq(database, job_id)
        writer.join()


def append(database: Database, job_id: str, go: threading.Event) -> None:
    assert go.wait(PATIENCE_SECONDS)
    with database.write() as session:
        events.append(session, job_id, 1, "log", {"message": "x"})


def last_seq(database: Database, job_id: str) -> int:
    with database.read() as session:
        return session.get_one(Job, job_id).last_seq


def bump(session: Session, table: Any, row_id: str) -> None:
    session.execute(update(table).where(table.id == row_id).values(row_version=table.row_version + 1))


@ON_POSTGRES
def test_postgresql_tells_every_row_that_somebody_waits_for(database: Database) -> None:
    """By a bare UPDATE, as any program may send it; and a row that changes without a new version is no news."""
    assert set(_TABLES.values()) == {get_args(table)[0] for table in get_args(Watched)}
    with database.write() as session:
        job = claim(session, submit(session))
        inspection = add_inspection(session, str(job.model_id))
        insert_row(session, "batches", id="bat_x", labels={})
        workers.announce(session, "w:1", {"cpu": 1})
    rows = {Job: job.id, Model: job.model_id, Dataset: job.calibration_dataset_id, Batch: "bat_x"}
    rows[type(inspection)] = inspection.id
    assert set(rows) == set(_TABLES.values())
    with subscribed(database) as heard:
        for table, row_id in rows.items():
            with database.write() as session:  # in silence
                assert transitions.renew(session, job.id, 1, lease_seconds=60).alive
                transitions.spare_leases(session, lease_seconds=90)
                session.execute(update(Job).where(Job.id == inspection.job_id).values(dispatched_at=db_now()))
                workers.announce(session, "w:1", {"cpu": 1})
            with database.write() as session:
                bump(session, table, str(row_id))
            assert following(heard) == {(table.__tablename__, row_id)}
        append(database, job.id, set_event())
        assert following(heard) == {("jobs", job.id)}


def set_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@ON_POSTGRES
def test_postgresql_tells_workers_that_come_change_and_go(database: Database) -> None:
    with subscribed(database) as heard:
        for statement in (
            "INSERT INTO workers (id, queue, seen_at) VALUES ('w:1', 'cpu', 1.0)",
            "UPDATE workers SET seen_at = 2.0, slots = 2",
            "UPDATE workers SET deaf_since = 2.0",
            "DELETE FROM workers",
        ):
            with database.write() as session:
                session.execute(text("UPDATE workers SET seen_at = seen_at + 1"))
            with database.write() as session:
                session.execute(text(statement))
            assert following(heard) == {("workers", "w:1")}, statement


@ON_POSTGRES
def test_a_listener_whose_connection_ends_comes_back(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "service.notifier")
    with subscribed(database) as heard:
        with database.read() as session:
            ended = session.scalar(text("SELECT count(pg_terminate_backend(pid)) " + _LISTENERS))
        assert ended == 1
        assert following(heard) is None
        wait_for(lambda: "changes.hears_again" in caplog.text)
        with database.write() as session:
            job = claim(session, submit(session))
        while (told := following(heard)) is None or ("jobs", job.id) not in told:
            pass
    assert [record.levelname for record in caplog.records if "changes.deaf" in record.message] == ["WARNING"]


_LISTENERS = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'quantmill listener'"


@ON_POSTGRES
def test_a_listener_takes_no_connection_of_the_pool(database: Database) -> None:
    with subscribed(database):
        assert database.engine.pool.status().endswith("Current Checked out connections: 0")
        with database.read() as session:
            assert session.scalar(text("SELECT count(*) " + _LISTENERS)) == 1


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "DEAF_SECONDS", 0.01)
    monkeypatch.setattr(notifier, "RETRY_SECONDS", (0.01, 0.02))
    monkeypatch.setattr(postgres, "PROOF_SECONDS", 0.05)


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.usefixtures("impatient")
def test_who_cannot_hear_is_told_now_and_then_and_the_log_says_so_once(
    database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = make_url(database_url)
    away = url.set(database=str(tmp_path / "not-there" / "x.db")) if url.drivername == "sqlite" else url.set(port=1)
    database = Database(away.render_as_string(hide_password=False))
    heard: Heard = queue.Queue()
    with ChangeFeed(database).subscribe(heard.put):
        assert [following(heard) for _ in range(5)] == [None] * 5
    database.close()
    (said,) = _warnings(caplog)
    assert said.startswith("changes.deaf")


@ON_POSTGRES
@pytest.mark.usefixtures("impatient")
def test_a_pooler_that_takes_listen_and_passes_on_no_notice_is_found_out(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has LISTEN done by a connection that it lends to others afterwards."""
    listen = postgres._LISTEN
    monkeypatch.setattr(postgres, "_LISTEN", "SELECT 1")
    heard: Heard = queue.Queue()
    with ChangeFeed(database).subscribe(heard.put):
        assert [following(heard) for _ in range(3)] == [None] * 3
        (said,) = _warnings(caplog)
        assert "pooler" in said
        monkeypatch.setattr(postgres, "_LISTEN", listen)
        with database.write() as session:
            job = submit(session)
        while (told := following(heard)) is None:  # until it could be heard, and then by a later change
            with database.write() as session:
                bump(session, Job, job.id)
        assert told


def test_a_sqlite_file_that_comes_back_is_heard_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "service.notifier")
    monkeypatch.setattr(notifier, "RETRY_SECONDS", (0.01, 0.02))
    home = tmp_path / "home"
    database = Database(f"sqlite:///{home / 'service.db'}")
    with subscribed(database) as heard:
        home.mkdir()
        wait_for(lambda: "changes.hears_again" in caplog.text)
        while not heard.empty():
            following(heard)
        with database.write() as session:
            session.execute(text("CREATE TABLE t (x)"))
        assert following(heard) is None
    database.close()


@ON_POSTGRES
def test_postgresql_tells_dispatchers_of_jobs_that_come_end_or_may_start(database: Database) -> None:
    with database.write() as session:
        job = submit(session)
    with subscribed(database) as heard:
        for statement in ("state = 'failed', error = '{}', finished_at = 1.0", "not_before = not_before - 1"):
            with database.write() as session:
                session.execute(text("UPDATE jobs SET row_version = row_version, dispatched_at = 1.0"))
            with database.write() as session:
                session.execute(text(f"UPDATE jobs SET {statement} WHERE id = '{job.id}'"))
            assert following(heard) == {("queues", job.queue)}, statement
        with database.write() as session:
            submit(session, queue="gpu")
        told = following(heard)
    assert told is not None
    assert ("queues", "gpu") in told
