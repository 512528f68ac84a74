"""Whose job a slot takes, what is kept for short ones and for tenants that have none, and what the jobs may use."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace

import pytest

from service.contracts.command_errors import InvalidSettingsError
from tests.worker.workbench import UNTIL_GO, WAIT, Workbench, finish, wait_for
from worker.conclusion import QueueBackoff
from worker.pool import Pool
from worker.sandbox import Sandbox, SandboxLimits
from worker.slots import Share, Slots, kept_slots, shares
from worker.supervisor import Supervisor

ORDER = """
with open(os.environ["BENCH"] + "/order", "a") as stream:
    stream.write(os.path.basename(os.getcwd()).split(".")[0] + "\\n")
succeed()
"""


@contextmanager
def pool(
    bench: Workbench, *supervisors: Supervisor, queues: tuple[str, ...] = ("inspect",), short_slots: int = 0,
    queue_backoff: QueueBackoff | None = None,
) -> Iterator[Pool]:  # fmt: skip
    """A worker without a broker, of these slots."""
    queue_backoff = queue_backoff or QueueBackoff()
    node = SimpleNamespace(
        settings=bench.settings, database=bench.database, slots=Slots(supervisors), short_slots=short_slots,
        offers=lambda: dict.fromkeys(queue_backoff.ready(queues), len(supervisors)),
        run=partial(run_in, supervisors[0]),
    )  # fmt: skip
    made = Pool(node)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        bench.go()
        made.dispatcher.close()


def run_in(supervisor: Supervisor, job_id: str, attempt: int) -> None:
    supervisor.run(job_id, attempt)


def test_a_pool_runs_what_is_due_in_the_order_of_priorities(bench: Workbench) -> None:
    low, high, middle = (bench.submit(priority=priority) for priority in (-5, 50, 0))
    canceled, other = bench.submit(priority=99), bench.submit(priority=99, queue="gpu")
    bench.cancel(canceled)
    with pool(bench, bench.supervisor(ORDER)) as worker:
        worker.dispatcher.wake()
        wait_for(lambda: bench.states(low) == ["succeeded"])
    assert (bench.folder / "order").read_text().split() == [high, middle, low]
    assert bench.states(canceled, other) == ["canceled", "queued"]


def test_pools_that_look_at_once_run_every_job_once(bench: Workbench) -> None:
    jobs = [bench.submit() for _ in range(6)]
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(pool(bench, bench.supervisor("succeed()"))).dispatcher.wake()
        wait_for(lambda: bench.states(*jobs) == ["succeeded"] * 6)
    assert [bench.standing(job) for job in jobs] == [("succeeded", 1, 0)] * 6


def test_a_job_is_not_had_unless_it_was_released_for_this_attempt(bench: Workbench) -> None:
    """Messages that are late, doubled or forged change nothing."""
    supervisor = Supervisor(bench.settings, bench.database)
    job_id = bench.submit()
    assert supervisor.run(job_id, 1) is None, "it was not released"
    assert supervisor.run("job_00000000000000000000000000", 1) is None
    bench.release(job_id)
    assert supervisor.run(job_id, 2) is None, "not for that attempt"
    bench.cancel(job_id)
    assert supervisor.run(job_id, 1) is None
    assert bench.standing(job_id) == ("canceled", 0, 0)
    stopping = bench.supervisor("succeed()", stopping=lambda: True)
    left = bench.submit()
    assert stopping.run(left) is None, "a worker that stops takes nothing"
    assert bench.standing(left) == ("queued", 0, 0)


def test_a_slot_for_short_jobs_is_left_to_them(bench: Workbench) -> None:
    long_jobs = [bench.submit(size_class="long", queue="cpu") for _ in range(3)]
    supervisor = bench.supervisor(UNTIL_GO)
    with pool(bench, supervisor, supervisor, queues=("cpu",), short_slots=1) as worker:
        worker.dispatcher.wake()
        wait_for(lambda: bench.job(long_jobs[0]).state == "running")
        short = bench.submit(queue="cpu")
        wait_for(lambda: bench.job(short).state == "running", message="the short job stood behind the long ones")
        assert bench.states(*long_jobs) == ["running", "queued", "queued"]
        bench.go()
        wait_for(lambda: bench.states(*long_jobs, short) == ["succeeded"] * 4)


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
    supervisor = bench.supervisor(UNTIL_GO)
    jobs = [bench.submit("crowd") for _ in range(4)]
    with pool(bench, *[supervisor] * 3) as worker:
        worker.dispatcher.wake()
        wait_for(lambda: bench.states(*jobs) == ["running", "running", "queued", "queued"])
        jobs.append(bench.submit("other"))
        wait_for(lambda: bench.states(jobs[-1]) == ["running"])
        assert bench.states(*jobs[2:4]) == ["queued"] * 2
        bench.go()
        wait_for(lambda: set(bench.states(*jobs)) == {"succeeded"})


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


def test_the_last_slot_is_kept_for_short_jobs_and_one_never_is(bench: Workbench) -> None:
    assert [kept_slots(slots, 1) for slots in (1, 2, 3)] == [0, 1, 1]
    assert [kept_slots(3, short_slots) for short_slots in (0, 9)] == [0, 2]
    assert kept_slots(3, 1, devices=("0", "1", "2")) == 0, "a GPU would stand idle"


def test_devices_and_where_that_is_wanted_cores_are_dealt_out(bench: Workbench, monkeypatch) -> None:
    def dealt(slots: int, *devices: str, **changes: object) -> list[Share]:
        return shares(bench.settings.model_copy(update={"worker_slots": slots, **changes}), devices)

    assert [share.devices for share in dealt(2, "0", "1")] == [("0",), ("1",)]
    assert [share.devices for share in dealt(2, "0", "1", "2")] == [("0",), ("1", "2")]
    assert [share.devices for share in dealt(1, "3", "5")] == [("3", "5")]
    with pytest.raises(InvalidSettingsError, match="2 slots cannot share the 1 devices 0"):
        dealt(2, "0")
    mig = "MIG-6f4b9d0e-2c6a-5f0f-9f1f-2b8e0c6d7a31", "MIG-GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f/7/0"
    assert [share.devices for share in dealt(2, *mig)] == [(mig[0],), (mig[1],)]
    assert [share.devices for share in dealt(1, "GPU-5c89852c", "1")] == [("GPU-5c89852c", "1")]
    with pytest.raises(InvalidSettingsError, match="one MIG instance only"):
        dealt(1, *mig)
    with pytest.raises(InvalidSettingsError, match="'all' is not the name of a GPU"):
        dealt(1, "all")
    with pytest.raises(InvalidSettingsError, match="Device 0 is named twice"):
        dealt(2, "0", "0")
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
    process = sandbox.start(bench.folder / "task.json", scratch=bench.folder, limits=SandboxLimits(gpus=gpus))
    wait_for(lambda: process.returncode is not None)
    assert json.loads(process.stderr_tail()) == [seen, [core]]
    process.close()


@pytest.mark.parametrize(("queue", "seen"), [("gpu", "7"), ("cpu", ""), ("inspect", "")])
def test_only_a_job_of_the_gpu_queue_sees_a_gpu(
    bench: Workbench, queue: str, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    job = bench.submit(queue=queue, device="auto")
    bench.supervisor("log('sees ' + os.environ['CUDA_VISIBLE_DEVICES'])\nsucceed()").run(job)
    assert bench.logged(job) == [f"sees {seen}"]
