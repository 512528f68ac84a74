"""Whose job a slot takes, what is kept for short ones and for tenants that have none, and what the jobs may use."""

from __future__ import annotations

import json
import os
import sys
import threading

import pytest
from sqlalchemy import update

from service.contracts.command_errors import InvalidSettingsError
from service.db import db_now
from service.tables import Job
from tests.worker.workbench import UNTIL_GO, WAIT, Workbench, finish, wait_for
from worker.company import Company
from worker.sandbox import Limits, Sandbox
from worker.slots import Share, Slot, Slots, shares
from worker.turns import repository

ORDER = """
with open(os.environ["BENCH"] + "/order", "a") as stream:
    stream.write(os.path.basename(os.getcwd()).split(".")[0] + "\\n")
succeed()
"""


def next_due(bench: Workbench, *queues: str) -> str | None:
    with bench.database.read() as session:
        return repository.next_due(session, queues)


class Crew:
    def __init__(self, bench: Workbench, slots: Slots, count: int) -> None:
        self._bench, self.slots, self.threads = bench, slots, list[threading.Thread]()
        for _ in range(count):
            self.wake()

    def wake(self) -> None:
        self.threads.append(threading.Thread(target=self.slots.work))
        self.threads[-1].start()

    def finish(self) -> None:
        self._bench.go()
        for thread in self.threads:
            finish(thread)


def test_the_next_job_is_the_most_urgent_then_the_oldest_that_may_start(bench: Workbench) -> None:
    assert bench.job(bench.quantize()).queue == "cpu"
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
    first, second, third = (bench.submit() for _ in range(3))
    bench.cancel(first)
    assert not supervisor.run(first)
    assert not supervisor.run_next(["cpu"])
    assert supervisor.run_next(["cpu", "inspect"])
    assert bench.standing(second) == ("succeeded", 1, 0)
    stopping = bench.supervisor(UNTIL_GO, stopping=lambda: True)
    assert not stopping.run_next(["inspect"])
    Slots([Slot(stopping)], bench.database, ("inspect",), stopping=lambda: True).work()
    assert bench.states(third) == ["queued"], "a worker that stops takes nothing"


def test_workers_that_look_at_once_run_every_job_once(bench: Workbench) -> None:
    jobs = [bench.submit() for _ in range(6)]

    def run() -> None:
        supervisor = bench.supervisor("succeed()")
        while next_due(bench, "inspect") is not None:
            supervisor.run_next(["inspect"])

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        finish(thread)
    assert [bench.standing(job) for job in jobs] == [("succeeded", 1, 0)] * 6


def test_a_message_wakes_and_the_database_says_which_job(bench: Workbench) -> None:
    """One message of the least urgent job is enough, and all jobs start in the order of their priorities."""
    low, high, middle = (bench.submit(priority=priority) for priority in (-5, 50, 0))
    slots = Slots([Slot(bench.supervisor(ORDER))], bench.database, ("inspect",))
    slots.work()
    assert (bench.folder / "order").read_text().split() == [high, middle, low]
    slots.work()  # messages that were overtaken do no harm
    assert [bench.job(job).attempt for job in (low, high, middle)] == [1, 1, 1]


def test_a_slot_for_short_jobs_is_left_to_them(bench: Workbench) -> None:
    long_jobs = [bench.submit(size_class="long") for _ in range(3)]
    supervisor = bench.supervisor(UNTIL_GO)
    slots = [Slot(supervisor), Slot(supervisor, short_only=True)]
    crew = Crew(bench, Slots(slots, bench.database, ("inspect",), look_seconds=0.05), 2)
    wait_for(lambda: bench.job(long_jobs[0]).state == "running")
    short = bench.submit()
    wait_for(lambda: bench.job(short).state == "running", message="the short job stood behind the long ones")
    assert bench.states(*long_jobs) == ["running", "queued", "queued"]
    crew.finish()
    assert bench.states(*long_jobs, short) == ["succeeded"] * 4


# Of a tenant's crowd of inspections: how far they stand back.
NOTED = """
import pathlib
job = os.path.basename(os.getcwd()).split(".")[0]
# man 5 proc_pid_stat: the nineteenth field
niceness = open("/proc/self/stat").read().rpartition(")")[2].split()[16]
autogroup = pathlib.Path("/proc/self/autogroup")  # "/autogroup-7 nice 5"
whole = autogroup.read_text().split()[-1] if autogroup.exists() else niceness
assert whole == niceness, (whole, niceness)
pathlib.Path(os.environ["BENCH"], "nice-" + job).write_text(niceness)
""" + WAIT + "succeed()\n"  # fmt: skip


def test_a_slot_is_kept_for_whoever_has_none(bench: Workbench) -> None:
    company = Company(most=2)
    supervisor = bench.supervisor(UNTIL_GO, company=company)
    slots = Slots([Slot(supervisor)] * 3, bench.database, ("inspect",), company=company)
    jobs = [bench.submit("crowd") for _ in range(4)]
    crew = Crew(bench, slots, 3)
    wait_for(lambda: bench.states(*jobs) == ["running", "running", "queued", "queued"])
    wait_for(lambda: slots.free == 1 and sum(thread.is_alive() for thread in crew.threads) == 2)
    assert not slots.could_start(), "what waits for its own tenant is not overdue"
    jobs.append(bench.submit("other"))
    assert slots.could_start()
    crew.wake()
    wait_for(lambda: bench.states(jobs[-1]) == ["running"])
    crew.finish()
    assert set(bench.states(*jobs)) == {"succeeded"}
    assert not company.crowds()


@pytest.mark.skipif(os.getpriority(os.PRIO_PROCESS, 0) != 0, reason="started with a niceness of its own")
def test_a_crowd_weighs_as_much_as_one(bench: Workbench) -> None:
    supervisor, threads = bench.supervisor(NOTED), list[threading.Thread]()

    def niceness(tenant: str) -> int:
        """Of one more job of the tenant's."""
        job = bench.submit(tenant)
        threads.append(threading.Thread(target=supervisor.run, args=(job,)))
        threads[-1].start()
        file = bench.folder / f"nice-{job}"
        return int(wait_for(lambda: file.exists() and file.read_text()))

    alone = niceness("crowd")
    # weights of nice 3 and 5 beside that of 0, in the kernel's table: a half and a third
    assert [niceness("crowd") - alone for _ in range(2)] == [3, 5]
    assert niceness("other") == alone
    bench.go()
    for thread in threads:
        finish(thread)


def test_what_could_not_join_is_not_counted() -> None:
    company = Company(most=1)
    assert [company.join(tenant) for tenant in ("one", "one", "two")] == [True, False, True]
    assert company.crowds() == {"one", "two"}
    company.leave("one")
    assert company.crowds() == {"two"}
    assert company.join("one")
    assert Company().join("one")
    assert not Company().crowds()


def test_the_last_slot_is_kept_for_short_jobs_and_one_never_is(bench: Workbench) -> None:
    def kept(slots: int, **changes: object) -> list[bool]:
        settings = bench.settings.model_copy(update={"worker_slots": slots, **changes})
        return [share.short_only for share in shares(settings)]

    assert kept(1) == [False]
    assert kept(3) == [False, False, True]
    assert kept(3, short_slots=0) == [False] * 3
    assert kept(3, short_slots=9) == [False, True, True]


def test_devices_and_where_that_is_wanted_cores_are_dealt_out(bench: Workbench, monkeypatch) -> None:
    def dealt(slots: int, *devices: str, **changes: object) -> list[Share]:
        return shares(bench.settings.model_copy(update={"worker_slots": slots, **changes}), devices)

    assert [share.devices for share in dealt(2, "0", "1")] == [("0",), ("1",)]
    assert [share.devices for share in dealt(2, "0", "1", "2")] == [("0",), ("1", "2")]
    assert [share.devices for share in dealt(1, "3", "5")] == [("3", "5")]
    assert not any(share.short_only for share in dealt(2, "0", "1"))
    with pytest.raises(InvalidSettingsError, match="2 slots cannot share the 1 devices 0"):
        dealt(2, "0")
    monkeypatch.setattr("worker.slots.affinity", lambda: [2, 3, 6, 7, 9])
    assert [share.cores for share in dealt(2)] == [(), ()]
    assert [share.cores for share in dealt(2, pin_cores=True)] == [(2, 3), (6, 7, 9)]
    assert [share.cores for share in dealt(6, pin_cores=True)] == [()] * 6


PRINT = """
import json, os, sys
print(json.dumps([os.environ.get("CUDA_VISIBLE_DEVICES"), sorted(os.sched_getaffinity(0))]), file=sys.stderr)
"""


@pytest.mark.parametrize(("gpus", "seen"), [(True, "1"), (False, "")])
def test_a_runner_sees_the_share_of_its_slot(bench: Workbench, gpus: bool, seen: str) -> None:
    core = max(os.sched_getaffinity(0))
    share = Share(devices=("1",), cores=(core,)).sandbox()
    sandbox = Sandbox((sys.executable, "-c", PRINT), variables=share._variables, cores=share._cores)
    process = sandbox.start(bench.folder / "task.json", scratch=bench.folder, limits=Limits(gpus=gpus))
    wait_for(lambda: process.returncode is not None)
    assert json.loads(process.stderr_tail()) == [seen, [core]]
    process.close()


@pytest.mark.parametrize(("device", "seen"), [("auto", "7"), ("gpu", "7"), ("cpu", "")])
def test_a_job_for_a_cpu_sees_no_gpu(bench: Workbench, device: str, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    job = bench.submit(device=device)
    bench.supervisor("log('sees ' + os.environ['CUDA_VISIBLE_DEVICES'])\nsucceed()").run(job)
    assert bench.logged(job) == [f"sees {seen}"]
