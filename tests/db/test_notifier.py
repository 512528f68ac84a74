"""Who waits for a row is woken by what is told, without a look before; and by a look where nothing is."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from service import notifier as module
from service.db import Database
from service.jobs import events
from service.notifier import Changed, ChangeFeed, Notifier
from service.tables import Batch, Job, Model
from service.threads import Threads
from tests.db.rows_of_then import insert_row
from tests.db.test_transitions import claim, submit
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.both_databases


class Told(ChangeFeed):
    """Changes, and what they were."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.all: list[Changed] = []

    def _tell(self, changed: Changed) -> bool:
        if changed is None or changed:
            self.all.append(changed)
        return super()._tell(changed)


class Mute:
    """Tells nothing."""

    def subscribe(self, _: object) -> nullcontext[None]:
        return nullcontext()


def notifier_of(changes: Any, database: Database) -> Notifier:
    return Notifier(changes, database, Threads(4, math.inf))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, list[str]]]:
    """Which rows of which table were asked for, one after the other; nobody looks to be safe."""
    found: list[tuple[Any, list[str]]] = []
    real = module.versions

    def counted(session: Any, table: Any, ids: list[str]) -> Any:
        found.append((table, ids))
        return real(session, table, ids)

    monkeypatch.setattr(module, "versions", counted)
    monkeypatch.setattr(module, "SAFETY_SECONDS", PATIENCE_SECONDS)
    return found


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


def append(database: Database, job_id: str) -> None:
    with database.write() as session:
        events.append(session, job_id, 1, "log", {"message": "x"})


def test_what_is_told_wakes_without_a_look_before(database: Database, looks: list[tuple[Any, list[str]]]) -> None:
    with database.write() as session:
        mine, other = (claim(session, submit(session)) for _ in range(2))

    async def main() -> None:
        told = Told(database)
        notifier = notifier_of(told, database)
        with notifier.watching(Job, mine.id) as watch:
            await until(lambda: told.all and watch.version and not notifier._due and not notifier._own._running)
            assert watch.version == (mine.row_version, mine.last_seq)
            looks.clear()
            await asyncio.to_thread(append, database, other.id)
            await until(lambda: len(told.all) > 1)
            await asyncio.to_thread(append, database, mine.id)
            assert await watch.beyond((mine.row_version, mine.last_seq), PATIENCE_SECONDS)
            assert looks[-1] == (Job, [mine.id])
            if database.engine.dialect.name == "postgresql":
                assert len(looks) == 1, "only what may have changed is looked at"
            with notifier.watching(Model, str(mine.model_id)) as late:
                await until(lambda: late.version)
        assert notifier._watches == {}

    asyncio.run(main())
    assert (Model, [mine.model_id]) in looks


def test_a_batch_is_looked_at_when_a_job_changes(database: Database, looks: list[tuple[Any, list[str]]]) -> None:
    with database.write() as session:
        job = claim(session, submit(session))
        insert_row(session, "batches", id="bat_x", labels={})
        member = {"batch_id": "bat_x", "position": 0, "member": 0, "job_id": job.id, "superseded": False}
        insert_row(session, "batch_members", **member, reused=False)

    async def main() -> None:
        told = Told(database)
        notifier = notifier_of(told, database)
        with notifier.watching(Batch, "bat_x") as watch:
            await until(lambda: told.all and watch.version and not notifier._due and not notifier._own._running)
            seen = watch.version
            assert seen is not None
            await asyncio.to_thread(append, database, job.id)
            assert await watch.beyond(seen, PATIENCE_SECONDS)

    asyncio.run(main())
    assert looks[-1] == (Batch, ["bat_x"])


def test_where_nothing_is_told_a_look_now_and_then_finds_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAFETY_SECONDS", 0.05)
    with database.write() as session:
        job = claim(session, submit(session))

    async def main() -> None:
        with notifier_of(Mute(), database).watching(Job, job.id) as watch:
            await until(lambda: watch.version)
            await asyncio.to_thread(append, database, job.id)
            assert await watch.beyond((job.row_version, job.last_seq), PATIENCE_SECONDS)

    asyncio.run(main())


def test_what_a_database_that_was_away_did_not_tell_is_asked_again(
    database: Database, looks: list[tuple[Any, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AWAY_SECONDS", 0.01)
    with database.write() as session:
        job = claim(session, submit(session))
    counted, refused = module.versions, [2]

    def refuse(*asked: Any) -> Any:
        if refused[0]:
            refused[0] -= 1
            raise OperationalError("SELECT", None, Exception("away"))
        return counted(*asked)

    monkeypatch.setattr(module, "versions", refuse)

    async def main() -> None:
        with notifier_of(Mute(), database).watching(Job, job.id) as watch:
            await until(lambda: watch.version)

    asyncio.run(main())
    assert refused == [0]
    assert looks == [(Job, [job.id])]
