"""Who waits for whom: stale messages hold nobody up, and validation does not stand behind long jobs."""

from __future__ import annotations

import threading

from sqlalchemy import update

from service.db import db_now
from service.tables import Job
from tests.worker.workbench import Workbench, finish
from worker.turns import repository


def next_due(bench: Workbench, *queues: str) -> str | None:
    with bench.database.read() as session:
        return repository.next_due(session, queues)


def test_kinds_have_their_queues(bench: Workbench) -> None:
    assert bench.job(bench.submit()).queue == "inspect"
    assert bench.job(bench.submit(kind="inspect_dataset", dataset_id=bench.add_dataset())).queue == "inspect"
    quantize = {"model_id": bench.add_model(), "calibration_dataset_id": bench.add_dataset(), "config": {}}
    assert bench.job(bench.submit(kind="quantize", **quantize)).queue == "cpu"
    assert bench.job(bench.submit(kind="quantize", queue="gpu", **quantize)).queue == "gpu"


def test_the_next_job_is_the_most_urgent_then_the_oldest_that_may_start(bench: Workbench) -> None:
    assert next_due(bench, "inspect") is None
    early, late, other, canceled, expired = (
        bench.submit(), bench.submit(), bench.submit(queue="gpu"), bench.submit(priority=9), bench.submit(priority=9),
    )  # fmt: skip
    bench.cancel(canceled)
    with bench.database.write() as session:
        session.execute(update(Job).where(Job.id == early).values(not_before=db_now() + 60))
        session.execute(update(Job).where(Job.id == expired).values(deadline_at=db_now() - 1))
    assert next_due(bench, "inspect") == late
    assert next_due(bench, "gpu", "inspect") == late
    assert next_due(bench, "gpu") == other
    urgent = bench.submit(priority=1)
    assert next_due(bench, "inspect", "gpu") == urgent


def test_a_worker_woken_in_vain_runs_the_next_job(bench: Workbench) -> None:
    supervisor = bench.supervisor("succeed()")
    assert not supervisor.run_next(["inspect"])
    first, second = bench.submit(), bench.submit()
    bench.cancel(first)
    assert not supervisor.run(first)
    assert not supervisor.run_next(["cpu"])
    assert supervisor.run_next(["cpu", "inspect"])
    assert (bench.job(second).state, bench.job(second).attempt) == ("succeeded", 1)
    assert not supervisor.run_next(["cpu", "inspect"])


def test_workers_that_look_at_once_run_every_job_once(bench: Workbench) -> None:
    supervisors = [bench.supervisor("succeed()") for _ in range(3)]
    jobs = [bench.submit() for _ in range(6)]

    def run(number: int) -> None:
        while next_due(bench, "inspect") is not None:
            supervisors[number].run_next(["inspect"])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        finish(thread)
    assert [bench.standing(job) for job in jobs] == [("succeeded", 1, 0)] * 6
    bench.submit()
    assert not bench.supervisor("", stopping=lambda: True).run_next(["inspect"])
