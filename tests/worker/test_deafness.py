"""A worker that no message reaches: it takes jobs all the same, says so, and ends if messages pile up beside it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest
from sqlalchemy import select

from service.jobs.errors import DispatchError
from service.tables import Worker
from service.workers.repository import announce
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.running import worker
from tests.worker.workbench import UNTIL_GO, Workbench, database_away, finish, threads_refused, wait_for
from worker.deafness import EXIT_DEAF, Deafness, Seams
from worker.lease import DATABASE_AWAY
from worker.slots import Slot, Slots

DEAF_SECONDS = 60.0


@dataclass
class World:
    bench: Workbench
    code: str = "succeed()"
    short_only: bool = False
    seconds: float = 1000.0
    messages: int = 0
    piled: int | None = 0  # None: the broker is away
    ends: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        supervisor = self.bench.supervisor(self.code)
        self.slots = Slots([Slot(supervisor, short_only=self.short_only)], self.bench.database, ("inspect",))
        with self.bench.database.write() as session:
            announce(session, "w", ("inspect",))
        self.watchdog = Deafness(
            self.bench.database, "w", ("inspect",), self.slots,
            received=lambda: self.messages, depths=self, deaf_seconds=DEAF_SECONDS,
            seams=Seams(clock=lambda: self.seconds, end=lambda: self.ends.append(self.seconds)),
        )  # fmt: skip

    def waiting(self, queue: str) -> int:
        assert queue == "inspect"
        if self.piled is None:
            raise DispatchError("The broker is away.", hint="")
        return self.piled

    def pass_seconds(self, seconds: float, step: float = 5.0) -> None:
        """Look as often as the thread would."""
        until = self.seconds + seconds
        while self.seconds < until:
            self.seconds = min(until, self.seconds + step)
            self.watchdog.look()

    @property
    def deaf(self) -> bool:
        with self.bench.database.read() as session:
            return session.scalars(select(Worker.deaf_since)).one() is not None


@pytest.fixture
def world(bench: Workbench) -> World:
    return World(bench)


@pytest.fixture
def deafened(world: World) -> World:
    job = world.bench.submit()
    world.pass_seconds(DEAF_SECONDS + 5.0)
    world.watchdog.join()
    assert (world.bench.states(job), world.deaf) == (["succeeded"], True)
    return world


def test_jobs_beside_a_free_slot_are_taken_without_a_message(world: World) -> None:
    jobs = [world.bench.submit() for _ in range(2)]
    world.pass_seconds(DEAF_SECONDS)
    assert (world.bench.states(*jobs), world.deaf) == (["queued"] * 2, False)
    world.pass_seconds(5.0)
    world.watchdog.join()
    assert (world.bench.states(*jobs), world.deaf) == (["succeeded"] * 2, True)
    later = world.bench.submit()  # once it knows, it does not wait so long again
    world.pass_seconds(5.0)
    world.watchdog.join()
    assert world.bench.states(later) == ["succeeded"]


def test_a_watchdog_outlives_a_process_without_threads(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = world.bench
    watchdog = Deafness(
        bench.database, "w", ("inspect",), world.slots,
        received=lambda: 0, depths=world, deaf_seconds=0.1, seams=Seams(end=lambda: None),
    )  # fmt: skip
    job = bench.submit()
    with monkeypatch.context() as exhausted, watchdog:
        assert threads_refused(exhausted, "unwoken").wait(PATIENCE_SECONDS)
        exhausted.undo()
        wait_for(lambda: bench.job(job).state == "succeeded")


def test_a_worker_that_hears_leaves_waiting_to_messages(world: World) -> None:
    job = world.bench.submit()
    for _ in range(3):
        world.pass_seconds(DEAF_SECONDS - 5.0)
        world.messages += 1
    world.pass_seconds(DEAF_SECONDS)
    assert (world.bench.states(job), world.deaf) == (["queued"], False)


def test_a_message_or_none_that_waits_ends_the_deafness_and_no_process(deafened: World) -> None:
    deafened.pass_seconds(DEAF_SECONDS)
    assert (deafened.deaf, deafened.ends) == (False, []), "they were only lost"
    deafened.bench.submit()
    deafened.pass_seconds(DEAF_SECONDS + 5.0)
    deafened.watchdog.join()
    assert deafened.deaf
    deafened.messages, deafened.piled = 1, 3
    deafened.pass_seconds(5.0)
    assert not deafened.deaf
    deafened.pass_seconds(10 * DEAF_SECONDS)
    assert deafened.ends == []


def test_messages_that_pile_up_unheard_end_the_process(deafened: World) -> None:
    deafened.piled = 1
    deafened.pass_seconds(DEAF_SECONDS)
    assert deafened.ends == []
    begin = deafened.seconds
    deafened.pass_seconds(5.0)
    assert deafened.ends == [begin + 5.0]
    job = deafened.bench.submit()
    deafened.slots.work()
    assert deafened.bench.states(job) == ["queued"], "whoever ends takes nothing any more"


@pytest.mark.parametrize("piled", [0, None], ids=["none", "the broker is away"])
def test_messages_must_wait_all_the_time(deafened: World, piled: int | None) -> None:
    """A queue that somebody else empties now and then, or a broker that does not answer, proves nothing."""
    for _ in range(3):
        deafened.piled = 1
        deafened.pass_seconds(DEAF_SECONDS - 5.0)
        deafened.piled = piled
        deafened.bench.submit()  # keeps it from being over
        deafened.seconds += 5.0
        deafened.watchdog.look()
        deafened.watchdog.join()
        if not deafened.deaf:
            deafened.seconds += DEAF_SECONDS
    assert deafened.ends == []


def test_a_process_never_ends_while_a_job_runs(bench: Workbench) -> None:
    world = World(bench, UNTIL_GO)
    job = bench.submit()
    world.piled = 1
    world.pass_seconds(DEAF_SECONDS + 5.0)
    wait_for(lambda: bench.job(job).state == "running")
    world.pass_seconds(10 * DEAF_SECONDS)
    assert world.ends == []
    bench.go()
    world.watchdog.join()
    world.pass_seconds(5.0)
    assert len(world.ends) == 1


def test_jobs_that_no_free_slot_may_take_are_no_sign(bench: Workbench) -> None:
    world = World(bench, short_only=True)
    job = bench.submit(size_class="long")
    world.pass_seconds(10 * DEAF_SECONDS)
    assert (bench.states(job), world.deaf) == (["queued"], False)


def test_a_database_that_is_away_changes_nothing(world: World) -> None:
    job = world.bench.submit()
    world.pass_seconds(DEAF_SECONDS)
    with database_away(world.bench):
        for _ in range(3):
            world.seconds += 5.0
            with pytest.raises(DATABASE_AWAY):
                world.watchdog.look()
    world.pass_seconds(5.0)
    world.watchdog.join()
    assert (world.bench.states(job), world.deaf) == (["succeeded"], True)


def test_whoever_is_woken_beside_busy_slots_loses_no_job(bench: Workbench) -> None:
    """A message that comes while a job runs that no message started: the slot looks once more when it is free."""
    first = bench.submit()
    slots = Slots([Slot(bench.supervisor(UNTIL_GO))], bench.database, ("inspect",))
    thread = threading.Thread(target=slots.work)
    thread.start()
    wait_for(lambda: bench.job(first).state == "running")
    assert (slots.free, slots.retire()) == (0, False)
    slots.work()  # returns at once
    second = bench.submit()
    bench.go()
    finish(thread)
    assert bench.states(first, second) == ["succeeded"] * 2


@pytest.mark.long
@pytest.mark.slow
def test_a_real_worker_ends_where_messages_wait_that_it_cannot_hear(bench: Workbench) -> None:
    """A message that it can never take, for one of the same name lies where taken ones are put."""
    with worker(bench, QUANTMILL_DEAF_SECONDS="1") as process:
        for folder in ("processed", "queue"):
            (bench.settings.broker_dir / folder / "0_stuck.inspect.msg").write_text("{}")
        job = bench.submit()
        wait_for(lambda: bench.job(job).state == "failed" or process.poll() is not None)
        assert process.wait(PATIENCE_SECONDS) == EXIT_DEAF
    assert bench.states(job) == ["failed"]
    assert b"worker.deaf_ends" in (bench.folder / "worker.log").read_bytes()
