"""A worker that no message reaches although jobs are released to it ends, unless something runs in it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from service.queues.repository import alive, announce
from tests.worker.workbench import Workbench
from worker.watchdog import Watchdog


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Slots:
    count, busy = 2, 0

    def free(self) -> int:
        return self.count - self.busy

    def idle(self) -> bool:
        return not self.busy


def test_it_ends_once_jobs_have_lain_there_for_long(bench: Workbench, clock: Clock) -> None:
    ended: list[float] = []
    slots = Slots()
    node = SimpleNamespace(id="w", database=bench.database, slots=slots, offers=lambda: {"inspect": 2, "cpu": 0})
    dog = Watchdog(node, deaf_seconds=60, clock=clock, end=lambda: ended.append(clock.now))  # type: ignore[arg-type]

    def look(seconds: float) -> bool:
        """Whether the worker is noted as deaf after one more look."""
        clock.now += seconds
        dog.look()
        with bench.database.read() as session:
            return any(row.deaf_since is not None for row in alive(session))

    with bench.database.write() as session:
        announce(session, "w", {"inspect": 2})
    released, other = bench.submit(), bench.submit(queue="cpu")
    assert not look(0), "nothing is released"
    bench.release(other, seconds_ago=5)
    assert not look(100), "not to this one"
    bench.release(released)
    assert not look(100), "it is on its way"
    bench.release(released, seconds_ago=5)
    assert [look(seconds) for seconds in (0, 29, 1)] == [False, False, True]
    dog.heard()
    assert [look(seconds) for seconds in (10, 29, 1, 29)] == [False, False, True, True]
    assert ended == []
    slots.busy = 1
    look(2)
    assert ended == [], "what runs is not ended for it"
    slots.busy = 2
    assert not look(100), "no slot is free"
    slots.busy = 0
    look(0)
    look(60)
    assert ended == [clock.now]
    bench.cancel(released)
    assert not look(1)
