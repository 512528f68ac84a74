"""A network that carries nothing any more, not even a kernel's acknowledgement: both ends find out by themselves."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from service import postgres
from service.db import Database
from service.notifier import Changed, ChangeFeed
from service.postgres import PULSE, Pulse
from service.timeouts import LONG, DatabaseTimeouts
from tests.support.each import each
from tests.support.patience import PATIENCE_SECONDS
from tests.support.stalling import StallingProxy
from tests.worker.workbench import wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

LEASE_SECONDS = 60.0
# It is the kernel alone that ends it.
ENDLESS = DatabaseTimeouts()
Open = Callable[[DatabaseTimeouts], Database]


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[StallingProxy]:
    where = make_url(postgres_url)
    proxy = StallingProxy(where.host or "127.0.0.1", where.port or 5432)
    yield proxy
    proxy.close()


@pytest.fixture
def open_database(proxy: StallingProxy, postgres_url: str) -> Iterator[Open]:
    url = make_url(postgres_url).set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
    with ExitStack() as stack:

        def make(timeouts: DatabaseTimeouts) -> Database:
            database = Database(url, timeouts=timeouts)
            stack.callback(database.close)
            return database

        yield make


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real periods are looked at by ``test_both_ends_are_told_how_long``."""
    monkeypatch.setattr(postgres, "PULSE", Pulse(idle=1, interval=1, count=1))


@each("timeouts", [ENDLESS, LONG, DatabaseTimeouts(answer_seconds=5.0)])
def test_both_ends_are_told_how_long(timeouts: DatabaseTimeouts, open_database: Open) -> None:
    assert PULSE.gone_seconds < LEASE_SECONDS / 4, "a broken connection would cost a lease"
    with open_database(timeouts).read() as session:
        driver: Any = session.connection().connection.driver_connection
        with socket.socket(fileno=socket.dup(driver.pgconn.socket)) as own:
            tcp = {
                name: own.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
                for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
            }
            assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert tcp == {
            "TCP_KEEPIDLE": PULSE.idle,
            "TCP_KEEPINTVL": PULSE.interval,
            "TCP_KEEPCNT": PULSE.count,
            "TCP_USER_TIMEOUT": 1000 * PULSE.gone_seconds,
        }

        def told(name: str) -> str | None:
            return session.scalar(text("SELECT setting FROM pg_settings WHERE name = :name"), {"name": name})

        assert [told(f"tcp_keepalives_{name}") for name in ("idle", "interval", "count")] == ["5", "2", "3"]
        assert told("tcp_user_timeout") == str(1000 * PULSE.gone_seconds)
        assert told("lock_timeout") == str(round(1000 * timeouts.lock_seconds))
        assert told("statement_timeout") == str(round(1000 * (timeouts.answer_seconds or 0)))


@pytest.mark.usefixtures("quick")
def test_an_answer_that_never_comes_ends_and_the_server_forgets_the_transaction(
    proxy: StallingProxy, open_database: Open, postgres_url: str
) -> None:
    """The server works, then the network is gone, and only questions can tell. Else the row would stay locked."""
    database, errors, own = open_database(ENDLESS), [], Database(postgres_url)
    with open_database(LONG).engine.connect() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(4711)"))
        held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND granted"
        assert _scalar(own, held) == 1

        def ask() -> None:
            try:
                with database.read() as session:
                    session.execute(text("SELECT pg_sleep(50) AS waits_for_the_void"))
            except OperationalError as error:
                errors.append(str(error))

        thread = threading.Thread(target=ask)
        thread.start()
        asked = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%the_void'"
        wait_for(lambda: _scalar(own, asked))
        proxy.vanish()
        thread.join()
        wait_for(lambda: not _scalar(own, held))
        with pytest.raises(OperationalError):
            connection.execute(text("SELECT 1"))
    own.close()
    assert len(errors) == 1
    assert "in time" not in errors[0]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("silence", ["vanish", "stall"])
def test_a_listener_that_nothing_can_reach_finds_out(
    proxy: StallingProxy, open_database: Open, silence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kernel where nothing is acknowledged; by asking where it is, and the server says nothing."""
    monkeypatch.setattr(postgres, "ASK_SECONDS", 0.1 if silence == "stall" else PATIENCE_SECONDS)
    monkeypatch.setattr(postgres, "_LISTENER", DatabaseTimeouts(answer_seconds=1.5))
    told: queue.Queue[Changed] = queue.Queue()
    with ChangeFeed(open_database(LONG)).subscribe(told.put):
        assert told.get(timeout=PATIENCE_SECONDS) is None
        getattr(proxy, silence)()
        assert told.get(timeout=PATIENCE_SECONDS) is None, "whoever subscribes may have missed something"


def _scalar(database: Database, statement: str) -> int:
    with database.read() as session:
        return int(session.execute(text(statement)).scalar_one())
