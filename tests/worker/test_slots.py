"""The slots of a worker: whose job they take, what they keep for short ones, and what their jobs may use."""

from __future__ import annotations

import json
import os
import threading

import pytest

from service.contracts.command_errors import InvalidSettingsError
from service.settings import Settings
from tests.worker.workbench import UNTIL_GO, Workbench, finish, wait_for
from worker.sandbox import Limits, Sandbox
from worker.slots import Share, Slot, Slots, shares

ORDER = """
with open(os.environ["BENCH"] + "/order", "a") as stream:
    stream.write(os.path.basename(os.getcwd()).split(".")[0] + "\\n")
"""


def test_a_message_wakes_and_the_database_says_which_job(bench: Workbench) -> None:
    """One message of the least urgent job is enough, and all jobs start in the order of their priorities."""
    low, high, middle = (bench.submit(priority=priority) for priority in (-5, 50, 0))
    slots = Slots([Slot(bench.supervisor(ORDER + "succeed()"))], bench.database, ("inspect",))
    slots.work()
    assert (bench.folder / "order").read_text().split() == [high, middle, low]
    slots.work()  # messages that were overtaken do no harm
    assert [bench.job(job).attempt for job in (low, high, middle)] == [1, 1, 1]
    left = bench.submit()
    Slots([Slot(bench.supervisor(UNTIL_GO))], bench.database, ("inspect",), stopping=lambda: True).work()
    assert bench.states(left) == ["queued"], "a worker that stops takes nothing"


def test_a_slot_for_short_jobs_is_left_to_them(bench: Workbench) -> None:
    long_jobs = [bench.submit(size_class="long") for _ in range(3)]
    supervisor = bench.supervisor(UNTIL_GO)
    slots = Slots(
        [Slot(supervisor), Slot(supervisor, short_only=True)], bench.database, ("inspect",), look_seconds=0.05
    )
    threads = [threading.Thread(target=slots.work) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_for(lambda: bench.job(long_jobs[0]).state == "running")
    short = bench.submit()
    wait_for(lambda: bench.job(short).state == "running", message="the short job stood behind the long ones")
    assert bench.states(*long_jobs) == ["running", "queued", "queued"]
    bench.go()
    for thread in threads:
        finish(thread)
    assert bench.states(*long_jobs, short) == ["succeeded"] * 4


def settings(bench: Workbench, slots: int, **changes: object) -> Settings:
    return bench.settings.model_copy(update={"worker_slots": slots, **changes})


def test_the_last_slot_is_kept_for_short_jobs_and_one_never_is(bench: Workbench) -> None:
    def kept(slots: int, **changes: object) -> list[bool]:
        return [share.short_only for share in shares(settings(bench, slots, **changes))]

    assert kept(1) == [False]
    assert kept(3) == [False, False, True]
    assert kept(3, short_slots=0) == [False] * 3
    assert kept(3, short_slots=9) == [False, True, True]


def test_devices_are_dealt_out(bench: Workbench) -> None:
    def dealt(slots: int, *devices: str) -> list[Share]:
        return shares(settings(bench, slots), devices)

    assert [share.devices for share in dealt(2, "0", "1")] == [("0",), ("1",)]
    assert [share.devices for share in dealt(2, "0", "1", "2")] == [("0",), ("1", "2")]
    assert [share.devices for share in dealt(1, "3", "5")] == [("3", "5")]
    assert not any(share.short_only for share in dealt(2, "0", "1"))
    with pytest.raises(InvalidSettingsError, match="2 slots cannot share the 1 devices 0"):
        dealt(2, "0")


def test_cores_are_dealt_out_where_that_is_wanted(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.slots.affinity", lambda: [2, 3, 6, 7, 9])
    assert [share.cores for share in shares(settings(bench, 2))] == [(), ()]
    assert [share.cores for share in shares(settings(bench, 2, pin_cores=True))] == [(2, 3), (6, 7, 9)]
    assert [share.cores for share in shares(settings(bench, 6, pin_cores=True))] == [()] * 6


PRINT = """
import json, os, sys
print(json.dumps([os.environ.get("CUDA_VISIBLE_DEVICES"), sorted(os.sched_getaffinity(0))]), file=sys.stderr)
"""


@pytest.mark.parametrize(("gpus", "seen"), [(True, "1"), (False, "")])
def test_a_runner_sees_the_share_of_its_slot(bench: Workbench, gpus: bool, seen: str) -> None:
    core = max(os.sched_getaffinity(0))
    share = Share(devices=("1",), cores=(core,)).sandbox()
    program = bench.folder / "print.py"
    program.write_text(PRINT)
    sandbox = Sandbox((share._command[0], str(program)), variables=share._variables, cores=share._cores)
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
