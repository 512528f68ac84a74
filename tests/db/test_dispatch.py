"""Which jobs are released: as many as there are free slots, in the order of turns, each once; and what gets lost."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.contracts.quota import Quota
from service.db import Database, db_now
from service.dispatch import dispatcher
from service.dispatch.broker import job_of_task, task_id
from service.dispatch.dispatcher import Dispatcher
from service.dispatch.release import Released
from service.dispatch.repository import of_workers
from service.dispatch.slots import Crew, FreeSlots, Started
from service.jobs import transitions
from service.jobs.errors import DispatchError
from service.queues.repository import announce
from service.resources import new_id
from service.tables import Job, Worker
from tests.db.test_turns import flood
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.workbench import wait_for

pytestmark = pytest.mark.both_databases
Flood = Callable[..., list[str]]


class Broker:
    """Takes jobs for the workers in the database, and may refuse."""

    def __init__(self) -> None:
        self.sent: list[Released] = []
        self.room: int | None = None

    def free(self, session: Session) -> FreeSlots:
        return of_workers(session)

    def send(self, job: Released) -> None:
        if self.room == 0:
            raise DispatchError("It is away.")
        self.room = None if self.room is None else self.room - 1
        self.sent.append(job)

    def ping(self) -> None: ...

    def close(self) -> None: ...


class Bench:
    def __init__(self, database: Database) -> None:
        self.database, self.broker = database, Broker()
        self.dispatcher = Dispatcher(database, self.broker, Quota(), lost_seconds=10)

    def flood(self, tenant: str, count: int, **changes: object) -> list[str]:
        with self.database.write() as session:
            return flood(session, tenant, count, **changes)

    def announce(self, worker: str, short_slots: int = 0, **offers: int) -> None:
        with self.database.write() as session:
            announce(session, worker, offers, short_slots=short_slots)

    def released(self) -> list[str]:
        """Ids of the jobs that one more round sends."""
        before = len(self.broker.sent)
        assert self.dispatcher.round() == len(self.broker.sent) - before
        return [job.id for job in self.broker.sent[before:]]

    def end(self, job_id: str, worker: str = "w") -> None:
        with self.database.write() as session:
            job = transitions.claim(session, job_id, worker_id=worker, lease_seconds=60)
            assert job is not None
            assert transitions.requeue(session, job_id, job.attempt, delay_seconds=3600, charged=True, reason="over")

    def claim(self, job_id: str, worker: str = "w") -> None:
        with self.database.write() as session:
            assert transitions.claim(session, job_id, worker_id=worker, lease_seconds=60) is not None


@pytest.fixture
def bench(database: Database) -> Bench:
    return Bench(database)


def test_as_many_are_released_as_there_are_free_slots(bench: Bench) -> None:
    jobs = bench.flood("a", 9)
    assert bench.released() == [], "there is no worker"
    bench.announce("w", cpu=2)
    assert bench.released() == jobs[:2]
    assert bench.released() == [], "both slots are spoken for"
    bench.claim(jobs[0])
    assert bench.released() == []
    bench.end(jobs[1])
    assert bench.released() == jobs[2:3]
    bench.announce("other", cpu=3, gpu=3)
    assert bench.released() == jobs[3:6]
    with bench.database.write() as session:
        session.execute(update(Worker).values(seen_at=db_now() - 3600))
    assert bench.released() == [], "nobody is alive"
    assert [job.attempt for job in bench.broker.sent] == [1] * 6


def test_a_flood_delays_another_tenants_job_by_one_job_at_most(bench: Bench) -> None:
    loud = bench.flood("loud", 50)
    bench.announce("w", cpu=1)
    assert bench.released() == loud[:1]
    (quiet,) = bench.flood("quiet", 1)
    bench.end(loud[0])
    assert bench.released() == [quiet]
    (urgent,) = bench.flood("loud", 1, priority=3)
    bench.end(quiet)
    assert bench.released() == [urgent]


def test_tenants_share_the_slots_that_become_free_at_once(bench: Bench) -> None:
    for tenant in ("loud", "quiet", "third"):
        bench.flood(tenant, 8)
    bench.announce("w", cpu=6)
    bench.released()
    assert Counter(job.tenant_id for job in bench.broker.sent) == {"loud": 2, "quiet": 2, "third": 2}


def test_kept_slots_are_left_to_short_jobs(bench: Bench) -> None:
    long = bench.flood("a", 5)
    bench.announce("w", short_slots=1, cpu=3)
    assert bench.released() == long[:2]
    short = bench.flood("a", 2, size_class="short")
    assert bench.released() == short[:1]
    bench.announce("alone", short_slots=1, cpu=1)
    assert bench.released() == long[2:3], "the only slot of a worker is kept for nobody"


def test_the_last_slot_for_inspections_is_kept_for_others(bench: Bench) -> None:
    crowd = bench.flood("crowd", 5, queue="inspect", size_class="short")
    bench.announce("w", inspect=3)
    assert bench.released() == crowd[:2]
    (other,) = bench.flood("other", 1, queue="inspect", size_class="short")
    assert bench.released() == [other]


def test_limits_of_running_jobs_count_what_is_released(bench: Bench) -> None:
    bench.dispatcher = Dispatcher(bench.database, bench.broker, Quota(jobs_running=2), lost_seconds=10)
    jobs = bench.flood("a", 5)
    bench.announce("w", cpu=4)
    assert bench.released() == jobs[:2]
    bench.claim(jobs[0])
    assert bench.released() == []


def test_a_slot_of_several_queues_is_given_away_once(bench: Bench) -> None:
    cpu, gpu = bench.flood("a", 3), bench.flood("a", 3, queue="gpu")
    bench.announce("both", cpu=1, gpu=1)
    bench.announce("one", gpu=1)
    assert set(bench.released()) <= {cpu[0], gpu[0], gpu[1]}
    assert len(bench.broker.sent) == 2
    assert {job.queue for job in bench.broker.sent} == {"cpu", "gpu"}


def test_a_lost_message_is_sent_again_and_one_that_could_not_be_sent(bench: Bench) -> None:
    jobs = bench.flood("a", 4)
    bench.announce("w", cpu=2)
    assert bench.released() == jobs[:2]
    with bench.database.write() as session:
        session.execute(update(Job).where(Job.id == jobs[1]).values(dispatched_at=db_now() - 11))
    bench.dispatcher._look_at = 0.0
    (urgent,) = bench.flood("a", 1, priority=3)
    assert bench.released() == [urgent], "whose turn it is may have changed meanwhile"
    bench.end(urgent)
    bench.broker.room = 0
    assert bench.released() == []
    bench.broker.room = None
    assert bench.released() == [], "the broker is left alone for a while"
    bench.dispatcher._paused_until = 0.0
    assert bench.released() == jobs[1:2]


def test_what_was_sent_before_the_broker_failed_is_not_sent_again(bench: Bench) -> None:
    jobs = bench.flood("a", 4)
    bench.announce("w", cpu=4)
    bench.broker.room = 2
    assert bench.released() == jobs[:2]
    with bench.database.read() as session:
        waiting = set(session.scalars(select(Job.id).where(Job.dispatched_at.is_(None))))
    assert waiting == set(jobs[2:])


def test_those_who_release_at_once_release_nothing_twice(bench: Bench) -> None:
    jobs = bench.flood("a", 30)
    bench.announce("w", cpu=12)
    brokers = [Broker() for _ in range(4)]
    rounds = [Dispatcher(bench.database, broker, Quota(), lost_seconds=10).round for broker in brokers]
    threads = [threading.Thread(target=one) for one in rounds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(job.id for broker in brokers for job in broker.sent) == sorted(jobs[:12])


def test_who_submits_releases_at_once_and_who_only_hears_of_it_later(database: Database) -> None:
    hearing, submitting = Bench(database), Bench(database)
    hearing.dispatcher = Dispatcher(database, hearing.broker, Quota(), lost_seconds=10, defer_seconds=PATIENCE_SECONDS)
    hearing.announce("w", cpu=2)
    hearing.flood("a", 1)
    hearing.dispatcher.heard(frozenset({("queues", "cpu")}))
    submitting.dispatcher.wake()
    wait_for(lambda: len(submitting.broker.sent) == 1)
    assert hearing.broker.sent == []
    hearing.flood("a", 1)
    hearing.dispatcher.wake()
    wait_for(lambda: len(hearing.broker.sent) == 1, message="it does not wait for itself")
    for bench in (hearing, submitting):
        bench.dispatcher.close()


def test_a_round_that_failed_is_tried_again_soon(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "_AGAIN_SECONDS", 0.01)
    troubles = [OperationalError("", {}, Exception("locked"))] * 2
    free = bench.broker.free

    def fails_twice(session: Session) -> FreeSlots:
        if troubles:
            raise troubles.pop()
        return free(session)

    monkeypatch.setattr(bench.broker, "free", fails_twice)
    bench.announce("w", cpu=1)
    bench.flood("a", 1)
    bench.dispatcher.wake()
    wait_for(lambda: bench.broker.sent, message="nobody asks for another round")
    bench.dispatcher.close()


def test_a_worker_that_offers_nothing_any_more_is_not_counted(bench: Bench) -> None:
    jobs = bench.flood("a", 4)
    bench.announce("resting", cpu=0)
    bench.announce("w", cpu=1)
    assert bench.released() == jobs[:1]
    bench.announce("w")
    bench.announce("new", cpu=1)
    assert bench.released() == [], "what was released goes to the new one"
    bench.claim(jobs[0], "new")
    assert bench.released() == []


def test_slots_are_taken_from_those_with_the_fewest_other_uses() -> None:
    def crew(*queues: str) -> Crew:
        return Crew(frozenset(queues), 1, 1)

    free = FreeSlots([crew("cpu", "gpu"), crew("cpu")])
    free.start(Started("cpu", "a", "long", 1))
    assert list(free.queues()) == ["cpu", "gpu"]
    free.take("gpu")
    free.take("cpu")
    assert free.queues() == {}


def test_the_id_of_a_task_names_a_job_and_an_attempt() -> None:
    job_id = new_id("job")
    assert job_of_task(task_id(job_id, 12)) == (job_id, 12)
    for foreign in ("", job_id, f"{job_id}.", f"{job_id}.x", f"{job_id}.-1", f"{job_id}.{'9' * 40}", "job.1", ".1"):
        assert job_of_task(foreign) is None
