"""Memory: a job's share, the watch that ends a runner at it, and what is told of a kill from elsewhere."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from service.settings import Settings
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.running import Service
from tests.worker.workbench import WRITE_PID, Workbench, finish, process_gone, run_in_thread, runner_pid, wait_for
from worker import memory
from worker.memory import (
    MemoryWatch,
    group_bytes,
    job_memory_bytes,
    machine_memory_bytes,
    oom_kills,
    share_bytes,
)
from worker.sandbox import OOM_SCORE_ADJUSTMENT

MIB = 1024**2
LIMIT = 256 * MIB


@pytest.mark.parametrize(
    ("total_mib", "slots", "share_mib"),
    [
        (16384, 1, 16384 - 1638),
        (16384, 2, (16384 - 1638) // 2),
        (131072, 1, 131072 - 4096),
        (1024, 1, 512),
        (128, 8, 64),
    ],
)
def test_a_share_leaves_a_reserve_and_is_divided_by_the_slots(total_mib, slots, share_mib):
    assert share_bytes(slots, total_mib * MIB) // MIB == pytest.approx(share_mib, abs=1)


def test_the_share_is_of_this_machine():
    assert 0 < share_bytes(2) < machine_memory_bytes() // 2


def test_workers_that_know_of_each_other_share_the_machine(tmp_path):
    alone = Settings(data_dir=tmp_path, worker_slots=2)
    assert job_memory_bytes(alone) == share_bytes(2)
    assert job_memory_bytes(alone.model_copy(update={"host_slots": 5})) == share_bytes(5)
    assert job_memory_bytes(alone.model_copy(update={"host_slots": 1})) == share_bytes(2), "it has two itself"
    assert job_memory_bytes(alone.model_copy(update={"host_slots": 5, "job_memory_bytes": LIMIT})) == LIMIT
    assert job_memory_bytes(alone.model_copy(update={"job_memory_bytes": 2**60})) == machine_memory_bytes()


def test_the_workers_of_one_command_promise_the_machine_once(embedded):
    """One takes jobs, one inspects uploads; each may have been started more than once."""
    told = wait_for(lambda: len(found := _shares(embedded)) >= 2 and found, message="no worker told its share")
    assert set(told) == {(1, share_bytes(2))}
    assert 2 * share_bytes(2) < machine_memory_bytes()


def _shares(service: Service) -> list[tuple[int, int]]:
    """What each worker process said of itself: its slots, and the memory of one job."""
    found = re.findall(r"worker\.share slots=(\d+) job_memory_bytes=(\d+)", service.log())
    return [(int(slots), int(share)) for slots, share in found]


def test_the_kernels_limit_of_a_container_counts(tmp_path, monkeypatch):
    """Both versions of control groups, at any depth; the smallest limit around this process holds."""
    for version, name, line in (("v1", "memory.limit_in_bytes", "4:memory:/a/b"), ("v2", "memory.max", "0::/a/b")):
        root, proc = tmp_path / version, tmp_path / f"proc-{version}" / "self"
        (root / "a" / "b").mkdir(parents=True)
        proc.mkdir(parents=True)
        (proc / "cgroup").write_text(f"7:cpu:/elsewhere\n{line}\n")
        (root / "a" / "b" / name).write_text("max\n" if version == "v2" else f"{2**63 - 4096}\n")
        (root / "a" / name).write_text(f"{512 * MIB}\n")
        monkeypatch.setattr(memory, "_PROC", proc.parent)
        monkeypatch.setattr(memory, "_V1" if version == "v1" else "_V2", root)
        assert machine_memory_bytes() == 512 * MIB


def test_the_memory_of_a_group_is_that_of_all_its_processes():
    hold = f"import sys, time\nheld = bytearray({64 * MIB})\nprint(flush=True)\ntime.sleep(600)"
    both = f"import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', {hold!r}])\n{hold}"
    process = subprocess.Popen([sys.executable, "-c", both], start_new_session=True, stdout=subprocess.PIPE)
    try:
        wait_for(lambda: group_bytes(process.pid) >= 128 * MIB, message="not all of it was counted")
        assert group_bytes(process.pid) < 300 * MIB
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)
        process.stdout.close()
    wait_for(lambda: group_bytes(process.pid) == 0)


def test_the_kernel_counts_its_kills():
    assert oom_kills() >= 0


@pytest.fixture
def small(tmp_path: Path):
    bench = Workbench(tmp_path, job_memory_bytes=LIMIT)
    yield bench
    bench.close()


def grow(then: str) -> str:
    """A runner that holds 30 MiB more at a time, and at 230 MiB does something."""
    return f"held = []\nwhile len(held) < 230: held.append(b'x' * {MIB})\n{then}\n"


def test_a_runner_is_ended_at_its_share_and_told_so_in_bytes(small):
    job_id = small.submit()
    thread = run_in_thread(
        small.supervisor(WRITE_PID + "held = []\nwhile True:\n    held.append(b'x' * (1 << 20)); time.sleep(0.002)\n"),
        job_id,
    )
    pid = runner_pid(small)
    finish(thread)
    assert process_gone(pid)
    job = small.job(job_id)
    assert (job.state, job.attempt, job.error["code"]) == ("failed", 1, "resource-limit")
    assert job.error["where"]["resource"] == "memory"
    assert job.error["where"]["limit_bytes"] == LIMIT
    assert job.error["where"]["used_bytes"] > LIMIT
    assert str(LIMIT) in job.error["detail"]


def test_all_processes_of_the_runner_count(small):
    job_id = small.submit()
    part = f"held = b'x' * {160 * MIB}; import time; time.sleep(600)"
    small.supervisor(
        f"import subprocess\nfor _ in range(2): subprocess.Popen([sys.executable, '-c', {part!r}])\ntime.sleep(600)",
        mode="off",  # under the controls it could start none
    ).run(job_id)
    assert small.job(job_id).error["code"] == "resource-limit"


def test_a_kill_from_elsewhere_near_the_share_is_for_memory(small):
    job_id = small.submit()
    small.supervisor(grow("time.sleep(1); os.kill(os.getpid(), signal.SIGKILL)")).run(job_id)
    job = small.job(job_id)
    assert (job.state, job.error["code"]) == ("failed", "resource-limit")
    assert job.error["where"]["used_bytes"] >= 0.8 * LIMIT


def test_a_kill_from_elsewhere_with_little_memory_is_a_crash(small):
    job_id = small.submit()
    small.supervisor("time.sleep(1); os.kill(os.getpid(), signal.SIGKILL)").run(job_id)
    assert small.job(job_id).state == "queued"


def test_a_kill_that_the_kernel_counts_is_for_memory(monkeypatch):
    watch = MemoryWatch(2**22 + 1, LIMIT)
    assert not watch.explains_kill()
    before = oom_kills()
    monkeypatch.setattr(memory, "oom_kills", lambda: before + 1)
    assert watch.explains_kill()


@pytest.fixture
def counting(monkeypatch):
    """The kernel counts one more such end whenever somebody asks."""
    kills = itertools.count()
    monkeypatch.setattr(memory, "oom_kills", lambda: next(kills))


def test_a_kill_for_the_memory_of_others_is_tried_again_and_the_model_is_not_suspected(small, counting):
    job_id = small.submit()
    supervisor = small.supervisor("time.sleep(0.5); os.kill(os.getpid(), signal.SIGKILL)")
    for attempt in (1, 2):
        supervisor.run(job_id)
        job = small.job(job_id)
        assert (job.state, job.attempt, job.interruptions) == ("queued", attempt, 0)
    assert small.supervisor("succeed()").run(job_id)
    assert small.job(job_id).state == "succeeded"


def test_a_job_that_meets_no_machine_with_memory_says_so_in_the_end(small, counting):
    job_id = small.submit()
    for _ in range(3):
        small.supervisor("time.sleep(0.5); os.kill(os.getpid(), signal.SIGKILL)").run(job_id)
    job = small.job(job_id)
    assert (job.state, job.attempt, job.error["code"]) == ("failed", 3, "resource-limit")
    assert "the kernel" in job.error["detail"]
    assert job.error["where"]["used_bytes"] < 0.8 * LIMIT


def test_a_kill_near_the_share_that_the_kernel_counts_fails_at_once(small, counting):
    job_id = small.submit()
    small.supervisor(grow("time.sleep(1); os.kill(os.getpid(), signal.SIGKILL)")).run(job_id)
    assert (small.job(job_id).state, small.job(job_id).attempt) == ("failed", 1)


def test_the_kernel_would_take_a_runner_first(bench):
    job_id = bench.submit()
    thread = run_in_thread(
        bench.supervisor(
            "log(open('/proc/self/oom_score_adj').read().strip())\n" + WRITE_PID + "time.sleep(0.5)\nsucceed()"
        ),
        job_id,
    )
    finish(thread)
    (event,) = bench.events(job_id, "log")
    assert int(event.data["message"]) >= OOM_SCORE_ADJUSTMENT
    assert int(Path("/proc/self/oom_score_adj").read_text()) < OOM_SCORE_ADJUSTMENT
